"""What a file of the user returns in a wrong type is an error that names the file, not ours."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

SCORER = '''"""Mine."""
from serve_eval.schema import Outcome, Score, Scorer


def scorer():
    def score(expected, response):
        return Score(value=1.0, outcome=Outcome.CORRECT)

    def problems(expected):
        return {problems}

    def answers(expected):
        return {answers}

    {made}
    return Scorer({fields})
'''
FIELDS = "version=1, score=score, answers=answers, problems=problems, scoring='inline'"
CASES = "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: SCORER}\n"
TASK = '''"""Mine."""
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, Outcome, Sample
from serve_eval.schema import SamplingParams, Score, Task


def load(roots, wanted):
    samples = {samples}
    return {dataset}


def score(sample, response):
    return Score(value=float(response.text == sample.target), outcome=Outcome.CORRECT)


def task():
    return Task(
        name="mine",
        version={version},
        reference_file="mine",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=4),
        sampling=SamplingParams(max_tokens=8),
        protocol={protocol},
        load=load,
        score=score,
        answers=lambda sample: {answers},
    )
'''
GOOD_TASK = {
    "samples": "[Sample(id=str(i), prompt=f'p{i}', target='t') for i in range(4)]",
    "dataset": "Dataset(samples=samples, files=(), total=4)",
    "version": "1",
    "protocol": "{}",
    "answers": "('t', 'f')",
}
LAUNCHER = '''"""Mine."""
from contextlib import asynccontextmanager
from serve_eval.schema import Endpoint


def commands(context):
    return {commands}


{above}
async def launch(context):
    yield {endpoint}
'''
GOOD_LAUNCHER = {
    "commands": "[]",
    "above": "@asynccontextmanager",
    "endpoint": "Endpoint(base_url='http://127.0.0.1:9/v1')",
}
RULE = '''"""Mine."""
from serve_eval.schema import Verdict, VerdictOutcome


def judge(result, reference, hypothesis, pairs=None):
    {body}
'''
GOOD_RULE = (
    "return Verdict(task=result.task, outcome=VerdictOutcome.PASS, rule='mine',"
    " evaluated=result.value)"
)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _write(kind: str, text: str) -> Path:
    file = Path(f"mine/{kind}/mine.py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file.absolute()


def _refused(file: Path, *arguments: str) -> str:
    """Run a command that is refused because of the file, and return what it says of it."""
    done = serve_eval(*arguments, "--include-path", "mine")
    assert done.returncode == 2, done.stderr
    assert "defect of serve-eval" not in done.stderr
    [told] = re.findall(rf"{re.escape(str(file))}:\d+: (.*)", done.stderr)
    return str(told)


SIMULATED = ("--launcher", "simulated", "--model", "m", "--no-reference", "-o", "OUT")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"answers": "'right'"},
            "answers() must return two texts, one with full marks and one with score 0, not the"
            " str 'right'",
        ),
        ({"answers": "('a', 3)"}, "answers() must return two texts"),
        ({"answers": "None"}, "answers() must return two texts"),
        ({"problems": "'bad'"}, "problems() must return a list of texts, not the str 'bad'"),
        ({"problems": "None"}, "problems() must return a list of texts, not None"),
        ({"problems": "[1]"}, "problems() must return a list of texts, not the list [1]"),
        ({"made": "return score"}, "scorer() must return a Scorer of serve_eval.schema, not the"),
        ({"made": "return"}, "scorer() must return a Scorer of serve_eval.schema, not None"),
        (
            {"fields": FIELDS.replace("answers=answers", "answers='y'")},
            "answers of the Scorer must be a function, not the str 'y'",
        ),
        (
            {"fields": FIELDS.replace("'inline'", "'here'")},
            "scoring of the Scorer must be 'inline', 'apart' or 'loaded', not the str 'here'",
        ),
    ],
)
@pytest.mark.parametrize("named", ["mine", "{any_of: {scorer: mine}}"])
def test_a_scorer_is_checked(change: dict[str, str], told: str, named: str) -> None:
    good = {"problems": "[]", "answers": "('r', 'w')", "made": "", "fields": FIELDS}
    file = _write("scorers", SCORER.format(**{**good, **change}))
    text = CASES.replace("SCORER", named)
    Path("c.yaml").write_text(
        text if named == "mine" else text.replace("expected: y", "expected: [y]")
    )
    assert _refused(file, "run", "--cases", "c.yaml", *SIMULATED).startswith(told)
    assert not any(file.read_bytes() for file in Path("OUT").glob("samples/*"))  # nothing asked


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answers": "'t'"}, "answers() must return two texts"),
        ({"version": "'1'"}, "version of the Task must be a whole number, not the str '1'"),
        ({"protocol": "'p'"}, "protocol of the Task must be a mapping, not the str 'p'"),
        ({"dataset": "samples"}, "load() must return a Dataset of serve_eval.schema, not the list"),
        ({"dataset": "None"}, "load() must return a Dataset of serve_eval.schema, not None"),
        (
            {"samples": "(Sample(id='a', prompt='p', target='t') for i in range(1))"},
            "samples of the Dataset must be a list of Sample, not the generator",
        ),
        ({"samples": "['p']"}, "samples[0] must be a Sample of serve_eval.schema, not the str 'p'"),
        (
            {"samples": "[Sample(id=1, prompt='p', target='t')]"},
            "samples[0]: id must be a text, not the int 1",
        ),
        (
            {"samples": "[Sample(id='a', prompt='p', target=2)]"},
            "samples[0] (a): target must be a text, not the int 2",
        ),
        (
            {"samples": "[Sample(id='a', prompt=['p'], target='t')]"},
            "samples[0] (a): prompt must be a text or a tuple of Message, not the list ['p']",
        ),
    ],
)
def test_a_task_is_checked(change: dict[str, str], told: str) -> None:
    file = _write("tasks", TASK.format(**{**GOOD_TASK, **change}))
    assert _refused(file, "run", "--tasks", "mine", *SIMULATED).startswith(told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"commands": "'serve --port 1'"},
            "commands() must return a list of commands, each a list of texts, not the str 'serve",
        ),
        ({"commands": "['serve']"}, "commands() must return a list of commands, each a list of"),
        ({"commands": "None"}, "commands() must return a list of commands"),
        ({"endpoint": "'http://x'"}, "launch() must yield an Endpoint of serve_eval.schema, not"),
        ({"endpoint": "None"}, "launch() must yield an Endpoint of serve_eval.schema, not None"),
        ({"endpoint": "Endpoint(base_url=8000)"}, "base_url of the Endpoint must be a text, not"),
        ({"above": ""}, "launch() must return an asynchronous context manager, not the"),
        (
            {"above": "", "endpoint": "1\n\n\nasync def other():\n    pass\n\n\nlaunch_ = 1"},
            "launch() must return an asynchronous context manager, not the",
        ),
    ],
)
def test_a_launcher_is_checked(change: dict[str, str], told: str) -> None:
    file = _write("launchers", LAUNCHER.format(**{**GOOD_LAUNCHER, **change}))
    _write("tasks", TASK.format(**GOOD_TASK))
    how = ("--launcher", "mine", "--model", "m", "--no-reference", "-o", "OUT")
    assert _refused(file, "run", "--tasks", "mine", *how).startswith(told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 'PASS'", "judge() must return a Verdict, not the str 'PASS'"),
        ("return None", "judge() must return a Verdict, not None"),
        ("return 1 / 0", "judge() raised ZeroDivisionError: division by zero"),
        ("raise SystemExit('no')", "judge() raised SystemExit: no"),
        (
            GOOD_RULE.replace("VerdictOutcome.PASS", "'GOOD'"),
            "the Verdict of judge() is not valid: Invalid enum value 'GOOD' - at `$.outcome`",
        ),
        (
            GOOD_RULE.replace("result.value)", "'much')"),
            "the Verdict of judge() is not valid: Expected `float | null`, got `str` - at"
            " `$.evaluated`",
        ),
    ],
)
def test_a_run_is_saved_whatever_its_rule_returns_and_can_be_judged_again(
    body: str, told: str, tmp_path: Path
) -> None:
    file = _write("verdicts", RULE.format(body=body))
    _write("tasks", TASK.format(**GOOD_TASK))
    Path("refs").mkdir()
    Path("refs/mine.yaml").write_text("m:\n  - accuracy: 100.0\n    source: ours\n")
    asked = ("--tasks", "mine", "--include-path", "mine", "--launcher", "simulated")
    judged = ("--model", "m", "--verdict", "mine", "--references-dir", "refs", "-o", "OUT")
    done = serve_eval("run", *asked, "--set", "launcher.accuracy=1.0", *judged)
    assert done.returncode == 4, done.stderr
    assert "defect of serve-eval" not in done.stderr
    report = json.loads(Path("OUT/report.json").read_text())
    [task] = report["tasks"]
    assert (task["verdict"]["outcome"], task["result"]["scored"]) == ("ERROR", 4)
    [reason] = task["verdict"]["reasons"]
    assert re.match(rf"{re.escape(str(file))}:\d+: {re.escape(told)}; the answers are", reason)
    again = reason.partition("judge them with serve-eval ")[2]
    assert again == f"verdict OUT --include-path {tmp_path}/mine"
    assert told.split(" - at")[0] in " ".join(done.stdout.split())
    _write("verdicts", RULE.format(body=GOOD_RULE))
    assert serve_eval(*again.split()).returncode == 0


def test_a_rule_has_the_name_of_its_file(tmp_path: Path) -> None:
    """A verdict of another name would be read as that of another rule."""
    _write("verdicts", RULE.format(body=GOOD_RULE.replace("rule='mine'", "rule='paired'")))
    _write("tasks", TASK.format(**GOOD_TASK))
    Path("refs").mkdir()
    Path("refs/mine.yaml").write_text("m:\n  - accuracy: 100.0\n    source: ours\n")
    asked = ("--tasks", "mine", "--include-path", "mine", "--launcher", "simulated")
    judged = ("--model", "m", "--verdict", "mine", "--references-dir", "refs", "-o", "OUT")
    assert serve_eval("run", *asked, *judged).returncode == 0
    [task] = json.loads(Path("OUT/report.json").read_text())["tasks"]
    assert task["verdict"]["rule"] == "mine"
