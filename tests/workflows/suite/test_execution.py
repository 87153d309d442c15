"""Suites against real simulated servers, whose starts and stops are counted."""

import asyncio
import json
import os
import signal
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec
import pytest

from serve_eval.errors import LaunchError, RunFolderError
from serve_eval.evaluation import launch as endpoints
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.schema import (
    AccuracySpec,
    Connection,
    Endpoint,
    Plan,
    Spec,
    Suite,
    SuiteRun,
    VerdictOutcome,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.suite.execution import evaluate_suite
from serve_eval.workflows.suite.preparation import (
    check_suite,
    groups,
    open_folder,
    read_kept_report,
)
from tests.json_files import read_json

TODAY = date(2026, 11, 21)


class Servers:
    """Simulated servers on sockets of this process, with a count of their starts.

    A plan's launcher options are those of the simulator.
    """

    def __init__(self):
        self.events = []

    @asynccontextmanager
    async def launch(self, plan, prepared, folder):
        options = dict(plan.launcher.options)
        accuracy, damage = options.pop("accuracy"), options.get("damage", 0.0)
        self.events.append(f"start {damage}")
        with (folder / "answers.jsonl").open("wb") as file:
            for p in prepared:
                for sample in p.dataset.samples:
                    right, wrong = p.task.answers(sample)
                    entry = {"sha256": prompt_sha256(sample.prompt), "right": right, "wrong": wrong}
                    file.write(msgspec.json.encode({**entry, "probability": accuracy}) + b"\n")
        async with serve(SimulatorConfig(answers=folder / "answers.jsonl", **options)) as url:
            yield Endpoint(base_url=url, model=plan.model, info={"started": len(self.events)})
        self.events.append(f"stop {damage}")


class Processes(Servers):
    """The usual servers, counted, with their process ids."""

    pids: list[int]

    @asynccontextmanager
    async def launch(self, plan, prepared, folder):
        self.events.append("start")
        try:
            async with endpoints.launch(plan, prepared, folder) as endpoint:
                self.pids = [endpoint.info.pid]
                yield endpoint
        finally:  # also if the launcher already noticed that its server ended
            self.events.append("stop")


@pytest.fixture
def plan(data_root, tmp_path):
    """Return a plan of sixty questions to an endpoint that its reference describes."""
    (tmp_path / "references").mkdir()
    (tmp_path / "references/gsm8k.yaml").write_text(
        "simulated:\n  - accuracy: 90.0\n    source: declared\n"
    )
    return Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 0.9}),
        tasks=(Spec(name="gsm8k", options={"num_samples": 60}),),
        dataset_roots=(str(data_root),),
        references_dir=str(tmp_path / "references"),
    )


def _kill(pid):
    """Kill a server and wait until it no longer listens."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10.0
    with suppress(OSError):
        while (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)


def _damaged(plan, **options):
    return replace(
        plan, launcher=Spec(name="simulated", options={**plan.launcher.options, **options})
    )


def _suite(**plans):
    return Suite(
        name="tests", runs=tuple(SuiteRun(name=name, plan=plan) for name, plan in plans.items())
    )


def _evaluate(suite, out, servers, **more):
    return asyncio.run(
        evaluate_suite(suite, out, **{"environ": {}, **more}, today=TODAY, launching=servers.launch)
    )


def _outcomes(report):
    return {row.run: row.outcome.value for row in report.rows}


def test_runs_are_grouped_by_what_they_start_and_the_model_alone(plan):
    other_task = replace(
        plan, tasks=(Spec(name="mmlu"),), accuracy_spec=AccuracySpec(quant_algo="FP8"), seed=4
    )
    damaged, other_model = _damaged(plan, damage=0.1), replace(plan, model="other")
    suite = _suite(a=plan, b=damaged, c=other_task, d=other_model, e=damaged)
    assert [[run.name for run in group] for group in groups(suite.runs)] == [
        ["a", "c"],
        ["b", "e"],
        ["d"],
    ]


def test_each_server_starts_once_and_knows_the_prompts_of_all_its_runs(plan, tmp_path):
    servers, damaged = Servers(), _damaged(plan, damage=0.6)
    mmlu = replace(plan, tasks=(Spec(name="mmlu"),), limit=40, no_reference=True)
    few_shots = replace(
        plan,
        tasks=(Spec(name="gsm8k", options={"num_samples": 50, "num_fewshot": 2}),),
        allow_mismatch=("num_fewshot",),
    )
    out = tmp_path / "out"
    report = _evaluate(
        _suite(a=plan, bad=damaged, mmlu=mmlu, few=few_shots, bad2=replace(damaged, seed=1)),
        out,
        servers,
    )
    assert servers.events == ["start 0.0", "stop 0.0", "start 0.6", "stop 0.6"]
    assert [row.run for row in report.rows] == ["a", "bad", "mmlu", "few", "bad2"]
    assert _outcomes(report) == {
        "a": "PASS",
        "bad": "FAIL",
        "mmlu": "NO REFERENCE",
        "few": "PASS",
        "bad2": "FAIL",
    }
    assert report.rows[2].evaluated > 70  # 0 if the server did not know the prompts
    assert report.exit_code == 1
    sessions = {name: read_json(out / f"runs/{name}/environment.json") for name in ("a", "few")}
    assert (
        sessions["a"][0]["endpoint"]["info"]["started"]
        == sessions["few"][0]["endpoint"]["info"]["started"]
    )
    assert read_json(out / "suite_report.json")["rows"][1]["outcome"] == "FAIL"


def test_a_finished_suite_is_told_again_without_a_server_and_an_unfinished_run_goes_on(
    plan, tmp_path
):
    servers, out = Servers(), tmp_path / "out"
    suite = _suite(a=plan, b=replace(plan, seed=1), c=_damaged(plan, damage=0.6))
    first = _evaluate(suite, out, servers)
    servers.events.clear()
    again = _evaluate(suite, out, servers)
    assert servers.events == []
    assert (again.rows, again.exit_code) == (first.rows, first.exit_code)
    assert all(run.kept for run in again.runs)
    samples = out / "runs/b/samples/gsm8k.jsonl"
    samples.write_bytes(b"".join(samples.read_bytes().splitlines(keepends=True)[:20]))
    (out / "runs/b/report.json").unlink()
    third = _evaluate(suite, out, servers)
    assert servers.events == ["start 0.0", "stop 0.0"]
    assert [run.kept for run in third.runs] == [True, False, True]
    assert third.rows == first.rows
    assert len(samples.read_bytes().splitlines()) == 60


def test_a_run_that_was_finished_by_hand_at_another_address_is_kept_and_another_plan_is_not(
    plan, tmp_path
):
    _evaluate(_suite(a=plan), tmp_path / "out", Servers())
    file = tmp_path / "out/runs/a/report.json"
    report = read_json(file)
    report["plan"]["launcher"] = {"name": "external", "options": {"base_url": "http://new:1/v1"}}
    file.write_text(json.dumps(report))
    old = replace(plan, launcher=Spec(name="external", options={"base_url": "http://old:1/v1"}))
    (run,) = _suite(a=old).runs
    assert read_kept_report(tmp_path / "out", run) is not None
    assert (
        read_kept_report(tmp_path / "out", replace(run, plan=replace(old, model=None))) is not None
    )
    assert read_kept_report(tmp_path / "out", replace(run, plan=replace(old, seed=1))) is None
    file.write_text("{")
    assert read_kept_report(tmp_path / "out", run) is None


def test_a_run_of_cases_is_kept_until_they_change(plan, tmp_path):
    out, file = tmp_path / "out", tmp_path / "towns.yaml"
    cases = [
        {"case": f"c{i}", "input": {"prompt": f"Capital {i}?"}, "expected": "a"} for i in range(3)
    ]

    def write():
        file.write_text(json.dumps({"towns": {"scorer": "exact", "cases": cases}}))

    write()
    asked = replace(
        plan,
        tasks=(Spec(name="cases:towns", options={"path": str(file)}),),
        references_dir=None,
        no_reference=True,
    )
    (run,) = _suite(a=asked).runs
    _evaluate(_suite(a=asked), out, Servers())
    assert read_kept_report(out, run) is not None
    assert read_kept_report(out, replace(run, plan=replace(asked, repeats=2))) is None
    assert read_kept_report(out, replace(run, plan=replace(asked, tasks=()))) is None
    cases[0]["input"] = {"prompt": "Another?"}
    write()
    assert read_kept_report(out, run) is None
    file.unlink()
    assert read_kept_report(out, run) is None


def test_what_stops_runs_is_said_before_anything_starts(plan, tmp_path):
    lines = []
    suite = _suite(
        good=plan,
        **{name: replace(plan, dataset_roots=("/nowhere",)) for name in ("lost", "gone")},
    )
    check_suite(suite, tmp_path / "out", "failed", lines.append)
    [line] = lines
    assert line.startswith("warning: runs lost, gone cannot be asked or judged as a whole: ")
    assert "GSM8K was not found" in line


def test_what_failed_is_asked_again_as_in_a_run(plan, tmp_path):
    servers, out = Servers(), tmp_path / "out"
    flaky = _damaged(plan, failure_rate=0.05, failure_kind="wrapped_400", seed=3)
    first = _evaluate(_suite(a=flaky), out, servers)
    assert 0 < first.rows[0].failed < 6
    _evaluate(_suite(a=flaky), out, servers)
    assert servers.events.count("start 0.0") == 2


def test_a_suite_may_grow_and_only_the_new_runs_are_asked(plan, tmp_path):
    servers, out, lines = Servers(), tmp_path / "out", []
    _evaluate(_suite(a=plan), out, servers)
    more = _suite(z=_damaged(plan, accuracy=0.1), a=plan)
    report = _evaluate(more, out, servers, notify=lines.append)
    assert _outcomes(report) == {"z": "FAIL", "a": "PASS"}
    assert servers.events.count("start 0.0") == 2
    assert "1 of 2 runs are already finished" in lines
    assert [run.kept for run in report.runs] == [False, True]


def test_another_suite_in_the_folder_is_refused_naming_what_differs(plan, tmp_path):
    servers, out = Servers(), tmp_path / "out"
    suite = _suite(a=plan, b=replace(plan, seed=1))
    _evaluate(suite, out, servers)
    told = replace(
        suite,
        name="renamed",
        runs=tuple(replace(run, attributes={"size": "8B"}) for run in suite.runs),
    )
    assert _evaluate(told, out, servers).rows[0].attributes == {"size": "8B"}
    for other, said in (
        (_suite(a=plan, c=plan), "run b is not in this suite"),
        (_suite(a=replace(plan, limit=5), b=replace(plan, seed=1)), "a.limit: was null, now 5"),
    ):
        with pytest.raises(RunFolderError, match="holds another suite") as caught:
            _evaluate(other, out, servers)
        assert said in str(caught.value)
        assert "serve-eval runs export of both" in caught.value.hint
    with pytest.raises(RunFolderError, match="not empty and holds no suite"):
        _evaluate(suite, tmp_path, servers)
    with (
        open_folder(out, suite),
        pytest.raises(RunFolderError, match=f"in use by another run .process {os.getpid()}"),
    ):
        _evaluate(suite, out, servers)


def test_a_run_that_cannot_be_done_stops_no_other(plan, tmp_path):
    servers, lines = Servers(), []
    suite = _suite(
        nodata=replace(plan, dataset_roots=("/nowhere",)),
        noref=replace(plan, accuracy_spec=AccuracySpec(quant_algo="FP8")),
        locked=_damaged(plan, api_key="another"),
        good=plan,
    )
    report = _evaluate(suite, tmp_path / "out", servers, notify=lines.append)
    assert _outcomes(report) == {
        "nodata": "ERROR",
        "noref": "ERROR",
        "locked": "ERROR",
        "good": "PASS",
    }
    kinds = {
        run.name: (run.error.kind, run.error.exit_code)
        for run in report.runs
        if run.error is not None
    }
    assert kinds == {
        "nodata": ("DatasetError", 2),
        "noref": ("NotComparableError", 3),
        "locked": ("EndpointError", 4),
    }
    assert (report.exit_code, report.verdict) == (4, "ERROR")
    assert lines[0] == "run 1 of 4: nodata"
    assert lines[1].startswith("nodata: DatasetError: the data set GSM8K was not found")


def test_a_server_that_ended_is_started_anew_for_the_next_run(plan, tmp_path):
    servers = Processes()

    def told(line):
        if line.endswith(": b"):
            _kill(servers.pids[0])

    report = _evaluate(
        _suite(a=plan, b=replace(plan, seed=1)), tmp_path / "out", servers, notify=told
    )
    assert servers.events == ["start", "stop", "start", "stop"]
    assert set(_outcomes(report).values()) == {"PASS"}


@pytest.mark.parametrize(
    ("keys", "starts"),
    [(("GOOD", "BAD", "GOOD"), 2), (("BAD", "BAD", "GOOD"), 1), (("GOOD", "BAD", "BAD"), 2)],
)
def test_a_server_that_failed_a_run_is_started_anew_if_it_had_served_one(
    plan, tmp_path, keys, starts
):
    servers, locked = Servers(), _damaged(plan, api_key="right")
    plans = {
        f"r{i}": replace(locked, seed=i, connection=Connection(api_key_env=key))
        for i, key in enumerate(keys)
    }
    report = _evaluate(
        _suite(**plans), tmp_path / "out", servers, environ={"GOOD": "right", "BAD": "wrong"}
    )
    assert servers.events.count("start 0.0") == starts
    assert list(_outcomes(report).values()) == [
        "PASS" if key == "GOOD" else "ERROR" for key in keys
    ]


def test_a_server_that_does_not_start_is_tried_once(plan, tmp_path):
    class Broken(Servers):
        @asynccontextmanager
        async def launch(self, plan, prepared, folder):
            self.events.append("start")
            raise LaunchError("no GPU is free")
            yield

    servers = Broken()
    report = _evaluate(_suite(a=plan, b=replace(plan, seed=1)), tmp_path / "out", servers)
    assert servers.events == ["start"]
    assert [run.error.message for run in report.runs if run.error] == ["no GPU is free"] * 2
    assert report.exit_code == 4


def test_the_server_is_started_for_the_most_patient_of_its_runs(plan, tmp_path):
    class Patient(Servers):
        @asynccontextmanager
        async def launch(self, plan, prepared, folder):
            self.events.append(f"patience {plan.limits.sample_timeout_s:g}")
            raise LaunchError("no GPU is free")
            yield

    servers = Patient()
    slow = replace(plan, seed=1, limits=replace(plan.limits, sample_timeout_s=20000))
    _evaluate(_suite(a=plan, b=slow), tmp_path / "out", servers)
    assert servers.events == ["patience 20000"]


def test_a_defect_in_one_run_is_told_and_costs_no_other(plan, tmp_path):
    class Odd(Servers):
        @asynccontextmanager
        async def launch(self, plan, prepared, folder):
            if plan.launcher.options.get("damage"):
                raise ZeroDivisionError("oops")
            async with super().launch(plan, prepared, folder) as endpoint:
                yield endpoint

    report = _evaluate(_suite(odd=_damaged(plan, damage=0.1), good=plan), tmp_path / "out", Odd())
    assert _outcomes(report) == {"odd": VerdictOutcome.ERROR, "good": VerdictOutcome.PASS}
    error = report.runs[0].error
    assert (error.kind, error.message, error.exit_code) == (
        "ZeroDivisionError",
        "unexpected: oops",
        4,
    )


class Ending(Servers):
    """A server that ends on its own when it is first used, but only once."""

    @asynccontextmanager
    async def launch(self, plan, prepared, folder):
        task, first = asyncio.current_task(), not self.events
        assert task is not None
        self.events.append("start")
        async with endpoints.launch(plan, prepared, folder) as endpoint:
            if first:
                asyncio.get_running_loop().call_later(1.8, task.cancel)
            try:
                yield endpoint
            except asyncio.CancelledError:
                task.uncancel()
                raise LaunchError("generation_0 ended with signal 9") from None
        self.events.append("stop")


def test_a_server_that_its_launcher_sees_end_ends_one_run_and_is_started_anew(plan, tmp_path):
    slow = _damaged(plan, latency_s=1.0)
    suite = _suite(a=slow, b=replace(slow, seed=1))
    servers = Ending()
    report = _evaluate(suite, tmp_path / "out", servers)
    [first, second] = report.runs
    assert (first.error.kind, first.error.message) == (
        "LaunchError",
        "generation_0 ended with signal 9",
    )
    assert second.error is None
    assert servers.events == ["start", "start", "stop"]
