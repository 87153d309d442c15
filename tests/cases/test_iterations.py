"""`iterations` of a case file apply to its own task: in requests, resumes, reports, comparisons."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.evidence.agreement.answer_pairs import read_task
from serve_eval.plan import resolve
from serve_eval.schema import Report, Spec
from serve_eval.storage.reports.report_file import read_report
from serve_eval.storage.run_folder import read_plan
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.export.export import export
from serve_eval.workflows.references.register import register
from serve_eval.workflows.rescore.rescore import rescore
from serve_eval.workflows.suite.file import read as read_suite
from tests.cases.counting import Counting, counting

PLAIN, LIMIT = "word_problems", 5
TIMES = {PLAIN: 1, "cases:threes": 3, "cases:twos": 2}


@pytest.fixture
def endpoint() -> Iterator[Counting]:
    with counting() as server:
        yield server


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, times in (("threes", 3), ("twos", 2)):
        cases = [
            {
                "case": f"n{i}",
                "input": {"prompt": f"Question {i} of {name}: what is {i}?"},
                "expected": i,
            }
            for i in range(LIMIT)
        ]
        content = {name: {"iterations": times, "scorer": "exact", "cases": cases}}
        (tmp_path / f"{name}.yaml").write_text(json.dumps(content))
    return [str(tmp_path / f"{name}.yaml") for name in ("threes", "twos")]


def _settings(files: list[str], url: str, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "tasks": [PLAIN],
        "cases": files,
        "base_url": url,
        "model": "m",
        "no_reference": True,
        "limit": LIMIT,
    }
    return {name: value for name, value in {**told, **more}.items() if value is not None}


def _run(files: list[str], url: str, out: Path, **more: Any) -> Report:
    return asyncio.run(
        evaluate(resolve.resolve({}, _settings(files, url, **more), {}).plan, out, environ={})
    )


def _asked(endpoint: Counting) -> int:
    """Return the number of requests since the last call."""
    continued, endpoint.continued = endpoint.continued, 0
    return continued + sum(endpoint.taken().values())


def _planned(report: Report) -> dict[str, int]:
    return {task.result.task: task.result.planned for task in report.tasks}


def test_every_task_is_asked_as_often_as_its_own_file_says(
    files: list[str], endpoint: Counting, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    report = _run(files, endpoint.url, out)
    wanted = {name: LIMIT * times for name, times in TIMES.items()}
    assert _planned(report) == wanted
    assert _asked(endpoint) == sum(wanted.values())
    told = {task.result.task: task.result.stability for task in report.tasks}
    assert {name: 1 if one is None else one.repeats for name, one in told.items()} == TIMES

    # Commands that read the folder use the same numbers.
    again = read_report(out)
    assert again.plan.repeats_of == {"cases:threes": 3, "cases:twos": 2}
    assert {name: len(read_task(out, again, name).lines) for name in TIMES} == TIMES
    assert _planned(judge_again(read_plan(out), out)) == wanted
    assert {one.task: one.answered for one in rescore(out)} == wanted

    responses = {
        file.name: len(json.loads(file.read_text().splitlines()[0])["resps"][0])
        for file in export(out, tmp_path / "exported").files
        if file.name.startswith("samples_")
    }
    assert sorted(responses.values()) == sorted(TIMES.values())

    # A resumed run asks only what is missing, even if the number for all tasks has changed.
    journal = out / "samples" / "cases-threes.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[4:]))
    (out / "report.json").unlink()
    assert _planned(_run(files, endpoint.url, out)) == wanted
    assert _asked(endpoint) == 4
    assert _planned(_run(files, endpoint.url, out, repeats=3)) == dict.fromkeys(TIMES, 3 * LIMIT)
    assert _asked(endpoint) == (2 + 0 + 1) * LIMIT


def test_a_comparison_asks_both_sides_as_often_and_twice_what_is_asked_once(
    files: list[str], endpoint: Counting, tmp_path: Path
) -> None:
    sides = [
        CompareSide(plan=resolve.resolve({}, _settings(files, endpoint.url), {}).plan)
        for _ in range(2)
    ]
    rules = CompareRules(rule=Spec(name="paired"), again=100)
    found = asyncio.run(compare(sides[0], sides[1], rules, tmp_path / "out", environ={}))
    assert {task.task: (task.a.planned, task.b.planned) for task in found.tasks} == {
        name: (LIMIT * times,) * 2 for name, times in TIMES.items()
    }
    assert [task.result.task for task in read_report(tmp_path / "out" / "again").tasks] == [PLAIN]
    assert all(task.itself is not None and task.itself.prompts == LIMIT for task in found.tasks)
    anchors = CompareRules(rule=Spec(name="anchors"), again=0)
    with pytest.raises(NotComparableError, match="answer each prompt at least 2 times"):
        asyncio.run(compare(sides[0], sides[1], anchors, tmp_path / "other", environ={}))


def test_every_repeat_of_a_task_counts_as_a_run_of_its_reference(
    files: list[str], endpoint: Counting, tmp_path: Path
) -> None:
    _run(files, endpoint.url, tmp_path / "out", tasks=None, limit=None)
    written = register([tmp_path / "out"], tmp_path / "references")
    assert sorted(one.runs for one in written) == [2, 3]


def test_the_runs_of_a_suite_keep_to_their_own_files(files: list[str], tmp_path: Path) -> None:
    runs = [
        {"name": "cases", "cases": files},
        {"name": "plain", "tasks": [PLAIN]},
        {"name": "both", "tasks": [PLAIN], "cases": files},
    ]
    defaults = {"model": "m", "base_url": "host:1"}
    (tmp_path / "suite.yaml").write_text(json.dumps({"defaults": defaults, "plans": runs}))
    suite = read_suite(tmp_path / "suite.yaml", {})
    told = {
        run.name: {task.name: run.plan.times(task.name) for task in run.plan.tasks}
        for run in suite.runs
    }
    assert told == {
        "cases": {"cases:threes": 3, "cases:twos": 2},
        "plain": {PLAIN: 1},
        "both": TIMES,
    }
