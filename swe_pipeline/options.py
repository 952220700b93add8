"""How an issue is solved: what can be chosen, what of it cannot work, and what the head of a record keeps of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

from xlocal.swe_pipeline.checkout import Checkout
from xlocal.swe_pipeline.limits import Limits
from xlocal.swe_pipeline.models import ModelName, open_model, parse_model, pricing_of
from xlocal.swe_pipeline.prices import FilePrice, Pricing
from xlocal.swe_pipeline.reproduce import ScriptPair
from xlocal.swe_pipeline.trajectory import Record, digest
from xlocal.tracer.errors import UsageError

Variant = Literal["vanilla", "localizer", "full"]
_NEED_ENCODER = ("paper", "embedding")


@dataclass(frozen=True, slots=True)
class Options:
    """How an issue is solved.

    `variant` is a row of the paper's Table 2: vanilla has the issue alone, localizer adds the pair of scripts and the
    ranked functions, full also the validation tests. `ranker` and `encoder` order the functions. `pair` spares the
    reproduction. `window` is the model's, in tokens, where it cannot be asked for. A run that stopped after the
    reproduction can go on to the repair.
    """

    model: str
    limits: Limits = field(default_factory=Limits)
    variant: Variant = "full"
    ranker: str = "fused"
    encoder: str | None = None
    top: int = 20
    candidates: int = 1
    window: int | None = None
    prices: Mapping[str, FilePrice] = field(default_factory=dict)
    pair: ScriptPair | None = None
    stop_after: Literal["reproduce"] | None = None


def check_options(options: Options, *, batch_dollars: Decimal | None = None) -> None:
    """Refuse what cannot work before anything is copied, run or paid for; nothing is asked of the model.

    Raises UsageError for a limit in dollars on a model without a known price, a ranker without the encoder that it
    needs, and a script that is no script; AgentError when the model's key or a package is missing.
    """
    name = parse_model(options.model)
    pricing_for(name, options, batch_dollars)
    encoder = options.encoder
    if options.ranker in _NEED_ENCODER and not (encoder and Path(encoder).is_dir()):
        missing = f"--encoder {encoder}: is no folder" if encoder else f"--ranker {options.ranker} needs an encoder"
        raise UsageError(f"{missing}; name the folder of one with --encoder DIR, since the sandbox has no network")
    if not (name.kind == "scripted" and Path(name.name).is_dir()):  # such a folder has a file for each issue
        open_model(name)


def pricing_for(name: ModelName, options: Options, batch_dollars: Decimal | None = None) -> Pricing | None:
    """The model's price, None where it is not known; UsageError when a limit in dollars needs one."""
    pricing = pricing_of(name, options.prices)
    if pricing is None and (options.limits.dollars is not None or batch_dollars is not None):
        raise UsageError(
            f"--model {name.text}: its price is not known, so a limit in dollars cannot be held. Give its price with "
            "--prices FILE, or limit tokens instead (--budget none --tokens N)"
        )
    return pricing


def header_of(checkout: Checkout, options: Options) -> dict[str, Any]:
    """The head of a record: the issue, and the options that steer what is asked."""
    issue = checkout.issue
    return {
        "issue": issue.id,
        "statement": digest(issue.statement),
        "base": issue.base_commit,
        "variant": options.variant,
        "ranker": options.ranker,
        "encoder": options.encoder,
        "top": options.top,
        "candidates": options.candidates,
        "pair": None if options.pair is None else asdict(options.pair),
        "model": options.model,
        "actions": [options.limits.reproduce_actions, options.limits.repair_actions],
    }


def options_of(record: Record) -> Options:
    """The options that a record was made with, as far as they steer what is asked."""
    header = record.header
    reproduce_actions, repair_actions = header["actions"]
    return Options(
        model=header["model"],
        limits=Limits(reproduce_actions=reproduce_actions, repair_actions=repair_actions),
        variant=header["variant"],
        ranker=header["ranker"],
        encoder=header["encoder"],
        top=header["top"],
        candidates=header["candidates"],
        pair=scripts_of(header),
    )


def scripts_of(header: Mapping[str, Any]) -> ScriptPair | None:
    """The scripts that a run was given, from the head of its record."""
    pair = header.get("pair")
    if pair is None:
        return None
    fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in pair.items()}
    return ScriptPair(**fields)


def require_same(recorded: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """The model and the limits may change between two starts of a run; what is asked may not."""
    now = json.loads(json.dumps(dict(now)))
    for key, what in (("issue", "issue"), ("statement", "issue"), ("base", "commit")):
        if recorded.get(key) != now[key]:
            raise UsageError(f"{folder}: the run is of another {what}; leave it out to go on, or start a new run")
    if recorded.get("pair") != now["pair"]:
        had = "other scripts" if recorded.get("pair") else "scripts of its own making"
        raise UsageError(f"--pair: {folder} is a run with {had}; leave the option out to go on, or start a new run")
    for key in ("variant", "ranker", "encoder", "top", "candidates"):
        if recorded.get(key) != now[key]:
            had = f"without --{key}" if recorded.get(key) is None else f"with --{key} {recorded[key]}"
            raise UsageError(f"--{key} {now[key]}: {folder} is a run {had}; leave the option out to go on, or start a "
                             "new run")  # fmt: skip
