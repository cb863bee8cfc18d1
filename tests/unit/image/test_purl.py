"""Package URLs, as the library of package URLs itself writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from packageurl import PackageURL

from nvllm.core.lock import LockedDebianBase, LockedFile
from nvllm.core.spec import CommitSource
from nvllm.image import purl
from nvllm.spec import specfile
from support import locks
from support.specs import GOOD, SHOWN

BASE = locks.GOOD.base
assert isinstance(BASE, LockedDebianBase)
PIN = specfile.parse(GOOD, SHOWN).vllm
COMPILED = replace(locks.GOOD.vllm, source=LockedFile("owner/name/x", 64 * "a", 1, "github"))
OTHER = replace(PIN, source=CommitSource("github", "owner/name", 40 * "b"))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            purl.of_wheel(locks.wheel("torch", "2.13.0+cpu")),
            "pkg:pypi/torch@2.13.0%2Bcpu?file_name=torch-2.13.0%2Bcpu-py3-none-any.whl",
        ),
        (
            purl.of_deb(locks.deb("libstdc++6", "4:12.2.0-3~deb1"), BASE),
            "pkg:deb/debian/libstdc%2B%2B6@4:12.2.0-3~deb1?arch=amd64&distro=bookworm",
        ),
        (purl.of_source(locks.GOOD.vllm, PIN), "pkg:pypi/vllm@0.28.0?file_name=vllm-0.28.0.tar.gz"),
        (purl.of_source(COMPILED, OTHER), f"pkg:github/owner/name@{locks.COMMIT}"),
    ],
)
def test_a_package_url_is_in_the_form_that_everybody_writes(made: str, expected: str) -> None:
    assert made == expected
    assert PackageURL.from_string(made).to_string() == made


def test_the_repository_is_vllms_own_unless_the_spec_names_another() -> None:
    assert (purl.repository(PIN), purl.repository(OTHER)) == ("vllm-project/vllm", "owner/name")
