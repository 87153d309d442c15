"""Test tasks whose code sets an alarm and prints, as math_verify's does.

An alarm works only in the main thread of a process.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import open_scope
from serve_eval.schema import Plan, Spec
from tests.cli.command import in_a_process
from tests.harness.made_tasks import write

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

MATHS = [
    {
        "problem": f"What is {i}/3 + 1/3?",
        "solution": f"It is $\\boxed{{\\frac{{{i + 1}}}{{3}}}}$.",
        "answer": "",
    }
    for i in range(1, 5)
]


def _told(*arguments: str | Path, codes: tuple[int, ...] = (0, 3)) -> str:
    done = in_a_process(*arguments)
    assert done.returncode in codes, done.stderr
    assert "noise" not in done.stdout
    assert "higher_is_better" not in done.stderr
    return done.stdout


def _all_ways(
    flags: list[str | Path], out: Path, include: list[str | Path]
) -> tuple[Any, list[Any]]:
    """Return the result of a run and of its resumption, and the lines of its export."""
    first = json.loads(_told("run", *flags, "-o", out, "--json"))["result"]["tasks"][0]["result"]
    again = json.loads(_told("run", "--resume", out, *include, "--json"))["result"]["tasks"][0][
        "result"
    ]
    assert (again["value"], again["secondary"], again["scored"]) == (
        first["value"],
        first["secondary"],
        first["scored"],
    )
    [rescored] = json.loads(_told("judge", "--rescore", out, *include, "--json"))["result"]["tasks"]
    assert (rescored["before"], rescored["after"], rescored["moves"]) == (
        first["value"],
        first["value"],
        [],
    )
    told = json.loads(_told("runs", "export", out, *include, "-o", out / "exported", "--json"))
    samples = Path(told["result"]["files"][1]["file"])
    return first, [json.loads(line) for line in samples.read_text().splitlines()]


def test_a_task_that_sets_an_alarm_works_in_every_command(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks")
    flags: list[str | Path] = [
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=0.5",
        "--model",
        "m",
    ]
    flags += ["--tasks", "lm_eval:made_alarm", "--no-reference", "--include-path", folder]
    dry = json.loads(_told("run", *flags, "--dry-run", "--json"))
    assert dry["tasks"][0]["task"] == "lm_eval:made_alarm"
    result, lines = _all_ways(flags, tmp_path / "out", ["--include-path", folder])
    assert (result["scored"], result["failures"]) == (8, {})
    assert 0.0 < result["value"] < 100.0, "an expired alarm affects only its own answer"
    values = [line["exact_match"] for line in lines if line["filter"] == "strict-match"]
    assert 100.0 * sum(values) / 8 == result["value"]


def test_a_run_that_prepares_in_a_thread_still_tells_of_a_package_that_is_missing(
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "tasks")
    code = (folder / "lm_eval/alarm.py").read_text()
    extensions.include([str(folder)])
    task = Spec(name="lm_eval:made_alarm")
    plan = Plan(model="m", launcher=Spec(name="simulated"), tasks=(task,), no_reference=True)
    before = signal.getsignal(signal.SIGALRM)
    [p] = asyncio.run(asyncio.to_thread(prepare, plan))
    assert len(p.dataset.samples) == 8
    assert signal.getsignal(signal.SIGALRM) is before
    (folder / "lm_eval/alarm.py").write_text(
        code.replace("print(", "import no_such_package\n    print(")
    )
    with pytest.raises(
        ServeEvalError, match=r"cannot score an answer: ModuleNotFoundError: .*no_such_package"
    ):
        _prepare_again(plan)


def _prepare_again(plan: Plan) -> None:
    """Forget earlier code, as in a new process."""
    open_scope().loaded.clear()
    open_scope().kept.clear()
    asyncio.run(asyncio.to_thread(prepare, plan))


def test_minerva_math500_is_scored_by_math_verify(tmp_path: Path) -> None:
    pytest.importorskip("math_verify")
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MATHS))
    name = "lm_eval:minerva_math500"
    flags: list[str | Path] = [
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=1.0",
        "--model",
        "m",
    ]
    flags += [
        "--tasks",
        name,
        "--set",
        f"{name}.metric=math_verify",
        "--no-reference",
        "--dataset-root",
        tmp_path,
    ]
    flags += ["--set", f"{name}.data_files={{train: math.jsonl, test: math.jsonl}}"]
    result, lines = _all_ways(flags, tmp_path / "out", [])
    assert (result["scored"], result["value"], result["failures"]) == (4, 1.0, {})
    assert [line["math_verify"] for line in lines] == [1, 1, 1, 1]
