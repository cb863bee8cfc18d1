"""Diffs and mails as patches: their ids and summaries, and how they fit a source."""

from __future__ import annotations

import pytest

from nvllm.core.refusal import Refused
from nvllm.patches import imported
from support.series_samples import MappingTree

DIFF = b"""\
--- a/vllm/greet.py
+++ b/vllm/greet.py
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
"""
MAIL = b"""\
From 1111111111111111111111111111111111111111 Mon Sep 17 00:00:00 2001
From: A <a@example.org>
Subject: [PATCH 1/2] Say it louder,
 and twice

Why.
---
 vllm/greet.py | 2 +-

diff --git a/vllm/greet.py b/vllm/greet.py
"""


def test_a_file_gives_its_name_as_the_id() -> None:
    (one,) = imported.changes([("dir/0007-Greet_Louder.patch", DIFF)], [])
    assert (one.id, one.summary) == ("greet-louder", "Imported from 0007-Greet_Louder.patch")
    assert one.diff.paths == ("vllm/greet.py",)


def test_a_file_of_mails_gives_one_change_for_each() -> None:
    second = MAIL.replace(b"Say it louder,\n and twice", b"=?UTF-8?q?Gr=C3=BC=C3=9Fe?=")
    found = imported.changes([("two.mbox", MAIL + DIFF + b"-- \n2.39.5\n\n" + second + DIFF)], ["taken"])
    assert [(one.id, one.summary) for one in found] == [
        ("say-it-louder-and-twice", "Say it louder, and twice"),
        ("gr-e", "Grüße"),
    ]
    assert [one.diff.name for one in found] == ["two.mbox, mail 1", "two.mbox, mail 2"]


def test_a_mail_may_name_the_commit_that_it_is_based_on() -> None:
    """As git writes it with --base, or with format.useAutoBase in its configuration."""
    based = b"\nbase-commit: " + 40 * b"2" + b"\nprerequisite-patch-id: " + 40 * b"3" + b"\n"
    (plain,), (change,) = (
        imported.changes([("greet.patch", MAIL + DIFF + between + b"-- \n2.39.5\n\n")], []) for between in (b"", based)
    )
    assert change == plain


def test_no_id_is_there_twice() -> None:
    found = imported.changes([("a/x.diff", DIFF), ("b/x.diff", DIFF), ("c/x.diff", DIFF)], ["x"])
    assert [one.id for one in found] == ["x-2", "x-3", "x-4"]


def test_a_long_subject_gives_a_short_id() -> None:
    (one,) = imported.changes([(f"{'word-' * 40}.diff", DIFF)], [])
    assert len(one.id) <= 48
    assert one.id.endswith("word")


def test_line_numbers_are_those_of_the_source_with_the_changes_before() -> None:
    tree = MappingTree({"vllm/greet.py": b"zero\none\ntwo\nthree\n"})
    second = DIFF.replace(b"-two", b"-TWO").replace(b"+TWO", b"+2")
    found = imported.exact(tree, imported.changes([("a", DIFF), ("b", second)], []), "1.0")
    assert [one.diff.files[0].hunks[0].old_start for one in found] == [1, 1]
    assert found[1].diff.files[0].hunks[0].lines[2] == ("-", b"TWO\n")


def test_a_diff_that_does_not_apply_is_named_with_its_hunk() -> None:
    tree = MappingTree({"vllm/greet.py": b"one\n2\nthree\n"})
    with pytest.raises(Refused) as caught:
        imported.exact(tree, imported.changes([("louder.diff", DIFF)], []), "1.0")
    (refusal,) = caught.value.refusals
    assert (refusal.code, refusal.where) == ("NV301", "louder.diff: vllm/greet.py @@ -1,3 +1,3 @@")
    assert "the source of vLLM 1.0" in refusal.cure


def test_a_diff_that_the_source_holds_already_is_refused() -> None:
    tree = MappingTree({"vllm/greet.py": b"one\nTWO\nthree\n"})
    with pytest.raises(Refused) as caught:
        imported.exact(tree, imported.changes([("louder.diff", DIFF)], []), "1.0")
    assert [refusal.code for refusal in caught.value.refusals] == ["NV106"]


def test_what_is_no_diff_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        imported.changes([("empty.diff", b"")], [])
    assert [refusal.code for refusal in caught.value.refusals] == ["NV104"]
