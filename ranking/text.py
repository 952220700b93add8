"""Reading an issue: its title, prose, code, tracebacks and the functions that it names.

Plain text, Markdown and reStructuredText are read line by line; nothing here fails, whatever the text.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from xlocal.ranking.source import SourceIndex
from xlocal.tracer.calltree import Function
from xlocal.tracer.errors import Warned

MAX_CHARACTERS = 1_000_000
MAX_LINE = 5_000
# A bare name that so many functions carry names none of them.
MAX_NAMESAKES = 5
MAX_TITLE = 300


class Frame(NamedTuple):
    """One frame of a traceback in the text; `line` is 0 when it is not given."""

    path: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Issue:
    """An issue by section. `text` is what was read (cut at `MAX_CHARACTERS`); every other field is a part of it.

    `inline_code` are the pieces between backquotes, `code_blocks` fenced and indented blocks and doctests without
    their tracebacks, `tracebacks` the text of each traceback and `frames` the frames of all of them, outermost
    first. `names` are identifiers and dotted names that stand as code or can only be code (`snake_case`,
    `CamelCase`, `call()`, `a.b`); `calls` are the names that are called.
    """

    text: str
    title: str
    prose: str
    inline_code: tuple[str, ...]
    code_blocks: tuple[str, ...]
    tracebacks: tuple[str, ...]
    frames: tuple[Frame, ...]
    names: tuple[str, ...]
    calls: tuple[str, ...]
    warnings: tuple[Warned, ...] = ()


_FENCE = re.compile(r"\s{0,3}(?:>\s?)*(```+|~~~+)")
_PROMPT = re.compile(r"\s*(?:>>>|\.\.\.(?=\s|$)|In ?\[\d*\]:|Out ?\[\d*\]:|\$ )")
_LIST_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,3}[.)])\s")
_TRACEBACK = re.compile(r"\s*(?:[|+E>]\s*)?Traceback \(most recent call last\)")
_FRAMES = (
    re.compile(r'\s*(?:[|E>]\s*)?File "([^"]+)", line (\d+)(?:, in ([\w.<>]+))?'),
    re.compile(r"\s*File ([^\s:\"][^\s:]*\.pyx?):(\d+),? in ([\w.<>]+)"),  # IPython 8
    re.compile(r"\s*([~/\w.\\:-]+\.pyx?):(\d+): (?:in ([\w.<>]+)|\w*(?:Error|Exception|Warning|Exit)\b)"),  # pytest
    re.compile(r"\s*([~/\w.\\:-]+\.pyx?) in ([\w.<>]+)\("),  # IPython before 8
)
_MENTIONED_FILE = re.compile(r"(?<![\w./\\-])([\w./\\-]+\.py)(?:#L|:)(\d+)")
_INLINE = re.compile(r"(`{1,2})([^`\n]+)\1")
_URL = re.compile(r"\b(?:https?|ftp)://[^\s<>\"')\]]+")
_TAG = re.compile(r"</?(?:details|summary|p|br|b|i|pre|code|div|span|table|tr|td|th|h\d)\b[^<>]{0,200}>", re.I)
_DOTTED = re.compile(r"(?<![\w.])[^\W\d]\w*(?:\.[^\W\d]\w*)+")
_CALL = re.compile(r"(?<!\w)((?:[^\W\d]\w*\.)*[^\W\d]\w*)\(")
_WORD = re.compile(r"(?<!\w)[^\W\d]\w*")
_LOOKS_LIKE_CODE = re.compile(r"\w_\w|^__?\w|[a-z\d][A-Z]")
_FILE_NAME = re.compile(r"\.(?:py|pyx|rst|txt|md|toml|cfg|ini|json|ya?ml|html?|com|org|io|net)$")
_NOT_CALLS = frozenset({*keyword.kwlist, "print", "super"})


def read_issue(text: str) -> Issue:
    """Read an issue text; the first line is its title unless it opens a code block. Empty text gives empty parts."""
    text, warnings = _cut(text)
    reader = _Reader()
    for line in _without_comments(text).split("\n"):
        reader.feed(line)
    reader.close()
    prose = "\n".join(reader.prose)
    inline = tuple(match[2] for match in _INLINE.finditer(f"{reader.title}\n{prose}"))
    plain = _TAG.sub(" ", _URL.sub(_url_path, _INLINE.sub(" ", prose)))
    title = _INLINE.sub(r"\2", reader.title)
    code = "\n".join([*inline, *reader.blocks])
    return Issue(
        text=text,
        title=title,
        prose=plain,
        inline_code=inline,
        code_blocks=tuple(reader.blocks),
        tracebacks=tuple(reader.tracebacks),
        frames=tuple(reader.frames),
        names=tuple(dict.fromkeys(_names(f"{title}\n{plain}", code))),
        calls=tuple(dict.fromkeys(_calls(f"{title}\n{plain}\n{code}"))),
        warnings=warnings,
    )


def _cut(text: str) -> tuple[str, tuple[Warned, ...]]:
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\0", " ")
    if len(text) <= MAX_CHARACTERS:
        return text, ()
    said = f"the issue text has {len(text):,} characters; only the first {MAX_CHARACTERS:,} are read"
    return text[:MAX_CHARACTERS], (Warned("issue-cut", said),)


def _without_comments(text: str) -> str:
    """Text without `<!-- -->`, where issue templates keep their instructions; an unclosed one stays."""
    kept, start = [], 0
    while (opened := text.find("<!--", start)) >= 0 and (closed := text.find("-->", opened)) >= 0:
        kept.append(text[start:opened])
        start = closed + 3
    return "".join([*kept, text[start:]])


def _url_path(match: re.Match[str]) -> str:
    """What a link says about code: the path of a Python file, else nothing."""
    path = re.search(r"/(?:blob|tree|src)/[^/]+/(.+?\.py)\b", match[0])
    return f" {path[1]} " if path else " "


class _Reader:
    """Sorts the lines of an issue into title, prose, code blocks and tracebacks."""

    def __init__(self) -> None:
        self.title = ""
        self.prose: list[str] = []
        self.blocks: list[str] = []
        self.tracebacks: list[str] = []
        self.frames: list[Frame] = []
        self._fence = ""
        self._code: list[str] = []
        self._trace: list[str] = []
        self._began = self._in_list = False
        self._blank = True

    def feed(self, line: str) -> None:
        line = line[:MAX_LINE].rstrip()
        if self._fence_line(line):
            return
        if self._trace and self._goes_on(line):
            self._trace.append(line)
            self._frame(line)
            return
        self._end_trace()
        if self._frame(line) or _TRACEBACK.match(line):
            self._began = True
            self._trace.append(line)
        elif self._fence or self._is_code(line):
            self._began = True
            self._code.append(line)
        else:
            self._end_code()
            self._text(line)
        self._blank = not line

    def close(self) -> None:
        self._end_trace()
        self._end_code()

    def _fence_line(self, line: str) -> bool:
        match = _FENCE.match(line)
        if not match or (self._fence and not match[1].startswith(self._fence)):
            return False
        # "```code```" on one line is inline code.
        if not self._fence and match[1] in line[match.end() :]:
            return False
        self.close()
        self._began = True
        self._fence = "" if self._fence else match[1]
        self._blank, self._in_list = True, self._in_list and line.startswith(" ")
        return True

    def _text(self, line: str) -> None:
        if line and not self._began:
            self._began = True
            if len(line) <= MAX_TITLE:
                self.title = line.lstrip("# ").strip()
                return
        if line:
            self._in_list = bool(_LIST_ITEM.match(line)) or (self._in_list and line.startswith(" "))
        self.prose.append(line)

    def _is_code(self, line: str) -> bool:
        """True for a line of an indented block or a doctest (its output runs to the next blank line)."""
        if _PROMPT.match(line):
            return True
        if not line:
            return bool(self._code) and self._code[-1].startswith((" ", "\t"))
        if line.startswith(("    ", "\t")):
            return (self._blank and not self._in_list) or bool(self._code)
        return bool(self._code) and bool(self._code[-1]) and any(map(_PROMPT.match, self._code[-3:]))

    def _goes_on(self, line: str) -> bool:
        """True while a line belongs to the traceback: frames, their indented source, then one line of error."""
        if not line:
            # pytest and IPython put blank lines between frames.
            return not self._errored() and len(self._trace) < 400 and bool(self._trace[-1])
        if any(pattern.match(line) for pattern in _FRAMES) or _TRACEBACK.match(line):
            return True
        if self._errored():
            return False
        return line.startswith((" ", "\t", "|", "E ", ">", "-->")) or _is_error(line)

    def _errored(self) -> bool:
        return _is_error(self._trace[-1]) or (not self._trace[-1] and _is_error("".join(self._trace[-2:])))

    def _frame(self, line: str) -> bool:
        for pattern in _FRAMES:
            match = pattern.match(line)
            if match:
                groups = [*match.groups(), None][:3]
                if pattern is _FRAMES[-1]:
                    groups = [match[1], "0", match[2]]
                self.frames.append(Frame(groups[0] or "", int(groups[1] or 0), (groups[2] or "").rpartition(".")[2]))
                return True
        return False

    def _end_trace(self) -> None:
        if self._trace:
            self.tracebacks.append("\n".join(self._trace).strip("\n"))
            self._trace = []

    def _end_code(self) -> None:
        if any(self._code):
            self.blocks.append("\n".join(self._code).strip("\n"))
        self._code = []


def _is_error(line: str) -> bool:
    """True for the last line of a traceback: `pkg.SomeError: what` or a bare exception name."""
    return bool(re.match(r"(?:E\s+)?(?:[^\W\d]\w*\.)*[^\W\d]\w*(?:: .*|:)?$", line))


def _names(prose: str, code: str) -> Iterator[str]:
    for match in _WORD.finditer(code):
        yield match[0]
    for match in _DOTTED.finditer(f"{code}\n{prose}"):
        if not _FILE_NAME.search(match[0]):
            yield match[0]
    for match in _CALL.finditer(prose):
        yield match[1]
    for match in _WORD.finditer(prose):
        if _LOOKS_LIKE_CODE.search(match[0]):
            yield match[0]


def _calls(text: str) -> Iterator[str]:
    for match in _CALL.finditer(text):
        if match[1] not in _NOT_CALLS:
            yield match[1]


def named_functions(
    issue: Issue, candidates: Iterable[Function], *, sources: SourceIndex | None = None
) -> Mapping[Function, str]:
    """Those of `candidates` that the issue names, each with a clause that says how.

    A frame names the functions of its name in the file whose path agrees longest with the frame's (with `sources`,
    of namesakes the one around the frame's line). A dotted name names functions whose path and qualname end so. A
    bare name counts where it stands as code or can only be code, or is a long word that one function carries, and
    never when more than `MAX_NAMESAKES` candidates carry it.
    """
    by_name: dict[str, list[Function]] = {}
    for function in sorted(set(candidates)):
        by_name.setdefault(function.qualname.rpartition(".")[2], []).append(function)
    found: dict[Function, str] = {}
    for frame in issue.frames:
        for function in _framed(frame, by_name.get(frame.name, []), sources):
            found.setdefault(function, "named in a traceback of the issue")
    for name in issue.names:
        if "." in name:
            last = name.rpartition(".")[2]
            for function in by_name.get(last, []):
                if _is_dotted(name, function):
                    found.setdefault(function, f"named `{name}` in the issue")
    for name in _bare_names(issue):
        namesakes = by_name.get(name, [])
        if len(namesakes) <= MAX_NAMESAKES:
            for function in namesakes:
                found.setdefault(function, f"named `{name}` in the issue")
    for name in _long_words(issue):
        namesakes = by_name.get(name, [])
        if len(namesakes) == 1:
            found.setdefault(namesakes[0], f"the issue says {name!r}")
    return found


def mentioned_names(issue: Issue) -> frozenset[str]:
    """Own names of the functions that `named_functions` could find, for a search over a whole repository."""
    dotted = (name.rpartition(".")[2] for name in issue.names if "." in name)
    framed = (frame.name for frame in issue.frames)
    return frozenset([*dotted, *framed, *_bare_names(issue), *_long_words(issue)])


def _bare_names(issue: Issue) -> Iterator[str]:
    """Names that stand for a function by themselves, in order; dunders name no function in particular."""
    inline = (piece.strip("() .") for piece in issue.inline_code)
    shown = (name for name in issue.names if _LOOKS_LIKE_CODE.search(name))
    called = (name.rpartition(".")[2] for name in issue.calls)
    for name in dict.fromkeys([*inline, *shown, *called]):
        if len(name) > 1 and not name.startswith("__"):
            yield name


def _long_words(issue: Issue) -> Iterator[str]:
    for match in _WORD.finditer(f"{issue.title}\n{issue.prose}"):
        if len(match[0]) >= 9:
            yield match[0]


def _framed(frame: Frame, namesakes: list[Function], sources: SourceIndex | None) -> list[Function]:
    parts = [part for part in re.split(r"[\\/]+", frame.path) if part not in ("", ".", "~", "...")]
    shared = {function: _common_suffix(parts, function.path.split("/")) for function in namesakes}
    longest = max(shared.values(), default=0)
    if longest < min(2, len(parts)) or not longest:
        return []
    found = [function for function in namesakes if shared[function] == longest]
    if sources is None or not frame.line or len(found) < 2:
        return found
    # The issue's release may differ by some lines from this one, so the nearest start above is taken.
    starts = {f: source.line for f in found if (source := sources.source(f)) and source.line <= frame.line}
    return [max(starts, key=lambda f: starts[f])] if starts else found


def _common_suffix(left: list[str], right: list[str]) -> int:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_dotted(name: str, function: Function) -> bool:
    """True when `name` is the function's own dotted name, or leaves out inner parts (`pkg.func` for a re-export)."""
    parts = name.split(".")
    path = function.path.removesuffix(".py").removesuffix("/__init__").split("/")
    full = [*path, *function.qualname.split(".")]
    if full[-len(parts) :] == parts:
        return True
    inner = iter(full[:-1])
    return parts[0] in path and full[-1] == parts[-1] and all(part in inner for part in parts[:-1])
