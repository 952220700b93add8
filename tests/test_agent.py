"""The loop and its record: a real local server with its errors, keys, windows; crash and resume at every step; replay."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="needs the extra agents")

from agents import (
    GOOD,
    REPAIR,
    REPRODUCE,
    SUBMIT,
    Shop,
    call,
    completion,
    model_server,
    needs_sandbox,
    write_script,
)
from xlocal.swe_pipeline import context, conversation
from xlocal.swe_pipeline.limits import Limits
from xlocal.swe_pipeline.models import context_window, open_model, parse_model, redact, secrets
from xlocal.swe_pipeline.options import Options
from xlocal.swe_pipeline.prices import FilePrice
from xlocal.swe_pipeline.reproduce import ScriptPair
from xlocal.swe_pipeline.solve import replay
from xlocal.swe_pipeline.trajectory import EFFECTS, FILE, Effect, Step, Trajectory, plan_cut, read_trajectory
from xlocal.tracer.errors import AgentError, UsageError

PRICES = {
    "m": FilePrice(Decimal(3), Decimal(15), Decimal("0.3"), Decimal(3)),
    "scripted": FilePrice(*map(Decimal, (3, 15, 3, 3))),
}
FAST = {"variant": "localizer"}


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


def in_order(script, *, before=()):
    """Answers of a server: first the given failures, then the conversations of a script in their order."""
    turns = [turn for name in ("reproduce", "judge", "repair") for turn in script[name]]
    state = {"failures": list(before), "turns": turns}

    def respond(_number, _request):
        if state["failures"]:
            return state["failures"].pop(0)
        return 200, completion(state["turns"].pop(0))

    return respond


# --- models by name


@pytest.mark.parametrize(
    ("text", "kind", "name", "url"),
    [
        ("anthropic:claude-sonnet-4-5", "anthropic", "claude-sonnet-4-5", None),
        ("openai:gpt-5", "openai", "gpt-5", None),
        ("http://localhost:8080/v1#qwen3:8b", "url", "qwen3:8b", "http://localhost:8080/v1"),
        ("https://host.example/api/v1/#m", "url", "m", "https://host.example/api/v1"),
        ("scripted:a/b.json", "scripted", "a/b.json", None),
    ],
)
def test_one_text_names_a_model(text, kind, name, url):
    found = parse_model(text)
    assert (found.kind, found.name, found.url) == (kind, name, url)


@pytest.mark.parametrize("text", ["claude", "anthropic:", ":x", "http://localhost/v1", "http://#m", "A B:c"])
def test_other_texts_are_refused(text):
    with pytest.raises(UsageError, match="--model"):
        parse_model(text)


def test_a_login_in_a_url_is_not_repeated():
    with pytest.raises(UsageError) as error:
        parse_model("http://user:hunter22@host/v1#m")
    assert "hunter22" not in str(error.value)


@pytest.mark.parametrize(
    "turns",
    [{}, "view", [1], [{}], [{"tool": 1}], [{"calls": ["view"]}], [{"text": "x", "usage": 3}], [{"status": "no"}]],
)
def test_a_script_of_a_wrong_shape_is_refused_in_one_line(tmp_path, turns):
    (tmp_path / "model.json").write_text(json.dumps({"reproduce": [], "repair": turns}))
    with pytest.raises(UsageError, match="repair is not a list of turns") as refused:
        open_model(parse_model(f"scripted:{tmp_path / 'model.json'}"))
    assert "\n" not in str(refused.value)


def test_a_missing_key_is_told_by_its_variable(monkeypatch):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(AgentError, match="ANTHROPIC_API_KEY"):
        open_model(parse_model("anthropic:claude-sonnet-4-5"))


def test_known_models_tell_their_window(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-x")
    name = parse_model("anthropic:claude-sonnet-4-5")
    assert context_window(name, open_model(name)) >= 200_000


def test_secrets_are_redacted_plain_and_as_json():
    hidden = secrets(
        {"MY_API_KEY": 'se"cret\\key', "GITHUB_TOKEN": "ghp_12345678", "PATH": "/usr/bin", "X_KEY": "short"}
    )
    assert hidden == ("ghp_12345678", 'se"cret\\key')
    assert redact(f"a ghp_12345678 {json.dumps(hidden[1])}", hidden) == 'a [secret] "[secret]"'


# --- a real server


@needs_sandbox
def test_a_server_is_solved_with_and_its_key_never_written(shop, monkeypatch):
    monkeypatch.setenv("XLOCAL_API_KEY", "sk-for-this-server")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-one")
    leak = call("bash", command="echo sk-for-this-server")
    script = {**GOOD, "repair": (leak, *REPAIR)}
    with model_server(in_order(script)) as (url, seen):
        solution = shop.solve(f"{url}#m", prices=PRICES, **FAST)
    assert solution.green
    assert {request["_headers"]["authorization"] for request in seen} == {"Bearer sk-for-this-server"}
    assert seen[0]["temperature"] == 0.0
    assert seen[-1]["temperature"] == 0.5
    assert solution.spent.calls == len(seen)
    assert solution.spent.dollars == len(seen) * (Decimal(1000) * 3 + 50 * 15) / 1_000_000
    for file in shop.run.rglob("*.json*"):
        assert "sk-for-this-server" not in file.read_text(), file


@needs_sandbox
@pytest.mark.slow
def test_cached_tokens_are_cheaper(shop):
    turns = [*REPRODUCE, *GOOD["judge"], *REPAIR]

    def respond(number, _request):
        return 200, completion(turns[number - 1], cached=800)

    with model_server(respond) as (url, seen):
        solution = shop.solve(f"{url}#m", prices=PRICES, **FAST)
    assert solution.spent.cached_tokens == 800 * len(seen)
    per_call = Decimal(200 * 3) + 800 * Decimal("0.3") + 50 * 15
    assert solution.spent.dollars == len(seen) * per_call / 1_000_000


@needs_sandbox
def test_busy_servers_are_asked_again_and_every_attempt_is_kept(shop, monkeypatch):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr(conversation.asyncio, "sleep", sleep)
    before = [(429, {"error": "slow down"}), (500, {"error": "oops"}), (503, {"error": "busy"}), (200, None)]
    with model_server(in_order(GOOD, before=before)) as (url, _):
        solution = shop.solve(f"{url}#m", prices=PRICES, **FAST)
    assert solution.green
    assert solution.spent.failed_calls == 4
    failed = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "failed"]
    assert [step.request["attempt"] for step in failed] == [1, 2, 3, 4]
    # What was refused costs nothing; the answer that was lost may have been billed, and counts in full.
    assert [Decimal(step.used["dollars"]) > 0 for step in failed] == [False, False, False, True]
    assert [step.used["estimated"] for step in failed] == [False, False, False, True]
    assert len(waits) == 4
    assert waits == sorted(waits)


@needs_sandbox
def test_a_server_that_never_recovers_ends_the_run_and_the_run_goes_on_later(shop, monkeypatch):
    async def sleep(_seconds):
        return None

    monkeypatch.setattr(conversation.asyncio, "sleep", sleep)
    with model_server(lambda number, request: (503, {"error": "down"})) as (url, seen):
        with pytest.raises(conversation.ModelUnreachableError, match="no answer in 5 attempts"):
            shop.solve(f"{url}#m", prices=PRICES, **FAST)
        assert len(seen) == 5
    assert "error" in json.loads((shop.run / "result.json").read_text())["ended"]
    with model_server(in_order(GOOD)) as (url, _):
        assert shop.solve(f"{url}#m", prices=PRICES, resume=True, **FAST).green


@needs_sandbox
@pytest.mark.parametrize(("status", "said"), [(401, "bad key"), (404, "no such model"), (400, "nonsense")])
def test_what_asking_again_cannot_help_is_not_asked_again(shop, status, said):
    with model_server(lambda number, request: (status, {"error": {"message": said}})) as (url, seen):
        with pytest.raises(AgentError, match=said):
            shop.solve(f"{url}#m", prices=PRICES, **FAST)
        assert len(seen) == 1


@needs_sandbox
@pytest.mark.slow
def test_a_model_without_temperature_is_asked_without_one(shop):
    answers = in_order(GOOD)

    def respond(number, request):
        if "temperature" in request:
            return 400, {"error": {"message": "Unsupported value: 'temperature' does not support 0.0"}}
        return answers(number, request)

    with model_server(respond) as (url, seen):
        assert shop.solve(f"{url}#m", prices=PRICES, **FAST).green
        assert sum("temperature" in request for request in seen) == 1


@needs_sandbox
def test_a_call_that_takes_too_long_is_ended_and_counted(shop, monkeypatch):
    monkeypatch.setattr(conversation, "CALL_SECONDS", 1.0)

    def respond(number, request):
        time.sleep(3)
        return 200, completion({"text": "late"})

    with model_server(respond) as (url, _):
        solution = shop.solve(f"{url}#m", prices=PRICES, limits=Limits(dollars=Decimal(2), seconds=6.0), **FAST)
    assert solution.ended.startswith("limit: the time limit")
    assert solution.spent.failed_calls >= 1
    assert solution.spent.dollars > 0
    assert solution.spent.seconds < 20


@needs_sandbox
@pytest.mark.slow
def test_a_server_that_counts_nothing_is_counted_at_the_worst(shop):
    turns = [*REPRODUCE, *GOOD["judge"], *REPAIR]

    def respond(number, _request):
        return 200, completion(turns[number - 1], usage=None)

    with model_server(respond) as (url, _):
        solution = shop.solve(f"{url}#m", prices=PRICES, limits=Limits(dollars=Decimal(5)), **FAST)
    steps = [step for step in read_trajectory(shop.run / FILE).steps if step.kind == "model"]
    assert all(step.used["estimated"] for step in steps)
    assert solution.spent.dollars > Decimal("0.1")


@needs_sandbox
def test_a_server_that_cuts_prompts_silently_is_found_out(shop):
    long = call("view", path="big.py")
    turns = [long, long, long]

    def respond(number, _request):
        return 200, completion(turns[number - 1], usage=(900, 5))

    (shop.copy.tree / "big.py").write_text("x = 1  # something to read\n" * 4000)
    shop.copy.reset()
    script = call("bash", command="for i in $(seq 3000); do echo 'a line of output to fill the window'; done")
    turns = [script, script, script]
    with model_server(respond) as (url, _), pytest.raises(AgentError, match="cuts long prompts silently"):
        shop.solve(f"{url}#m", prices=PRICES, **FAST)


@needs_sandbox
def test_a_window_that_is_too_short_is_told_before_anything_is_sent(shop):
    with model_server(in_order(GOOD)) as (url, seen):
        with pytest.raises(AgentError, match=r"window of 1500 tokens is too short.*at least \d+ tokens"):
            shop.solve(f"{url}#m", prices=PRICES, window=1500, **FAST)
        assert seen == []


@needs_sandbox
def test_a_server_that_finds_the_request_too_long_gets_a_shorter_one(shop):
    fill = call("bash", command="seq 4000")
    turns = [fill, fill, *REPRODUCE, *GOOD["judge"], *REPAIR]
    refused = []

    def respond(_number, request):
        size = len(json.dumps(request["messages"]))
        if size > 24_000:
            refused.append(size)
            error = {"message": "This model's maximum context length is 8192 tokens", "code": "context_length_exceeded"}
            return 400, {"error": error}
        return 200, completion(turns.pop(0), usage=(size // 4, 50))

    with model_server(respond) as (url, _):
        assert shop.solve(f"{url}#m", prices=PRICES, window=60_000, **FAST).green
    assert refused


# --- compaction


def talk(count: int, size: int):
    from pydantic_ai.messages import ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart, UserPromptPart

    messages = [ModelRequest([UserPromptPart("THE ISSUE, THE SUSPECTS AND THE TESTS")])]
    for number in range(count):
        messages.append(ModelResponse([ToolCallPart("view", {"path": f"f{number}"}, tool_call_id=str(number))]))
        messages.append(ModelRequest([ToolReturnPart("view", "x" * size, tool_call_id=str(number))]))
    return messages


@pytest.mark.parametrize(
    ("count", "size", "window"), [(5, 4000, 8000), (40, 4000, 16_000), (400, 900, 8000), (300, 50, 4000)]
)
def test_compaction_keeps_the_first_message_and_the_newest_and_fits(count, size, window):
    messages = talk(count, size)
    sent, _ = context.compact(messages, window=window, fixed=3000, already=context.Cut())
    assert context.tokens_of(context.request_bytes(sent) + 3000) <= context.FULL * context.room(window)
    assert sent[0].parts[0].content == "THE ISSUE, THE SUSPECTS AND THE TESTS"
    assert sent[-1] is messages[-1]
    calls = {part.tool_call_id for m in sent for part in m.parts if part.part_kind == "tool-call"}
    returns = {part.tool_call_id for m in sent for part in m.parts if part.part_kind == "tool-return"}
    assert calls == returns
    answered = sum(m.kind == "response" for m in sent)
    assert answered + (sent[0].metadata or {}).get("left_out", 0) == count


def test_compaction_goes_in_big_steps_so_that_caches_stay_good():
    changes, already, before = 0, context.Cut(), None
    for count in range(1, 80):
        sent, already = context.compact(talk(count, 1500), window=20_000, fixed=1000, already=already)
        texts = [str(part) for m in sent for part in m.parts if part.part_kind != "user-prompt"]
        stripped = [text.partition("timestamp")[0] for text in texts]
        if before is not None and stripped[: len(before)] != before:
            changes += 1
        before = stripped
    assert 1 <= changes <= 12


def test_a_short_conversation_is_sent_as_it_is():
    messages = talk(3, 100)
    assert context.compact(messages, window=100_000, fixed=100, already=context.Cut()) == (messages, context.Cut())


# --- the record


def test_effects_are_written_at_once_and_served_again(tmp_path):
    done = []

    def work(extra: Effect):
        done.append(1)
        return {"n": len(done)}

    first = Trajectory(tmp_path, header={"issue": "i"})
    assert first.effect("run", {"what": "a"}, work) == {"n": 1}
    steps = read_trajectory(tmp_path / FILE).steps
    again = Trajectory(tmp_path, header={"issue": "i"}, recorded=steps)
    assert again.effect("run", {"what": "a"}, work) == {"n": 1}
    assert again.effect("run", {"what": "b"}, work) == {"n": 2}
    assert [step.number for step in read_trajectory(tmp_path / FILE).steps] == [1, 2]


def test_a_record_of_something_else_is_not_followed(tmp_path):
    Trajectory(tmp_path, header={}).effect("run", {"what": "a"}, lambda extra: 1)
    again = Trajectory(tmp_path, header={}, recorded=read_trajectory(tmp_path / FILE).steps)
    with pytest.raises(AgentError, match="the record belongs to other settings"):
        again.effect("run", {"what": "b"}, lambda extra: 1)


def test_a_cut_off_line_is_left_out_and_other_damage_is_refused(tmp_path):
    trajectory = Trajectory(tmp_path, header={})
    for number in range(3):
        trajectory.effect("run", {"n": number}, lambda extra: 1)
    file = tmp_path / FILE
    whole = file.read_text()
    file.write_text(whole[:-20])
    heard = []
    record, cut = plan_cut(tmp_path, None, say=heard.append)
    cut()
    assert [step.number for step in record.steps] == [1, 2]
    assert "cut off by a crash" in heard[0]
    file.write_text(whole.replace('"n": 1', '"n": '))
    with pytest.raises(AgentError, match="line 3 is damaged"):
        read_trajectory(file)
    file.write_text('{"format": "xlocal-trajectory", "version": 99}\n')
    with pytest.raises(AgentError, match="newer xlocal"):
        read_trajectory(file)
    file.write_text("hello\n\n")
    with pytest.raises(AgentError, match=r"damaged|not a trajectory"):
        read_trajectory(file)


def test_what_cut_steps_cost_stays_counted(tmp_path):
    trajectory = Trajectory(tmp_path, header={})
    for number in range(4):

        def work(extra: Effect):
            extra.used = {
                "input_tokens": 10,
                "cached_tokens": 0,
                "output_tokens": 1,
                "dollars": "0.01",
                "failed": False,
                "estimated": False,
            }

        trajectory.effect("model", {"n": number}, work)
    record, cut = plan_cut(tmp_path, 1, say=lambda text: None)
    assert len(read_trajectory(tmp_path / FILE).steps) == 4
    cut()
    assert [step.kind for step in record.steps] == ["model", "cut"]
    assert len(record.steps[-1].result) == 3
    assert read_trajectory(tmp_path / FILE).steps == record.steps
    assert len(read_trajectory(tmp_path / f"{FILE}.before-1").steps) == 4
    with pytest.raises(UsageError, match="--step 9: the run has 1 step; name one"):
        plan_cut(tmp_path, 9, say=lambda text: None)


# --- crash and resume at every step, replay


class Killed(BaseException):
    """As a SIGKILL would: nothing after it runs."""


def effects(folder: Path) -> list[Step]:
    return [step for step in read_trajectory(folder / FILE).steps if step.kind in EFFECTS]


@needs_sandbox
@pytest.mark.slow
def test_a_run_killed_at_any_step_goes_on_to_the_same_end_without_paying_twice(shop, monkeypatch):
    usage = {"usage": {"input_tokens": 1000, "output_tokens": 100}}
    priced = {name: [{**turn, **usage} for turn in turns] for name, turns in GOOD.items()}
    model = write_script(shop.folder / "model.json", priced)
    whole = shop.solve(model, prices=PRICES)
    assert whole.green
    steps = effects(shop.run)
    shop.run.rename(shop.folder / "whole")
    keep = Trajectory._append

    def dying(self, kind, request, result, extra, seconds):
        keep(self, kind, request, result, extra, seconds)
        if kind in EFFECTS and len(effects(self.folder)) % 4 == 0 and len(effects(self.folder)) not in survived:
            survived.add(len(effects(self.folder)))
            raise Killed

    survived: set[int] = set()
    monkeypatch.setattr(Trajectory, "_append", dying)
    solution = None
    while solution is None:
        try:
            solution = shop.solve(model, prices=PRICES, resume=(shop.run / FILE).exists())
        except Killed:
            # What a killed process left half done must not matter.
            (shop.copy.tree / "shop" / "core.py").write_text("left half done")
    assert len(survived) == len(steps) // 4 >= 7
    assert (solution.diff, solution.ended) == (whole.diff, whole.ended)
    assert solution.spent.dollars == whole.spent.dollars
    assert solution.spent.calls == whole.spent.calls
    assert solution.spent.actions == whole.spent.actions
    assert [(step.kind, step.request) for step in effects(shop.run)] == [(step.kind, step.request) for step in steps]


@needs_sandbox
def test_a_run_goes_on_from_any_earlier_step(shop):
    wrong = call("edit", path="shop/core.py", old="text.isdigit()", new="text.isalnum()")
    stuck = shop.solve(shop.model(repair=(wrong, SUBMIT, {"text": "I give up."})), **FAST)
    assert not stuck.green
    steps = effects(shop.run)
    edited = next(step.number for step in steps if step.request.get("tool") == "edit")
    asked = max(step.number for step in steps if step.kind == "model" and step.number < edited)
    better = shop.solve(shop.model(), resume=True, step=asked - 1, **FAST)
    assert better.green
    assert better.spent.calls > stuck.spent.calls - 3
    with pytest.raises(UsageError, match="holds a run already"):
        shop.solve(shop.model(), **FAST)
    whole = (shop.run / FILE).read_bytes()
    for refused, message in (
        ({"ranker": "lexical"}, "--ranker lexical: .* is a run with --ranker fused"),
        ({"pair": ScriptPair("a", ("b",))}, "--pair: .* is a run with scripts of its own making"),
        ({"model": f"scripted:{shop.folder}/gone.json"}, "cannot be read"),
        ({"model": "openai:no-such-model"}, "its price is not known"),
    ):
        with pytest.raises(UsageError, match=message):
            shop.solve(**{"model": shop.model(), **refused}, resume=True, step=3, **FAST)
    # What the record answers is compared before anything is cut, too.
    text = whole.replace(b'"turn": 1', b'"turn": 7')
    (shop.run / FILE).write_bytes(text)
    with pytest.raises(AgentError, match="another issue or another version"):
        shop.solve(shop.model(), resume=True, step=3, **FAST)
    assert (shop.run / FILE).read_bytes() == text
    assert len(list(shop.run.glob("*.before-*"))) == 1


@needs_sandbox
@pytest.mark.slow
def test_a_replay_needs_no_model_and_tells_what_comes_out_otherwise(shop):
    whole = shop.solve(**FAST)
    (shop.folder / "model.json").unlink()
    from agents import locked_in

    same = replay(locked_in(shop.copy), source=shop.run, folder=shop.folder / "again")
    assert (same.diff, same.differences) == (whole.diff, ())
    text = (shop.run / FILE).read_text()
    (shop.run / FILE).write_text(text.replace("shop/core.py, lines 1-7 of 7", "shop/core.py, lines 1-6 of 6"))
    other = replay(locked_in(shop.copy), source=shop.run, folder=shop.folder / "once-more")
    assert other.diff == whole.diff
    assert any("another result" in line for line in other.differences)


@needs_sandbox
def test_two_processes_do_not_write_one_record(shop):
    from xlocal.swe_pipeline.solve import _one_at_a_time

    with _one_at_a_time(shop.run), pytest.raises(UsageError, match="another xlocal is working"):
        shop.solve(**FAST)


def test_options_are_the_same_when_read_back_from_a_record(tmp_path):
    from xlocal.swe_pipeline.options import options_of
    from xlocal.swe_pipeline.trajectory import Record

    given = Options(model="scripted:x", variant="localizer", top=7, candidates=2, pair=ScriptPair("a", ("b",), "c"))
    header = {
        "model": given.model,
        "variant": "localizer",
        "ranker": "fused",
        "encoder": None,
        "top": 7,
        "candidates": 2,
    }
    header |= {"actions": [100, 200], "pair": json.loads(json.dumps(asdict(given.pair)))}
    assert options_of(Record(header, ())) == given
