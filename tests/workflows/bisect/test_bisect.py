"""Test searches as a command and with real servers, their steps and their GPU hours."""

import asyncio
import io
import json
import shlex
import time
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from rich.console import Console

from serve_eval.errors import EndpointError, LaunchError, PlanError, RunFolderError
from serve_eval.evaluation.launch import launch
from serve_eval.plugins.scope import scope
from serve_eval.report.document import print_document
from serve_eval.schema import Bisection, BisectionResult, Endpoint, Limits, Plan, Spec
from serve_eval.storage.report_file import read_report
from serve_eval.storage.story_files import BISECT
from serve_eval.verdicts.exit_code import INFRASTRUCTURE
from serve_eval.workflows.bisect.bisect import bisect
from serve_eval.workflows.bisect.configurations import BisectRules, between_plans, list_changes
from serve_eval.workflows.bisect.document import make_document
from serve_eval.workflows.bisect.testing import HeldServer
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.workflows.bisect.searches import (
    BROKEN,
    INCLUDED,
    build,
    build_options,
    build_plan,
    build_steps,
    two_gpus,
)

PLAN = """\
model: m
tasks: [{{word_problems: {{num_samples: 40}}}}]
limits: {{order_seed: 1}}
launcher: {{name: breakable, breaks: [tp], accuracy: 1.0, damage: 0.9, served: {served}}}
"""
STEPS = """\
model: m
tasks: [{word_problems: {num_samples: 40}}]
limits: {order_seed: 1}
launcher: {name: breakable, step: "v{step}", bad_steps: [v3], accuracy: 1.0, damage: 0.9}
"""
INCLUDE = f"--set include_path={INCLUDED}"


@pytest.fixture
def plans(tmp_path):
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(PLAN.format(served="{tp: 0, graphs: false, overlap: false}"))
    bad.write_text(PLAN.format(served="{tp: 1, graphs: true, overlap: true}"))
    return "--good", good, "--bad", bad


def test_the_dry_run_shows_the_first_steps_and_the_expected_starts(
    plans,
):
    done = serve_eval(f"bisect {INCLUDE} --dry-run", *plans, exits=0)
    lines = done.stdout.splitlines()
    assert lines[:4] == [
        "3 options that differ:",
        "  served.tp: 0 -> 1",
        "  served.graphs: false -> true",
        "  served.overlap: false -> true",
    ]
    assert lines[4] == "step 1: bad"
    assert lines[5].startswith("step 2, if step 1 is worse: ")
    assert lines[-2].startswith("server starts: ")
    told = serve_eval(f"bisect --dry-run {INCLUDE} --json", *plans).stdout
    content = json.loads(told)
    assert [len(content["changes"]), content["steps"][0]] == [3, "bad"]
    assert 4 < content["starts"]["mean"] < content["starts"]["most"] + 1
    kept = (
        "--set bisect.keep=served.tp --set bisect.together=served.graphs,served.overlap --dry-run"
    )
    done = serve_eval(f"bisect {INCLUDE} {kept}", *plans)
    assert done.stdout.splitlines()[0] == "1 option that differs:"
    assert "  served.graphs+served.overlap: false, false -> true, true" in done.stdout


def test_a_step_is_named_in_text_and_in_json(tmp_path):
    plan, steps, out = tmp_path / "plan.yaml", tmp_path / "steps", tmp_path / "out"
    plan.write_text(STEPS)
    steps.write_text("# nightly builds\n1\n2\n\n3\n")
    serve_eval(
        f"bisect --plan {plan} --set bisect.steps_file={steps} -o {out} {INCLUDE}",
        exits=1,
        prints="culprit: 3, the first bad step; 2 is the last good one",
    )
    again = serve_eval(f"bisect --plan {plan} --steps 1,2,3 -o {out} --json {INCLUDE}")
    content = json.loads(again.stdout)["result"]
    assert (again.returncode, content["exit_code"], content["ending"]) == (1, 1, "found")
    assert content["suspects"][0]["members"] == ["3"]
    assert all((out / name).exists() for name in ("report.html", "junit.xml", "summary.md"))
    [command] = json.loads(again.stdout)["commands"]
    serve_eval(*shlex.split(command)[1:], exits=0, prints="FAIL")
    serve_eval(
        f"bisect --plan {plan} --steps 1,2,4 -o {out} {INCLUDE}",
        exits=2,
        tells="holds another bisection",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give --good and --bad, or --plan with --steps"),
        (("--good", "GOOD"), "give --good and --bad, or --plan with --steps"),
        (("--good", "GOOD", "--bad", "none.yaml"), "none.yaml: there is no such plan file"),
        (
            ("--good", "GOOD", "--bad", "GOOD", "--steps", "a,b"),
            "--steps and bisect.steps_file are",
        ),
        (("--plan", "GOOD", "--steps", "a,b"), "{step} is nowhere in it"),
        (("--plan", "GOOD"), "--plan needs --steps A,B,C or --set bisect.steps_file=FILE"),
        (
            ("--plan", "GOOD", "--steps", "a,b", "--set", "bisect.keep=tp"),
            "are for --good and --bad",
        ),
        (("--margin", "0"), "--margin must be a positive number"),
        (("--budget-starts", "1"), "--budget-starts must be 2 or more"),
        (("--set", "bisect.budget_gpu_hours=-1"), "bisect.budget_gpu_hours must be above 0"),
    ],
)
def test_what_does_not_fit_together_is_refused(arguments, said, plans):
    words = [plans[1] if word == "GOOD" else word for word in arguments]
    serve_eval(f"bisect {INCLUDE}", *words, exits=2, tells=said)


SURE = {"samples": 40, "accuracy": 1.0, "damage": 0.9, "order_seed": 1}
"""Right answers of the intact model only and nearly none of the broken one: no test can err."""
ONE = BisectRules(margin=20.0)


def _search(found, out, rules=ONE, **more):
    with scope():
        return asyncio.run(bisect(found, rules, out, **more))


def _print(state, found, out):
    buffer = io.StringIO()
    console = Console(file=buffer, width=80, highlight=False)
    print_document(make_document(state, found, out), console, verbose=True)
    return buffer.getvalue()


def test_one_option_of_three_is_found_and_the_folder_is_not_searched_again(tmp_path):
    names = ("speculation", "kv_dtype", "tp")
    found = build_options(["kv_dtype"], names=names, **{**SURE, "samples": 90})
    state = _search(found, tmp_path / "out")
    first = state.suspects[0]
    assert (state.ending, state.exit_code) == ("found", 1)
    assert (first.kind, first.members) == ("together", ("served.kv_dtype",))
    assert first.posterior > 0.95
    assert [step.result for step in state.steps[:2]] == [
        BisectionResult.REFERENCE,
        BisectionResult.WORSE,
    ]
    assert state.starts == len(state.steps)
    for step in state.steps[2:]:
        broken = "served.kv_dtype" in step.changes
        assert step.result is (BisectionResult.WORSE if broken else BisectionResult.SAME)
        report = read_report(tmp_path / "out" / step.folder)
        assert report.tasks[0].verdict.early is not None
        assert step.asked == report.tasks[0].result.scored
    # The drop is large: a test stops long before it has asked everything.
    assert max(step.asked for step in state.steps[1:]) < 90
    text = _print(state, found, tmp_path / "out")
    assert "culprit: served.kv_dtype (false -> true), posterior ." in text
    assert f" asked    {state.starts} server starts, {state.requests} answers" in text
    assert " next     serve-eval diagnose" in text
    again = _search(found, tmp_path / "out")
    assert (again.steps, again.starts) == (state.steps, state.starts)
    with pytest.raises(RunFolderError, match=r"margin: was 20\.0, now 10\.0"):
        _search(found, tmp_path / "out", BisectRules(margin=10.0))


def test_two_options_that_fail_only_together_are_found(tmp_path):
    found = build_options(["speculation", "tp"], names=("speculation", "tp"), **SURE)
    state = _search(found, tmp_path / "out", BisectRules())
    assert state.suspects[0].members == ("served.speculation", "served.tp")
    assert state.margin == pytest.approx(-state.steps[1].difference / 2)
    # Without a margin, the bad configuration is asked everything to measure the drop.
    assert state.steps[1].asked == 40
    assert "culprits: these fail only together" in _print(state, found, tmp_path)


def test_a_step_is_found_around_one_that_cannot_start(tmp_path):
    steps = ("v1", "v2", "v3", "v4", "v5", "v6", "v7")
    found = build_steps(5, steps=steps, dead_steps=["v4"], **SURE)
    state = _search(found, tmp_path / "out")
    results = {step.changes[0]: step.result for step in state.steps}
    assert results["v4"] is BisectionResult.NO_START
    assert (state.suspects[0].kind, state.suspects[0].members) == ("from", ("v6",))
    assert state.exit_code == 1
    text = _print(state, found, tmp_path / "out")
    assert "culprit: v6, the first bad step; v5 is the last good one" in text
    assert "cannot start: the engine ended with status 1" in text
    assert "1 configuration cannot start" in text


def test_steps_that_cannot_start_or_serve_leave_several_suspects(tmp_path):
    found = build_steps(2, steps=("v1", "v2", "v3", "v4"), dead_steps=["v2"], **SURE)

    @asynccontextmanager
    async def launching(plan, prepared, folder):
        if plan.launcher.options["step"] == "v3":
            raise EndpointError("too many requests failed")
        async with launch(plan, prepared, folder) as endpoint:
            yield endpoint

    state = _search(found, tmp_path / "out", launching=launching)
    assert (state.ending, state.exit_code) == ("exhausted", 3)
    assert {one.members for one in state.suspects[:3]} == {("v2",), ("v3",), ("v4",)}
    text = _print(state, found, tmp_path)
    assert " why      no further configuration would tell enough" in text
    assert "cannot start: too many requests failed" in text
    assert "2 configurations cannot start" in text


def test_nothing_broken_ends_after_two_starts(tmp_path):
    found = build_options([], **SURE)
    state = _search(found, tmp_path / "out")
    assert (state.exit_code, state.starts, state.suspects[0].kind) == (0, 2, "none")
    assert "no option: bad has no such drop against good" in _print(state, found, tmp_path)
    same = build_options([], names=(), **SURE)
    assert _search(same, tmp_path / "same").exit_code == 0


def test_a_search_goes_on_after_its_budget_and_after_an_interruption(tmp_path):
    found, out = build_options(["tp"], names=("graphs", "overlap", "tp"), **SURE), tmp_path / "out"
    part = _search(found, out, replace(ONE, budget_starts=3))
    assert (part.ending, part.exit_code, part.starts) == ("budget", 3, 3)
    assert "the budget is spent" in _print(part, found, tmp_path)
    finished = read_report(out / part.steps[2].folder)

    @asynccontextmanager
    async def stopping(plan, prepared, folder):
        raise asyncio.CancelledError
        yield Endpoint(base_url="")

    with pytest.raises(asyncio.CancelledError):
        _search(found, out, launching=stopping)
    kept = BISECT.read(out, Bisection)
    assert (kept.starts, kept.steps[3].result, kept.ending) == (4, None, None)
    assert kept.exit_code == INFRASTRUCTURE
    state = _search(found, out)
    assert state.steps[:3] == part.steps
    assert state.steps[3].configuration == kept.steps[3].configuration
    assert state.suspects[0].members == ("served.tp",)
    assert state.starts == len(state.steps) + 1
    assert read_report(out / part.steps[2].folder) == finished


def test_a_server_is_held_where_only_the_client_differs(tmp_path):
    options = {"accuracy": 1.0, "served": {"tp": True}}
    good = build_plan(options, samples=40, order_seed=1)
    bad = replace(good, limits=Limits(concurrency=4, order_seed=1, stream=True))
    found = between_plans(good, list_changes(good, bad))
    assert [one.name for one in found.changes] == ["limits.concurrency", "limits.stream"]
    state = _search(found, tmp_path / "out")
    assert (state.starts, state.exit_code, len(state.steps)) == (1, 0, 2)


def test_a_bad_configuration_that_cannot_start_is_an_error(tmp_path):
    found = build_options(["tp"], names=("tp", "graphs"), refuses=[["tp", "missing"]], **SURE)
    with pytest.raises(LaunchError, match="ended with status 1"):
        _search(found, tmp_path / "out")


def test_gpu_hours_need_a_launcher_that_knows_its_gpus(tmp_path):
    with pytest.raises(PlanError, match="'breakable' does not know its GPUs"):
        _search(build_options([], **SURE), tmp_path / "out", BisectRules(budget_gpu_hours=1.0))


def test_held_servers_count_starts_and_gpu_seconds(tmp_path):
    now = [0.0]

    @asynccontextmanager
    async def launching(plan, prepared, folder):
        now[0] += 10.0
        yield Endpoint(base_url="http://127.0.0.1:9/v1")

    def plan(tp):
        launcher = Spec(name="trtllm", options={"model": "/m", "tp": tp})
        return Plan(model="m", launcher=launcher, tasks=())

    async def use():
        async with HeldServer(tmp_path, launching, clock=lambda: now[0]) as held:
            for tp, wait_s in ((2, 5.0), (4, 1.0)):
                async with (await held.take(plan(tp))).launch(plan(tp), [], tmp_path):
                    now[0] += wait_s
            assert held.gpu_s == 2 * 15.0 + 4 * 11.0
        return held

    held = asyncio.run(use())
    assert (held.starts, held.gpus_known, held.gpu_s) == (2, True, 74.0)


def test_the_state_is_json_that_names_every_step(tmp_path):
    found = build_options([], **SURE)
    _search(found, tmp_path / "out")
    content = read_json(tmp_path / "out/bisection.json")
    assert [step["result"] for step in content["steps"]] == ["reference", "same"]
    assert (tmp_path / "out/good_scores/word_problems.yaml").exists()


def test_gpu_hours_of_processes_are_counted_and_end_a_search(tmp_path):
    times, said = tmp_path / "times", dict[str, float]()
    found = build(
        tmp_path,
        [next(iter(BROKEN))],
        samples=40,
        damage=1.0,
        accuracy=1.0,
        order_seed=1,
        tp=2,
        more_env={"STANDIN_LOAD_S": "1", "STANDIN_TIMES": str(times)},
    )

    def note(line):
        said[line.partition(" after ")[0]] = time.time()

    def search(hours):
        rules = BisectRules(margin=20.0, budget_gpu_hours=hours)
        with scope(), two_gpus(tmp_path):
            return asyncio.run(bisect(found, rules, tmp_path / "out", notify=note))

    part = search(1e-9)
    assert (part.ending, part.starts, len(part.steps)) == ("budget", 1, 1)
    assert part.gpu_hours is not None
    state = search(part.gpu_hours + 1e-9)
    assert (state.ending, state.exit_code, state.starts) == ("budget", 3, 2)
    # The bad configuration has two GPUs: two seconds in each second from its start.
    starts = [line.split()[0] for line in times.read_text().splitlines() if " began " in line]
    [ready] = [at for line, at in said.items() if line.endswith(": ready")]
    used = state.steps[1].gpu_s
    asked_s = said["step 1: worse"] - said["step 1: bad"]
    assert 2 * (ready - float(starts[-1])) < used < 2 * asked_s
    # The sum has the whole first search, and the time in which the second server ends.
    assert state.gpu_hours > part.gpu_hours + used / 3600
    buffer = io.StringIO()
    document = make_document(state, found, tmp_path / "out")
    print_document(document, Console(file=buffer, width=80))
    spent = f"2 server starts, {state.requests} answers, {state.gpu_hours:.2f} GPU hours"
    assert spent in buffer.getvalue()
