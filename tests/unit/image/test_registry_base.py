"""The base of a registry, by reference and in the engine; what is refused is in tests/refusals."""

from __future__ import annotations

import pytest

from nvllm.image import registry_base

DIGEST = f"sha256:{64 * 'a'}"


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        (f"python@{DIGEST}", f"python@{DIGEST}"),
        (f"docker.io/library/python:3.12-bookworm@{DIGEST}", f"docker.io/library/python@{DIGEST}"),
        (f"127.0.0.1:5000/a/b:1@{DIGEST}", f"127.0.0.1:5000/a/b@{DIGEST}"),
        (f"127.0.0.1:5000/a/b@{DIGEST}", f"127.0.0.1:5000/a/b@{DIGEST}"),
    ],
)
def test_beside_a_digest_a_tag_says_nothing(image: str, reference: str) -> None:
    assert registry_base.reference(image) == reference
