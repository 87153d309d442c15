"""A wrong type that a file of the user returns is an error that names the file, not ours."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

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
GIVEN = "Score(value=1.0, outcome=Outcome.CORRECT)"
FIELDS = "version=1, score=score, answers=answers, problems=problems, scoring='inline'"
CASES = "c:\n  - {case: a, input: {prompt: x}, expected: y, scorer: SCORER}\n"
TASK = '''"""Mine."""
from serve_eval.schema import Aggregation, Dataset, Hypothesis, Metric, Outcome, Sample
from serve_eval.schema import SamplingParams, Score, Sums, Task


def load(roots, wanted):
    samples = {samples}
    return {dataset}


def score(sample, response):
    return {score}


def task():
    return Task(
        name="mine",
        version={version},
        reference_file="mine",
        metric={metric},
        hypothesis=Hypothesis(num_samples=4),
        sampling={sampling},
        protocol={protocol},
        load=load,
        score=score,
        answers=lambda sample: {answers},
        {more}
    )
'''
GOOD_TASK = {
    "samples": "[Sample(id=str(i), prompt=f'p{i}', target='t') for i in range(4)]",
    "dataset": "Dataset(samples=samples, files=(), total=4)",
    "version": "1",
    "metric": "Metric()",
    "sampling": "SamplingParams(max_tokens=8)",
    "protocol": "{}",
    "score": "Score(value=float(response.text == sample.target), outcome=Outcome.CORRECT)",
    "more": "",
    "answers": "('t', 'f')",
}
MESSAGES = (
    "[Sample(id='a', prompt='p', target='t'), Sample(id='b', target='t',"
    " prompt=(__import__('serve_eval.schema').schema.Message(role='user', content='p'),))]"
)
LAUNCHER = '''"""Mine."""
from contextlib import asynccontextmanager
from serve_eval.schema import Endpoint


def commands(context):
    return {commands}


{above}
async def launch(context):
    {yields}
'''
GOOD_LAUNCHER = {
    "commands": "[]",
    "above": "@asynccontextmanager",
    "yields": "yield Endpoint(base_url='http://127.0.0.1:9/v1')",
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
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _write(kind, text):
    file = Path(f"mine/{kind}/mine.py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file.absolute()


def _refused(file, *arguments):
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
def test_a_scorer_is_checked(change, told, named):
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
        ({"dataset": "{}"}, "load() must return a Dataset of serve_eval.schema, not the dict {}"),
        ({"metric": "Metric(scale='1')"}, "metric of the Task is not valid: Expected `float`, got"),
        (
            {"sampling": "SamplingParams(max_tokens=8, stop='x')"},
            "sampling of the Task is not valid: Expected `array`, got `str` - at `$.stop`",
        ),
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
        (
            {"samples": MESSAGES},
            "samples[1] (b): prompt is messages, but the Task says chat=False: set chat=True in"
            " Task(...), or make the prompt a text",
        ),
        (
            {"more": "chat=True,"},
            "samples[0] (0): prompt is a text, but the Task says chat=True: leave out chat=True in"
            " Task(...), or make the prompt a tuple of Message",
        ),
    ],
)
def test_a_task_is_checked(change, told):
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
        (
            {"yields": "yield 'http://x'"},
            "launch() must yield an Endpoint of",
        ),
        (
            {"yields": "yield None"},
            "launch() must yield an Endpoint of",
        ),
        (
            {"yields": "yield Endpoint(base_url=8000)"},
            "base_url of the Endpoint must be a text",
        ),
        (
            {"yields": "yield Endpoint(base_url='http://x', model=3)"},
            "model of the Endpoint must be",
        ),
        (
            {"yields": "yield Endpoint(base_url='http://127.0.0.1:9/v1') if 0 else None"},
            "launch() must",
        ),
        ({"above": ""}, "launch() must return an asynchronous context manager, not the"),
        ({"yields": "return None"}, "launch() must return an asynchronous context manager, not"),
        ({"yields": "if 0:\n        yield"}, "launch() must yield an Endpoint exactly once"),
    ],
)
def test_a_launcher_is_checked(change, told):
    file = _write("launchers", LAUNCHER.format(**{**GOOD_LAUNCHER, **change}))
    _write("tasks", TASK.format(**GOOD_TASK))
    how = ("--launcher", "mine", "--model", "m", "--no-reference", "-o", "OUT")
    assert _refused(file, "run", "--tasks", "mine", *how).startswith(told)


JUDGED = ("--model", "m", "--references-dir", "refs", "-o", "OUT")
ASKED = ("--tasks", "mine", "--include-path", "mine", "--launcher", "simulated")
RIGHT = ("--set", "launcher.accuracy=1.0")


def _write_reference():
    Path("refs").mkdir()
    Path("refs/mine.yaml").write_text("m:\n  - accuracy: 100.0\n    source: ours\n")


def _report():
    [task] = json.loads(Path("OUT/report.json").read_text())["tasks"]
    return task


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 'PASS'", "judge() must return a Verdict of serve_eval.schema, not the str 'PASS'"),
        ("return None", "judge() must return a Verdict of serve_eval.schema, not None"),
        ("return True", "judge() must return a Verdict of serve_eval.schema, not the bool True"),
        ("return 1 / 0", "judge() raised ZeroDivisionError: division by zero"),
        ("raise SystemExit('no')", "judge() raised SystemExit: no"),
        ("raise GeneratorExit", "judge() raised GeneratorExit: no reason given"),
        (
            GOOD_RULE.replace("VerdictOutcome.PASS", "'GOOD'"),
            "the Verdict of judge() is not valid: Invalid enum value 'GOOD' - at `$.outcome`",
        ),
        (
            GOOD_RULE.replace("result.value)", "'much')"),
            "the Verdict of judge() is not valid: Expected `float | null`, got `str` - at"
            " `$.evaluated`",
        ),
        (
            GOOD_RULE.replace("result.value)", "object())"),
            "the Verdict of judge() is not valid: the object <object",
        ),
        (
            GOOD_RULE.replace("result.value)", "float('nan'))"),
            "evaluated of the Verdict must be a finite number, not the float nan",
        ),
        (
            GOOD_RULE.replace("result.value)", "result.value, bounds=(0.0, float('inf')))"),
            "bounds of the Verdict must be a finite number, not the float inf",
        ),
        (
            GOOD_RULE.replace("result.task", "'other'"),
            "judge() must return a Verdict of the task 'mine', not the str 'other'",
        ),
        (
            GOOD_RULE.replace("VerdictOutcome.PASS", "VerdictOutcome.NOT_JUDGED"),
            "judge() must return a Verdict that is PASS, FAIL, INCONCLUSIVE, ERROR, not the",
        ),
    ],
)
def test_a_run_is_saved_whatever_its_rule_returns_and_can_be_judged_again(body, told, tmp_path):
    file = _write("verdicts", RULE.format(body=body))
    _write("tasks", TASK.format(**GOOD_TASK))
    _write_reference()
    done = serve_eval("run", *ASKED, *RIGHT, "--verdict", "mine", *JUDGED)
    assert done.returncode == 4, done.stderr
    assert "defect of serve-eval" not in done.stderr
    task = _report()
    assert (task["verdict"]["outcome"], task["result"]["scored"]) == ("ERROR", 4)
    [reason] = task["verdict"]["reasons"]
    assert re.match(rf"{re.escape(str(file))}:\d+: {re.escape(told)}", reason)
    again = reason.partition("; the answers are kept: mend it, then judge them with serve-eval ")[2]
    assert again == f"judge OUT --include-path {tmp_path}/mine"
    assert told.split(" - at")[0] in " ".join(done.stdout.split())
    _write("verdicts", RULE.format(body=GOOD_RULE))
    assert serve_eval(*again.split()).returncode == 0


def test_two_sides_are_compared_whatever_the_rule_returns():
    file = _write("verdicts", "NEEDS_PAIRS = True\n" + RULE.format(body="return 3"))
    _write("tasks", TASK.format(**GOOD_TASK))
    for side in "AB":
        done = serve_eval("run", *ASKED, *RIGHT, "--model", "m", "--no-reference", "-o", side)
        assert done.returncode == 3, done.stderr
    sides = ("compare", "A", "B", "--include-path", "mine", "--verdict", "mine")
    done = serve_eval(*sides)
    assert (done.returncode, "defect" in done.stderr) == (4, False), done.stderr
    told = "judge() must return a Verdict of serve_eval.schema, not the int 3; the answers are kept"
    assert re.search(rf"{re.escape(str(file))}:\d+: {re.escape(told)}", done.stdout)
    _write("verdicts", "NEEDS_PAIRS = True\n" + RULE.format(body=GOOD_RULE))
    assert serve_eval(*sides).returncode == 0


def test_a_rule_has_the_name_of_its_file():
    """A verdict of another name would be read as that of another rule."""
    _write("verdicts", RULE.format(body=GOOD_RULE.replace("rule='mine'", "rule='paired'")))
    _write("tasks", TASK.format(**GOOD_TASK))
    _write_reference()
    assert serve_eval("run", *ASKED, "--verdict", "mine", *JUDGED).returncode == 0
    assert _report()["verdict"]["rule"] == "mine"


def test_the_check_of_a_rule_raises_and_returns_nothing():
    text = RULE.format(body=GOOD_RULE) + "\n\ndef check():\n    return ['too small']\n"
    file = _write("verdicts", text)
    _write("tasks", TASK.format(**GOOD_TASK))
    _write_reference()
    told = _refused(file, "run", *ASKED[:2], *ASKED[4:], "--verdict", "mine", *JUDGED)
    assert told.startswith("check() must return None, not the list ['too small']")


SCORES = {
    "None": " of serve_eval.schema, not None",
    "float('nan')": " of serve_eval.schema, not the float nan",
    "True": " of serve_eval.schema, not the bool True",
    "1.5": " of serve_eval.schema, not the float 1.5",
    "[1.0]": " of serve_eval.schema, not the list [1.0]",
    "Score(value=None, outcome='wrong')": " whose value is from 0 to 1, not None",
    "Score(value='1', outcome='wrong')": " whose value is from 0 to 1, not the str '1'",
    "Score(value=1.5, outcome='wrong')": " whose value is from 0 to 1, not the float 1.5",
    "Score(value=1.0, outcome='good')": " whose outcome is one of correct, wrong, partial, unpars",
    "Score(value=1.0, outcome='wrong', parts=None)": " whose parts are a mapping, not None",
    "Score(value=1.0, outcome='wrong', parts={'a': 'x'})": " whose part 'a' is a finite number, n",
    "Score(value=1.0, outcome='wrong', mode=3)": " whose mode is a text or None, not the int 3",
}
PICKED = f"{{i: one for i, one in enumerate(({', '.join(SCORES)}))}}"


@pytest.mark.parametrize("kind", ["tasks", "scorers"])
def test_a_score_is_checked_and_given_again_after_mending(kind):
    good = {"problems": "[]", "answers": "('r', 'w')", "made": "", "fields": FIELDS}
    task = {**GOOD_TASK, "samples": GOOD_TASK["samples"].replace("4", str(len(SCORES)))}
    task["dataset"] = task["dataset"].replace("4", str(len(SCORES)))
    written = {
        "tasks": TASK.format(**{**task, "score": f"{PICKED}[int(sample.id)]"}),
        "scorers": SCORER.format(**good).replace(GIVEN, f"{PICKED}[int(expected)]"),
    }
    file, asked = _write(kind, written[kind]), ("--tasks", "mine")
    if kind == "scorers":
        case = "  - {{case: a{0}, input: {{prompt: x{0}}}, expected: '{0}', scorer: mine}}\n"
        Path("c.yaml").write_text("c:\n" + "".join(map(case.format, range(len(SCORES)))))
        asked = ("--cases", "c.yaml")
    done = serve_eval("run", *asked, "--include-path", "mine", *SIMULATED)
    assert (done.returncode, "defect" in done.stderr) == (4, False), done.stderr
    told = [error["told"] for error in _report()["result"]["scorer_errors"]]
    begins = rf"{re.escape(str(file))}:\d+: score\(\) must return a Score"
    for wanted in SCORES.values():
        assert any(re.match(begins + re.escape(wanted), one) for one in told), wanted
    _write(kind, TASK.format(**task) if kind == "tasks" else SCORER.format(**good))
    again = serve_eval("judge", "--rescore", "OUT", "--include-path", "mine", "--json")
    assert again.returncode == 0, again.stderr
    judged = serve_eval("judge", "OUT", "--include-path", "mine", "--json")
    [task] = json.loads(judged.stdout)["result"]["tasks"]
    assert (task["result"]["failed"], task["result"]["scorer_errors"]) == (0, [])


NUMBERS = "a mapping from texts to finite numbers"


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("breakdown=lambda scored: None", "breakdown() must return a mapping that JSON can hold"),
        ("breakdown=lambda scored: {'a': object()}", "breakdown() must return a mapping that JSON"),
        ("secondary=lambda scored: None", f"secondary() must return {NUMBERS}, not None"),
        ("secondary=lambda scored: {'a': 'x'}", f"secondary() must return {NUMBERS}, not the dict"),
        ("secondary=lambda scored: {'a': float('nan')}", f"secondary() must return {NUMBERS}"),
    ],
)
def test_a_figure_that_cannot_be_shown_is_left_out(more, told):
    file = _write("tasks", TASK.format(**{**GOOD_TASK, "more": more}))
    _write_reference()
    done = serve_eval("run", *ASKED, *RIGHT, *JUDGED)
    assert done.returncode == 0, done.stderr
    assert "could not be written" not in done.stderr
    [error] = _report()["result"]["hook_errors"]
    assert re.search(rf"{re.escape(str(file))}:\d+: {re.escape(told)}", error)
    assert error in done.stdout


SUMS = "aggregation=Aggregation(name='rate', of=lambda scored: 1.0, sums=Sums(parts=('a',), {}))"
COUNTED = GOOD_TASK["score"].replace("CORRECT)", "CORRECT, parts={'a': 1.0})")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        *(
            (
                f"aggregation=Aggregation(name='rate', of=lambda scored: {value})",
                f"aggregation() must return a finite number, not {shown}",
            )
            for value, shown in (
                ("None", "None"),
                ("'1.0'", "the str '1.0'"),
                ("True", "the bool True"),
                ("[1.0]", "the list [1.0]"),
                ("float('nan')", "the float nan"),
            )
        ),
        ("aggregation=Aggregation(name='rate', of=lambda scored: 1 / 0)", "ZeroDivisionError: div"),
    ],
)
def test_answers_are_kept_whatever_their_aggregation_returns(more, told):
    _write("tasks", TASK.format(**{**GOOD_TASK, "more": more}))
    _write_reference()
    done = serve_eval("run", *ASKED, *RIGHT, *JUDGED)
    assert (done.returncode, "defect" in done.stderr) == (4, False), done.stderr
    verdict = _report()["verdict"]
    assert verdict["outcome"] == "ERROR"
    assert told in verdict["reasons"][0]
    again = verdict["reasons"][0].partition("judge them with serve-eval ")[2]
    more = "aggregation=Aggregation(name='rate', of=lambda scored: 1.0)"
    _write("tasks", TASK.format(**{**GOOD_TASK, "more": more}))
    assert serve_eval(*again.split()).returncode == 0


@pytest.mark.parametrize(
    ("sums", "told"),
    [
        ("value=lambda sums: None", "Sums.value() must return a finite number, not None"),
        ("value=lambda sums: 1 / 0", "Sums.value() raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_run_is_saved_whatever_its_sums_return(sums, told):
    more = SUMS.replace("{}", sums)
    file = _write("tasks", TASK.format(**{**GOOD_TASK, "score": COUNTED, "more": more}))
    _write_reference()
    done = serve_eval("run", *ASKED, *RIGHT, *JUDGED)
    assert "defect" not in done.stderr
    task = _report()
    said = [*task["result"]["hook_errors"], *task["verdict"]["reasons"]]
    assert any(re.search(rf"{re.escape(str(file))}:\d+: {re.escape(told)}", one) for one in said)


def test_an_answer_that_cannot_be_remembered_has_no_score():
    more = "remember=lambda sample, score: {}[sample.id]"
    _write("tasks", TASK.format(**{**GOOD_TASK, "more": more}))
    _write_reference()
    done = serve_eval("run", *ASKED, *RIGHT, *JUDGED)
    assert (done.returncode, "defect" in done.stderr) == (4, False), done.stderr
    assert _report()["result"]["failures"] == {"scorer_error": 4}
    _write("tasks", TASK.format(**GOOD_TASK))
    assert serve_eval("judge", "OUT", "--include-path", "mine").returncode == 0
