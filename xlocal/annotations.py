"""A localization as annotations of GitHub Actions: one workflow command for each suspect."""

from __future__ import annotations

from collections.abc import Iterator

from xlocal.ranking.comparison import Localization
from xlocal.ranking.evidence import RankedSuspect
from xlocal.report import all_warnings, is_changed, plain, reason, where
from xlocal.sarif import SOURCE, base_of
from xlocal.tracer.scope import Scope

MOST_NAMED = 3  # pieces of evidence in one annotation


def as_annotations(found: Localization, scope: Scope, *, top: int) -> str:
    """`::warning file=...,line=...::...` for each of the first `top` suspects with evidence, `::notice` for the others.

    A function of an installed package has no file in the repository, so its annotation names the place in its text.
    """
    return "".join(f"{line}\n" for line in _commands(found, scope, top))


def _commands(found: Localization, scope: Scope, top: int) -> Iterator[str]:
    for ranked in found.suspects[:top]:
        suspect = ranked.suspect
        changed = " (changed)" if is_changed(ranked) else ""
        properties = {"title": f"xlocal: suspect {ranked.rank}, {plain(suspect.function.qualname)}{changed}"}
        text = _text(ranked, found)
        if base_of(suspect.function, scope) == SOURCE:
            lines = {"line": suspect.line, "endLine": suspect.end_line} if suspect.line else {}
            properties = {
                "file": suspect.function.path,
                **{name: str(line) for name, line in lines.items()},
                **properties,
            }
        else:
            text = f"{where(ranked)}: {text}"
        yield command("warning" if suspect.evidence else "notice", properties, text)
    for warned in all_warnings(found):
        yield command("notice", {"title": f"xlocal: {warned.slug}"}, plain(warned.text))


def _text(ranked: RankedSuspect, found: Localization) -> str:
    first = reason(ranked, issue=found.issue, ranker=found.ranker)
    ordered = sorted(ranked.suspect.evidence, key=lambda item: -item.weight)
    return "\n".join([first, *(f"{plain(item.detail)}." for item in ordered[1:MOST_NAMED])])


def command(name: str, properties: dict[str, str], text: str) -> str:
    """One workflow command; what would end a value early is escaped as the runner reads it back."""
    inside = ",".join(f"{key}={_escaped(value, ':,')}" for key, value in properties.items())
    return f"::{name} {inside}::{_escaped(text, '')}"


def _escaped(text: str, further: str) -> str:
    for char in "%\r\n" + further:
        text = text.replace(char, f"%{ord(char):02X}")
    return text
