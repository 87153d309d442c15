"""Test answers that are code.

They run once, after the last answer arrived and only if that is allowed. Kept results decide the
score.
"""

import asyncio
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from serve_eval.cli._suite_run import _open
from serve_eval.errors import RunFolderError, SandboxError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.resolve import resolve
from serve_eval.report.document import print_document
from serve_eval.report.run.document import make_run_document
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import (
    ExecutionResult,
    ExitReason,
    Isolation,
    Outcome,
    Plan,
    Program,
    Spec,
)
from serve_eval.schema.score import GivenPiece
from serve_eval.storage import ownership
from serve_eval.storage.assessments import Executions, _key
from serve_eval.storage.json_files import pretty_json
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 12
FILE = Path("executions/humaneval.jsonl")


@pytest.fixture(scope="session")
def sandboxed():
    try:
        asyncio.run(strongest())
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.6}),
        tasks=(Spec(name="humaneval", options={"metric": "pass@1", "num_samples": N}),),
        dataset_roots=(str(data_root),),
        no_reference=True,
        allow_code_execution=True,
    )


@pytest.fixture(scope="module")
def once(plan, tmp_path_factory, sandboxed):
    out = tmp_path_factory.mktemp("runs") / "out"
    return out, asyncio.run(evaluate(plan, out))


@pytest.fixture
def finished(once, tmp_path):
    return Path(shutil.copytree(once[0], tmp_path / "out")), once[1]


def _lines(out):
    return (out / FILE).read_text().splitlines()


def _programs(lines):
    return [record["program"] for record in map(json.loads, lines) if "program" in record]


async def test_without_permission_nothing_is_asked(plan, tmp_path):
    with pytest.raises(
        SandboxError, match=r"humaneval: runs code that the model writes"
    ) as refused:
        await evaluate(replace(plan, allow_code_execution=False), tmp_path / "out")
    assert "--allow-code-execution" in refused.value.hint
    assert (tmp_path / "out/samples/humaneval.jsonl").read_bytes() == b""
    assert not (tmp_path / "out" / FILE).exists()


def test_answers_are_run_and_the_report_says_where(finished):
    out, report = finished
    (task,) = report.tasks
    result = task.result
    right = result.outcomes[Outcome.CORRECT]
    assert 0 < right < N
    assert result.outcomes == {Outcome.CORRECT: right, Outcome.WRONG: N - right}
    assert result.value == pytest.approx(100 * right / N)
    assert result.parts == {"raised": pytest.approx(100 * (N - right) / N)}
    (isolation,) = task.isolations
    assert (isolation.network, isolation.writable) == (False, ("/tmp",))
    first, *programs = map(json.loads, _lines(out))
    assert first["isolation"]["name"] == isolation.name
    assert sorted(line["ran"]["ended"] for line in programs) == ["passed"] * right + ["raised"] * (
        N - right
    )
    assert all(
        "NameError" in line["ran"]["stderr"]
        for line in programs
        if line["ran"]["ended"] == "raised"
    )
    said = io.StringIO()
    print_document(make_run_document(report, out), Console(file=said, width=200), verbose=True)
    assert f"   answers were run by {isolation.name} as user {isolation.uid}" in said.getvalue()
    assert "no network, writing to /tmp" in said.getvalue()
    scores = [
        json.loads(line) for line in (out / "scores/humaneval.jsonl").read_text().splitlines()
    ]
    assert {score["answer"].strip().partition(" ")[0] for score in scores} == {
        "return",
        "unanswered",
    }


def test_a_finished_run_is_judged_registered_and_taken_up_again_without_running_anything(
    finished, plan, tmp_path
):
    out, report = finished
    lines, quiet = _lines(out), replace(plan, allow_code_execution=False)
    again = judge_again(quiet, out)
    assert (again.tasks[0].result, again.tasks[0].isolations) == (
        report.tasks[0].result,
        report.tasks[0].isolations,
    )
    assert asyncio.run(evaluate(quiet, out)).tasks[0].result == report.tasks[0].result
    (registered,) = register([out], tmp_path / "references")
    assert registered.value == report.tasks[0].result.value
    assert _lines(out) == lines


def test_what_was_not_run_is_run_when_it_is_allowed_and_nothing_twice(finished, plan):
    out, report = finished
    lines = _lines(out)
    (out / FILE).write_text("\n".join(lines[:4]) + "\n" + lines[4][:20])  # as a kill leaves it
    quiet = replace(plan, allow_code_execution=False)
    for refused in (
        lambda: judge_again(quiet, out),
        lambda: asyncio.run(evaluate(quiet, out)),
        lambda: rescore(out),
    ):
        with pytest.raises(SandboxError, match="runs code"):
            refused()
    with pytest.raises(SandboxError, match="has not been run yet"):
        register([out], out.parent / "references")
    assert judge_again(plan, out).tasks[0].result == report.tasks[0].result
    assert _lines(out)[:4] == lines[:4]
    assert sorted(_programs(_lines(out))) == sorted(_programs(lines))


def test_other_programs_of_the_same_answers_are_run_with_permission(finished, tmp_path):
    out, report = finished
    before = _lines(out)
    settings = ["humaneval.timeout_s=5"]
    assert rescore(out)[0].changed == []
    with pytest.raises(SandboxError, match="runs code"):
        rescore(out, settings)
    (told,) = rescore(out, settings, to=tmp_path / "new", allow_code_execution=True)
    assert (told.after, told.changed) == (report.tasks[0].result.value, [])
    assert _lines(out) == before, "the folder does not change"
    assert len(_programs(_lines(tmp_path / "new"))) == 2 * N


async def test_repeats_of_one_answer_run_once_and_give_pass_at_k(plan, tmp_path, sandboxed):
    options = {"accuracy": 0.5, "flip_rate": 0.3, "varied": True}
    thrice = replace(plan, launcher=Spec(name="simulated", options=options), repeats=3)
    result = (await evaluate(thrice, tmp_path / "out")).tasks[0].result
    assert (result.planned, result.scored) == (3 * N, 3 * N)
    assert len(_programs(_lines(tmp_path / "out"))) < 3 * N
    assert result.stability.pass_at["1"] == pytest.approx(result.value)
    assert result.stability.pass_at["3"] >= result.stability.pass_at["1"]


class _Double:
    """Replaces a sandbox: every program passes; number `waits` waits until it is cancelled."""

    at_once = 1

    def __init__(self, waits=None):
        self.ran = []
        self.waits, self.waiting = waits, asyncio.Event()

    async def run(self, program):
        self.ran.append(program)
        if len(self.ran) == self.waits:
            self.waiting.set()
            await asyncio.Event().wait()
        return ExecutionResult(ended=ExitReason.PASSED, exit=0, stdout="x" * 5000 + "end")


ISOLATION = Isolation(name="double", network=False, writable=(), uid=1, python="3.11.0", limits={})


async def test_what_was_run_before_a_stop_is_kept(tmp_path):
    path, programs = (
        tmp_path / "executions/t.jsonl",
        {str(i): Program(code=str(i)) for i in range(5)},
    )
    double = _Double(waits=3)
    running = asyncio.create_task(
        Executions(path, keep=True).run("t", programs, _sandbox(double), ISOLATION, None)
    )
    await double.waiting.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(path.read_text().splitlines()) == 3
    known = Executions(path, keep=False)
    assert known.isolations == [ISOLATION]
    with pytest.raises(SandboxError, match="has not been run yet"):
        known.result(Program(code="4"))
    (path.parent / "t.jsonl").write_text("{}\nnot a record\n")
    with pytest.raises(RunFolderError, match=r"t\.jsonl:2"):
        Executions(path, keep=False)


def _sandbox(double):
    return double


def test_permission_is_part_of_a_plan_file_and_of_no_run_folder(plan, tmp_path):
    assert resolve(
        {"tasks": ["humaneval"], "allow_code_execution": True}, {}, {}
    ).plan.allow_code_execution
    assert resolve(
        {"tasks": ["humaneval"]}, {"allow_code_execution": True}, {}
    ).plan.allow_code_execution
    assert not resolve(to_file(plan), {}, {}).plan.allow_code_execution
    (tmp_path / "suite.yaml").write_text(
        "defaults: {allow_code_execution: true, base_url: 'host:1'}\n"
        "matrix: {model: [a, b], tasks: [[humaneval]]}\n"
    )
    suite = _open(tmp_path / "suite.yaml", None, allow_code_execution=False)[0]
    assert [run.plan.allow_code_execution for run in suite.runs] == [True, True]
    saved = ownership.add_signature({"schema_version": 1, "suite": suite}, tmp_path)
    (tmp_path / "suite.json").write_bytes(pretty_json(saved))
    for allowed in (False, True):
        resumed = _open(None, tmp_path, allow_code_execution=allowed)[0]
        assert [run.plan.allow_code_execution for run in resumed.runs] == [allowed, allowed]


async def test_a_data_set_that_moved_is_not_run_again_and_one_that_changed_is(
    tmp_path,
):
    def program(path, sha256):
        piece = GivenPiece(path=path, start=len(path), size=1, sha256=sha256)
        return Program(code="1", given=piece)

    known = Executions(tmp_path / "executions/t.jsonl", keep=True)
    first = program("/old", "a")
    await known.run("t", {_key(first): first}, _sandbox(_Double()), ISOLATION, None)
    assert known.result(program("/moved", "a")).ended is ExitReason.PASSED
    with pytest.raises(SandboxError, match="has not been run yet"):
        known.result(program("/old", "b"))
