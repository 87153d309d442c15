"""Test what a run with the user's code records, and what must be named again."""

import json
import re
import shlex
from dataclasses import replace

import pytest

from serve_eval.errors import WithheldCodeError
from serve_eval.evaluation.trust import adopt_code
from serve_eval.plan.command_line import permissions
from serve_eval.plugins import extensions, registry
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.servers.daemon import identity
from tests.cli.command import serve_eval
from tests.plugins.conftest import forget, write_task

pytestmark = pytest.mark.usefixtures("simulated_here")

ASK = (
    "run",
    "--launcher",
    "simulated",
    "--set",
    "launcher.accuracy=1.0",
    "--model",
    "m",
    "--tasks",
    "towns",
)
HINT = "If you trust it: --include-path "


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return a finished run of a task in a folder, which this process has then forgotten."""
    code = write_task(tmp_path / "code")
    done = serve_eval(*ASK, "--no-reference", "-o", tmp_path / "out", "--include-path", code)
    assert done.returncode == 3, done.stderr
    forget(monkeypatch)
    return tmp_path / "out"


def test_the_run_keeps_which_code_made_it(run, tmp_path):
    assert json.loads((run / "plan.json").read_text())["plan"]["include_path"] == [
        str(tmp_path / "code")
    ]
    report = json.loads((run / "report.json").read_text())
    kept = report["environment"]["extensions"]["tasks.towns"]
    assert kept["origin"] == f"{tmp_path}/code/tasks/towns.py"
    assert (
        json.loads((run / "environment.json").read_text())[0]["extensions"]["tasks.towns"] == kept
    )
    assert (
        f"tasks.towns is from {kept['origin']} (sha256 {kept['sha256'][:12]})" in report["warnings"]
    )


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--resume"),
        ("judge",),
        (
            "judge",
            "--rescore",
        ),
        ("references", "register", "--references-dir", "registered"),
    ],
)
def test_a_saved_folder_of_code_is_not_looked_into_until_it_is_named_anew(
    run, tmp_path, command, monkeypatch
):
    code = tmp_path / "code"
    monkeypatch.chdir(tmp_path)
    refused = serve_eval(*command, run)
    assert refused.returncode == 2
    assert (
        f"takes its task 'towns' from {code}, whose code runs only if you name the folder again"
        in refused.stderr
    )
    assert refused.stderr.endswith(f"{HINT}{code}\n")
    assert "towns" not in registry.names("serve_eval.tasks")
    allowed = serve_eval(*command, run, "--include-path", code)
    assert allowed.returncode in (0, 3), allowed.stderr
    assert "towns" in allowed.stdout
    if "register" in command:
        return  # registered runs are not registered again
    forget(monkeypatch)
    by_variable = serve_eval(*command, run, SERVE_EVAL_INCLUDE_PATH=str(code))
    assert by_variable.returncode == (2 if "--resume" in command else allowed.returncode), (
        by_variable.stderr
    )


def test_the_line_to_go_on_with_has_what_is_to_be_named_anew(tmp_path):
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), include_path=("/a b", "/c"))
    assert permissions([plan, plan]) == " --include-path '/a b' --include-path /c"
    assert (
        permissions([replace(plan, include_path=(), allow_code_execution=True)])
        == " --allow-code-execution"
    )
    assert permissions([]) == ""


def test_the_folder_may_have_moved(run, tmp_path):
    answers = (run / "samples/towns.jsonl").read_bytes()
    moved = (tmp_path / "code").rename(tmp_path / "elsewhere")
    again = serve_eval("run", "--resume", run, "--include-path", moved)
    assert again.returncode == 3, again.stderr
    assert (run / "samples/towns.jsonl").read_bytes() == answers


def test_a_changed_file_is_told_where_the_answers_are_older(run, tmp_path):
    before = json.loads((run / "environment.json").read_text())[0]["extensions"]["tasks.towns"][
        "sha256"
    ][:12]
    (tmp_path / "code/tasks/_reading.py").write_text(
        "def said(text):\n    return text.strip().lower()\n"
    )
    told = serve_eval("judge", run, "--include-path", tmp_path / "code").stdout
    assert f"earlier answers were made with {before}" in told


def test_other_questions_under_its_name_are_refused(run, tmp_path):
    file = tmp_path / "code/tasks/towns.py"
    file.write_text(file.read_text().replace("Town {i}", "The place {i}"))
    done = serve_eval("run", "--resume", run, "--include-path", tmp_path / "code")
    assert done.returncode == 2
    assert "fingerprints.towns.samples: was" in done.stderr


def test_what_is_ours_needs_no_permission_of_a_plan_that_names_folders(tmp_path):
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="gsm8k"),),
        include_path=(str(write_task(tmp_path)),),
    )
    assert adopt_code(plan, ()).include_path == ()
    with pytest.raises(WithheldCodeError, match=f"takes its task 'towns' from {tmp_path}, whose"):
        registry.load("serve_eval.tasks", "towns")


def test_a_suite_takes_folders_from_its_plans_or_the_flag_and_anew_on_resuming(
    tmp_path, monkeypatch
):
    code, file, out = write_task(tmp_path / "code"), tmp_path / "suite.yaml", tmp_path / "out"
    plan = (
        "{name: a, model: m, launcher: {name: simulated, accuracy: 1.0}, tasks: [towns],"
        " no_reference: true"
    )
    file.write_text(f"plans:\n  - {plan}, include_path: {code}}}\n")
    done = serve_eval("run", file, "-o", out)
    assert done.returncode == 3, done.stderr
    forget(monkeypatch)
    refused = serve_eval("run", "--resume", out)
    assert (refused.returncode, refused.stderr.endswith(f"{HINT}{code}\n")) == (2, True)
    assert serve_eval("run", "--resume", out, "--include-path", code).returncode == 3
    forget(monkeypatch)
    file.write_text(f"plans:\n  - {plan}}}\n")
    by_flag = serve_eval("run", file, "-o", tmp_path / "other", "--include-path", code)
    assert by_flag.returncode == 3, by_flag.stderr
    saved = json.loads((tmp_path / "other/runs/a/plan.json").read_text())
    assert saved["plan"]["include_path"] == [str(code)]


LAUNCHER = '''"""Mine: a launcher that starts nothing."""

from contextlib import asynccontextmanager


def commands(context, *, port: int = 8000):
    return [["my-server", "--port", str(port)]]


@asynccontextmanager
async def launch(context, *, port: int = 8000):
    yield
'''


def test_held_servers_are_the_same_only_while_their_launcher_is(tmp_path, monkeypatch):
    (tmp_path / "launchers").mkdir()
    file = tmp_path / "launchers/mine.py"
    plan = Plan(model="m", launcher=Spec(name="mine"), tasks=(), include_path=(str(tmp_path),))
    found = []
    for text in (LAUNCHER, LAUNCHER, LAUNCHER.replace("my-server", "another")):
        file.write_text(text)
        extensions.include(plan.include_path)
        found.append(identity(plan))
        forget(monkeypatch)
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)
    shown = serve_eval(
        "serve",
        "mine",
        "--model",
        "m",
        "--set",
        "launcher.port=1",
        "--dry-run",
        "--include-path",
        tmp_path,
    )
    assert "my-server --port 1" in shown.stdout or "another --port 1" in shown.stdout, shown.stderr


SCORER = '''"""Raises on every answer that is right."""

from serve_eval.schema import Outcome, Response, Score, Scorer


def scorer() -> Scorer:
    def score(expected: object, response: Response) -> Score:
        if response.text != "sure":
            return Score(value=0.0, outcome=Outcome.WRONG)
        return Score(value={}["gone"], outcome=Outcome.CORRECT)

    return Scorer(
        version=1,
        score=score,
        answers=lambda expected: (str(expected), "no"),
        problems=lambda expected: [],
        scoring="inline",
    )
'''
CASES = """openings:
  - case: seven
    input: {prompt: Is 7 a prime number?}
    expected: sure
    scorer: raises
  - case: eleven
    input: {prompt: Is 11 a prime number?}
    expected: sure
    scorer: SCORER
"""
ASK_NAMED_AGAIN = ("--launcher", "simulated", "--set", "launcher.accuracy=1.0", "--model", "m")
RULE = '''"""A rule that cannot be imported."""

raise ImportError("broken")


def judge(result, reference, hypothesis, pairs=None, *, points: float = 5.0):
    """Return nothing."""
'''


def _resume(text):
    """Return the arguments of the first command in a text that resumes a run."""
    [found, *_] = re.findall(r"serve-eval (run --resume .*?)(?: scores these|\n|$)", text)
    return shlex.split(found)


@pytest.fixture(params=["raises", "{any_of: {scorer: raises}}"])
def failed(request, tmp_path, monkeypatch):
    """Return the folder of a run whose scorer raises, and what the run printed."""
    code, cases = tmp_path / "my evals", tmp_path / "cases.yaml"
    (code / "scorers").mkdir(parents=True)
    (code / "scorers/raises.py").write_text(SCORER)
    inner = str(request.param)
    text = CASES.replace("SCORER", inner)
    cases.write_text(
        text if inner == "raises" else text.replace("sure\n    scorer: {", "[sure]\n    scorer: {")
    )
    other = write_task(tmp_path / "other")
    folders = ("--include-path", code, "--include-path", other)
    out = tmp_path / "out"
    done = serve_eval(
        "run", "--cases", cases, *folders, *ASK_NAMED_AGAIN, "--no-reference", "-o", out
    )
    assert done.returncode == 4, done.stderr
    forget(monkeypatch)
    return out, done.stdout


def test_every_printed_command_names_the_folder_of_a_scorer(failed, tmp_path, monkeypatch):
    out, printed = failed
    code = tmp_path / "my evals"
    flags = f"--include-path '{code}' --include-path {tmp_path / 'other'}"
    assert f"after fixing the scorer, serve-eval run --resume {out} {flags} scores" in printed
    assert f"serve-eval diagnose {out} {flags}\n" in printed
    assert f"serve-eval run --resume {out} {flags}\n" in printed
    told = serve_eval("diagnose", out)
    assert f" next     serve-eval run --resume {out} {flags}\n" in told.stdout
    assert f" serve-eval show {out} --failed\n" in told.stdout
    assert "verify" not in told.stdout
    forget(monkeypatch)

    scorer = code / "scorers/raises.py"
    scorer.write_text(SCORER.replace('{}["gone"]', "1.0"))
    again = serve_eval(*_resume(printed))
    assert (again.returncode, again.stderr.count("Traceback")) == (3, 0), again.stderr
    assert "100.0" in again.stdout


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--resume"),
        ("judge",),
        (
            "judge",
            "--rescore",
        ),
        ("references", "register", "--references-dir", "registered", "--reason", "x"),
    ],
)
def test_a_scorer_that_a_case_names_is_asked_for_as_a_task_is(failed, command, tmp_path):
    refused = serve_eval(*command, failed[0])
    code = tmp_path / "my evals"
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: the saved plan takes its scorer 'raises' from {code},"
        " whose code runs only if you name the folder again\n"
        f"If you trust it: --include-path '{code}'\n"
    )


def test_a_folder_that_moved_is_named_as_it_was(failed, tmp_path):
    (tmp_path / "my evals").rename(tmp_path / "elsewhere")
    refused = serve_eval("judge", failed[0])
    assert f"takes its scorer 'raises' from {tmp_path}/my evals, whose" in refused.stderr
    judged = serve_eval("judge", failed[0], "--include-path", tmp_path / "elsewhere")
    assert judged.returncode == 4, judged.stderr


def test_a_scorer_that_no_folder_has_is_unknown_as_before(failed, tmp_path):
    (tmp_path / "my evals/scorers/raises.py").unlink()
    refused = serve_eval("judge", failed[0])
    assert "unknown scorer 'raises'" in refused.stderr


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Return a run with a task and a rule of two folders; the rule can no longer be imported."""
    tasks, rules, refs = write_task(tmp_path / "tasks"), tmp_path / "rules", tmp_path / "refs"
    (rules / "verdicts").mkdir(parents=True)
    rule = rules / "verdicts/within.py"
    rule.write_text(
        '"""Within: as classic."""\n\n'
        "from serve_eval.verdicts.rules import classic\n\n\n"
        "def judge(result, reference, hypothesis, pairs=None, *, points: float = 5.0):\n"
        '    """Judge as classic."""\n'
        "    return classic.judge(result, reference, hypothesis, pairs)\n"
    )
    refs.mkdir()
    (refs / "towns.yaml").write_text("m:\n  - accuracy: 100.0\n")
    folders = ("--include-path", tasks, "--include-path", rules)
    verdict = ("--verdict", "within", "--set", "verdict.points=4.0", "--references-dir", refs)
    out = tmp_path / "out"
    done = serve_eval("run", *ASK_NAMED_AGAIN, "--tasks", "towns", *folders, *verdict, "-o", out)
    assert done.returncode == 0, done.stderr
    rule.write_text(RULE)
    forget(monkeypatch)
    return out


def test_a_rule_that_is_replaced_is_not_asked_for(broken, tmp_path):
    tasks = tmp_path / "tasks"
    refused = serve_eval("judge", broken, "--verdict", "classic")
    assert f"takes its task 'towns' from {tasks}, whose code" in refused.stderr
    assert refused.stderr.endswith(f"If you trust it: --include-path {tasks}\n")
    judged = serve_eval("judge", broken, "--verdict", "classic", "--include-path", tasks)
    assert judged.returncode == 0, judged.stderr
    assert " PASS " in judged.stdout


def test_only_the_folders_that_have_what_is_needed_are_named(broken, tmp_path):
    refused = serve_eval("judge", broken, "--include-path", tmp_path / "tasks")
    assert refused.stderr.endswith(
        f"takes its verdict rule 'within' from {tmp_path / 'rules'}, whose code runs only if you"
        f" name the folder again\nIf you trust it: --include-path {tmp_path / 'rules'}\n"
    )
    both = serve_eval("judge", broken)
    assert "takes its task 'towns', verdict rule 'within' from" in both.stderr
    assert "only if you name the folders again" in both.stderr
