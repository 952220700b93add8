"""Limits that hold before each call: actions, dollars, tokens and time, for one issue and for a whole batch."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from xlocal.swe_pipeline.prices import Pricing, worst_cost
from xlocal.tracer.errors import AgentError

LEAST_OUTPUT = 256  # tokens below which an answer is of no use
MOST_OUTPUT = 8192  # tokens of one answer
_LOOK = 0.2  # seconds between two looks at what others have set aside


class LimitReached(AgentError):  # noqa: N818 - an expected end
    """Nothing may be started any more; `limit` names which one: actions, dollars, tokens, time, batch dollars..."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Limits:
    """What one issue may use; None is no limit. `seconds` is wall time, waiting for a provider included."""

    dollars: Decimal | None = Decimal(2)
    tokens: int | None = 5_000_000
    seconds: float | None = 3600.0
    reproduce_actions: int = 100
    repair_actions: int = 200


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used so far. `dollars` is None when any of it has no known price."""

    dollars: Decimal | None = Decimal(0)
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0
    failed_calls: int = 0
    actions: int = 0
    seconds: float = 0.0
    estimated: int = 0  # calls that were counted at the worst case, since nobody told what they used

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def as_json(self) -> dict[str, Any]:
        """For manifests and reports; dollars as text, since cents must stay exact."""
        return {
            "dollars": None if self.dollars is None else str(self.dollars),
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "calls": self.calls,
            "failed_calls": self.failed_calls,
            "actions": self.actions,
            "seconds": round(self.seconds, 2),
            "estimated": self.estimated,
        }


@dataclass(frozen=True, slots=True)
class Permit:
    """Leave for one call: how long its answer may be, and the most that it can use."""

    output_tokens: int
    bound_tokens: int
    bound_dollars: Decimal | None
    ticket: str | None = None


class Meter:
    """Counts what one issue uses and refuses what could cross a limit.

    Before a call the worst case is assumed: every byte sent is a token, and the answer is as long as allowed. When
    that could cross a limit, the answer is allowed less, and below a useful length nothing is sent. So the sum of
    what was billed never exceeds the limit.
    """

    def __init__(self, limits: Limits, *, pricing: Pricing | None, batch: Ledger | None = None) -> None:
        if limits.dollars is not None and pricing is None:
            raise AgentError("a limit in dollars needs a price; give a price file with --prices, or no --budget")
        self.limits = limits
        self.pricing = pricing
        self._batch = batch
        self._started = time.monotonic()
        self._earlier = 0.0  # seconds of the run that this one takes up again
        self.dollars: Decimal | None = Decimal(0) if pricing is not None else None
        self.input_tokens = self.cached_tokens = self.output_tokens = 0
        self.calls = self.failed_calls = self.actions = self.estimated = 0
        self._actions_of: dict[str, int] = {}

    def spent(self) -> Spent:
        """Everything so far."""
        return Spent(
            dollars=self.dollars,
            input_tokens=self.input_tokens,
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            calls=self.calls,
            failed_calls=self.failed_calls,
            actions=self.actions,
            seconds=self.seconds(),
            estimated=self.estimated,
        )

    def seconds(self) -> float:
        """Wall time of this issue, that of the run taken up again included."""
        return self._earlier + time.monotonic() - self._started

    def at_least(self, seconds: float) -> None:
        """Know that the recorded part took so long."""
        self._earlier = max(self._earlier, seconds - (time.monotonic() - self._started))

    def dollars_left(self) -> Decimal | None:
        """None without a limit."""
        if self.limits.dollars is None or self.dollars is None:
            return None
        return self.limits.dollars - self.dollars

    def act(self, conversation: str, most: int) -> None:
        """Count one action of a conversation; LimitReached instead when there were `most` of them, or time is up."""
        self.check_time()
        self.check_actions(conversation, most)
        self.count_action(conversation)

    def count_action(self, conversation: str) -> None:
        """Count an action that happened already, such as a call that did not parse."""
        self._actions_of[conversation] = self._actions_of.get(conversation, 0) + 1
        self.actions += 1

    def check_actions(self, conversation: str, most: int) -> None:
        """Raise LimitReached when no further action is allowed in a conversation, so that none has to be asked for."""
        if self._actions_of.get(conversation, 0) >= most:
            raise LimitReached("actions", f"{conversation}: the limit of {most} actions is reached")

    def check_time(self) -> None:
        """Raise LimitReached when the time is up."""
        most = self.limits.seconds
        if most is not None and self.seconds() >= most:
            raise LimitReached("time", f"the time limit of {most:.0f} s is reached")

    def time_left(self) -> float | None:
        """Seconds; None without a limit."""
        return None if self.limits.seconds is None else max(0.0, self.limits.seconds - self.seconds())

    def permit(self, *, input_bound: int, wanted_output: int = MOST_OUTPUT) -> Permit:
        """Leave for one call of at most `input_bound` input tokens; LimitReached when it could cross a limit.

        Waits while other issues of the batch have set aside what this one needs: most of it comes back.
        """
        while True:
            self.check_time()
            permit = self._ticketed(self._allowed(input_bound, wanted_output), input_bound)
            if permit is not None:
                return permit
            time.sleep(_LOOK)

    def _allowed(self, input_bound: int, wanted_output: int) -> Permit:
        """What the issue's own limits allow."""
        output = wanted_output
        if self.limits.tokens is not None:
            output = min(output, self.limits.tokens - self.input_tokens - self.output_tokens - input_bound)
            if output < LEAST_OUTPUT:
                raise LimitReached(
                    "tokens",
                    f"the limit of {self.limits.tokens} tokens: {self.input_tokens + self.output_tokens} are used, and "
                    f"the next call may need {input_bound + LEAST_OUTPUT}",
                )
        if self.pricing is None:
            return Permit(output, input_bound + output, None)
        left = self.dollars_left()
        if left is not None:
            output = min(output, self._affordable(left, input_bound))
            if output < LEAST_OUTPUT:
                need = worst_cost(self.pricing, input_tokens=input_bound, output_tokens=LEAST_OUTPUT)
                raise LimitReached(
                    "dollars",
                    f"the limit of ${self.limits.dollars}: ${money(self.dollars)} is spent, and the next call may "
                    f"cost ${money(need)}",
                )
        bound = worst_cost(self.pricing, input_tokens=input_bound, output_tokens=output)
        return Permit(output, input_bound + output, bound)

    def _affordable(self, left: Decimal, input_bound: int) -> int:
        """The longest answer that fits into the dollars left; 0 when not even the question does."""
        pricing = self.pricing
        if pricing is None or worst_cost(pricing, input_tokens=input_bound, output_tokens=0) > left:
            return 0
        low, high = 0, MOST_OUTPUT
        while low < high:
            middle = (low + high + 1) // 2
            fits = worst_cost(pricing, input_tokens=input_bound, output_tokens=middle) <= left
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    def _ticketed(self, permit: Permit, input_bound: int) -> Permit | None:
        """The permit, its answer shortened to what the batch has left; None while others hold too much of that."""
        if self._batch is None:
            return permit
        dollars, tokens = self._batch.left()
        output = permit.output_tokens if tokens is None else min(permit.output_tokens, tokens - input_bound)
        if dollars is not None and self.pricing is not None:
            output = min(output, self._affordable(dollars, input_bound))
        # Below a useful length the account refuses, and says what is left.
        output = max(output, LEAST_OUTPUT)
        bound = permit.bound_dollars
        if self.pricing is not None:
            bound = worst_cost(self.pricing, input_tokens=input_bound, output_tokens=output)
        ticket = self._batch.reserve(tokens=input_bound + output, dollars=bound)
        return None if ticket is None else Permit(output, input_bound + output, bound, ticket)

    def settle(self, permit: Permit | None, used: Used) -> None:
        """Count what a call used, also when it failed."""
        self.calls += not used.failed
        self.failed_calls += used.failed
        self.estimated += used.estimated
        self.input_tokens += used.input_tokens
        self.cached_tokens += used.cached_tokens
        self.output_tokens += used.output_tokens
        if self.dollars is not None and used.dollars is not None:
            self.dollars += used.dollars
        if permit is not None and permit.ticket is not None and self._batch is not None:
            self._batch.settle(permit.ticket, tokens=used.input_tokens + used.output_tokens, dollars=used.dollars)

    def used(self, permit: Permit, tokens: Any, *, measured: bool) -> Used:
        """What a call used by its token counts, or, when the provider told none, the most it can have used."""
        if not measured:
            return Used(
                input_tokens=permit.bound_tokens - permit.output_tokens,
                output_tokens=permit.output_tokens,
                dollars=permit.bound_dollars,
                estimated=True,
            )
        return Used(
            input_tokens=tokens.input_tokens,
            cached_tokens=tokens.cache_read_tokens,
            output_tokens=tokens.output_tokens,
            dollars=None if self.pricing is None else self.pricing.cost(tokens),
        )


@dataclass(frozen=True, slots=True)
class Used:
    """What one call used; `estimated` when the provider did not say and the worst case is counted."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    dollars: Decimal | None = Decimal(0)
    failed: bool = False
    estimated: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the trajectory."""
        return {
            "input_tokens": self.input_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "dollars": None if self.dollars is None else str(self.dollars),
            "failed": self.failed,
            "estimated": self.estimated,
        }

    @classmethod
    def from_json(cls, row: dict[str, Any]) -> Used:
        """What `as_json` wrote."""
        dollars = row["dollars"]
        return cls(**{**row, "dollars": None if dollars is None else Decimal(dollars)})


class Ledger:
    """The account of a batch in a file, shared by its processes.

    Each call's worst case is set aside before it is made, so that parallel issues together cannot cross the limit. What
    a killed process had set aside counts as spent: the call may have been billed.
    """

    def __init__(self, file: Path, *, dollars: Decimal | None = None, tokens: int | None = None) -> None:
        self.file = file
        self._dollars = dollars
        self._tokens = tokens

    def left(self) -> tuple[Decimal | None, int | None]:
        """Dollars and tokens that are not spent, though maybe set aside; None without a limit."""
        dollars, tokens = self.spent()
        return (
            None if self._dollars is None else self._dollars - dollars,
            None if self._tokens is None else self._tokens - tokens,
        )

    def reserve(self, *, tokens: int, dollars: Decimal | None) -> str | None:
        """Set a call's worst case aside; returns the ticket to settle it with.

        None while it does not fit beside what others have set aside: once their calls are settled it may. Raises
        LimitReached when it does not fit into what is not spent.
        """
        if self._dollars is not None and dollars is None:
            raise AgentError("a batch limit in dollars needs a price; give a price file with --prices")
        with self._open() as account:
            held = [*account["open"].values()]
            spent, used = Decimal(account["dollars"]), account["tokens"]
            if self._dollars is not None and dollars is not None and spent + dollars > self._dollars:
                raise LimitReached(
                    "batch dollars",
                    f"the batch's limit of ${self._dollars}: ${money(spent)} is spent, and the next call may cost "
                    f"${money(dollars)}",
                )
            if self._tokens is not None and used + tokens > self._tokens:
                raise LimitReached(
                    "batch tokens",
                    f"the batch's limit of {self._tokens} tokens: {used} are used, and the next call may need {tokens}",
                )
            spent += sum((Decimal(row["dollars"]) for row in held), dollars or Decimal(0))
            used += sum((row["tokens"] for row in held), tokens)
            if (self._dollars is not None and spent > self._dollars) or (
                self._tokens is not None and used > self._tokens
            ):
                return None
            ticket = uuid.uuid4().hex
            account["open"][ticket] = {"tokens": tokens, "dollars": str(dollars or 0), "process": os.getpid()}
        return ticket

    def settle(self, ticket: str, *, tokens: int, dollars: Decimal | None) -> None:
        """Replace what was set aside by what was used."""
        with self._open() as account:
            account["open"].pop(ticket, None)
            account["dollars"] = str(Decimal(account["dollars"]) + (dollars or Decimal(0)))
            account["tokens"] += tokens

    def spent(self) -> tuple[Decimal, int]:
        """Dollars and tokens, what is still set aside left out."""
        with self._open() as account:
            return Decimal(account["dollars"]), int(account["tokens"])

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, Any]]:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_name(f".{self.file.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            text = self.file.read_text("utf-8") if self.file.exists() else ""
            account = self._read(text) if text else {"dollars": "0", "tokens": 0, "open": {}}
            self._count_the_dead(account)
            yield account
            fresh = json.dumps(account, indent=1) + "\n"
            if fresh != text:
                self._replace(fresh)

    def _read(self, text: str) -> dict[str, Any]:
        try:
            account: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise AgentError(f"{self.file}: is damaged ({error}); what the batch has cost is not known") from None
        return account

    def _replace(self, text: str) -> None:
        """Whole or not at all: a process killed while it writes must not lose what was spent."""
        new = self.file.with_name(f".{self.file.name}.new")
        with new.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self.file)

    def _count_the_dead(self, account: dict[str, Any]) -> None:
        for ticket, row in list(account["open"].items()):
            if not _alive(row["process"]):
                account["dollars"] = str(Decimal(account["dollars"]) + Decimal(row["dollars"]))
                account["tokens"] += row["tokens"]
                del account["open"][ticket]


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody else's, and alive
    return True


def money(dollars: Decimal | None) -> str:
    """Dollars for people: four decimals, or `?` when there is no price."""
    return "?" if dollars is None else f"{dollars:.4f}"
