"""A misspelt field of a user's own code is a wrong use, with its line and the closest name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

TASK = """\
from serve_eval import Sample, Score, Task
from serve_eval.schema import Dataset, Hypothesis, Message, Metric, SamplingParams


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
        ("samples=samples", "sample=samples", "Dataset has no field 'sample'. Did you mean"),
        ('prompt="Say a."', 'prompt=(Message(rol="user"),)', "Message has no field 'rol'. Did"),
        ('prompt="Say a."', 'prompt=(Message(role="user"),)', "Message needs 'content'"),
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


SCORER = """\
from serve_eval.schema import Outcome, Score, Scorer


def scorer() -> Scorer:
    \"\"\"Accept every answer.\"\"\"
    return Scorer(version=1, score=score, answers=lambda expected: ("a", "b"), problems=problems)


def problems(expected):
    return []


def score(expected, response):
    return Score(value=1.0, outcome=Outcome.CORRECT)
"""
RULE = """\
from serve_eval.schema import Verdict, VerdictOutcome


def judge(result, reference, hypothesis, pairs) -> Verdict:
    \"\"\"Pass.\"\"\"
    return Verdict(
        task=result.task, outcome=VerdictOutcome.PASS, rule="lenient", evaluated=result.value
    )
"""


def _write(folder: Path, kind: str, name: str, text: str) -> Path:
    file = folder / kind / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("version=1, ", "", "Scorer needs 'version'"),
        ("answers=", "answer=", "Scorer has no field 'answer'. Did you mean 'answers'?"),
        ("Scorer(version=1", "Scorer(1, version=1", "Scorer takes its fields by name"),
    ],
)
@pytest.mark.parametrize("inner", [False, True])
def test_a_field_that_a_scorer_lacks_is_a_plan_error(
    right: str, wrong: str, said: str, inner: bool, tmp_path: Path
) -> None:
    cases = tmp_path / "cases.yaml"
    one = "{any_of: {scorer: ending}}" if inner else "ending"
    case = f"{{case: a, input: {{prompt: Say a.}}, expected: {'[a]' if inner else 'a'}}}"
    cases.write_text(f"words: {{scorer: {one}, cases: [{case}]}}\n")
    flags = ["-t", "cases:words", "--set", f"cases:words.path={cases}", "--launcher", "simulated"]
    flags += ["-m", "m", "--no-reference", "--dry-run"]
    _write(tmp_path / "good", "scorers", "ending", SCORER)
    file = _write(tmp_path / "bad", "scorers", "ending", SCORER.replace(right, wrong))
    done = serve_eval("run", *flags, "--include-path", tmp_path / "good")
    assert done.returncode == 0, done.stderr
    done = serve_eval("run", *flags, "--include-path", tmp_path / "bad")
    assert (done.returncode, f"{file}:6: {said}" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("evaluated=", "evaluate=", "Verdict has no field 'evaluate'. Did you mean 'evaluated'?"),
        ("task=result.task, ", "", "Verdict needs 'task'"),
    ],
)
def test_a_field_that_a_verdict_lacks_is_told_with_its_line(
    right: str, wrong: str, said: str, tmp_path: Path
) -> None:
    _write(tmp_path, "tasks", "words", TASK)
    file = _write(tmp_path, "verdicts", "lenient", RULE.replace(right, wrong))
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/words.yaml").write_text("m:\n  - {accuracy: 90.0, source: ours}\n")
    flags = ["-t", "words", "--launcher", "simulated", "-m", "m", "--verdict", "lenient"]
    flags += ["--references-dir", tmp_path / "refs", "--output-dir", tmp_path / "out"]
    done = serve_eval("run", *flags, "--include-path", tmp_path)
    told = " ".join((done.stdout + done.stderr).split())
    assert f"{file}:6: {said}" in told, told
    assert "judge() raised" not in told


LAUNCHER = """\
from contextlib import asynccontextmanager
from serve_eval.schema import Endpoint


@asynccontextmanager
async def launch(context):
    \"\"\"Nothing.\"\"\"
    yield Endpoint(base_url="http://127.0.0.1:9", modle="m")


def commands(context):
    return []
"""


def test_a_field_that_an_endpoint_lacks_is_a_plan_error(tmp_path: Path) -> None:
    _write(tmp_path, "tasks", "words", TASK)
    file = _write(tmp_path, "launchers", "near", LAUNCHER)
    flags = ["-t", "words", "--launcher", "near", "-m", "m", "--no-reference"]
    done = serve_eval("run", *flags, "--output-dir", tmp_path / "out", "--include-path", tmp_path)
    told = f"{file}:8: Endpoint has no field 'modle'. Did you mean 'model'?"
    assert told in " ".join(done.stderr.split()), done.stderr
