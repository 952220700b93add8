"""Reading issues: sections, tracebacks of every usual shape, and the functions that a text names."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xlocal.ranking.text import MAX_CHARACTERS, Frame, mentioned_names, named_functions, read_issue
from xlocal.tracer.calltree import Function

ISSUE = """\
# `Store.save` loses keys when merge_all() runs twice

<!-- Please search first! -->
Saving with the **default** options drops keys, see
https://host.example/owner/shop/blob/0123abc/shop/store.py#L12 and call `merge_all(a, b)`.

- first item
    continued, not code

```python
from shop.store import Store
Store().save({"a": 1})
```

    indented(block)

and

>>> Store().load("a")
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/shop/store.py", line 31, in load
    return self._find(key)
  File "/usr/lib/python3/site-packages/shop/store.py", line 40, in _find
    raise KeyError(key)
KeyError: 'a'

Thanks!
"""


def function(name: str, path: str = "shop/store.py") -> Function:
    return Function(path, name)


def test_sections() -> None:
    issue = read_issue(ISSUE)
    assert issue.title == "Store.save loses keys when merge_all() runs twice"
    assert issue.inline_code == ("Store.save", "merge_all(a, b)")
    assert "Please search" not in issue.prose
    assert "shop/store.py" in issue.prose
    assert "host.example" not in issue.prose
    assert "continued, not code" in issue.prose
    assert issue.prose.rstrip().endswith("Thanks!")
    assert [block.split("\n")[0].strip() for block in issue.code_blocks] == [
        "from shop.store import Store",
        "indented(block)",
        '>>> Store().load("a")',
    ]
    assert len(issue.tracebacks) == 1
    assert issue.tracebacks[0].endswith("KeyError: 'a'")
    where = "/usr/lib/python3/site-packages/shop/store.py"
    assert issue.frames == (Frame(where, 31, "load"), Frame(where, 40, "_find"))
    assert {"Store", "merge_all", "Store.save", "shop.store"} <= set(issue.names)
    assert "merge_all" in issue.calls


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ('  File "a/b.py", line 3, in f', Frame("a/b.py", 3, "f")),
        ('    |   File "a/b.py", line 3, in f', Frame("a/b.py", 3, "f")),
        ('  File "C:\\x\\b.py", line 3, in f', Frame("C:\\x\\b.py", 3, "f")),
        ('  File "a/b.py", line 3', Frame("a/b.py", 3, "")),
        ('  File "b.py", line 9, in <lambda>', Frame("b.py", 9, "<lambda>")),
        ("a/b.py:3: in f", Frame("a/b.py", 3, "f")),
        ("a/b.py:3: ValueError", Frame("a/b.py", 3, "")),
        ("~/lib/a/b.py in f(self, x)", Frame("~/lib/a/b.py", 0, "f")),
        ("File ~/lib/a/b.py:3, in A.f(self, x)", Frame("~/lib/a/b.py", 3, "f")),
    ],
)
def test_frames_of_every_shape(line: str, frame: Frame) -> None:
    for text in (f"t\n\n{line}\n", f"t\n\n```\nTraceback (most recent call last):\n{line}\nError\n```\n"):
        assert read_issue(text).frames == (frame,)


def test_pytest_traceback_with_blank_lines_is_one() -> None:
    text = "t\n\n```\na/b.py:3: in f\n    g()\n\na/c.py:9: in g\n    raise E\nE   ValueError: no\n```\nAfter."
    issue = read_issue(text)
    assert len(issue.tracebacks) == 1
    assert [frame.name for frame in issue.frames] == ["f", "g"]
    assert issue.prose.strip() == "After."


def test_empty_and_odd_texts() -> None:
    for text in ("", "\n \n", "\r\n"):
        issue = read_issue(text)
        assert issue.title == ""
        assert issue.names == ()
        assert issue.warnings == ()
    assert read_issue("```\nx = 1\n```").title == ""
    assert read_issue("```\nx = 1\n```").code_blocks == ("x = 1",)
    assert read_issue("```never closed\nx").code_blocks == ("x",)
    assert read_issue("only a title").title == "only a title"
    assert read_issue("w" * 400).title == ""
    assert read_issue("t\n```\n~~~\n```\nprose").prose == "prose"
    assert read_issue(ISSUE.replace("\n", "\r\n")) == read_issue(ISSUE)


@pytest.mark.parametrize(
    "text",
    ["x" * 3_000_000, "<!--" * 300_000, "`" * 1_100_000, "a." * 600_000, "/" * 1_100_000, "\n" * 1_100_000],
    ids=["x", "comment", "backquote", "dots", "slashes", "lines"],
)
def test_huge_text_is_cut_and_said(text: str) -> None:
    began = time.process_time()
    issue = read_issue(text)
    assert len(issue.text) == MAX_CHARACTERS
    assert [warning.slug for warning in issue.warnings] == ["issue-cut"]
    # Not a benchmark: a quadratic pattern would take hours here.
    assert time.process_time() - began < 60


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*ISSUE.split("\n"), "~~~", "```", "    x", "\t", "E   Error", "a.py:1: in f"])))
def test_no_line_is_lost(lines: list[str]) -> None:
    issue = read_issue("title\n\n" + "\n".join(lines))
    kept = "\n".join([issue.title, issue.prose, *issue.inline_code, *issue.code_blocks, *issue.tracebacks])
    for word in ("indented", "Thanks", "Saving", "KeyError", "KeyError", "_find"):
        if any(word in line for line in lines):
            assert word in kept


CANDIDATES = [
    function("Store.save"),
    function("Store.load"),
    function("Store._find"),
    function("Store.get"),
    function("merge_all"),
    function("Other.save"),
    function("load", "shop/other.py"),
    function("Store.Inner.save", "shop/inner.py"),
    function("serialization", "shop/text.py"),
]


def named(text: str, candidates: list[Function] = CANDIDATES) -> dict[str, str]:
    return {str(f): clause for f, clause in named_functions(read_issue(text), candidates).items()}


def test_named_by_traceback_dotted_and_bare_name() -> None:
    assert named(ISSUE) == {
        "shop/store.py::Store.load": "named in a traceback of the issue",
        "shop/store.py::Store._find": "named in a traceback of the issue",
        "shop/store.py::Store.save": "named `Store.save` in the issue",
        "shop/store.py::merge_all": "named `merge_all` in the issue",
        "shop/store.py::Other.save": "named `save` in the issue",
        "shop/inner.py::Store.Inner.save": "named `save` in the issue",
        "shop/other.py::load": "named `load` in the issue",
    }
    assert {"save", "load", "_find", "merge_all"} <= mentioned_names(read_issue(ISSUE))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("I get an error when I load it", []),  # plain words
        ("t\n`load` fails", ["shop/other.py::load", "shop/store.py::Store.load"]),
        ("t\ncalling get() fails", ["shop/store.py::Store.get"]),
        ("t\nshop.other.load fails", ["shop/other.py::load"]),
        ("t\nother.load fails", ["shop/other.py::load"]),
        ("t\nshop.merge_all is re-exported", ["shop/store.py::merge_all"]),
        ("t\nthe serialization fails", ["shop/text.py::serialization"]),  # long, and one function has it
        ("t\nsee other.py and e.g. this", []),
        ("t\n__init__ fails", []),
    ],
)
def test_what_counts_as_naming(text: str, found: list[str]) -> None:
    assert sorted(named(text)) == found


def test_a_name_that_many_carry_names_none() -> None:
    crowd = [function(f"C{i}.save") for i in range(9)]
    assert named("t\n`save()` fails", crowd) == {}
    assert named("t\n`C3.save()` fails", crowd) == {"shop/store.py::C3.save": "named `C3.save` in the issue"}


def test_a_frame_prefers_the_longest_path() -> None:
    twins = [function("f", "a/x/m.py"), function("f", "a/y/m.py"), function("f", "m.py")]
    text = 't\n\n  File "/home/a/y/m.py", line 3, in f\n'
    assert [str(f) for f in named_functions(read_issue(text), twins)][:1] == ["a/y/m.py::f"]
    other = 't\n\n  File "/home/b/n.py", line 3, in fuzzy\n'
    assert named_functions(read_issue(other), [function("fuzzy", "a/x/m.py")]) == {}
