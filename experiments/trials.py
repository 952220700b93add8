"""Recorded cases, ready to be ranked again in many ways."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import metrics
import numpy as np
from environments import Case, UnavailableError, load_cases
from recorded import Recorded
from rich.console import Console
from xlocal.ranking.comparison import Comparison
from xlocal.ranking.encoder import load_encoder
from xlocal.ranking.evidence import Suspect
from xlocal.ranking.localize import with_named
from xlocal.ranking.rank import Context, FloatArray, embedding_scores, in_order, lexical_scores
from xlocal.ranking.source import SourceIndex
from xlocal.ranking.text import read_issue
from xlocal.tracer.errors import UsageError, XlocalError

from xlocal.demo import cache_folder
from xlocal.session import COMPARISON, Session

WIDTH = 140  # of what goes to no terminal, so that no table is cut


@dataclass(frozen=True, slots=True)
class Trial:
    """One case ready to be ranked again: its suspects in a fixed order, with their scores by the text and the encoder,
    each of shape `(n,)`; `similar` is of shape `(0,)` without an encoder."""

    id: str
    repository: str
    true_functions: tuple[str, ...]
    suspects: tuple[Suspect, ...]
    text: FloatArray
    similar: FloatArray

    @property
    def right(self) -> list[bool]:
        """For each suspect whether it is right, shape `(n,)`."""
        return [metrics.is_right(str(suspect.function), self.true_functions) for suspect in self.suspects]

    def place(self, scores: FloatArray, kept: Sequence[int] | None = None) -> int | None:
        """The place of the first true function, among the suspects `kept` (indices; default all)."""
        chosen = range(len(self.suspects)) if kept is None else kept
        order = in_order([self.suspects[i] for i in chosen], scores[list(chosen)].tolist())
        return metrics.first_right([str(self.suspects[chosen[i]].function) for i in order], self.true_functions)


def trial_of(case: Case, recorded: Recorded, model: str | None) -> Trial:
    """Read a recorded case, recording it first where it is not yet. Raises UnavailableError, XlocalError."""
    folder = recorded.session(case)
    index = SourceIndex(Session.load(folder).scope)
    issue = read_issue(case.issue)
    suspects = with_named(Comparison.load(folder / COMPARISON).suspects, issue, index)
    suspects = tuple(sorted(suspects, key=lambda s: (s.function.path, s.line, s.function.qualname)))
    encoder = load_encoder(model, cache=recorded.cache / "vectors") if model else None
    context = Context(sources=index, issue=issue, encoder=encoder)
    similar = embedding_scores(suspects, context) if encoder else np.zeros(0)
    return Trial(case.id, case.repository, case.true_functions, suspects, lexical_scores(suspects, context), similar)


def read_trials(cases: Path, checkouts: Path | None, cache: Path, *, model: str | None = None) -> list[Trial]:
    """Every case of a folder that can be ranked here; stderr tells of each, and why the others are left out.

    Raises UsageError when the folder holds none.
    """
    progress = Console(stderr=True)
    recorded = Recorded(cache.resolve(), checkouts)
    try:
        every = load_cases(cases)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from None
    trials = []
    for case in every:
        try:
            trials.append(trial_of(case, recorded, model))
            progress.print(f"{case.id}: read", markup=False, highlight=False)
        except (UnavailableError, XlocalError) as error:
            progress.print(f"{case.id}: left out: {error}", markup=False, highlight=False, soft_wrap=True)
    return trials


def parser_of(doc: str | None) -> argparse.ArgumentParser:
    """The parser of a program on trials, told by its docstring, with what says where the cases and recordings are."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, metavar="DIR", help="folder of the cases")
    parser.add_argument("--checkouts", type=Path, metavar="DIR", help="prepared repositories")
    parser.add_argument("--cache", type=Path, default=cache_folder() / "localization", metavar="DIR")
    return parser


def open_trials(given: argparse.Namespace, *, model: str | None = None) -> tuple[Console, list[Trial]]:
    """Where to print, and the trials that the arguments of `parser_of` name; where there are none, it is printed.

    Raises UsageError when the folder of the cases holds none.
    """
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    trials = read_trials(given.cases, given.checkouts, given.cache, model=model)
    if not trials:
        console.print("no case could be ranked; see above")
    return console, trials
