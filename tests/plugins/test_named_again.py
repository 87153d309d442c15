"""Commands that are printed name the folders of code that they need, and ask for no other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.plugins.conftest import forget, write_task

pytestmark = pytest.mark.usefixtures("simulated_here")

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
ASK = ("--launcher", "simulated", "--set", "launcher.accuracy=1.0", "--model", "m")
RULE = '''"""A rule that cannot be imported."""

raise ImportError("broken")


def judge(result, reference, hypothesis, pairs=None, *, points: float = 5.0):
    """Return nothing."""
'''


def _resume(text: str) -> list[str]:
    """Return the arguments of the first command in a text that resumes a run."""
    [found, *_] = re.findall(r"serve-eval (run --resume .*?)(?: scores these|\n|$)", text)
    return shlex.split(found)


@pytest.fixture(params=["raises", "{any_of: {scorer: raises}}"])
def failed(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, str]:
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
    done = serve_eval("run", "--cases", cases, *folders, *ASK, "--no-reference", "-o", out)
    assert done.returncode == 4, done.stderr
    forget(monkeypatch)
    return out, done.stdout


def test_every_printed_command_names_the_folder_of_a_scorer(
    failed: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_scorer_that_a_case_names_is_asked_for_as_a_task_is(
    failed: tuple[Path, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    refused = serve_eval(*command, failed[0])
    code = tmp_path / "my evals"
    assert refused.returncode == 2
    assert refused.stderr == (
        f"error: the saved plan takes its scorer 'raises' from {code},"
        " whose code runs only if you name the folder again\n"
        f"If you trust it: --include-path '{code}'\n"
    )


def test_a_folder_that_moved_is_named_as_it_was(failed: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "my evals").rename(tmp_path / "elsewhere")
    refused = serve_eval("judge", failed[0])
    assert f"takes its scorer 'raises' from {tmp_path}/my evals, whose" in refused.stderr
    judged = serve_eval("judge", failed[0], "--include-path", tmp_path / "elsewhere")
    assert judged.returncode == 4, judged.stderr


def test_a_scorer_that_no_folder_has_is_unknown_as_before(
    failed: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "my evals/scorers/raises.py").unlink()
    refused = serve_eval("judge", failed[0])
    assert "unknown scorer 'raises'" in refused.stderr


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    done = serve_eval("run", *ASK, "--tasks", "towns", *folders, *verdict, "-o", out)
    assert done.returncode == 0, done.stderr
    rule.write_text(RULE)
    forget(monkeypatch)
    return out


def test_a_rule_that_is_replaced_is_not_asked_for(broken: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    refused = serve_eval("judge", broken, "--verdict", "classic")
    assert f"takes its task 'towns' from {tasks}, whose code" in refused.stderr
    assert refused.stderr.endswith(f"If you trust it: --include-path {tasks}\n")
    judged = serve_eval("judge", broken, "--verdict", "classic", "--include-path", tasks)
    assert judged.returncode == 0, judged.stderr
    assert " PASS " in judged.stdout


def test_only_the_folders_that_have_what_is_needed_are_named(broken: Path, tmp_path: Path) -> None:
    refused = serve_eval("judge", broken, "--include-path", tmp_path / "tasks")
    assert refused.stderr.endswith(
        f"takes its verdict rule 'within' from {tmp_path / 'rules'}, whose code runs only if you"
        f" name the folder again\nIf you trust it: --include-path {tmp_path / 'rules'}\n"
    )
    both = serve_eval("judge", broken)
    assert "takes its task 'towns', verdict rule 'within' from" in both.stderr
    assert "only if you name the folders again" in both.stderr
