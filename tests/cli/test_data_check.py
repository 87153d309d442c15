"""Test `data check` with names of tasks: sound ones pass, and each fault of one is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from serve_eval.cli.app import app
from serve_eval.errors import PlanError

pytestmark = pytest.mark.usefixtures("simulated_here")
TASK = '''"""Sums: how much two numbers are together, as a plug-in."""
from serve_eval.schema import (
    Dataset, Hypothesis, Metric, Outcome, Sample, SamplingParams, Score, Task)

ROWS = [("1+1", "2"), ("600+634", "1,234"), ("2+2", "4"), {more}]


def load(roots, wanted):
    samples = [Sample(id=f"sum-{{i}}", prompt=prompt, target=target)
               for i, (prompt, target) in enumerate(ROWS)]
    return Dataset(samples=samples, files=(), total=len(ROWS))


def score(sample, response):
    said = response.text.strip(){read}
    right = {right}
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG,
                 answer=said)


def task():
    return Task(name="sums", version=1, reference_file="sums", metric=Metric(),
                hypothesis=Hypothesis(num_samples=len(ROWS)), protocol={{}}, load=load,
                sampling=SamplingParams(max_tokens={tokens}), score=score, scoring="inline",
                answers=lambda sample: ({gold}, "7"))
'''
SOUND = {
    "more": "",
    "read": "",
    "right": "said == sample.target",
    "tokens": "16",
    "gold": "sample.target",
}


def _check(folder: Path, *arguments: str, **changes: str) -> Result:
    (folder / "tasks").mkdir()
    (folder / "tasks/sums.py").write_text(TASK.format(**{**SOUND, **changes}))
    asked = ["--set", f"include_path={folder}", "--dataset-root", str(folder), *arguments]
    return CliRunner().invoke(app, ["data", "check", "sums", *asked])


def _json(done: Result) -> dict[str, Any]:
    [found] = json.loads(done.stdout)["result"]
    return dict(found)


def test_gold_answers_and_wrong_ones_of_a_sound_task_are_counted(tmp_path: Path) -> None:
    done = _check(tmp_path)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert told.startswith("1 task asked for gold, 0 with another score task sums: 3 samples,")
    assert "3 gold answers score full marks, 3 wrong ones nothing, " in told
    assert "files" not in told


@pytest.mark.parametrize(
    ("changes", "side", "rows"),
    [
        ({"read": ".replace(',', '')"}, "gold", ["sum-1"]),
        ({"right": "bool(said)"}, "zero", ["sum-0", "sum-1", "sum-2"]),
        ({"tokens": "1", "gold": "'it is ' + sample.target"}, "gold", ["sum-0", "sum-1", "sum-2"]),
    ],
    ids=["an extraction that the data does not fit", "a scorer without a no", "a cut answer"],
)
def test_each_row_with_another_score_is_named(
    tmp_path: Path, changes: dict[str, str], side: str, rows: list[str]
) -> None:
    done = _check(tmp_path, "--json", **changes)
    assert done.exit_code == 1, done.output
    found = _json(done)
    assert [(row["side"], row["id"]) for row in found["rows"]] == [(side, one) for one in rows]
    assert found["samples"] == 3
    assert found[side] == 3 - len(rows)
    assert {row["cut"] for row in found["rows"]} == {"tokens" in changes}


def test_the_first_rows_are_in_the_list(tmp_path: Path) -> None:
    told = " ".join(_check(tmp_path, read=".replace(',', '')").stdout.split())
    assert "gold answers without full marks: 1, such as sum-1 (wrong 0, read as '1234')" in told


def test_a_scorer_that_raises_is_named(tmp_path: Path) -> None:
    done = _check(tmp_path, right="bool(said) and 1 / (int(said.replace(',', '')) - 4)")
    told = " ".join(done.stdout.split())
    assert done.exit_code == 1
    assert "gold answers without full marks: 3, such as " in told
    assert "sample sum-2: ZeroDivisionError" in told


def test_samples_whose_prompt_has_two_gold_answers_are_left_out(tmp_path: Path) -> None:
    done = _check(tmp_path, "--json", more="('2+2', '5'), ('1+1', '2')")
    assert done.exit_code == 0, done.output
    found = _json(done)
    assert (found["samples"], found["gold"], found["zero"], found["shared"]) == (3, 3, 3, 2)


def test_a_name_that_is_a_data_set_and_a_task_is_checked_as_both(data_root: Path) -> None:
    arguments = ["data", "check", "gpqa", "--dataset-root", str(data_root), "--limit", "5"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    told = " ".join(done.stdout.split())
    assert f"{data_root}: holds no fetched file" in told
    assert "1 task asked for gold, 0 with another score task gpqa: 5 samples," in told


def test_a_task_without_gold_says_so() -> None:
    arguments = ["data", "check", "word_problems_perplexity", "--limit", "3"]
    told = " ".join(CliRunner().invoke(app, arguments).stdout.split())
    assert "3 gold answers (made up) score better than the wrong ones, " in told
    assert "the data has no gold answers: the log-probability of a text is no answer" in told


def test_a_name_that_is_neither_is_refused() -> None:
    failed = CliRunner().invoke(app, ["data", "check", "gsm9k"])
    assert isinstance(failed.exception, PlanError)
    assert str(failed.exception) == "unknown data set or task 'gsm9k'. Did you mean 'gsm8k'?"
