"""Every cure of every refusal: a command can be pasted, and every command of nvllm that a cure names exists."""

from __future__ import annotations

import pytest

from support import cures


def test_the_cures_are_found() -> None:
    every = cures.written()
    assert len(every) > 300
    assert sum(one.is_command for one in every) > 50


def test_every_cure_can_be_pasted() -> None:
    wrong = {cure.place: cures.wrong(cure.text) for cure in cures.written()}
    assert {place: problems for place, problems in wrong.items() if problems} == {}


def test_a_path_in_a_command_is_quoted() -> None:
    assert [*cures.unquoted()] == []


@pytest.mark.parametrize(
    "text",
    [
        "nvllm serve cpu",
        "nvllm lokc cpu",
        "nvllm lock cpu --updtae",
        "nvllm bisect status shows the sets",
        "nvllm gc, or a larger disk",
        "docker rmi a, and build again",
        "docker rmi 'a",
        "git rm a or b",
        "write it, then nvllm lock cpu",
        "write it: nvllm lokc cpu",
        "see `nvllm patch lsit`",
    ],
)
def test_what_is_wrong_is_found(text: str) -> None:
    assert cures.wrong(text)


@pytest.mark.parametrize(
    "text",
    [
        "nvllm lock cpu --update debs",
        "docker rmi a && nvllm build cpu --no-color",
        "nvllm bisect --help",
        "write it into the spec",
        "write it: nvllm lock cpu",
        "see `nvllm patch list`, and write one",
        "sudo systemctl start docker",
    ],
)
def test_what_is_right_is_not(text: str) -> None:
    assert cures.wrong(text) == []
