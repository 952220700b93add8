"""Issues and steps for tests of the batch: small jobs that write down when they start and end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.engines import Answer, Call, Key
from xlocal.swe_pipeline.issue import Issue
from xlocal.tracer.errors import CheckoutError, MissingError, UsageError


def issues(count: int) -> list[Issue]:
    return [Issue(f"shop__shop-{number}", "shop/shop", "0" * 40, "The total is wrong.") for number in range(count)]


@dataclass(frozen=True)
class Noted:
    """A step whose jobs append to `journal`, then do what `how` says of their instance:

    sleep S; fail (an error of its own); miss and bug (others that last); fault N (a transient error in the first N attempts); die N (SIGKILL in the
    first N attempts).
    """

    name: str
    journal: Path
    how: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    faults: tuple[type[BaseException], ...] = (CheckoutError,)

    def job(self, issue: Issue) -> NotedJob:
        return NotedJob(issue.id, self.name, self.journal, self.how.get(issue.id, ""), dict(self.facts))


@dataclass(frozen=True)
class NotedJob:
    instance: str
    step: str
    journal: Path
    how: str
    facts: Mapping[str, Any]

    def __call__(self, folder: Path, former: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        self._note("start")
        verb, _, value = self.how.partition(" ")
        attempt = sum(row[:3] == [self.instance, self.step, "start"] for row in journal(self.journal))
        if verb == "sleep":
            time.sleep(float(value))
        elif verb == "fail":
            raise UsageError("this cannot work")
        elif verb == "miss":
            raise MissingError("there is no such mirror")
        elif verb == "bug":
            raise ZeroDivisionError("a mistake")
        elif verb == "fault" and attempt <= int(value):
            raise CheckoutError("the network is away")
        elif verb == "die" and attempt <= int(value):
            os.kill(os.getpid(), signal.SIGKILL)
        self._note("end")
        return {"step": self.step, "former": sorted(former), "cost": {"dollars": 0.25, "tokens": 10}}

    def _note(self, what: str) -> None:
        # One short write in append mode is whole, whoever else writes.
        line = json.dumps([self.instance, self.step, what, os.getpid()]) + "\n"
        with self.journal.open("a") as file:
            file.write(line)


class Inline:
    """An engine whose jobs run in this process, one after another: what a test replaced is replaced in them, too."""

    workers = 1

    def __init__(self, workers: int = 1) -> None:
        self._ended: list[tuple[Key, Answer]] = []

    def describe(self) -> Mapping[str, Any]:
        return {"name": "inline"}

    def start(self, key: Key, call: Call) -> None:
        self._ended.append((key, call()))

    def finished(self, timeout: float) -> list[tuple[Key, Answer]]:
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        pass


def journal(file: Path) -> list[list[Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def ended(file: Path) -> list[tuple[str, str]]:
    return sorted((instance, step) for instance, step, what, _ in journal(file) if what == "end")
