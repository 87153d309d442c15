"""Read which servers answered which request, join it to the run, and report it."""

import asyncio
import io
import json
import stat
import threading
from contextvars import Context
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from rich.console import Console

from serve_eval.client.client import Client
from serve_eval.evaluation import task_report
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution import trace
from serve_eval.evidence.attribution.matching import join
from serve_eval.plugins.scope import scope
from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import Endpoint, Limits, Plan, Spec
from serve_eval.storage import journal
from serve_eval.storage.answer_origins import Served, read_traces
from serve_eval.storage.file_names import TRACE_FILE
from serve_eval.verdicts.below_reference import RIGHT
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.document import make_document
from serve_eval.workflows.references import register
from tests.scripted_server import EVERY_PATH, ScriptedServer, json_reply
from tests.standin.deployments import Deployed, deployed

N = 100
PACE = {f"generation_{i}": {"latency_s": 0.005 * (i + 1)} for i in range(4)}
"""Workers with different response times.

They get one request at a time. How many of several concurrent requests can be joined depends on the
load of the machine; tests/evidence/attribution/test_matching.py covers that.
"""


def faulty(name):
    """Start workers of which one gives wrong answers from the first request on."""
    return {**PACE, name: {**PACE.get(name, {}), "corrupt_after": 0}}


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=1),
    )


@pytest.fixture(scope="module")
def answers(plan, tmp_path_factory):
    """Return what is known to be right in nine of ten cases."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(plan), lambda task, sample: 0.9)
    return path


def at(plan, there):
    return replace(plan, launcher=Spec(name="external", options={"base_url": there.url}))


def run(plan, out, *shape, **more):
    """Run against workers behind an orchestrator."""

    async def story():
        async with deployed(*shape, **more) as there:
            return await evaluate(at(plan, there), out, environ={}), there

    return asyncio.run(story())


def lines(out):
    return [json.loads(line) for line in (out / "served.jsonl").read_text().splitlines()]


def shown(report):
    console = Console(file=io.StringIO(), width=200)
    print_document(make_run_document(report, Path("OUT")), console, verbose=True)
    return console.file.getvalue()


def test_a_corrupt_generation_server_is_named_by_the_run_itself(plan, answers, tmp_path):
    report, there = run(plan, tmp_path, 2, 4, answers=answers, faults=faulty("generation_2"))
    told = report.tasks[0].attribution
    assert (told.how, told.planned) == ("times", N)
    assert told.joined > N / 4
    guilty = there.host("generation_2")
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.role, row.measure) == (guilty, "generation", "wrong answers")
    assert row.bad > 0.8 * row.answers
    assert all(one.kv_transfer_s for one in told.figures if one.role == "generation")
    text = shown(report)
    assert f"generation server {guilty}: {row.bad} of {row.answers} wrong, the others" in text
    assert "transfer of the KV cache to generation servers (medians)" in text
    again = judge_again(report.plan, tmp_path)
    assert again.tasks[0].attribution == told
    assert stat.S_IMODE((tmp_path / "served.jsonl").stat().st_mode) == 0o600
    assert {
        "task",
        "id",
        "started_s",
        "context",
        "generation",
        "how",
        "kv_transfer_s",
        "kv_bytes",
    } == set(lines(tmp_path)[0])


def test_the_run_counts_wrong_answers_where_its_reference_was_right(plan, tmp_path):
    whole = replace(
        plan, limit=None, tasks=(Spec(name="gsm8k", options={"max_tokens": 64, "num_samples": N}),)
    )
    answers = tmp_path / "answers.jsonl"
    _write_answers(answers, prepare(whole), lambda task, sample: 0.9)
    run(whole, tmp_path / "before", 1, 1, answers=answers)
    register([tmp_path / "before"], tmp_path / "refs")
    judged = replace(whole, no_reference=False, references_dir=str(tmp_path / "refs"))
    report, there = run(
        judged, tmp_path / "run", 2, 4, answers=answers, faults=faulty("generation_2")
    )
    told = report.tasks[0].attribution
    assert told.counted == RIGHT
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.bad) == (there.host("generation_2"), row.answers)
    assert row.others_bad <= 1  # all right answers count, but for a wrong join
    assert row.answers + row.others < told.joined  # a tenth of the prompts is too hard
    assert f"counted only among prompts that a reference answered: {RIGHT}" in shown(report)


def test_a_router_that_looks_at_the_prompts_is_noticed(plan, answers, tmp_path, monkeypatch):
    """Ask each prompt twice.

    At first each of two servers gets it once, then the server of its kind gets it both times.
    """
    report, _ = run(replace(plan, limit=N // 2, repeats=2), tmp_path, 1, 1, answers=answers)
    monkeypatch.setattr(
        task_report, "kinds_of", lambda task, samples: {"kind": [_kind(one.id) for one in samples]}
    )
    answered = list(journal.read(tmp_path / "samples" / "gsm8k.jsonl"))

    def dealt(server):
        known = [
            Served(
                task="gsm8k",
                id=one.id,
                started_s=one.response.attempts[-1].start_s,
                context="c0",
                generation=f"g{server(one.id)}",
                how="times",
            )
            for one in answered
            if one.response is not None
        ]
        (tmp_path / TRACE_FILE).write_bytes(
            b"".join(msgspec.json.encode(line) + b"\n" for line in known)
        )
        return judge_again(report.plan, tmp_path)

    evenly, by_kind = (
        dealt(lambda name: int("#" in name)),
        dealt(lambda name: _kind(name.partition("#")[0])),
    )
    told = [one.tasks[0].attribution for one in (evenly, by_kind)]
    assert [(one.joined, "kind" in one.dealt_by) for one in told if one is not None] == [
        (N, False),
        (N, True),
    ]
    assert "the router chooses a server by the prompt (kind" in shown(by_kind)


def _kind(name):
    return crc32(name.encode()) % 2


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_told_is_who_it_was(plan, tmp_path, stream):
    """One server is always wrong and the others never, so every join can be checked."""
    right = tmp_path / "answers.jsonl"
    _write_answers(right, prepare(plan), lambda task, sample: 1.0)
    streamed = replace(plan, limit=60, limits=Limits(concurrency=1, stream=stream))
    faults = faulty("generation_1")
    report, there = run(streamed, tmp_path / "run", 1, 3, answers=right, faults=faults)
    told = report.tasks[0].attribution
    rows = {row.worker: row for row in told.rows if row.measure == "wrong answers"}
    guilty = rows.pop(there.host("generation_1"))
    assert told.joined >= 15
    assert guilty.bad >= 0.75 * guilty.answers
    assert sum(row.bad for row in rows.values()) <= 0.25 * sum(row.answers for row in rows.values())
    assert told.joined == len(lines(tmp_path / "run"))


def test_other_runs_go_on_while_requests_are_joined(plan, answers, tmp_path, monkeypatch):
    at_work = []

    def noted(*given):
        at_work.append(threading.current_thread())
        return join(*given)

    monkeypatch.setattr(trace, "join", noted)
    run(replace(plan, limit=12), tmp_path, 1, 2, answers=answers, faults=PACE)
    assert len(at_work) == 1
    assert threading.main_thread() not in at_work


def test_healthy_servers_are_not_accused(plan, answers, tmp_path):
    report, _ = run(plan, tmp_path, 2, 3, answers=answers, faults=PACE)
    told = report.tasks[0].attribution
    assert told.rows
    assert not any(row.accused for row in told.rows)
    assert "no server is significantly worse than the others" in shown(report)


def test_a_door_that_tells_nothing_leaves_no_file(plan, answers, tmp_path):
    report, _ = run(replace(plan, limit=10), tmp_path, 1, 2, answers=answers, perf_metrics=False)
    assert report.tasks[0].attribution is None
    assert not (tmp_path / "served.jsonl").exists()


def test_a_run_that_goes_on_adds_what_it_asks(plan, answers, tmp_path):
    few = replace(plan, limit=20)

    async def story():
        async with deployed(1, 2, answers=answers, faults=PACE) as there:
            await evaluate(at(few, there), tmp_path, environ={})
            before.extend(lines(tmp_path))
            return await evaluate(at(replace(few, repeats=2), there), tmp_path, environ={})

    before = []
    told = asyncio.run(story()).tasks[0].attribution
    after = lines(tmp_path)
    assert after[: len(before)] == before
    assert (told.planned, told.joined) == (40, len(after))
    assert len(after) > len(before) > 0


async def test_both_sides_of_a_comparison_and_the_second_answers_share_what_one_door_tells(
    plan, answers, tmp_path
):
    # Response times this far apart keep their order on a loaded machine: requests one after the
    # other would otherwise look alike when shifted by one.
    slow = {"generation_1": {"latency_s": 0.04}}
    bad = {"generation_1": {"latency_s": 0.04, "corrupt_after": 0}}
    async with (
        deployed(1, 2, answers=answers, faults=slow) as a,
        deployed(1, 2, answers=answers, faults=bad) as b,
    ):
        small = replace(plan, limit=100, limits=Limits(concurrency=1))
        sides = CompareSide(plan=at(small, a)), CompareSide(plan=at(small, b))
        rules = CompareRules(rule=Spec(name="paired"), again=20)
        comparison = await compare(*sides, rules, tmp_path, environ={}, show_flips=0)
    of_a, of_b = comparison.tasks[0].attributions
    assert not any(row.accused for row in of_a.rows)
    assert [row.worker for row in of_b.rows if row.accused] == [b.host("generation_1")]
    assert (tmp_path / "again/served.jsonl").exists()
    console = Console(file=io.StringIO(), width=200)
    print_document(make_document(comparison, tmp_path), console, verbose=True)
    told = console.file.getvalue()
    assert f" workers  B: generation server {b.host('generation_1')}: " in told


@pytest.mark.parametrize(
    "records",
    [
        [],
        ["odd", None, 7, {}, {"gen_server": 3}],
        [
            {
                "ctx_server": "a:1",
                "gen_server": "b:1",
                "gen_perf_metrics": None,
                "disagg_server_arrival_time": "soon",
            }
        ],
        [{"ctx_server": "a:1", "gen_server": "b:1", "disagg_server_arrival_time": 5.0}] * 3,
        {"detail": "Not Found"},
    ],
)
async def test_odd_records_never_cost_a_run(plan, tmp_path, records):
    bodies = {
        "/cluster_info": {"is_ready": True},
        "/perf_metrics": records,
        "/v1/completions": {"choices": [{"text": " #### 7", "finish_reason": "stop"}]},
    }

    server = ScriptedServer(lambda request: json_reply(bodies.get(request.path)), paths=EVERY_PATH)
    async with server.serve() as url:
        report = await evaluate(at(replace(plan, limit=5), Deployed(url, {})), tmp_path, environ={})
    assert report.tasks[0].result.scored == 5
    assert read_traces(tmp_path) in (None, {})


async def test_a_key_that_a_door_tells_back_is_not_written_down():
    def tells(request):
        return json_reply([{"ctx_server": request.headers["Authorization"]}])

    async with (
        ScriptedServer(routes={"/perf_metrics": tells}).serve() as url,
        Client(
            Endpoint(base_url=url, model="m"), Limits(), api_key="sk-of-the-front-door"
        ) as client,
    ):
        assert await trace._get(client, "/perf_metrics") == [{"ctx_server": "Bearer ***"}]


async def test_nothing_is_said_of_likelihoods_whose_choices_are_requests_each(plan, tmp_path):
    """The report must not suggest `serve-eval check workers`, which does not ask such tasks."""
    task = Spec(name="mmlu", options={"scoring": "loglikelihood", "num_samples": 57})
    asked = replace(plan, launcher=Spec(name="simulated", options={}), tasks=(task,), limit=5)
    await evaluate(asked, tmp_path, environ={})
    (tmp_path / "served.jsonl").write_bytes(b"")
    assert judge_again(asked, tmp_path).tasks[0].attribution is None


def test_a_damaged_line_is_passed_over(tmp_path):
    line = {
        "task": "gsm8k",
        "id": "1",
        "started_s": 5.0,
        "context": None,
        "generation": "g",
        "how": "ids",
    }
    (tmp_path / "served.jsonl").write_text(
        f"{json.dumps(line)}\nnot json\n\xff\n", encoding="latin-1"
    )
    found = read_traces(tmp_path)
    assert [one.generation for one in found["gsm8k"]["1"]] == ["g"]


def _tell(request):
    return json_reply([] if request.path.endswith("/perf_metrics") else {})


def test_a_door_is_shared_by_the_runs_of_a_command_and_by_no_others():
    async def open_here(client):
        with scope():
            return await trace._door(client)

    async def story(url):
        async with Client(Endpoint(base_url=url, model="m"), Limits()) as client:
            alone = asyncio.get_running_loop().create_task(open_here(client), context=Context())
            return [await open_here(client), await open_here(client), await alone]

    async def begin():
        async with ScriptedServer(_tell, paths=EVERY_PATH).serve() as url:
            return [await story(url), await asyncio.to_thread(asyncio.run, story(url))]

    first, second = asyncio.run(begin())
    for one, other, alone in (first, second):
        assert one is other
        assert alone is not one
    assert second[0] is not first[0], "its lock and its task belong to another event loop"
