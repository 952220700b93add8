"""xlocal finds the function to blame: it compares a failing and a working run and ranks the functions.

    import xlocal

    found = xlocal.localize("fails.py", "works.py", issue="What goes wrong, in words.")
    for ranked in found:
        print(ranked.rank, ranked.suspect.function)

Names load their modules on first use, so that importing xlocal is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xlocal.api import Found as Found
    from xlocal.api import Traced as Traced
    from xlocal.api import localize as localize
    from xlocal.api import trace as trace
    from xlocal.notebook import load_ipython_extension as load_ipython_extension
    from xlocal.notebook import unload_ipython_extension as unload_ipython_extension
    from xlocal.question import Question as Question
    from xlocal.question import investigate as investigate
    from xlocal.question import read_issue as read_issue
    from xlocal.question import rerank as rerank
    from xlocal.ranking.comparison import Comparison as Comparison
    from xlocal.ranking.comparison import Localization as Localization
    from xlocal.ranking.comparison import RunSummary as RunSummary
    from xlocal.ranking.evidence import Evidence as Evidence
    from xlocal.ranking.evidence import RankedSuspect as RankedSuspect
    from xlocal.ranking.evidence import Suspect as Suspect
    from xlocal.ranking.localize import compare as compare
    from xlocal.ranking.localize import rank_suspects as rank_suspects
    from xlocal.session import Session as Session
    from xlocal.tracer.calltree import CallTree as CallTree
    from xlocal.tracer.calltree import Function as Function
    from xlocal.tracer.command import Command as Command
    from xlocal.tracer.command import parse_command as parse_command
    from xlocal.tracer.errors import ModelError as ModelError
    from xlocal.tracer.errors import ScriptError as ScriptError
    from xlocal.tracer.errors import SessionError as SessionError
    from xlocal.tracer.errors import TraceFormatError as TraceFormatError
    from xlocal.tracer.errors import UsageError as UsageError
    from xlocal.tracer.errors import Warned as Warned
    from xlocal.tracer.errors import XlocalError as XlocalError
    from xlocal.tracer.record import Recording as Recording
    from xlocal.tracer.record import record as record
    from xlocal.tracer.scope import Scope as Scope
    from xlocal.tracer.scope import find_scope as find_scope

_HOMES = {
    # for programs and notebooks
    "localize": "api",
    "trace": "api",
    "Found": "api",
    "Traced": "api",
    "load_ipython_extension": "notebook",
    "unload_ipython_extension": "notebook",
    # the whole job
    "Question": "question",
    "investigate": "question",
    "rerank": "question",
    "read_issue": "question",
    "Session": "session",
    # recording
    "Command": "tracer.command",
    "parse_command": "tracer.command",
    "Scope": "tracer.scope",
    "find_scope": "tracer.scope",
    "Recording": "tracer.record",
    "record": "tracer.record",
    "CallTree": "tracer.calltree",
    "Function": "tracer.calltree",
    # comparing and ranking
    "Comparison": "ranking.comparison",
    "Localization": "ranking.comparison",
    "RunSummary": "ranking.comparison",
    "compare": "ranking.localize",
    "rank_suspects": "ranking.localize",
    "Evidence": "ranking.evidence",
    "Suspect": "ranking.evidence",
    "RankedSuspect": "ranking.evidence",
    # errors and warnings
    "XlocalError": "tracer.errors",
    "UsageError": "tracer.errors",
    "ScriptError": "tracer.errors",
    "TraceFormatError": "tracer.errors",
    "SessionError": "tracer.errors",
    "ModelError": "tracer.errors",
    "Warned": "tracer.errors",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("importlib.metadata").version("xlocal")
    if name not in _HOMES:
        raise AttributeError(f"module 'xlocal' has no attribute {name!r}")
    return getattr(import_module(f"xlocal.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
