"""Ending a process together with everything that descends from it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GRACE_SECONDS = 3  # between SIGTERM and SIGKILL
_POLL_SECONDS = 0.02


@contextlib.contextmanager
def killed_at_last(process: subprocess.Popen[bytes], mark: str) -> Iterator[Family]:
    """The family of a process; whatever happens meanwhile (a second Ctrl-C), it is killed and reaped in the end.

    `mark` is a text that no other program's environment holds.
    """
    family = Family(process.pid, mark)
    try:
        yield family
    finally:
        family.send(signal.SIGKILL)
        process.wait()


class Family:
    """A process and those that descend from it; where there is no /proc, its process group.

    A descendant is known by its session, its parent, or (a daemon has neither) the mark in its environment.
    """

    def __init__(self, leader: int, mark: str) -> None:
        self.leader = leader
        self.mark = os.fsencode(mark)
        # (pid, start time), since a pid may be given to another process later.
        self.known = {(row.pid, row.started) for row in _processes() if row.pid == leader}
        self.started = next((started for _, started in self.known), None)

    def end(self, *, patience: float) -> int:
        """Wait for all to end by themselves, then end them; returns how many had to be."""
        survivors = self._wait(patience)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.alive():
                break
            self.send(number)
            self._wait(GRACE_SECONDS)
        return survivors

    def _wait(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while (count := len(self.alive())) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return count

    def send(self, number: int) -> None:
        """Send a signal to every member that runs."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def alive(self) -> list[int]:
        """Pids of members that run; those that ended and only wait to be reaped do not count."""
        if self.started is None:
            return self._alive_group()
        table = {row.pid: row for row in _processes()}
        if self.leader not in table or table[self.leader].started == self.started:
            ours = (row for row in table.values() if self.leader in (row.group, row.session))
            self.known.update((row.pid, row.started) for row in ours)
        later = (row for row in table.values() if row.started >= self.started and row.pid != os.getpid())
        self.known.update((row.pid, row.started) for row in later if self.mark in row.environment())
        grown = True
        while grown:  # one round per generation, since children may have smaller pids than their parents
            members = {pid for pid, started in self.known if pid in table and table[pid].started == started}
            found = {(row.pid, row.started) for row in table.values() if row.parent in members}
            grown = not found <= self.known
            self.known |= found
        return sorted(pid for pid, started in self.known if pid in table and table[pid].runs_since(started))

    def _alive_group(self) -> list[int]:
        """Without /proc: the negative number of the process group, which os.kill understands."""
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):
            return []
        return [-self.leader]


class _Process(NamedTuple):
    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    def runs_since(self, started: int) -> bool:
        """Whether this is the process that started then, and it has not ended."""
        return self.started == started and self.state not in "ZX"

    def environment(self) -> bytes:
        """The environment it was started with; empty when it ended or belongs to somebody else."""
        try:
            return Path("/proc", str(self.pid), "environ").read_bytes()
        except OSError:
            return b""


def _processes() -> Iterator[_Process]:
    """All processes of the system, see proc(5); none where there is no /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended meanwhile
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            parent, group, session = map(int, fields[1:4])
            yield _Process(int(stat.parent.name), fields[0], parent, group, session, int(fields[19]))
