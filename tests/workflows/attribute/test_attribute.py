"""Attribution asks each worker and each pair directly, and accuses only the faulty ones."""

import asyncio
import io
import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from serve_eval.cli._progress import LoggedProgress
from serve_eval.errors import EndpointError, NotComparableError, PlanError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._standin.generation import ThoughtsForm
from serve_eval.processes.resources import CoreLoad
from serve_eval.schema import Endpoint, Limits, Plan, Spec
from serve_eval.storage.story_files import ATTRIBUTE
from serve_eval.workflows import attribute as attributing
from serve_eval.workflows.attribute import Asking, Worker, attribute, prepare_asking, worker
from serve_eval.workflows.attribute import asking as attribute_asking
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import external
from tests.standin.deployments import deployed


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=24,
        no_reference=True,
        limits=Limits(concurrency=4),
    )


@pytest.fixture(scope="module")
def answers(plan, tmp_path_factory):
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(plan), lambda task, sample: 0.9)
    return path


class SaidLoad(CoreLoad):
    """A measurement whose result is given."""

    def __init__(self, busy):
        super().__init__()
        self._busy = busy

    def share(self):
        """Return what was given."""
        return self._busy


def asked(
    plan,
    out,
    *shape,
    samples=12,
    with_pairs=True,
    workers=None,
    more=None,
    door=None,
    busy=0.0,
    progress=None,
    **deployment,
):
    """Run a few samples, then ask each worker, while the cores are said to be so busy.

    The workers come from the run folder, where a launcher records them, or from `workers`. With
    `door`, the run goes to this worker instead of the orchestrator.
    """

    async def story():
        async with deployed(*shape, perf_metrics=False, **deployment) as there:
            url = there.url if door is None else there.workers[door]
            here = replace(plan, launcher=external(url), **(more or {}))
            await evaluate(here, out, environ={})
            if workers is None:
                file = out / "environment.json"
                sessions = read_json(file)
                sessions[-1]["endpoint"]["info"]["servers"] = {
                    **there.workers,
                    "orchestrator": there.url,
                }
                file.write_text(json.dumps(sessions))
            given = [] if workers is None else workers(there)
            asking = await prepare_asking(
                out, here, given=given, samples=samples, with_pairs=with_pairs, environ={}
            )
            done = await attribute(
                out, asking, environ={}, progress=progress, measure=lambda: SaidLoad(busy)
            )
            return done, there

    return asyncio.run(story())


def accused(done):
    """Return the workers accused of wrong answers, by phase."""
    parts = {"alone": done.alone, "in pairs": done.in_pairs}
    return {
        name: [row.worker for row in part.rows if row.accused]
        for name, part in parts.items()
        if part is not None
    }


def test_a_log_shows_the_progress_of_each_phase(plan, answers, tmp_path):
    file = io.StringIO()
    shown = LoggedProgress(Console(file=file, width=80))
    asked(plan, tmp_path, 1, 1, answers=answers, samples=7, progress=shown)
    lines = [line.partition(" done, 0 failed, ")[0] for line in file.getvalue().splitlines()]
    assert lines == ["each server: 7/7", "each pair: 7/7"]


@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_a_corrupt_worker_of_six_is_named_alone_and_in_pairs(plan, answers, tmp_path, flavour):
    faults = {"generation_2": {"corrupt_after": 0}}
    done, there = asked(plan, tmp_path, 2, 4, answers=answers, faults=faults, flavour=flavour)
    guilty = there.workers["generation_2"]
    assert accused(done) == {"alone": [guilty], "in pairs": [guilty]}
    assert done.exit_code == 1
    assert (done.asked, done.requests) == (12, 12 * (6 + 2 * 8))
    assert done.alone.how == "asked"
    written = read_json(tmp_path / "attribution.json")
    assert (written["schema_version"], written["exit_code"]) == (ATTRIBUTE.version, 1)


def test_nobody_is_accused_of_what_all_get_wrong(plan, answers, tmp_path):
    done, _ = asked(plan, tmp_path, 2, 2, answers=answers)
    assert accused(done) == {"alone": [], "in pairs": []}
    assert done.exit_code == 0
    # On a busy machine, a worker may be slow.
    assert [line for line in done.warnings if not line.startswith("slow")] == []
    assert (done.in_pairs.joined, done.in_pairs.planned) == (48, 48)


def test_what_a_newer_version_found_is_not_replaced(plan, answers, tmp_path):
    newer = json.dumps({"schema_version": ATTRIBUTE.version + 1})

    def after_the_run(there):
        (tmp_path / "attribution.json").write_text(newer)
        return [worker(url) for url in there.workers.values()]

    with pytest.raises(
        RunFolderError, match=rf"attribution\.json has format {ATTRIBUTE.version + 1}, but"
    ):
        asked(plan, tmp_path, 1, 2, answers=answers, workers=after_the_run)
    assert (tmp_path / "attribution.json").read_text() == newer


def test_sides_that_do_not_fit_show_in_pairs_only(plan, answers, tmp_path):
    """A generation worker garbles context from another tensor parallel size, in a checkerboard."""
    faults = {f"generation_{i}": {"wrong_tp": True} for i in (0, 1)}
    sizes = {"context_1": 2, "generation_1": 2}
    done, there = asked(
        plan, tmp_path, 2, 2, samples=24, answers=answers, faults=faults, tensor_parallel=sizes
    )
    url = there.workers
    pairs = [f"{url[f'context_{c}']} + {url[f'generation_{g}']}" for c, g in ((0, 1), (1, 0))]
    assert accused(done) == {"alone": [], "in pairs": sorted(pairs)}


def test_a_context_server_with_another_size_than_all_generation_servers_is_the_one_to_blame(
    plan, answers, tmp_path
):
    faults = {f"generation_{i}": {"wrong_tp": True} for i in (0, 1)}
    done, there = asked(
        plan, tmp_path, 2, 2, answers=answers, faults=faults, tensor_parallel={"context_1": 2}
    )
    assert accused(done) == {"alone": [], "in pairs": [there.workers["context_1"]]}


def test_a_failure_is_no_wrong_answer(plan, answers, tmp_path):
    faults = {"generation_1": {"error_after": 0, "error_status": 400}}
    done, there = asked(
        plan,
        tmp_path,
        1,
        3,
        answers=answers,
        faults=faults,
        more={"limits": Limits(max_error_rate=1)},
    )
    rows = [row for row in done.alone.rows if row.accused]
    assert [(row.worker, row.measure, row.bad) for row in rows] == [
        (there.workers["generation_1"], "failures", 12)
    ]
    assert not [row for row in done.alone.rows if row.measure == "wrong answers" and row.accused]


def test_whole_servers_behind_a_load_balancer_are_told_apart(plan, answers, tmp_path):
    def whole(there):
        return [worker(url) for name, url in there.workers.items() if name.startswith("generation")]

    faults = {"generation_0": {"corrupt_after": 0}}
    done, there = asked(plan, tmp_path, 1, 3, answers=answers, faults=faults, workers=whole)
    assert done.in_pairs is None
    [row] = [row for row in done.alone.rows if row.accused]
    assert (row.worker, row.role) == (there.workers["generation_0"], "server")


def slow(done):
    return [
        (row.role, row.worker)
        for part in (done.alone, done.in_pairs)
        if part
        for row in part.times
        if row.slow
    ]


@pytest.mark.slow
@pytest.mark.parametrize("with_pairs", [True, False])
def test_a_slow_worker_is_named_and_fails_nothing(plan, answers, tmp_path, with_pairs):
    """The delay exceeds any that a busy machine causes; one of three pairs has the slow worker."""
    faults = {"generation_1": {"latency_s": 1.0}}
    done, there = asked(
        plan, tmp_path, 1, 3, samples=24, with_pairs=with_pairs, answers=answers, faults=faults
    )
    guilty = there.workers["generation_1"]
    assert slow(done) == [("generation", guilty)] * (1 + with_pairs)
    [warning] = done.warnings  # not repeated for pairs
    assert warning.startswith(f"slow_worker: generation server {guilty} takes ")
    # The first four requests do not count. On a busy machine, the other workers may be as slow at
    # times.
    assert re.search(r"for (1[5-9]|20) of 20 \(p = ", warning)
    assert done.exit_code == 0
    written = read_json(tmp_path / "attribution.json")
    assert written["warnings"] == [warning]
    assert [row["worker"] for row in written["alone"]["times"] if row["slow"]] == [guilty]


@pytest.mark.slow
def test_on_busy_cores_a_slower_worker_is_no_slow_one(plan, answers, tmp_path):
    faults = {"generation_1": {"latency_s": 1.0}}
    done, there = asked(plan, tmp_path, 1, 3, samples=24, answers=answers, faults=faults, busy=0.97)
    assert slow(done) == []
    [warning] = done.warnings
    guilty = there.workers["generation_1"]
    assert warning.startswith(f"busy_cores: generation server {guilty} takes ")
    assert warning.endswith(
        "while the cores of this machine were busy for 97 % of the time: whatever shares them"
        " waits, so that this says nothing of it"
    )


@pytest.mark.slow
def test_of_one_context_and_one_generation_server_neither_is_called_by_the_other_s_role(
    plan, answers, tmp_path
):
    faults = {"context_0": {"latency_s": 1.0}}
    done, there = asked(plan, tmp_path, 1, 1, samples=24, answers=answers, faults=faults)
    guilty = there.workers["context_0"]
    assert ("server", guilty) in slow(done)
    assert any(line.startswith(f"slow_worker: server {guilty} takes ") for line in done.warnings)


@pytest.mark.slow
def test_a_slow_leg_is_told(plan, answers, tmp_path):
    faults = {f"generation_{i}": {"latency_s": 0.4} for i in range(2)}
    done, _ = asked(
        plan, tmp_path, 2, 2, samples=24, with_pairs=False, answers=answers, faults=faults
    )
    assert ("generation", "") in slow(done)
    assert any(line.startswith("slow_leg: the generation servers take ") for line in done.warnings)
    assert done.exit_code == 0


@pytest.mark.slow
def test_of_whole_servers_the_slow_one_is_named_as_one(plan, answers, tmp_path):
    def whole(there):
        return [worker(url) for name, url in there.workers.items() if name.startswith("generation")]

    faults = {"generation_0": {"latency_s": 0.4}}
    done, there = asked(
        plan, tmp_path, 1, 3, samples=24, answers=answers, faults=faults, workers=whole
    )
    assert slow(done) == [("server", there.workers["generation_0"])]
    [warning] = done.warnings
    assert warning.startswith(f"slow_worker: server {there.workers['generation_0']} takes ")
    assert ", the other servers " in warning


def test_pairs_that_cannot_be_asked_are_told(plan, answers, tmp_path):
    faults = {f"context_{i}": {"no_transceiver": True} for i in (0, 1)}
    done, _ = asked(plan, tmp_path, 2, 2, answers=answers, faults=faults, door="generation_0")
    assert accused(done) == {"alone": [], "in pairs": []}
    [warning] = done.warnings
    assert re.match(
        r"context server http://\S+ hands nothing over, so no pair was asked: context server: HTTP"
        " 400",
        warning,
    )
    assert done.exit_code == 4


def test_chats_are_handed_over_too(plan, tmp_path):
    chat = {"tasks": (Spec(name="gsm8k", options={"max_tokens": 64, "apply_chat_template": True}),)}
    done, _ = asked(plan, tmp_path, 1, 2, samples=5, more=chat)
    assert (done.in_pairs.joined, done.in_pairs.planned) == (10, 10)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("context=host:8001", Worker("context", "http://host:8001/v1", True)),
        ("generation=http://h:2/v1", Worker("generation", "http://h:2/v1", True)),
        ("host:8001", Worker("server", "http://host:8001/v1", True)),
    ],
)
def test_workers_are_named_by_role_and_address(text, told):
    assert worker(text) == told


def test_a_role_that_there_is_not_is_refused():
    with pytest.raises(PlanError, match="'decode' is not a role"):
        worker("decode=host:1")


def test_registered_workers_are_found_in_what_the_front_door_tells():
    one = {"worker_id": "x", "host": "h", "port": 8001, "role": 0}
    body = {
        "is_ready": True,
        "current_workers": {"context_servers": [one], "generation_servers": []},
    }
    assert attribute_asking.list_registered(json.dumps(body).encode()) == [
        Worker("context", "http://h:8001/v1")
    ]
    for odd in (
        b"",
        b"{}",
        b"[]",
        b'{"current_workers": 3}',
        b'{"current_workers": {"context_servers": [{}]}}',
    ):
        assert attribute_asking.list_registered(odd) == []


@pytest.fixture
def finished(plan, tmp_path):
    """Return a run whose endpoint no longer exists."""

    async def story():
        async with deployed(1, 1, perf_metrics=False) as there:
            here = replace(plan, limit=4, launcher=external(there.url))
            await evaluate(here, tmp_path / "run", environ={})
            return here

    return tmp_path / "run", asyncio.run(story())


def test_without_known_workers_the_user_is_asked_for_them(finished):
    with pytest.raises(PlanError, match=r"no role has two known workers \(known: none\)"):
        asyncio.run(prepare_asking(*finished, environ={}))


def test_workers_that_are_gone_end_it(finished):
    run, plan = finished
    given = [Worker("context", f"http://127.0.0.1:{port}/v1") for port in (1, 2)]

    async def story():
        return await attribute(
            run, await prepare_asking(run, plan, given=given, environ={}), environ={}
        )

    with pytest.raises(EndpointError, match="none of 2 workers can be reached") as error:
        asyncio.run(story())
    assert "--keep-servers" in error.value.hint


def test_other_data_than_the_runs_is_refused(finished):
    run, plan = finished
    given = [worker("host:1"), worker("host:2")]
    with pytest.raises(NotComparableError, match="has changed since the run"):
        asyncio.run(prepare_asking(run, replace(plan, limit=3), given=given, environ={}))


def test_a_worker_that_is_named_twice_is_one(finished):
    with pytest.raises(PlanError, match="no role has two known workers"):
        asyncio.run(
            prepare_asking(
                *finished, given=[worker("host:1"), worker("http://host:1/v1")], environ={}
            )
        )


def test_whole_servers_are_called_servers_once(finished):
    asking = asyncio.run(
        prepare_asking(*finished, given=[worker("h:1"), worker("h:2")], environ={})
    )
    assert asking.cost().startswith("4 prompts to 2 servers and 0 pairs: 8 requests")


def test_no_key_goes_to_workers_that_the_user_did_not_name(finished):
    _, plan = finished
    asking = Asking(
        plan=plan, endpoint=Endpoint(base_url="http://a/v1"), workers=(), prompts=(), pairs=()
    )
    for one, sent in (
        (Worker("context", "http://h:1/v1"), False),
        (Worker("context", "http://h:1/v1", True), True),
    ):
        client = attributing.client_of(asking, one, {"OPENAI_API_KEY": "sk-of-the-front-door"})
        assert ("Authorization" in client._headers) is sent


def test_the_command_shows_its_cost_and_sends_nothing(finished):
    flags = "--worker context=h:1 --worker context=h:2 --worker generation=h:3 --dry-run"
    done = serve_eval(f"check workers {finished[0]} --samples 3 {flags}", exits=0)
    assert done.stdout.splitlines() == [
        "context http://h:1/v1",
        "context http://h:2/v1",
        "generation http://h:3/v1",
        (
            "3 prompts to 2 context and 1 generation servers and 2 pairs: 21 requests, at most 960"
            " generated tokens"
        ),
        "nothing was sent",
    ]
    serve_eval(f"check workers {finished[0]} --samples 0", exits=2)


@pytest.mark.parametrize("max_tokens", [64, 2048])
def test_pairs_that_think_are_judged_as_their_workers_are(plan, answers, tmp_path, max_tokens):
    """The chat template opens the thoughts, so that an answer which was cut in them has no tag."""
    thinking = {"thinks": "always", "thoughts": ThoughtsForm(opened=True, words=200)}
    options = {"max_tokens": max_tokens, "apply_chat_template": True}
    names = ("context_0", "generation_0", "generation_1")
    done, _ = asked(
        plan,
        tmp_path,
        1,
        2,
        answers=answers,
        faults=dict.fromkeys(names, thinking),
        more={"tasks": (Spec(name="gsm8k", options=options),)},
        flavour="main",
    )
    assert accused(done) == {"alone": [], "in pairs": []}
    told = "; ".join(done.warnings)
    assert ("60 of 60 answers were cut within the model's thoughts" in told) == (max_tokens == 64)
    assert done.exit_code == (5 if max_tokens == 64 else 0), done.warnings
