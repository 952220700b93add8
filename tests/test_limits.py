"""Limits hold before each call, for one issue and for a batch; prices, and what is counted."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import threading
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from xlocal.swe_pipeline.limits import LEAST_OUTPUT, Ledger, LimitReached, Limits, Meter, Used, money
from xlocal.swe_pipeline.models import parse_model, pricing_of
from xlocal.swe_pipeline.prices import FREE, FilePrice, Tokens, published_price, read_prices, worst_cost
from xlocal.tracer.errors import AgentError, UsageError

PRICE = FilePrice(input=Decimal(3), output=Decimal(15), cached_input=Decimal("0.3"), cache_write=Decimal("3.75"))


def meter(**limits: object) -> Meter:
    return Meter(Limits(**limits), pricing=PRICE)


@given(
    dollars=st.decimals("0.0001", "1", places=4),
    calls=st.lists(st.tuples(st.integers(0, 20_000), st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=30),
)
def test_what_is_spent_never_crosses_the_limit(dollars, calls):
    one = meter(dollars=dollars, tokens=None)
    for bound, read, written, measured in calls:
        try:
            permit = one.permit(input_bound=bound)
        except LimitReached:
            continue
        tokens = Tokens(
            input_tokens=int(bound * read),
            cache_write_tokens=int(bound * read * written),
            output_tokens=int(permit.output_tokens * written),
        )
        one.settle(permit, one.used(permit, tokens, measured=measured))
        assert one.dollars <= dollars


def test_the_answer_is_allowed_what_the_rest_affords_and_below_a_useful_length_nothing_is_asked():
    one = meter(dollars=Decimal("0.02"))
    # A thousand tokens in cost at most 0.00375, so 0.01625 is left for the answer at 15 a million.
    assert one.permit(input_bound=1000).output_tokens == 1083
    with pytest.raises(LimitReached, match=r"may cost \$0\.0226"):
        one.permit(input_bound=5000)


def test_tokens_and_time_are_limits_too():
    one = meter(dollars=None, tokens=2000)
    assert one.permit(input_bound=1000).output_tokens == 1000
    with pytest.raises(LimitReached) as reached:
        one.permit(input_bound=2000 - LEAST_OUTPUT + 1)
    assert reached.value.limit == "tokens"
    with pytest.raises(LimitReached) as reached:
        meter(seconds=0.0).permit(input_bound=1)
    assert reached.value.limit == "time"


def test_actions_are_counted_per_conversation():
    one = meter()
    for _ in range(3):
        one.act("repair-1", 3)
    one.act("repair-2", 3)
    with pytest.raises(LimitReached) as reached:
        one.act("repair-1", 3)
    assert (reached.value.limit, one.actions) == ("actions", 4)


def test_cached_tokens_cost_what_they_cost():
    tokens = Tokens(input_tokens=10_000, cache_read_tokens=8000, cache_write_tokens=1000, output_tokens=100)
    assert PRICE.cost(tokens) == (1000 * 3 + 8000 * Decimal("0.3") + 1000 * Decimal("3.75") + 100 * 15) / 1_000_000
    assert worst_cost(PRICE, input_tokens=1000, output_tokens=0) == Decimal("0.00375")


def test_failed_calls_that_may_be_billed_count_with_the_most_they_can_cost():
    one = meter(dollars=Decimal(1))
    permit = one.permit(input_bound=1000)
    used = Used(1000, 0, permit.output_tokens, permit.bound_dollars, failed=True, estimated=True)
    one.settle(permit, used)
    assert one.dollars == permit.bound_dollars > 0
    assert (one.calls, one.failed_calls) == (0, 1)
    assert Used.from_json(json.loads(json.dumps(used.as_json()))) == used


def test_published_prices_are_known_and_unknown_ones_are_not_guessed():
    known = published_price("anthropic", "claude-sonnet-4-20250514")
    assert known is not None
    assert known.cost(Tokens(input_tokens=1_000_000, cache_read_tokens=1_000_000)) == Decimal("0.30")
    assert published_price("anthropic", "no-such-model") is None
    assert pricing_of(parse_model("http://localhost:1/v1#qwen"), {}) is None
    assert pricing_of(parse_model("scripted:x.json"), {}) is FREE


def test_a_dollar_limit_without_a_price_is_refused():
    with pytest.raises(AgentError, match="needs a price"):
        Meter(Limits(dollars=Decimal(1)), pricing=None)
    assert Meter(Limits(dollars=None), pricing=None).spent().dollars is None


def test_a_price_file_names_models(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text(
        '["http://localhost:1/v1#qwen"]\ninput = 0.30\noutput = 1.2\n\n[scripted]\ninput = 3\noutput = 15\n'
    )
    prices = read_prices(file)
    found = pricing_of(parse_model("http://localhost:1/v1#qwen"), prices)
    assert found == FilePrice(Decimal("0.3"), Decimal("1.2"), Decimal("0.3"), Decimal("0.3"))
    assert pricing_of(parse_model("scripted:x.json"), prices).cost(Tokens(output_tokens=1_000_000)) == 15


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[m]\ninput = 1\n", "output is missing"),
        ("[m]\ninput = -1\noutput = 1\n", "must not be negative"),
        ('[m]\ninput = "cheap"\noutput = 1\n', "must be a number"),
        ("[m]\ninput = true\noutput = 1\n", "must be a number"),
        ("[m]\nprice = 1\n", "unknown key 'price'"),
        ("m = 1\n", "is not a table"),
        ("[m\n", "not valid TOML"),
    ],
)
def test_a_bad_price_file_is_refused_in_one_line(tmp_path, text, message):
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_prices(file)


def test_a_batch_sets_the_worst_case_aside_before_each_call(tmp_path):
    ledger = Ledger(tmp_path / "account.json", dollars=Decimal("0.10"))
    first = ledger.reserve(tokens=10, dollars=Decimal("0.06"))
    assert ledger.reserve(tokens=10, dollars=Decimal("0.05")) is None  # it fits when the first is settled
    with pytest.raises(LimitReached) as reached:
        ledger.reserve(tokens=10, dollars=Decimal("0.11"))
    assert reached.value.limit == "batch dollars"
    ledger.settle(first, tokens=8, dollars=Decimal("0.01"))
    ledger.settle(ledger.reserve(tokens=10, dollars=Decimal("0.09")), tokens=2, dollars=Decimal("0.09"))
    assert ledger.spent() == (Decimal("0.10"), 10)


@pytest.mark.parametrize("limit", [{"dollars": Decimal("0.03")}, {"tokens": 1500}])
def test_an_answer_is_shortened_to_what_the_batch_has_left(tmp_path, limit):
    ledger = Ledger(tmp_path / "account.json", **limit)
    mine = Meter(Limits(), pricing=PRICE, batch=ledger)
    permit = mine.permit(input_bound=500)
    # $0.03 - 500 * $3.75 a million (a cache may be written) leave 1875 tokens of $15 a million; 1500 - 500 are 1000.
    assert permit.output_tokens == {"dollars": 1875, "tokens": 1000}[next(iter(limit))]
    mine.settle(permit, Used(500, 0, 1000 - LEAST_OUTPUT // 2, Decimal("0.0265")))
    with pytest.raises(LimitReached, match="and the next call may"):
        mine.permit(input_bound=200)


def test_what_others_have_set_aside_makes_a_call_wait_and_not_end(tmp_path):
    ledger = Ledger(tmp_path / "account.json", dollars=Decimal("0.10"))
    ticket = ledger.reserve(tokens=10, dollars=Decimal("0.09"))
    waited = threading.Timer(0.5, lambda: ledger.settle(ticket, tokens=10, dollars=Decimal("0.01")))
    waited.start()
    began = time.monotonic()
    permit = Meter(Limits(), pricing=PRICE, batch=ledger).permit(input_bound=500)
    waited.join()
    assert time.monotonic() - began >= 0.5
    assert 0 < permit.bound_dollars <= Decimal("0.09")
    assert ledger.spent() == (Decimal("0.01"), 10)


def test_a_call_waits_no_longer_than_its_issue_has_time(tmp_path):
    ledger = Ledger(tmp_path / "account.json", dollars=Decimal("0.10"))
    ledger.reserve(tokens=10, dollars=Decimal("0.10"))
    with pytest.raises(LimitReached, match="the time limit of 1 s"):
        Meter(Limits(seconds=1.0), pricing=PRICE, batch=ledger).permit(input_bound=500)


def spend(file: Path, count: int) -> None:
    """Many calls of one process."""
    ledger = Ledger(file, dollars=Decimal("0.50"))
    for _ in range(count):
        try:
            ticket = ledger.reserve(tokens=1, dollars=Decimal("0.01"))
        except LimitReached:
            return
        if ticket is not None:
            ledger.settle(ticket, tokens=1, dollars=Decimal("0.01"))


def test_processes_share_the_account_without_crossing_it(tmp_path):
    file = tmp_path / "account.json"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=spend, args=(file, 40)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert Ledger(file).spent() == (Decimal("0.50"), 50)


def test_what_a_killed_process_had_set_aside_counts_as_spent(tmp_path):
    file = tmp_path / "account.json"
    code = (
        "import os, sys; from decimal import Decimal; from pathlib import Path\n"
        "from xlocal.swe_pipeline.limits import Ledger\n"
        "Ledger(Path(sys.argv[1])).reserve(tokens=7, dollars=Decimal('0.25')); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == -9
    assert Ledger(file).spent() == (Decimal("0.25"), 7)


def test_a_process_killed_at_any_moment_loses_nothing_of_the_account(tmp_path):
    file = tmp_path / "account.json"
    code = (
        "import sys; from decimal import Decimal; from pathlib import Path\n"
        "from xlocal.swe_pipeline.limits import Ledger\n"
        "ledger = Ledger(Path(sys.argv[1])); print('ready', flush=True)\n"
        "while True: ledger.settle(ledger.reserve(tokens=1, dollars=Decimal(1)), tokens=1, dollars=Decimal(1))\n"
    )
    before = 0
    for wait in (0.01, 0.03, 0.05, 0.07, 0.11, 0.13):
        with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(wait)
            process.kill()
        dollars, tokens = Ledger(file).spent()
        assert dollars == tokens >= before
        before = tokens
    assert before > 0


def test_a_damaged_account_is_not_taken_for_an_empty_one(tmp_path):
    (tmp_path / "account.json").write_text("{")
    with pytest.raises(AgentError, match="is damaged"):
        Ledger(tmp_path / "account.json").spent()


def test_money_for_people():
    assert (money(Decimal("1.23456")), money(None)) == ("1.2346", "?")
