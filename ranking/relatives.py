"""What stands beside functions that differ: methods that theirs override or are overridden by, and class-level data.

Neither is called where the runs part, so no recording shows it; the source does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xlocal.ranking.evidence import FunctionView
from xlocal.ranking.signals import Finding, Findings
from xlocal.ranking.source import ClassSource, SourceIndex
from xlocal.tracer.calltree import Function

KINDS = ("override", "class-data")
# The kinds that make a method's relatives worth a look.
SHARP = ("line", "origin", "exception", "traceback", "line-count", "only-buggy")
MOST_FLAGGED = 12  # functions by one kind: where it flags more, it points nowhere
MOST_RELATIVES = 3  # of one method
_CLASS = re.compile(r"<(\w+)")  # of an object's preview
_READ = re.compile(r"\b(?:self|cls)\.(\w+)")


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The classes of some files, related by the names of their bases; namesakes are not told apart."""

    classes: Mapping[Function, ClassSource]
    by_name: Mapping[str, Sequence[ClassSource]]
    derived: Mapping[str, Sequence[ClassSource]]

    @classmethod
    def of(cls, index: SourceIndex, paths: Iterable[str]) -> Hierarchy:
        """Of every class in the files `paths`."""
        every = [each for path in paths for each in index.classes(path)]
        by_name: dict[str, list[ClassSource]] = {}
        derived: dict[str, list[ClassSource]] = {}
        for each in every:
            by_name.setdefault(each.name, []).append(each)
            for base in each.bases:
                derived.setdefault(base, []).append(each)
        return cls({each.function: each for each in every}, by_name, derived)

    def around(self, method: Function) -> ClassSource | None:
        """The class that defines a method; None for a plain function."""
        return self.classes.get(Function(method.path, method.qualname.rpartition(".")[0]))

    def bases(self, of: ClassSource) -> Iterator[ClassSource]:
        """Its bases and theirs, the nearest first; not itself."""
        return _closure(of, lambda each: [base for name in each.bases for base in self.by_name.get(name, ())])

    def heirs(self, of: ClassSource) -> Iterator[ClassSource]:
        """The classes derived from it and from those, the nearest first; not itself."""
        return _closure(of, lambda each: self.derived.get(each.name, ()))


def _closure(of: ClassSource, near: Callable[[ClassSource], Iterable[ClassSource]]) -> Iterator[ClassSource]:
    seen, waiting = {of.function}, [of]
    for each in waiting:
        for other in near(each):
            if other.function not in seen:
                seen.add(other.function)
                waiting.append(other)
                yield other


def relatives(
    found: Findings, views: Iterable[FunctionView], executed: Iterable[Function], index: SourceIndex
) -> Findings:
    """Findings of two kinds for one pair of runs: `override` for methods that did not run but override, or are
    overridden by, one that differs sharply; `class-data` for the class whose data is read where the runs part."""
    ran = set(executed)
    classes = Hierarchy.of(index, sorted({function.path for function in ran}))
    reasons: dict[Function, str] = {}
    for kind in SHARP:
        flagged = found.get(kind, {})
        if len(flagged) <= MOST_FLAGGED:
            for function, finding in flagged.items():
                reasons.setdefault(function, finding.detail)
    return {
        "override": dict(_overrides(reasons, ran, classes)),
        "class-data": dict(_class_data(views, classes, index)),
    }


def _overrides(
    reasons: Mapping[Function, str], ran: set[Function], classes: Hierarchy
) -> Iterator[tuple[Function, Finding]]:
    for method, reason in reasons.items():
        around = classes.around(method)
        if around is None:
            continue
        name = method.qualname.rpartition(".")[2]
        near = [("is overridden by", each) for each in classes.bases(around)]
        near += [("overrides", each) for each in classes.heirs(around)]
        others = [
            (how, Function(each.function.path, f"{each.function.qualname}.{name}"))
            for how, each in near
            if name in each.methods
        ]
        for how, other in [pair for pair in others if pair[1] not in ran][:MOST_RELATIVES]:
            yield other, Finding(1.0, f"did not run, but {how} {method.qualname}, which {reason}")


def _class_data(
    views: Iterable[FunctionView], classes: Hierarchy, index: SourceIndex
) -> Iterator[tuple[Function, Finding]]:
    for view in views:
        around = classes.around(view.function)
        source = index.source(view.function) if around else None
        if around is None or source is None or len(source.ranges) > 1:
            continue
        holders = [*_of_objects(view, around, classes), around, *classes.bases(around)]
        held = {name for pair in view.pairs for call in pair for name, _ in call.given}
        for line in _parting(view):
            place = line - source.line
            texts = source.text.split("\n")
            for name in _READ.findall(texts[place]) if 0 <= place < len(texts) else ():
                holder = next((each for each in holders if name in each.data), None)
                # Where the object has an attribute of the name, that is what was read.
                if holder is not None and f"self.{name}" not in held and not _set_by_methods(name, holders, index):
                    yield holder.function, Finding(1.0, _data_text(name, holder.data[name], view.function, line))


def _of_objects(view: FunctionView, around: ClassSource, classes: Hierarchy) -> Iterator[ClassSource]:
    """The classes of the objects that a method was called on, as far as they derive from its own, and what they derive
    from."""
    shown = (text for pair in view.pairs for call in pair for name, text in call.given if name == "self")
    names = {match[1] for text in shown if (match := _CLASS.match(text))}
    for each in classes.heirs(around):
        if each.name in names:
            yield from (each, *classes.bases(each))


def _data_text(name: str, line: int, reader: Function, read: int) -> str:
    return (
        f"sets {name} at line {line}, class-level data that {reader.qualname} reads at line {read}, where the runs part"
    )


def _parting(view: FunctionView) -> list[int]:
    """The last line that both runs took before each stretch of lines that one of them took alone."""
    here, there = (set(dict(lines)) for lines in view.lines)
    both, alone = sorted(here & there), here ^ there
    return sorted({max((line for line in both if line < each), default=0) for each in alone} - {0})


def _set_by_methods(name: str, holders: Sequence[ClassSource], index: SourceIndex) -> bool:
    """Whether a method of these classes sets `self.NAME`: then the value need not be the class's."""
    write = re.compile(rf"\b(?:self|cls)\.{re.escape(name)}\s*(?:=(?!=)|[-+*/|&]=)")
    for holder in holders:
        for method in holder.methods:
            source = index.source(Function(holder.function.path, f"{holder.function.qualname}.{method}"))
            if source is not None and write.search(source.text):
                return True
    return False
