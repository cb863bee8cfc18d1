"""Pages for other people: no path of this machine, nothing from outside, and no text that becomes markup."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvllm.pages import page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/home/me/a.py:3: no", "…/a.py:3: no"),
        ("in '/home/my name/a', b", "in '…/my name/a', b"),
        ("~/x ~me/y/z", "…/x …/z"),
        ("PATH=/usr/bin:/home/me/bin/", "PATH=…/bin:…/bin"),
        ("file:///home/me/a", "…/a"),
        ("cc -I/home/me/include", "cc -I…/include"),
        ("\x1b[31m/home/me/a\x1b[0m ?[31m/home/me/b", "…/a …/b"),
        ("https://github.com/a/b and vllm/v1/core.py, 3 / 4, a//b, either/or", None),
        ("a\0b\nc", "a?b\nc"),
    ],
)
def test_of_an_absolute_path_only_the_last_part_is_shown(text: str, said: str | None) -> None:
    assert page.shown(text) == (text if said is None else said)


@given(before=st.text(st.sampled_from(" '\"(=:,;\n")), names=st.lists(st.sampled_from(["secret", "x.y", "ü-1"])))
def test_no_directory_is_shown_whatever_stands_around_the_path(before: str, names: list[str]) -> None:
    text = page.shown(f"{before}/{'/'.join(['secret', *names, 'last'])} after")
    assert "secret" not in text
    assert text.endswith("…/last after")
    assert page.shown(text) == text


def test_a_page_is_whole_and_its_texts_are_text(tmp_path: Path) -> None:
    template = tmp_path / "one.html.jinja"
    template.write_text(
        '{% extends "nvllm/page.html.jinja" %}{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}'
        "{% block body %}<p>{{ said }}</p>{{ bold(said) }}{% endblock %}"
    )
    text = page.rendered(template, title="A title", said="<b> of /home/somebody/x")
    assert text.startswith("<!DOCTYPE html>")
    assert "<title>A title</title>" in text
    assert "<p>&lt;b&gt; of …/x</p><b>&lt;b&gt; of …/x</b>" in text
    assert text.rstrip().endswith("</html>")
