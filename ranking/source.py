"""The functions of a checkout, and the one place where a code location becomes path + qualname.

Files are parsed on first use with the host's `ast`; a file that the host refuses (syntax newer or older than its
own, damaged text) is read by its indentation instead, so that its functions keep their names and ranges.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import Warned
from xlocal.tracer.layout import real

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
# The code objects that CPython makes for an expression; they belong to the function around them.
_EXPRESSION_NAME = {
    ast.Lambda: "<lambda>",
    ast.GeneratorExp: "<genexpr>",
    ast.ListComp: "<listcomp>",
    ast.SetComp: "<setcomp>",
    ast.DictComp: "<dictcomp>",
}
_DEFINITION = re.compile(r"([ \t\f]*)(?:async[ \t]+)?(def|class)[ \t]+(\w+)")


class SourceScope(Protocol):
    """What the index needs to know of a scope (`xlocal.tracer.scope.Scope` has both)."""

    def relative(self, filename: str) -> str | None:
        """Path under the project's root with forward slashes; None when out of scope."""

    def files(self) -> Iterator[str]:
        """Absolute names of every Python file in scope."""


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """The source of one function, or of a class body (`is_class`).

    `line`..`end_line` is 1-based and holds the decorators. Several definitions of one qualname in a file (a
    property's setter, an overload, both arms of an `if`) are one function: `text` joins all pieces, `ranges` lists
    them, and `line`..`end_line` is the piece that was located first, else the first in the file.
    `class_names` are the classes around it, outermost first. `body` is the text without docstring and comments
    (of a class: also without its methods).
    """

    function: Function
    line: int
    end_line: int
    ranges: tuple[tuple[int, int], ...]
    text: str
    name: str
    class_names: tuple[str, ...]
    docstring: str
    comments: str
    body: str
    is_class: bool = False


@dataclass(frozen=True, slots=True)
class ClassSource:
    """One class: the names of its bases (the last part of `a.B`), its methods, and the line where the class body sets
    each name (its class-level data; of names set twice the last)."""

    function: Function
    bases: tuple[str, ...]
    methods: frozenset[str]
    data: Mapping[str, int]

    @property
    def name(self) -> str:
        """The class's own name."""
        return self.function.qualname.rpartition(".")[2]


class _Piece(NamedTuple):
    """One `def` or `class` statement: its lines (`line` is the first decorator's) and its docstring's lines; of a class
    also the names of its bases and the line where its body sets each name."""

    qualname: str
    name: str
    class_names: tuple[str, ...]
    line: int
    def_line: int
    end_line: int
    is_class: bool
    docstring: str
    docstring_lines: tuple[int, int]
    bases: tuple[str, ...] = ()
    data: Mapping[str, int] = MappingProxyType({})


class _Module:
    """One parsed file: its lines, its pieces by qualname, and the maps that answer `locate`."""

    def __init__(self, text: str) -> None:
        # Only "\n" ends a line for Python: str.splitlines would also cut at form feeds and U+2028.
        self.lines = text.split("\n")
        self.refused: str | None = None
        self.expressions: dict[tuple[int, str], str] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes and the like are the target's business
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.refused = f"{type(error).__name__}: {error}"
            self.pieces = list(_scan(self.lines))
        else:
            self.pieces = []
            self._walk(tree)
            self.pieces.sort(key=lambda piece: (piece.line, -piece.end_line))
        self.by_qualname: dict[str, list[_Piece]] = {}
        self.by_start: dict[tuple[int, str], str] = {}
        for piece in self.pieces:
            self.by_qualname.setdefault(piece.qualname, []).append(piece)
            # CPython gives co_firstlineno as the first decorator's line from 3.6 to 3.14; other
            # implementations give the line of `def`, and "@\" may put the expression a line lower.
            for line in range(piece.line, piece.def_line + 1):
                self.by_start.setdefault((line, piece.name), piece.qualname)
        self.seen: dict[str, int] = {}

    def _walk(self, tree: ast.Module) -> None:
        """Collect definitions and the owners of expressions; iterative, since expressions may be deep."""
        stack: list[tuple[ast.AST, tuple[str, ...], tuple[str, ...]]] = [(tree, (), ())]
        while stack:
            node, scope, classes = stack.pop()
            if isinstance(node, FunctionNode | ast.ClassDef):
                inner = (*scope, node.name)
                is_class = isinstance(node, ast.ClassDef)
                self.pieces.append(_piece(node, ".".join(inner), classes))
                within = (*classes, node.name) if is_class else classes
                body = {id(child) for child in node.body}
                for child in ast.iter_child_nodes(node):
                    # Decorators, defaults and bases run in the scope outside.
                    stack.append((child, inner, within) if id(child) in body else (child, scope, classes))
                continue
            name = _EXPRESSION_NAME.get(type(node))
            if name and isinstance(node, ast.expr):
                self.expressions.setdefault((node.lineno, name), ".".join(scope))
            stack.extend((child, scope, classes) for child in ast.iter_child_nodes(node))

    def innermost(self, line: int) -> str:
        """Qualname of the smallest definition whose `def`..end holds `line`; '' at module level."""
        found = [piece for piece in self.pieces if piece.def_line <= line <= piece.end_line]
        return max(found, key=lambda piece: piece.def_line).qualname if found else ""

    def locate(self, line: int, name: str) -> str | None:
        """Qualname of a code object, '' at module level, None when no such definition is here."""
        if name in _EXPRESSION_NAME.values() and (line, name) in self.expressions:
            return self.expressions[line, name]
        qualname = self.by_start.get((line, name))
        if qualname is None and (name.startswith("<") or name == "__annotate__"):
            return self.innermost(line)
        if qualname is not None:
            self.seen.setdefault(qualname, line)
        return qualname


class SourceIndex:
    """The functions of a scope. Every file is read and parsed at most once."""

    def __init__(self, scope: SourceScope) -> None:
        self._scope = scope
        self._modules: dict[str, _Module | None] = {}
        self._absolute: dict[str, str] = {}
        self._others: dict[str, _Module | None] = {}
        self._sources: dict[tuple[Function, int], FunctionSource] = {}
        self._listed = False
        self._warnings: list[Warned] = []

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """Files that could not be read, or that the host's parser refused (slug `source-unread`)."""
        return tuple(self._warnings)

    def locate(self, filename: str, firstlineno: int, name: str) -> Function | None:
        """Identity of a code object by its co_filename, co_firstlineno and co_name.

        Lambdas, comprehensions and generator expressions belong to the function (or class body) around them.
        None for module-level code and for files out of scope. Where the source is not there or does not hold the
        definition (generated code), the identity is `Function(path, name)`.
        """
        path = self._scope.relative(filename)
        if path is None or name == "<module>":
            return None
        first = self._absolute.setdefault(path, filename)
        # Two revisions of a project have files of the same path, each with lines of its own.
        same = first == filename or real(first) == real(filename)
        module = self._module(path) if same else self._other(path, filename)
        qualname = module.locate(firstlineno, name) if module else None
        if qualname is None:
            return None if name.startswith("<") else Function(path, name)
        return Function(path, qualname) if qualname else None

    def source(self, function: Function) -> FunctionSource | None:
        """Source of a function or class body; None when its file or its definition is not there."""
        module = self._module(function.path)
        pieces = module.by_qualname.get(function.qualname) if module else None
        if module is None or not pieces:
            return None
        seen = module.seen.get(function.qualname, pieces[0].line)
        key = (function, seen)
        if key not in self._sources:
            self._sources[key] = _function_source(function, module, pieces, seen)
        return self._sources[key]

    def functions(self, path: str | None = None) -> Iterator[FunctionSource]:
        """Every function of the scope (or of one file), by path and line; class bodies are left out."""
        for each in [path] if path is not None else self.paths():
            module = self._module(each)
            for qualname, pieces in module.by_qualname.items() if module else ():
                source = None if pieces[0].is_class else self.source(Function(each, qualname))
                if source:
                    yield source

    def classes(self, path: str) -> Iterator[ClassSource]:
        """Every class of one file, by line; bases and data are empty where the file was read by its indentation."""
        module = self._module(path)
        for qualname, pieces in module.by_qualname.items() if module else ():
            piece = pieces[0]
            if module is not None and piece.is_class:
                within = qualname + "."
                methods = (each.qualname for each in module.pieces if not each.is_class)
                own = (name.removeprefix(within) for name in methods if name.startswith(within))
                own_methods = frozenset(name for name in own if "." not in name)
                yield ClassSource(Function(path, qualname), piece.bases, own_methods, piece.data)

    def names(self) -> Iterator[Function]:
        """Identity of every function of the scope: parses every file, but builds no texts."""
        for path in self.paths():
            module = self._module(path)
            for qualname, pieces in module.by_qualname.items() if module else ():
                if not pieces[0].is_class:
                    yield Function(path, qualname)

    def named(self, names: Iterable[str]) -> Iterator[Function]:
        """Every function of the scope whose own name is one of `names`; files that define none are not parsed."""
        wanted = sorted({name for name in names if name.isidentifier()})
        pattern = re.compile(rb"\bdef[ \t]+(?:" + b"|".join(name.encode() for name in wanted) + rb")\b")
        for path in self.paths() if wanted else ():
            module = self._module(path) if self._holds(path, pattern) else None
            for qualname, pieces in module.by_qualname.items() if module else ():
                if not pieces[0].is_class and pieces[0].name in wanted:
                    yield Function(path, qualname)

    def _holds(self, path: str, pattern: re.Pattern[bytes]) -> bool:
        try:
            with open(self._absolute[path], "rb") as file:
                return pattern.search(file.read()) is not None
        except OSError:
            return True  # parsing it will report why

    def paths(self) -> list[str]:
        """Relative paths of every Python file in scope, sorted."""
        self._list()
        return sorted(self._absolute)

    def _list(self) -> None:
        if not self._listed:
            self._listed = True
            for filename in self._scope.files():
                path = self._scope.relative(filename)
                if path is not None:
                    self._absolute.setdefault(path, filename)

    def _module(self, path: str) -> _Module | None:
        if path not in self._modules:
            if path not in self._absolute:
                self._list()
            filename = self._absolute.get(path)
            self._modules[path] = self._parse(path, filename) if filename else None
        return self._modules[path]

    def _other(self, path: str, filename: str) -> _Module | None:
        if filename not in self._others:
            self._others[filename] = self._parse(path, filename)
        return self._others[filename]

    def _parse(self, path: str, filename: str) -> _Module | None:
        try:
            with open(filename, "rb") as file:
                module = _Module(_decode(file.read()))
        except OSError as error:
            self._warnings.append(Warned("source-unread", f"{path} cannot be read: {error.strerror}"))
            return None
        if module.refused:
            text = f"{path} is not Python that this interpreter parses ({module.refused}); read by indentation"
            self._warnings.append(Warned("source-unread", text))
        return module


def _decode(data: bytes) -> str:
    """Text of a source file: byte-order mark, PEP 263 cookie, then UTF-8; undecodable bytes are replaced."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError:  # an unknown cookie, or bytes that are not UTF-8
        encoding = "utf-8"
    text = data.decode(encoding, errors="replace")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _piece(node: FunctionNode | ast.ClassDef, qualname: str, classes: tuple[str, ...]) -> _Piece:
    lines = (0, 0)
    docstring = ast.get_docstring(node, clean=False) or ""
    if docstring:
        first = node.body[0]
        lines = (first.lineno, first.end_lineno or first.lineno)
    return _Piece(
        qualname=qualname,
        name=node.name,
        class_names=classes,
        line=min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]),
        def_line=node.lineno,
        end_line=node.end_lineno or node.lineno,
        is_class=isinstance(node, ast.ClassDef),
        docstring=docstring,
        docstring_lines=lines if lines[0] > node.lineno else (0, 0),
        bases=tuple(_base_names(node)) if isinstance(node, ast.ClassDef) else (),
        data=dict(_assigned(node)) if isinstance(node, ast.ClassDef) else {},
    )


def _base_names(node: ast.ClassDef) -> Iterator[str]:
    for base in node.bases:
        if isinstance(base, ast.Attribute):
            yield base.attr
        elif isinstance(base, ast.Name):
            yield base.id


def _assigned(node: ast.ClassDef) -> Iterator[tuple[str, int]]:
    """The names that the statements of a class body set, with their lines."""
    for statement in node.body:
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            targets = [statement.target]
        else:
            continue
        for target in targets:
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    yield name.id, statement.lineno


def _scan(lines: list[str]) -> Iterator[_Piece]:
    """Definitions by indentation alone, for a file that the parser refuses.

    A definition ends before the next code line that is not deeper than it. Good enough for names and ranges; a
    `def` inside a multi-line string may be taken for one.
    """
    # One row per open definition: [indent, kind, name, first line, line of def, last code line].
    opened: list[tuple[int, bool, str, int, int]] = []
    decorator, last = 0, 0
    for number, text in enumerate([*lines, "end"], start=1):
        code = text.strip()
        if not code or code.startswith(("#", ")", "]", "}")):
            continue
        indent = len(text) - len(text.lstrip())
        while opened and indent <= opened[-1][0]:
            yield _scanned(opened, last)
            opened.pop()
        match = _DEFINITION.match(text)
        if match:
            opened.append((indent, match[2] == "class", match[3], decorator or number, number))
        if code.startswith("@"):
            decorator = decorator or number
        elif match:
            decorator = 0
        last = number


def _scanned(opened: list[tuple[int, bool, str, int, int]], last: int) -> _Piece:
    _, is_class, name, line, def_line = opened[-1]
    return _Piece(
        qualname=".".join(row[2] for row in opened),
        name=name,
        class_names=tuple(row[2] for row in opened[:-1] if row[1]),
        line=line,
        def_line=def_line,
        end_line=last,
        is_class=is_class,
        docstring="",
        docstring_lines=(0, 0),
    )


def _function_source(function: Function, module: _Module, pieces: list[_Piece], seen: int) -> FunctionSource:
    first = next((piece for piece in pieces if piece.line <= seen <= piece.def_line), pieces[0])
    texts, bodies, comments = [], [], []
    for piece in pieces:
        texts.append("\n".join(module.lines[piece.line - 1 : piece.end_line]))
        body, remarks = _split_comments(_body(module, piece))
        bodies.append(body)
        comments.append(remarks)
    return FunctionSource(
        function=function,
        line=first.line,
        end_line=first.end_line,
        ranges=tuple((piece.line, piece.end_line) for piece in pieces),
        text="\n".join(texts),
        name=first.name,
        class_names=first.class_names,
        docstring="\n".join(piece.docstring for piece in pieces if piece.docstring),
        comments="\n".join(remark for remark in comments if remark),
        body="\n".join(bodies),
        is_class=first.is_class,
    )


def _body(module: _Module, piece: _Piece) -> list[str]:
    """The lines of a piece without its docstring, and of a class also without its methods."""
    hidden = [piece.docstring_lines]
    if piece.is_class:
        prefix = piece.qualname + "."
        hidden += [(p.line, p.end_line) for p in module.pieces if p.qualname.startswith(prefix)]
    skip = {line for start, end in hidden for line in range(start, end + 1)}
    return [
        text
        for number, text in enumerate(module.lines[piece.line - 1 : piece.end_line], start=piece.line)
        if number not in skip
    ]


def _split_comments(lines: list[str]) -> tuple[str, str]:
    """(code without comments, the comments) of some lines; a piece that does not tokenize keeps its comments."""
    text = "\n".join(lines)
    if "#" not in text:
        return text, ""
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    kept, comments = list(lines), []
    try:
        for token in tokenize.generate_tokens(iter([line[margin:] + "\n" for line in lines]).__next__):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                kept[row - 1] = lines[row - 1][: margin + column].rstrip()
                comments.append(token.string.lstrip("#: ").rstrip())
    except (tokenize.TokenError, SyntaxError):
        return text, ""
    return "\n".join(kept), "\n".join(comments)
