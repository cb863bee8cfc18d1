"""What is recorded of the fork's requirement files and Dockerfile, beside these files of the pinned commit.

They are read from a checkout in NVLLM_FORK_CHECKOUT, else from GitHub, else from nowhere.
"""

from __future__ import annotations

import pytest

from support import fork_requirements
from support.serve_arguments import spec

pytestmark = pytest.mark.series


def test_the_record_is_what_the_files_say() -> None:
    texts = fork_requirements.texts(spec("gb10"))
    if texts is None:
        pytest.skip("neither a checkout of the fork nor GitHub is there")
    for path, text in texts.items():
        found = fork_requirements.shown(fork_requirements.of_file(path, text))
        assert found == fork_requirements.shown(fork_requirements.recorded(path)), path
