"""Test cases that judges score.

Covers files with other cases, changes, repeated judging and the command line.
"""

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import yaml

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import FailureKind, Outcome, Plan, Spec
from serve_eval.workflows.references import register
from tests.cli.command import environment, serve_eval
from tests.evaluation.judging.conftest import JudgeServer, fair, unsure
from tests.evaluation.judging.test_judging import QUICK

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 6


def _file(folder, judge, *, count=N):
    """Write cases: the last one is compared exactly, judges score the others."""
    cases = [
        {
            "case": f"town:{i}",
            "input": {"prompt": f"What is the capital of country {i}?"},
            "expected": f"Town {i}",
        }
        for i in range(count)
    ]
    cases[-1]["scorer"] = "exact"
    path = folder / "towns.yaml"
    path.write_text(yaml.safe_dump({"towns": {"scorer": {"judge": judge}, "cases": cases}}))
    return path


def _plan(file):
    return Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.6}),
        tasks=(Spec(name="cases:towns", options={"path": str(file)}),),
        no_reference=True,
        limits=QUICK,
    )


def _with(server, story):
    async def main():
        async with server.serving() as url:
            await story(url)

    asyncio.run(main())


def test_a_changed_judge_judges_the_answers_that_were_had(tmp_path):
    judge, out = JudgeServer(), tmp_path / "out"

    async def story(url):
        async def session(**options):
            options = {
                "judges": [{"base_url": url, "model": "judge-1", **options.pop("judge", {})}],
                **options,
            }
            return await evaluate(_plan(_file(tmp_path, options)), out, environ={})

        (task,) = (await session()).tasks
        assert task.result.scored == N
        assert len(judge.prompts) == N - 1, "the last case has another scorer"
        assert (
            task.result.modes.get("low correctness", 0)
            >= task.result.outcomes.get(Outcome.WRONG, 0) - 1
        )
        asked = (out / "samples/cases-towns.jsonl").read_bytes()
        await session(judge={"concurrency": 1})
        assert len(judge.prompts) == N - 1, "the address of a judge does not matter"
        await session(rounds=2)
        assert len(judge.prompts) == 2 * (N - 1)
        await session(metrics=["correctness", "usefulness"])
        assert (
            sum("of use to whoever asked" in prompt for prompt in judge.prompts[2 * (N - 1) :])
            == N - 1
        )
        assert (out / "samples/cases-towns.jsonl").read_bytes() == asked

    judge.says = lambda prompt, number: (
        fair(prompt, number) if "is expected:" in prompt else "Verdict: yes"
    )
    _with(judge, story)


def test_what_is_run_again_says_so_to_judges_too(tmp_path):
    judge, out = JudgeServer(unsure), tmp_path / "out"

    async def story(url):
        plan = _plan(_file(tmp_path, {"judges": [{"base_url": url, "model": "judge-1"}]}))
        (task,) = (await evaluate(plan, out, environ={})).tasks
        assert task.result.failures == {FailureKind.JUDGE_ERROR: N - 1}
        judge.says = fair
        (task,) = (await evaluate(plan, out, environ={}, rerun="never")).tasks
        assert (task.result.failures, len(judge.prompts)) == (
            {FailureKind.JUDGE_ERROR: N - 1},
            N - 1,
        )
        (task,) = (await evaluate(plan, out, environ={})).tasks
        assert (task.result.scored, len(judge.prompts)) == (N, 2 * (N - 1))
        await evaluate(plan, out, environ={}, rerun="all")
        assert len(judge.prompts) == 3 * (N - 1), (
            "the answers are the same, but they are judged again"
        )
        (archived,) = out.glob("archive/*/judgements/cases-towns.jsonl")
        assert len(archived.read_text().splitlines()) == 2 * (N - 1)

    _with(judge, story)


def test_a_dry_run_of_cases_tells_of_their_judges_and_a_bad_judge_of_its_place(
    tmp_path,
):
    file = _file(tmp_path, {"judges": [{"base_url": "host:1", "model": "a"}, {}], "rounds": 2})
    flags = [
        "run",
        "--model",
        "m",
        "--base-url",
        "host:2",
        "--cases",
        file,
        "--no-reference",
        "--dry-run",
    ]
    done = serve_eval(*flags)
    assert done.returncode == 0, done.stderr
    assert (
        f"judge requests: at most {2 * (N - 1)} to a, at most {2 * (N - 1)} to itself"
        in done.stdout
    )
    _file(tmp_path, {"judges": [{"base_url": "host:1"}]})
    done = serve_eval(*flags)
    assert done.returncode == 2
    assert "towns.yaml:" in done.stderr
    assert "judge.judges[0].model: required" in done.stderr


@pytest.mark.slow
def test_a_command_that_is_killed_while_answers_are_judged_goes_on_with_the_others(
    tmp_path,
):
    count, out = 200, tmp_path / "out"
    judge = JudgeServer()

    async def story(url):
        loop = asyncio.get_running_loop()
        file = _file(
            tmp_path,
            {"judges": [{"base_url": url, "model": "judge-1", "rate_limit": 60}]},
            count=count,
        )
        command = [
            sys.executable,
            "-m",
            "serve_eval",
            "run",
            "--launcher",
            "simulated",
            "--model",
            "m",
        ]
        command += ["--cases", str(file), "--no-reference", "-o", str(out)]
        judged = out / "judgements/cases-towns.jsonl"

        def killed():
            with subprocess.Popen(command, env=environment(), stdout=-3, stderr=-3) as process:
                while not judged.exists() or judged.read_bytes().count(b"\n") < 40:
                    assert process.poll() is None
                    time.sleep(0.02)
                process.kill()

        await loop.run_in_executor(None, killed)
        had = judged.read_bytes().count(b"\n")
        asked = (out / "samples/cases-towns.jsonl").read_bytes()
        judge.prompts.clear()
        done = await loop.run_in_executor(
            None,
            lambda: subprocess.run(
                command, env=environment(), capture_output=True, text=True, check=False
            ),
        )
        assert done.returncode == 3, done.stderr
        withdrawn = judged.read_bytes().count(b'"withdrawn":')  # no proof before the kill
        assert withdrawn < had
        assert len(judge.prompts) == count - 1 - had + withdrawn
        assert (out / "samples/cases-towns.jsonl").read_bytes() == asked
        result = json.loads((out / "report.json").read_text())["tasks"][0]["result"]
        assert (result["scored"], result["failures"]) == (count, {})

    _with(judge, story)


def test_a_reference_holds_for_the_same_judges_only(tmp_path):
    judge, references = JudgeServer(), tmp_path / "references"

    async def story(url):
        options = {"judges": [{"base_url": url, "model": "judge-1"}], "metrics": ["correctness"]}
        await evaluate(_plan(_file(tmp_path, options)), tmp_path / "out", environ={})
        register([tmp_path / "out"], references)
        judged = replace(
            _plan(_file(tmp_path, options)), references_dir=str(references), no_reference=False
        )
        report = await evaluate(judged, tmp_path / "again", environ={})
        assert report.tasks[0].verdict.reference == report.tasks[0].verdict.evaluated
        _file(tmp_path, {**options, "metrics": ["usefulness"]})
        with pytest.raises(NotComparableError, match="judges is"):
            await evaluate(judged, tmp_path / "other", environ={})

    _with(judge, story)
