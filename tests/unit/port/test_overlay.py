"""What of a development tree can be laid over an image, and what cannot."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.port import overlay
from support.series_samples import MappingTree

IMAGE = {"vllm/a.py": b"a\n", "vllm/b.py": b"b\n", "vllm/gone.py": b"gone\n", "csrc/k.cu": b"k\n", "setup.py": b"s\n"}


def differing(**changed: bytes | None) -> overlay.TreeDifference:
    files = {**IMAGE, **{name.replace("__", "/").replace("_dot_", "."): data for name, data in changed.items()}}
    return overlay.difference({*IMAGE, *files}, MappingTree(files), MappingTree(IMAGE), "tree")


def test_only_files_of_the_package_that_differ_are_laid_over() -> None:
    assert differing().paths == ()
    changed = differing(vllm__a_dot_py=b"A\n", vllm__new__c_dot_py=b"c\n", tests__t_dot_py=b"t\n")
    assert changed.paths == ("vllm/a.py", "vllm/new/c.py")
    assert changed.digest != differing(vllm__a_dot_py=b"B\n", vllm__new__c_dot_py=b"c\n").digest
    assert changed.digest == differing(vllm__a_dot_py=b"A\n", vllm__new__c_dot_py=b"c\n").digest


def test_what_cannot_be_laid_over_is_refused_with_why() -> None:
    with pytest.raises(Refused) as refused:
        differing(csrc__k_dot_cu=b"K\n", setup_dot_py=b"S\n", vllm__gone_dot_py=None, vllm__a_dot_py=b"A\n")
    assert [(one.code, one.where, one.found) for one in refused.value.refusals] == [
        ("NV610", "tree/csrc/k.cu", "a file that is compiled into the wheel"),
        ("NV610", "tree/setup.py", "a file that is compiled into the wheel"),
        ("NV610", "tree/vllm/gone.py", "a file that is gone from the tree"),
    ]
