"""What a call to a model costs: published prices from genai-prices, and a price file for every other model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Protocol

from xlocal.tracer.errors import UsageError

_MILLION = Decimal(1_000_000)
_KEYS = ("input", "cached_input", "cache_write", "output")


class Counts(Protocol):
    """Tokens of one call. `input_tokens` holds the cached ones too; `output_tokens` holds the thinking."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def cache_read_tokens(self) -> int: ...
    @property
    def cache_write_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one call, as `Counts` has them."""

    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0


class Pricing(Protocol):
    """The prices of one model."""

    def cost(self, tokens: Counts) -> Decimal:
        """US dollars for one call."""
        ...


@dataclass(frozen=True, slots=True)
class FilePrice:
    """US dollars for a million tokens of each kind."""

    input: Decimal
    output: Decimal
    cached_input: Decimal
    cache_write: Decimal

    def cost(self, tokens: Counts) -> Decimal:
        """US dollars for one call."""
        plain = tokens.input_tokens - tokens.cache_read_tokens - tokens.cache_write_tokens
        dollars = max(plain, 0) * self.input + tokens.output_tokens * self.output
        dollars += tokens.cache_read_tokens * self.cached_input + tokens.cache_write_tokens * self.cache_write
        return dollars / _MILLION


@dataclass(frozen=True, slots=True)
class PublishedPrice:
    """The provider's list price of a model, steps by length included."""

    provider: str
    model: str

    def cost(self, tokens: Counts) -> Decimal:
        """US dollars for one call."""
        from genai_prices import Usage, calc_price

        usage = Usage(
            input_tokens=tokens.input_tokens,
            cache_read_tokens=tokens.cache_read_tokens,
            cache_write_tokens=tokens.cache_write_tokens,
            output_tokens=tokens.output_tokens,
        )
        return calc_price(usage, self.model, provider_id=self.provider).total_price


FREE = FilePrice(Decimal(0), Decimal(0), Decimal(0), Decimal(0))


def worst_cost(pricing: Pricing, *, input_tokens: int, output_tokens: int) -> Decimal:
    """The most that a call of at most so many tokens can cost: writing a cache may cost more than reading plainly."""
    plain = Tokens(input_tokens=input_tokens, output_tokens=output_tokens)
    writing = Tokens(input_tokens=input_tokens, cache_write_tokens=input_tokens, output_tokens=output_tokens)
    return max(pricing.cost(plain), pricing.cost(writing))


def published_price(provider: str, model: str) -> PublishedPrice | None:
    """The list price of a provider's model; None when it is not known."""
    price = PublishedPrice(provider, model)
    try:
        price.cost(Tokens(input_tokens=1, output_tokens=1))
    except LookupError:
        return None
    return price


def read_prices(file: Path) -> dict[str, FilePrice]:
    """Prices by model, from a TOML file of tables such as

        ["http://localhost:8080/v1#qwen"]
        input = 0.30           # US dollars for a million tokens
        output = 1.20
        cached_input = 0.03    # optional, else as input
        cache_write = 0.375    # optional, else as input

    The name `scripted` prices the scripted model. Raises UsageError, naming file and model, for a file that is not so.
    """
    try:
        with file.open("rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise UsageError(f"--prices {file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--prices {file}: is not valid TOML: {error}") from None
    return {name: _price(table, f"--prices {file}: [{name}]") for name, table in document.items()}


def _price(table: Any, where: str) -> FilePrice:
    if not isinstance(table, Mapping):
        raise UsageError(f"{where}: is not a table")
    unknown = sorted(table.keys() - set(_KEYS))
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known keys: {', '.join(_KEYS)}")
    missing = [key for key in ("input", "output") if key not in table]
    if missing:
        raise UsageError(f"{where}: {missing[0]} is missing (US dollars for a million tokens)")
    given = {key: _dollars(table[key], f"{where}: {key}") for key in table}
    return FilePrice(
        input=given["input"],
        output=given["output"],
        cached_input=given.get("cached_input", given["input"]),
        cache_write=given.get("cache_write", given["input"]),
    )


def _dollars(value: Any, where: str) -> Decimal:
    try:
        if isinstance(value, bool):
            raise TypeError
        dollars = Decimal(str(value))
    except (InvalidOperation, TypeError):
        raise UsageError(f"{where} must be a number of US dollars, not {value!r}") from None
    if not (dollars.is_finite() and dollars >= 0):
        raise UsageError(f"{where} must not be negative: {value!r}")
    return dollars
