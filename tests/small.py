"""The small language of localization tests: a module, a bad and a good script, and what is said of its functions."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

from xlocal.ranking.comparison import Localization

from xlocal.question import Question, investigate


def located(folder: Path, module: str, bad: str, good: str | list[str], **options: Any) -> Localization:
    """Save `module` as lib.py of a project and both scripts beside it, and investigate them for real."""
    project = folder / "project"
    project.mkdir(exist_ok=True)
    (project / "lib.py").write_text(textwrap.dedent(module), "utf-8")
    goods = [good] if isinstance(good, str) else good
    names = ["bad.py", *(f"good{number}.py" for number in range(len(goods)))]
    for name, text in zip(names, [bad, *goods], strict=True):
        (project / name).write_text(textwrap.dedent(text), "utf-8")
    question = Question(
        buggy=str(project / "bad.py"),
        references=tuple(str(project / name) for name in names[1:]),
        scope=options.pop("scope", (str(project / "lib.py"),)),
        python=options.pop("python", sys.executable),
        cwd=project,
        **options,
    )
    return investigate(question, session=folder / "session")


def suspects(found: Localization) -> list[str]:
    """Qualnames in the order of their rank."""
    return [ranked.suspect.function.qualname for ranked in found.suspects]


def kinds(found: Localization, name: str) -> dict[str, str]:
    """What is said of one function: kind of evidence -> its clause."""
    one = next(ranked.suspect for ranked in found.suspects if ranked.suspect.function.qualname == name)
    return {evidence.kind: evidence.detail for evidence in one.evidence}


def slugs(found: Localization) -> set[str]:
    """The warnings' slugs."""
    return {warning.slug for warning in found.warnings}
