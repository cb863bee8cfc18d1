"""Edits of YAML text by place: the value changes, and nothing around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvllm.core import yamledit, yamlnodes

ROOT = Path(__file__).parents[3]

TEXT = """\
# what the file is
# and for whom
name: one # its name
list:
  # about a
  - a
  - b # about b

  - c
flow: &all [a, b] # both
same: *all
empty: []
entries:
  - id: first
    list:
      - x
  # about the second
  - id: second

  - id: third
# about what is last
last: {deep: yes-it-is}
"""


def value(text: str) -> object:
    return yamlnodes.parse(text, "").value


def test_a_scalar_keeps_its_comment() -> None:
    assert yamledit.set_scalar(TEXT, ("name",), "two") == TEXT.replace("name: one #", "name: two #")
    assert 'name: "3.10" #' in yamledit.set_scalar(TEXT, ("name",), "3.10")
    assert 'name: "a: b" #' in yamledit.set_scalar(TEXT, ("name",), "a: b")


def test_entries_that_stay_keep_their_comments() -> None:
    found = yamledit.set_list(TEXT, ("list",), ["b", "d", "a"])
    assert found[found.index("list:") : found.index("flow:")] == "list:\n  - b # about b\n  - d\n  # about a\n  - a\n"


def test_a_list_may_become_empty() -> None:
    assert "\nlist: []\nflow:" in yamledit.set_list(TEXT, ("list",), [])


def test_a_list_on_one_line_keeps_its_anchor_and_an_alias_stays() -> None:
    found = yamledit.set_list(yamledit.set_list(TEXT, ("flow",), ["b"]), ("same",), ["b"])
    assert found == TEXT.replace("&all [a, b]", "&all [b]")
    assert "empty: [x, y]\n" in yamledit.set_list(TEXT, ("empty",), ["x", "y"])


def test_a_list_in_brackets_may_hold_brackets_and_go_over_lines() -> None:
    text = TEXT.replace("&all [a, b] # both", '&all ["a[1]", # one\n  b\n  ] # [both]')
    assert yamledit.set_list(text, ("flow",), ["b", "c[2]"]) == TEXT.replace("[a, b] # both", '[b, "c[2]"] # [both]')


@pytest.mark.parametrize("gone", [{0}, {1}, {2}, {0, 2}, {1, 2}])
def test_entries_go_with_the_comments_above_them(gone: set[int]) -> None:
    found = yamledit.without(TEXT, ("entries",), gone)
    document = value(TEXT)
    assert isinstance(document, dict)
    left = [entry for index, entry in enumerate(document["entries"]) if index not in gone]
    assert value(found) == {**document, "entries": left}
    assert ("# about the second" in found) == (1 not in gone)
    assert "# about what is last\nlast:" in found


def test_all_entries_may_go() -> None:
    assert "\nentries: []\n# about what is last\n" in yamledit.without(TEXT, ("entries",), {0, 1, 2})


def test_a_key_goes_with_what_it_holds() -> None:
    assert "entries" not in yamledit.without_key(TEXT, ("entries",))
    assert "# about what is last\nlast:" in yamledit.without_key(TEXT, ("entries",))


def test_comments_come_and_go() -> None:
    assert "# a word\nlist:\n" in yamledit.commented(TEXT, ("list",), "a word")
    assert "  # deep\n    list:\n" not in yamledit.commented(TEXT, ("last",), "deep")
    assert "about what is last" not in yamledit.uncommented(TEXT, ("last",))
    assert "and for whom" not in yamledit.without_comments(TEXT, "what the file is")
    assert yamledit.headed(TEXT, ["new", ""]).startswith("# new\n#\nname: one")


def test_text_is_replaced_on_its_line() -> None:
    assert yamledit.replaced(TEXT, ("last", "deep"), "yes-it-is", "no") == TEXT.replace("yes-it-is", "no")
    with pytest.raises(AssertionError):
        yamledit.replaced(TEXT, ("last", "deep"), "absent", "no")


@pytest.mark.thorough
@pytest.mark.parametrize("path", sorted((ROOT / "patches").glob("*/series.yaml")), ids=lambda path: path.parent.name)
def test_any_patch_can_go_from_a_real_series(path: Path) -> None:
    text = path.read_text()
    document = value(text)
    assert isinstance(document, dict)
    for index, entry in enumerate(document["patches"]):
        left = [one for one in document["patches"] if one is not entry]
        assert value(yamledit.without(text, ("patches",), {index})) == {**document, "patches": left}
