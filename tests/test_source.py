"""From code objects and files to functions: identities, ranges, and text that the host cannot parse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xlocal.ranking.source import SourceIndex, _Module
from xlocal.tracer.calltree import Function

SAMPLE = '''\
import functools


def deco(*given):
    return lambda f: f


@deco(
    lambda x: x
)
@functools.lru_cache(maxsize=None)
def plain(a=(lambda: 1)):
    """Say plain."""
    b = [i for i in (1, 2)]
    c = list(i for i in b)
    d = {i: {j for j in b} for i in b}

    def inner():
        return (lambda: c)()

    return inner, b, c, d


@deco(1)
class Outer:
    key = lambda self: 1

    class Nested:
        def method(self):
            def helper():
                yield 1

            return helper

    @property
    def value(self):
        return 1

    @value.setter
    def value(self, new):
        pass

    async def later(self):
        return [i async for i in self]


rest = list(i for i in ())
'''
# What each code object of SAMPLE is called, by (first line, co_name).
WANTED = {
    "deco": "deco",
    "plain": "plain",
    "inner": "plain.inner",
    "Outer": "Outer",
    "Nested": "Outer.Nested",
    "method": "Outer.Nested.method",
    "helper": "Outer.Nested.method.helper",
    "value": "Outer.value",
    "later": "Outer.later",
}
DUMP = """
import json, sys, types
with open(sys.argv[1]) as file:
    todo = [compile(file.read(), sys.argv[1], "exec")]
seen = []
while todo:
    code = todo.pop()
    seen.append([code.co_firstlineno, code.co_name])
    todo.extend(c for c in code.co_consts if isinstance(c, types.CodeType))
print(json.dumps(seen))
"""


class Folder:
    """The two methods of a scope over one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def relative(self, filename: str) -> str | None:
        path = Path(filename)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else None

    def files(self) -> Iterator[str]:
        yield from (str(path) for path in self.root.rglob("*.py"))


Write = Callable[..., SourceIndex]


@pytest.fixture
def index_of(tmp_path: Path) -> Write:
    """Write files (`name="text"`, `__` for `/`) and index them."""

    def write(**files: str | bytes) -> SourceIndex:
        for name, text in files.items():
            path = tmp_path / (name.replace("__", "/") + ".py")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return SourceIndex(Folder(tmp_path))

    return write


def interpreters() -> list[str]:
    """Every interpreter found, as 3.6 to 3.14 beside the running one."""
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return [sys.executable, *map(str, sorted(home.glob("versions/3.*/bin/python")))]


@pytest.mark.parametrize("python", interpreters())
def test_every_code_object_of_every_python_is_placed(index_of: Write, tmp_path: Path, python: str) -> None:
    index = index_of(m=SAMPLE)
    file = str(tmp_path / "m.py")
    dumped = subprocess.run([python, "-c", DUMP, file], capture_output=True, check=True, text=True).stdout
    codes = json.loads(dumped)
    assert len(codes) > 15
    for line, name in codes:
        found = index.locate(file, line, name)
        if name == "<module>":
            assert found is None
        elif not name.startswith("<"):
            assert found == Function("m.py", WANTED[name]), (line, name)
    places = {(line, name): index.locate(file, line, name) for line, name in codes}
    owners = {
        (5, "<lambda>"): "deco",
        (9, "<lambda>"): None,  # in a decorator: runs outside of the function
        (12, "<lambda>"): None,  # a default: likewise
        (19, "<lambda>"): "plain.inner",
        (15, "<genexpr>"): "plain",
        (26, "<lambda>"): "Outer",
        (47, "<genexpr>"): None,
    }
    for key, qualname in owners.items():
        assert places[key] == (Function("m.py", qualname) if qualname else None), key


def test_the_code_itself_agrees(index_of: Write, tmp_path: Path) -> None:
    index = index_of(m=SAMPLE)
    setter = index.locate(str(tmp_path / "m.py"), 39, "value")
    assert setter == Function("m.py", "Outer.value")
    source = index.source(setter)
    assert source is not None
    assert (source.line, source.end_line) == (39, 41)  # the piece that ran
    assert source.ranges == ((35, 37), (39, 41))
    assert source.text.count("def value") == 2
    assert source.class_names == ("Outer",)


def test_source_parts(index_of: Write) -> None:
    index = index_of(
        pkg__m='''\
        class A:
            """About A."""

            limit = 3  # a bound

            @staticmethod
            def run(url):
                """Fetch it.

                Twice."""
                # hash: not in "#strings"
                text = "#fragment"  # kept
                return text
        '''
    )
    run = index.source(Function("pkg/m.py", "A.run"))
    assert run is not None
    assert (run.line, run.end_line, run.name, run.is_class) == (6, 13, "run", False)
    assert run.docstring.startswith("Fetch it.")
    assert run.comments == 'hash: not in "#strings"\nkept'
    assert "Fetch" not in run.body
    assert '"#fragment"' in run.body
    assert "kept" not in run.body
    body = index.source(Function("pkg/m.py", "A"))
    assert body is not None
    assert body.is_class
    assert "limit = 3" in body.body
    assert "fragment" not in body.body
    assert "fragment" in body.text
    assert [str(f.function) for f in index.functions()] == ["pkg/m.py::A.run"]
    assert list(index.names()) == [Function("pkg/m.py", "A.run")]


def test_out_of_scope_and_generated(index_of: Write, tmp_path: Path) -> None:
    index = index_of(m="def f():\n    pass\n")
    file = str(tmp_path / "m.py")
    assert index.locate("<string>", 1, "f") is None
    assert index.locate("/elsewhere/m.py", 1, "f") is None
    # Code compiled under the file's name that is not in the file; a file that is gone.
    assert index.locate(file, 7, "made") == Function("m.py", "made")
    assert index.locate(file, 7, "<lambda>") is None
    assert index.locate(str(tmp_path / "gone.py"), 1, "g") == Function("gone.py", "g")
    assert index.source(Function("gone.py", "g")) is None
    assert index.source(Function("m.py", "made")) is None
    assert [w.slug for w in index.warnings] == ["source-unread"]


@pytest.mark.parametrize(
    "text",
    [
        "def f[T](x: T) -> T:\n    def g(): pass\n    return x\n",  # 3.12
        "def async(f):\n    pass\n\n\ndef f():\n    def g(): pass\n",  # before 3.7
        "print 'two'\ndef f():\n    def g(): pass\n",
        "x = '\0'\ndef f():\n    def g(): pass\n",
        "def f():\n    def g(): pass\nx = " + "(" * 5000 + ")" * 5000 + "\n",
    ],
)
def test_syntax_that_the_host_refuses(index_of: Write, tmp_path: Path, text: str) -> None:
    index = index_of(m=text)
    line = next(i for i, row in enumerate(text.split("\n"), 1) if row.startswith("def f"))
    found = index.locate(str(tmp_path / "m.py"), line, "f")
    assert found == Function("m.py", "f")
    source = index.source(Function("m.py", "f.g"))
    assert source is not None
    assert source.text.strip() == "def g(): pass"


def test_scan_agrees_with_the_parser() -> None:
    parsed = _Module(SAMPLE)
    refused = _Module(SAMPLE + "\n\nprint 'two'\n")
    assert parsed.refused is None
    assert refused.refused
    key = [(p.qualname, p.line, p.end_line, p.class_names) for p in parsed.pieces]
    assert sorted((p.qualname, p.line, p.end_line, p.class_names) for p in refused.pieces) == sorted(key)


@pytest.mark.parametrize(
    ("data", "end"),
    [
        ("# coding: latin-1\ndef f():\n    return 'é'\n".encode("latin-1"), 3),
        (b"\xef\xbb\xbfdef f():\n    pass\n", 2),
        (b"def f():\r\n    pass\r\n", 2),
        (b"\x0c\ndef f():\n    pass\n\x0c\ndef g():\n    pass\n", 3),
        ("def f():\n    return '\u2028'\n".encode(), 2),
        (b"# coding: no-such\ndef f():\n    pass\n", 3),
        (b"def f():\n    return '\xff'\n", 2),
    ],
)
def test_encodings(index_of: Write, tmp_path: Path, data: bytes, end: int) -> None:
    index = index_of(m=data)
    source = index.source(Function("m.py", "f"))
    assert source is not None
    assert source.end_line == end
    assert source.text.startswith("def f():")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["def f():", "class A:", " x", "  y = 1", "@d", "'''", "#", "(", "\t", "\x0c"])))
def test_any_text_is_read(rows: list[str]) -> None:
    module = _Module("\n".join(rows))
    for piece in module.pieces:
        assert 1 <= piece.line <= piece.def_line <= piece.end_line <= len(module.lines)
