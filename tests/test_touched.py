"""What a patch touches: a tiny language of a file before and a patch, and the facts known of SWE-bench Lite."""

from __future__ import annotations

import difflib
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xlocal.swe_pipeline.issue import load_dataset
from xlocal.swe_pipeline.localized import reader_of
from xlocal.swe_pipeline.touched import Touched, base_files, patched, touched
from xlocal.tracer.errors import CheckoutError, PatchError

BEFORE = """import os

LIMIT = 3


def first(a):
    return a


class Shop:
    open = True

    @property
    def price(self):
        return 1

    @price.setter
    def price(self, value):
        self.value = value

    def sell(self):
        def inner():
            return 2

        return inner()
"""


def diff(before, after, name="shop.py"):
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{name}", f"b/{name}")
    return "".join(lines)


def change(*pairs):
    """What the patch that makes these replacements in BEFORE touches."""
    after = BEFORE
    for old, new in pairs:
        assert after.count(old) == 1
        after = after.replace(old, new)
    return touched(diff(BEFORE, after), {"shop.py": BEFORE.encode()}.get)


@pytest.mark.parametrize(
    ("pairs", "existing", "new"),
    [
        ([("return a\n", "return a + 1\n")], ["first"], []),
        ([("LIMIT = 3", "LIMIT = 4")], [], []),
        ([("open = True", "open = False")], [], []),
        ([("return 2", "return 3")], ["Shop.sell.inner"], []),
        ([("return inner()", "return inner() + 1")], ["Shop.sell"], []),
        ([("    @property\n", "    @cached\n")], ["Shop.price"], []),
        ([("    open = True\n", "    open = True\n\n    def close(self):\n        return 1\n")], [], ["Shop.close"]),
        ([("        def inner():\n            return 2\n\n", "")], ["Shop.sell.inner"], []),
        (
            [("        return inner()\n", "        def more():\n            return 3\n\n        return inner()\n")],
            ["Shop.sell"],
            ["Shop.sell.more"],
        ),
        ([("def first(a):", "def second(a):")], ["first"], ["second"]),
        ([("    return a\n", "    return a\n\n\n")], [], []),
        # A comment between two functions belongs to neither.
        ([("    @property\n", "    # one price\n    @property\n"), ("return 1\n", "return 7\n")], ["Shop.price"], []),
        ([("    def sell(self):\n", "    # for sale\n    def sell(self):\n")], [], []),
        ([("return a\n", "return 0\n"), ("return 2", "return 3")], ["Shop.sell.inner", "first"], []),
    ],
)
def test_functions_touched(pairs, existing, new):
    found = change(*pairs)
    assert found.existing == tuple(f"shop.py::{name}" for name in existing)
    assert found.new == tuple(f"shop.py::{name}" for name in new)
    assert found.files == ("shop.py",)


def test_the_three_ways_of_counting():
    found = change(
        ("        return inner()\n", "        def more():\n            return 3\n\n        return inner() + more()\n")
    )
    assert found.functions("existing") == ("shop.py::Shop.sell",)
    assert found.functions("innermost") == ("shop.py::Shop.sell", "shop.py::Shop.sell.more")
    inside = change(("return 2", "return 3"))
    assert inside.functions("existing") == ("shop.py::Shop.sell.inner",)
    assert inside.functions("enclosing") == ("shop.py::Shop.sell", "shop.py::Shop.sell.inner")


def test_definitions_of_one_name_count_apart():
    found = change(("return 1\n", "return 2\n"), ("self.value = value", "self.value = 0"))
    assert (found.existing, found.definitions) == (("shop.py::Shop.price",), (2, 2, 2))


def test_counts_are_those_of_the_patch_as_written():
    found = change(("LIMIT = 3", "LIMIT = 4\nMORE = 5"), ("return inner()", "return 1"))
    assert (found.hunks, found.added, found.removed) == (2, 3, 2)


def test_a_patch_that_applies_elsewhere_touches_what_it_changes_and_not_what_its_numbers_say():
    patch = diff(BEFORE, BEFORE.replace("return a\n", "return a + 1\n"))
    assert "@@ -4,7 +4,7 @@" in patch
    longer = "# one\n" * 30 + BEFORE
    found = touched(patch, {"shop.py": longer.encode()}.get)
    assert found.existing == ("shop.py::first",)
    shifted = patch.replace("@@ -4,7 +4,7 @@", "@@ -18,7 +18,7 @@")
    assert touched(shifted, {"shop.py": BEFORE.encode()}.get).existing == ("shop.py::first",)


def test_new_gone_and_other_files():
    new = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+def f():\n+    return 1\n"
    assert touched(new, {}.get) == Touched(("new.py",), (), ("new.py::f",), ("new.py::f",), (0, 1, 1), 1, 2, 0)
    gone = "--- a/old.py\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-def f():\n-    return 1\n"
    assert touched(gone, {"old.py": b"def f():\n    return 1\n"}.get).existing == ("old.py::f",)
    text = diff("a\n", "b\n", "notes.txt")
    assert touched(text, {"notes.txt": b"a\n"}.get).files == ("notes.txt",)
    assert touched("", {}.get) == Touched()
    assert touched("\n", {}.get) == Touched()


def test_line_ends_and_bytes_survive():
    before = b"def f():\r\n    return '\xe9'\r\n"
    patch = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n def f():\r\n-    return '\udce9'\r\n+    return 1\r\n"
    assert touched(patch, {"a.py": before}.get).existing == ("a.py::f",)
    assert patched(patch, {"a.py": before}.get) == {"a.py": b"def f():\r\n    return 1\r\n"}


@pytest.mark.parametrize(
    ("patch", "why"),
    [
        ("nonsense", "is not a unified diff"),
        (diff("x = 1\n", "x = 2\n"), "does not apply"),
        (diff("a\n", "b\n", "../out.py"), "not a file of the work tree"),
        (diff("a\n", "b\n", "/etc/passwd"), "not a file of the work tree"),
    ],
)
def test_patches_that_cannot_be(patch, why):
    with pytest.raises(PatchError, match=why):
        touched(patch, {"shop.py": BEFORE.encode()}.get)


def test_base_files_come_from_git(tmp_path):
    import subprocess

    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(tmp_path), *arguments], capture_output=True, text=True, check=True
        ).stdout

    (tmp_path / "a b.py").write_bytes(b"x = 1\r\n")
    git("init", "--quiet")
    git("add", "--all")
    git("-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "-m", "first")
    read = base_files(tmp_path, git("rev-parse", "HEAD").strip())
    assert read("a b.py") == b"x = 1\r\n"
    assert read("none.py") is None
    with pytest.raises(CheckoutError, match="git ls-tree"):
        base_files(tmp_path, "0" * 40)("a b.py")


LINES = BEFORE.splitlines(True)


@given(st.sets(st.sampled_from([n for n, line in enumerate(LINES) if "return" in line or "value = value" in line])))
def test_every_changed_statement_names_its_function(numbers):
    after = [line.rstrip("\n") + "  # changed\n" if n in numbers else line for n, line in enumerate(LINES)]
    owners = {6: "first", 14: "Shop.price", 18: "Shop.price", 22: "Shop.sell.inner", 24: "Shop.sell"}
    found = touched(diff(BEFORE, "".join(after)), {"shop.py": BEFORE.encode()}.get)
    assert set(found.existing) == {f"shop.py::{owners[n]}" for n in numbers}


@pytest.mark.slow
def test_the_gold_patches_of_swe_bench_lite(shared_data):
    """All 300: the paper's hunks and lines, and the functions of an independent count."""
    mirrors = os.environ.get("XLOCAL_MIRRORS")
    if not mirrors:
        pytest.skip("the base files are read from bare mirrors: set XLOCAL_MIRRORS")
    data = load_dataset(str(shared_data / "data" / "swe_bench_lite.jsonl"))
    rows = map(json.loads, (shared_data / "data" / "gold_functions.jsonl").read_text().splitlines())
    counted = {row["instance_id"]: row for row in rows}
    found = {}
    for issue in data.issues:
        found[issue.id] = one = touched(data.gold[issue.id].patch, reader_of(issue, mirrors=Path(mirrors)))
        assert set(one.existing) == set(counted[issue.id]["functions"]), issue.id
        assert set(one.new) == set(counted[issue.id]["new_functions"]), issue.id

    def sizes(measure):
        values = [min(measure(one), 3) for one in found.values()]
        return [values.count(size) for size in range(4)]

    assert sizes(lambda one: one.hunks) == [0, 190, 73, 37]
    assert [
        sum(low <= one.added + one.removed <= high for one in found.values())
        for low, high in ((1, 4), (5, 10), (11, 999))
    ] == [108, 112, 80]
    assert sizes(lambda one: one.definitions[0])[0] == 26
    assert sizes(lambda one: one.definitions[1])[:2] == [7, 236]
    assert sizes(lambda one: one.definitions[2])[:2] == [7, 229]
