"""What every test may ask for: the interpreters of this machine, the shared data, and a clean profile hook."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from xlocal.tracer.launch import Interpreter

ROOT = Path(__file__).resolve().parent.parent
# The experiments are programs beside the package, not part of it.
sys.path.insert(0, str(ROOT / "experiments"))

from environments import found_interpreters  # noqa: E402 (needs the path above)

# A run in the background of a shell ignores Ctrl-C, and so would every program that the tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Guards come off: what the probe's hook would swallow inside a user's program fails the test.
os.environ["XLOCAL_TESTING"] = "1"


@pytest.fixture(autouse=True)
def _profile_hook_is_free() -> Iterator[None]:
    """No test may find or leave a profile function behind, in this thread or for new ones."""
    assert sys.getprofile() is None
    yield
    leftover, sys_hook = sys.getprofile(), threading.getprofile()
    sys.setprofile(None)
    threading.setprofile(None)  # type: ignore[arg-type]
    assert leftover is None
    assert sys_hook is None


@pytest.fixture(scope="session")
def interpreters() -> tuple[Interpreter, ...]:
    """Every Python from 3.6 up that starts here, one per minor version, oldest first; never empty."""
    return found_interpreters()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with the real cases (`XLOCAL_DATA`, else `../shared` beside the checkout); skips where absent."""
    folder = Path(os.environ.get("XLOCAL_DATA", ROOT.parent / "shared"))
    if not (folder / "cases").is_dir():
        pytest.skip(f"no real cases here: {folder}/cases does not exist (set XLOCAL_DATA)")
    return folder
