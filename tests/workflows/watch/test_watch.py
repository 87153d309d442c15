"""Watches of endpoints that stay well, turn bad, disappear and return, over real sockets."""

import asyncio
import json
import socket
import sys
from dataclasses import replace

import httpx
import pytest

from serve_eval.errors import EndpointError, PlanError, RunFolderError
from serve_eval.plan.resolve import resolve_address
from serve_eval.schema import HOLDOUT
from serve_eval.workflows import smoke as smoking
from serve_eval.workflows.watch import job as watch_job
from serve_eval.workflows.watch import judging, record, story
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.document import read_document
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.metrics import Metrics, serve
from serve_eval.workflows.watch.story import WatchJob, watch
from tests.scripted_server import ScriptedServer, fail, json_reply, models
from tests.workflows.smoke.server import Quirks, create
from tests.workflows.smoke.trying import FIRST
from tests.workflows.watch.changing_endpoint import Endpoint

CHECKS = smoking.choose_checks("quick")
RULES = WatchRules(passes=2, tolerance=0.01, max_error_rate=0.05)


def _job(url, **more):
    given = {
        "plan": resolve_address({"base_url": url}, {}),
        "pool": None,
        "prompts": 60,
        "rules": RULES,
        "tokens": 8000,
        "smoke": False,
        "every_s": 0.0,
        "rounds": 1,
        "timeout_s": 10.0,
        "seed": 1,
        "ends": False,
        "delivery": Delivery(),
    }
    return WatchJob(**{**given, **more})


def _with(server, then):
    async def main():
        async with server.serve() as url:
            return await then(url)

    return asyncio.run(main())


def _state(folder):
    return json.loads((folder / record.STATE_FILE).read_bytes())


def _rounds(folder):
    return [json.loads(line) for line in (folder / record.ROUNDS_FILE).read_text().splitlines()]


def test_a_healthy_endpoint_is_watched_within_the_budget_and_not_accused(tmp_path):
    endpoint, lines = Endpoint(), list[str]()

    async def run(url):
        return await watch(
            _job(url, rounds=12, ends=True), tmp_path, environ={}, notify=lines.append
        )

    assert _with(endpoint.server, run) == 0
    rounds = _rounds(tmp_path)
    assert [one["round"] for one in rounds] == list(range(1, 13))
    assert all(one["tokens"] <= 8000 for one in rounds)
    assert all(len(set(one["asked"])) == len(one["asked"]) for one in rounds)
    assert len({tuple(one["asked"]) for one in rounds[6:]}) == 6
    state = _state(tmp_path)
    assert state["accuracy"]["mean"] == 1.0
    assert state["accuracy"]["floor"] < 1.0
    assert state["alarms"] == []
    assert "baseline complete: 100.0%" in "".join(lines)
    assert "evidence accuracy" in lines[-1]
    assert all(body["temperature"] == 0.0 for body in endpoint.server.bodies[2:])


def test_an_endpoint_that_turns_bad_is_noticed_also_over_restarts_and_told_once(
    tmp_path,
):
    endpoint, lines, out = Endpoint(), list[str](), tmp_path / "told.jsonl"
    script = (
        "import sys, os; open(sys.argv[1], 'a').write(sys.stdin.read() +"
        " os.environ.get('OPENAI_API_KEY', 'none'))"
    )
    environ = {"OPENAI_API_KEY": "sesame-12345"}

    async def run(url):
        command = (sys.executable, "-c", script, str(out))
        to = Delivery(command=command, webhook=url.removesuffix("/v1") + "/${PLACE}")
        job = _job(url, delivery=to)
        environ["PLACE"] = "hook"
        endpoint.refusals.append(503)
        codes = [
            await watch(
                replace(job, rounds=5), tmp_path / "o", environ=environ, notify=lines.append
            )
        ]
        endpoint.wrong = 3
        while not endpoint.alarms and len(codes) < 20:
            codes.append(await watch(job, tmp_path / "o", environ=environ, notify=lines.append))
        codes.append(
            await watch(
                replace(job, rounds=3), tmp_path / "o", environ=environ, notify=lines.append
            )
        )
        return codes

    codes = _with(endpoint.server, run)
    assert codes[0] == 0
    assert set(codes[1:-2]) <= {0}
    assert codes[-2:] == [1, 1]
    assert len(codes) < 14
    (alarm,) = endpoint.alarms
    assert (alarm["kind"], alarm["model"], alarm["task"]) == ("accuracy", "m", "questions")
    assert alarm["figures"]["evidence_nats"] >= alarm["figures"]["limit_nats"]
    told = out.read_text()
    assert json.loads(told.removesuffix("none")) == alarm
    assert "sesame" not in told
    assert sum(line.startswith("ALARM accuracy") for line in lines) == 1


def test_an_alarm_ends_the_watch_and_stands_until_it_is_forgotten(tmp_path):
    endpoint, lines = Endpoint(), list[str]()

    async def run(url):
        job = _job(url, rounds=5, ends=True)
        codes = [await watch(job, tmp_path, environ={})]
        endpoint.wrong = 2
        codes.append(await watch(replace(job, rounds=30), tmp_path, environ={}))
        asked = len(endpoint.server.bodies)
        codes.append(await watch(job, tmp_path, environ={}, notify=lines.append))
        assert len(endpoint.server.bodies) == asked
        endpoint.wrong = 0
        codes.append(await watch(job, tmp_path, environ={}, forget=True))
        return codes

    assert _with(endpoint.server, run) == [0, 1, 1, 0]
    assert "is still active" in lines[0]
    assert len(_rounds(tmp_path)) < 20
    state = _state(tmp_path)
    assert state["accuracy"]["mean"] == 1.0
    assert state["bets"]["accuracy"]["rounds"] == 5


def test_answers_that_turn_empty_are_told_apart(tmp_path):
    endpoint = Endpoint(chat=False)

    async def run(url):
        await watch(_job(url, rounds=5), tmp_path, environ={})
        endpoint.empty = True
        await watch(_job(url, rounds=3), tmp_path, environ={})

    _with(endpoint.server, run)
    assert {alarm["kind"] for alarm in _state(tmp_path)["alarms"]} == {"accuracy", "usable"}
    assert endpoint.server.bodies[-1]["prompt"].endswith("Answer:")


def test_an_endpoint_that_is_down_is_no_fall_and_comes_back(tmp_path):
    endpoint, lines = Endpoint(), list[str]()
    job = _job("http://127.0.0.1:9/v1")

    async def first(url):
        nonlocal job
        job = _job(url, rounds=5)
        return await watch(job, tmp_path, environ={}, notify=lines.append)

    assert _with(endpoint.server, first) == 0
    before = _state(tmp_path)["bets"]["accuracy"]
    assert (
        asyncio.run(watch(replace(job, rounds=8), tmp_path, environ={}, notify=lines.append)) == 1
    )
    state = _state(tmp_path)
    assert state["bets"]["accuracy"] == before
    assert sorted(alarm["kind"] for alarm in state["alarms"]) == ["down", "failures"]
    first_alarm = next(line for line in lines if line.startswith("ALARM"))
    assert first_alarm.startswith("ALARM down: no answer in 3 consecutive rounds")
    seen = _rounds(tmp_path)[-1]
    assert set(seen["failures"]) == {"disconnected"}
    port = int(job.base_url.rpartition(":")[2].partition("/")[0])

    async def again():
        async with Endpoint().server.serve(port=port):
            await watch(job, tmp_path, environ={}, notify=lines.append)

    asyncio.run(again())
    assert {alarm["kind"]: alarm["over"] for alarm in _state(tmp_path)["alarms"]} == {
        "down": True,
        "failures": False,
    }


def test_failures_alone_are_never_an_accuracy_alarm(tmp_path):
    endpoint = Endpoint()

    async def run(url):
        await watch(_job(url, rounds=5), tmp_path, environ={})
        endpoint.failing = 2
        await watch(_job(url, rounds=12), tmp_path, environ={})

    _with(endpoint.server, run)
    assert [alarm["kind"] for alarm in _state(tmp_path)["alarms"]] == ["failures"]


def test_a_check_that_always_passed_has_to_fail_three_times(tmp_path, monkeypatch):
    names = (*FIRST, "json", "json_schema", "json_portable", "tools")
    monkeypatch.setattr(
        story, "choose_checks", lambda level: [one for one in CHECKS if one.name in names]
    )
    broken = False
    server = create(
        Quirks(
            refuses=lambda body: broken and "response_format" in body, names=frozenset({"no_tools"})
        )
    )
    lines = list[str]()

    async def run(url):
        nonlocal broken
        job = _job(url, smoke=True, tokens=20_000, rounds=3)
        await watch(job, tmp_path, environ={}, notify=lines.append)
        broken = True
        await watch(replace(job, rounds=2), tmp_path, environ={}, notify=lines.append)
        assert not [line for line in lines if line.startswith("ALARM")]
        return await watch(replace(job, rounds=2), tmp_path, environ={}, notify=lines.append)

    assert _with(server, run) == 1
    told = [line for line in lines if line.startswith("ALARM")]
    assert {line.split(":")[0] for line in told} == {
        f"ALARM check json{form}" for form in ("", "_schema", "_portable")
    }
    assert len(told) == 3
    assert all(one["tokens"] <= 20_000 for one in _rounds(tmp_path))


def test_figures_are_served_on_this_machine(tmp_path):
    async def run(url):
        metrics = Metrics()
        with serve(metrics, 0) as port:
            await watch(_job(url, rounds=6), tmp_path, environ={}, metrics=metrics)
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.2", port), 5)
            async with httpx.AsyncClient() as client:
                text = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        figures = dict(
            line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
        )
        assert figures["serve_eval_watch_rounds_total"] == "6.0"
        assert figures["serve_eval_watch_accuracy_ratio"] == "1.0"
        assert figures["serve_eval_watch_baseline_learnt_ratio"] == "1.0"
        assert figures['serve_eval_watch_alarm{kind="accuracy"}'] == "0.0"
        assert float(figures['serve_eval_watch_evidence_nats{watched="accuracy"}']) < 0.0
        assert int(float(figures["serve_eval_watch_answer_latency_seconds_count"])) == sum(
            len(one["asked"]) for one in _rounds(tmp_path)
        )

    _with(Endpoint().server, run)


def test_a_new_watch_needs_an_endpoint_and_a_folder_keeps_to_its_own(tmp_path):
    with pytest.raises(EndpointError):
        asyncio.run(watch(_job("http://127.0.0.1:9/v1"), tmp_path, environ={}))

    async def run(url):
        job = _job(url)
        await watch(job, tmp_path, environ={})
        with pytest.raises(RunFolderError, match=r"rules\.tolerance: was 0.01, now 0.02"):
            await watch(replace(job, rules=replace(RULES, tolerance=0.02)), tmp_path, environ={})
        with pytest.raises(RunFolderError, match=r"rules\.round_means"):
            await watch(replace(job, rules=replace(RULES, round_means=True)), tmp_path, environ={})
        with pytest.raises(RunFolderError, match="watches the model m"):
            await watch(replace(job, plan=replace(job.plan, model="other")), tmp_path, environ={})

    _with(Endpoint().server, run)


def test_an_endpoint_that_answers_neither_route_cannot_be_watched(tmp_path):
    """It lists its models and refuses each short request."""
    server = ScriptedServer(fail(500, "no GPU"), routes={"/v1/models": models("m")})
    with pytest.raises(EndpointError, match="does not answer a short request: HTTP 500: no GPU"):
        _with(server, lambda url: watch(_job(url), tmp_path, environ={}))


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / record.STATE_FILE).mkdir()
    with pytest.raises(RunFolderError, match="cannot be read"):
        record.load(tmp_path, {})
    (tmp_path / record.ROUNDS_FILE).mkdir()
    with pytest.raises(RunFolderError, match="cannot be read"):
        record.later_than(tmp_path, 0)


@pytest.mark.parametrize("state", [b"", b"{}", b"[1]", b'{"bound": "\xff"}', b"\xff"])
def test_a_damaged_state_is_told(state, tmp_path):
    (tmp_path / record.STATE_FILE).write_bytes(state)
    with pytest.raises(RunFolderError, match="cannot be read"):
        record.load(tmp_path, {})


def test_the_state_of_another_version_is_refused(tmp_path):
    async def run(url):
        await watch(_job(url), tmp_path, environ={})
        file = tmp_path / record.STATE_FILE
        file.write_text(
            json.dumps({**_state(tmp_path), "schema_version": record.SCHEMA_VERSION + 1})
        )
        with pytest.raises(RunFolderError, match="another version"):
            await watch(_job(url), tmp_path, environ={})

    _with(Endpoint().server, run)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none_is_told(port):
    with pytest.raises(PlanError, match="cannot be used"), serve(Metrics(), port):
        pass


def test_what_a_server_says_of_a_hold_out_prompt_is_nowhere(tmp_path):
    server = ScriptedServer(
        lambda request: json_reply({"detail": request.body}, 422),
        paths=["/v1/chat/completions"],
        routes={"/v1/models": models("m")},
    )
    asked = watch_job.generate_pool(30, chat=True)
    hidden = [replace(one, metadata={HOLDOUT: "yes"}) for one in asked.samples]
    told = []

    async def run(url, samples, folder):
        await watch(
            _job(url, pool=replace(asked, samples=samples), rounds=3),
            folder,
            environ={},
            notify=told.append,
        )
        return "".join(file.read_text() for file in folder.iterdir())

    async def both(url):
        assert "Reply" in await run(url, asked.samples, tmp_path / "open")
        told.clear()
        assert "Reply" not in await run(url, hidden, tmp_path / "hidden") + "".join(told)
        assert "ALARM down: no answer in 3 consecutive rounds; http_error 422" in told

    _with(server, both)


def test_a_kill_between_the_line_and_the_state_loses_nothing(tmp_path):
    async def run(url):
        job = _job(url, rounds=7)
        await watch(job, tmp_path, environ={})
        whole = (tmp_path / record.STATE_FILE).read_bytes()
        state = json.loads(whole)
        earlier = _replayed(tmp_path, job, 5)
        assert earlier != state
        (tmp_path / record.STATE_FILE).write_text(json.dumps(earlier))
        with (tmp_path / record.ROUNDS_FILE).open("a") as lines:
            lines.write('{"round": 8, "torn')
        await watch(replace(job, rounds=1), tmp_path, environ={})
        assert _replayed(tmp_path, job, 7) == state
        assert _state(tmp_path) == _replayed(tmp_path, job, 8)

    _with(Endpoint(wrong=7).server, run)


def _replayed(folder, job, rounds):
    """Return the state after the first `rounds` lines."""
    state = record.load(folder, job.bound)
    count = len(state.answers)
    fresh = record.State(
        bound=state.bound,
        seed=state.seed,
        model=state.model,
        chat=state.chat,
        answers=[[] for _ in range(count)],
        usable=[[] for _ in range(count)],
        misses=[0] * count,
        prompt_tokens=[0] * count,
    )
    for seen in record.later_than(folder, 0)[:rounds]:
        judging.judge(fresh, seen, job.rules)
    fresh.prompt_tokens = state.prompt_tokens
    return record.plain(fresh)


def test_a_watch_that_ends_in_its_baseline_says_that_nothing_was_judged(tmp_path):
    """Its document says so, however it ends, with the number of rounds that are missing."""

    def tell(url):
        document = read_document(_job(url, tokens=3000), tmp_path, 0)
        return document.conclusions[0].cause

    async def once(url, **more):
        await watch(_job(url, tokens=3000, **more), tmp_path, environ={})
        return tell(url)

    async def main(url):
        first = await once(url)
        had = sum(map(len, _state(tmp_path)["answers"]))
        going = asyncio.create_task(once(url, every_s=60.0, rounds=None))
        while len(_rounds(tmp_path)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        going.cancel()
        with pytest.raises(asyncio.CancelledError):
            await going
        return first, had, tell(url), await once(url, rounds=20)

    first, had, cancelled, learnt = _with(Endpoint().server, main)
    told = "Accuracy was not judged: the baseline is at"
    assert 0 < had < 120
    assert first.startswith(f"{told} {100 * had // 120}% ({had} answers). It needs about ")
    assert f"about {-(-(120 - had) // had)} more rounds. Resume with the same command." in first
    assert cancelled.startswith(told)
    assert told not in learnt
