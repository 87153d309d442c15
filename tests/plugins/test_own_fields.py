"""A misspelt field of a user's own task is a wrong use, with its line and the closest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval

TASK = """\
from serve_eval import Sample, Score, Task
from serve_eval.schema import Dataset, Hypothesis, Metric, SamplingParams


def task() -> Task:
    \"\"\"Repeat a word.\"\"\"
    return Task(
        name="words", version=1, reference_file="words", metric=Metric(),
        hypothesis=Hypothesis(num_samples=2), sampling=SamplingParams(max_tokens=4),
        protocol={}, datasets=(), load=load, answers=lambda sample: ("a", "b"),
        score=lambda sample, response: Score(value=1.0),
    )


def load(roots, wanted):
    samples = [Sample(id=str(i), prompt="Say a.", target="a") for i in range(wanted)]
    return Dataset(samples=samples, files=(), total=wanted)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("reference_file=", "referense_file=", "Task has no field 'referense_file'. Did you mean"),
        ("num_samples=2", "num_sample=2", "Hypothesis has no field 'num_sample'. Did you mean"),
        ("max_tokens=4", "max_token=4", "SamplingParams has no field 'max_token'. Did you mean"),
        ("target=", "targt=", "Sample has no field 'targt'. Did you mean 'target'?"),
        ("metric=Metric(),", "", "Task needs 'metric'"),
    ],
)
def test_a_field_that_a_noun_lacks_is_a_plan_error(
    right: str, wrong: str, said: str, tmp_path: Path
) -> None:
    flags = ["-t", "words", "--launcher", "simulated", "-m", "m", "--no-reference", "--dry-run"]
    for name, text in [("good", TASK), ("bad", TASK.replace(right, wrong))]:
        file = tmp_path / name / "tasks/words.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert serve_eval("run", *flags, "--include-path", tmp_path / "good").returncode == 0
    done = serve_eval("run", *flags, "--include-path", tmp_path / "bad")
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert f"{file}:" in done.stderr
