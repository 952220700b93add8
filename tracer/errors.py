"""Every error that xlocal raises on purpose, with the exit code it ends the command with."""

from dataclasses import dataclass


class XlocalError(Exception):
    """A named failure. The message says what happened, to which file, and what to do; exit code 4."""

    exit_code = 4


class UsageError(XlocalError):
    """The command or its arguments cannot mean anything (a missing script, an unknown ranker); exit code 2."""

    exit_code = 2


class ScriptError(XlocalError):
    """A script did not behave as it must: did not run, timed out, or wrote no trace; exit code 3."""

    exit_code = 3


class TraceFormatError(XlocalError):
    """A trace file is not ours, is damaged beyond use, or comes from a newer xlocal."""


class SessionError(XlocalError):
    """A session folder is missing, in use by another xlocal, or cannot be written."""


class CheckoutError(XlocalError):
    """A repository, its commit, its interpreter or its environment cannot be had, or a patch does not apply."""


class MissingError(CheckoutError):
    """A program, a repository or a commit is not here, and another attempt would not find it either."""


class PatchError(CheckoutError):
    """A patch is no unified diff, reaches outside the work tree, or does not apply."""


class ModelError(XlocalError):
    """An encoder cannot be loaded: its packages or its weights are not here."""


class AgentError(XlocalError):
    """A language model cannot be used, a limit forbids going on, or a trajectory cannot be followed."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A doubt about the data, told to the user: `slug` names its paragraph in docs/messages.md."""

    slug: str
    text: str
