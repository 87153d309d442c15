"""Test the commands that explain failures, and the lost samples of a red task by kind."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serve_eval.workflows.diagnose.breakdown import (
    Breakdown,
    describe_kinds,
    describe_misses,
    is_one_edit,
)
from serve_eval.workflows.diagnose.extraction import fold
from serve_eval.workflows.diagnose.story import diagnose
from tests.cli.command import serve_eval
from tests.workflows.diagnose.server import (
    Said,
    Server,
    answers_to,
    make_document_of,
    plan_for,
    run,
)

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def red(tmp_path_factory):
    """Return a run of the simulated endpoint, which cuts half of its answers in two."""
    folder = tmp_path_factory.mktemp("red")
    (folder / "references").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (folder / "references/word_problems.yaml").write_text(text)
    flags = ["--set", "launcher.accuracy=1.0", "--set", "launcher.truncate_rate=0.5"]
    flags += [
        "--set",
        "word_problems.num_samples=80",
        "--references-dir",
        folder / "references",
        "-o",
        folder / "out",
    ]
    serve_eval(
        "run --launcher simulated --model simulated --tasks word_problems",
        *flags,
        exits=1,
        prints=f"next     serve-eval diagnose {folder / 'out'}",
    )
    return folder / "out"


def test_a_diagnosis_is_printed_and_is_no_verdict(red):
    done = serve_eval(f"diagnose {red}", exits=0)
    first, _, likely, sure, *_ = done.stdout.splitlines()
    assert first.startswith(" FAIL   word_problems  ")
    assert likely.startswith(" likely   truncated: ")
    assert sure.startswith(" sure     explains up to ")
    assert "\n change   " in done.stdout
    told = json.loads(serve_eval(f"diagnose {red} --json").stdout)
    assert (told["story"], told["outcome"], told["exit_code"]) == ("diagnose", "FAIL", 0)
    [run] = told["result"]["runs"]
    assert run["findings"][0]["rule"] == "truncated"
    assert 0 < run["findings"][0]["explains"] < run["tasks"][0]["wrong"]  # some were wrong before


def test_a_diagnosis_has_a_page_and_files_for_ci_and_leaves_those_of_the_run(red, tmp_path):
    kept = ("report.html", "junit.xml", "summary.md", "report.json")
    before = [(red / name).read_bytes() for name in kept]
    junit, summary = tmp_path / "d.xml", tmp_path / "summary.md"
    done = serve_eval(f"diagnose {red} -q --junit {junit}", GITHUB_STEP_SUMMARY=str(summary))
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["FAIL"]
    assert done.stderr == ""
    page = (red / "diagnosis.html").read_text()
    assert "wrong answers end at the server" in page
    assert 'href="report.html#sample=word_problems%2F' in page
    assert [(red / name).read_bytes() for name in kept] == before
    [failure] = ElementTree.parse(junit).iter("failure")
    assert "likely: 47 of 47 wrong answers end at the server" in failure.attrib["message"]
    capsule = f"serve-eval show {red} --task word_problems --capsule test-"
    assert capsule in summary.read_text()


def test_the_page_of_a_diagnosis_replaces_a_link_of_another_user(red, tmp_path):
    shutil.copytree(red, tmp_path / "run")
    (mine := tmp_path / "mine").write_text("mine")
    page = tmp_path / "run/diagnosis.html"
    page.unlink(missing_ok=True)
    page.symlink_to(mine)
    serve_eval(f"diagnose {tmp_path}/run", exits=0)
    assert (mine.read_text(), page.is_symlink()) == ("mine", False)


def test_the_page_of_a_diagnosis_goes_with_the_result_that_it_explains(tmp_path):
    asked = "--launcher simulated --model simulated --tasks word_problems"
    out = tmp_path / "out"
    serve_eval(f"run --limit 8 --no-reference -o {out} {asked}")
    serve_eval(f"diagnose {out}")
    assert (out / "diagnosis.html").exists()
    serve_eval(f"run --resume {out} --rerun all")
    assert (out / "report.html").exists()
    assert not (out / "diagnosis.html").exists()


def test_a_folder_that_is_none_is_a_usage_error(tmp_path):
    serve_eval(f"diagnose {tmp_path}", exits=2, tells="holds no run")


def test_a_capsule_says_how_it_is_sent_again(red, tmp_path):
    done = serve_eval(f"show {red} test-3 --capsule -o {tmp_path}", exits=0)
    folder = tmp_path / "word_problems_test-3"
    assert done.stdout.startswith(f" WRITTEN   {folder}\n")
    assert done.stdout.endswith(f" next     sh {folder / 'curl.sh'}\n")
    names = {"README.md", "actual.json", "body.json", "curl.sh", "expected.json", "versions.json"}
    assert {file.name for file in folder.iterdir()} == names
    assert serve_eval(f"show {red} test-3 --capsule -o {tmp_path}").stdout == done.stdout
    (folder / "body.json").write_text("{}")
    serve_eval(f"show {red} test-3 --capsule -o {tmp_path}", exits=2)
    serve_eval(f"show {red} test-333 --capsule", exits=2, tells="no such sample")


def fail_evenly(folder):
    """Return a run of the simulated endpoint that answers evenly too few right, and its output."""
    (folder / "references").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (folder / "references/word_problems.yaml").write_text(text)
    done = serve_eval(
        "run --launcher simulated --model simulated --tasks word_problems"
        " --set launcher.accuracy=0.6 --set word_problems.num_samples=200"
        f" --references-dir {folder}/references -o {folder}/out",
        exits=1,
    )
    return folder / "out", done.stdout


def test_an_even_loss_names_the_likeliest_causes_and_what_is_next(tmp_path):
    out, printed = fail_evenly(tmp_path)
    cause = "weights, precision, chat template or sampling"
    assert any("likely" in line and cause in line for line in printed.splitlines())
    told = serve_eval(f"diagnose {out} -v").stdout
    assert " even_loss: the loss is even: no part of the prompts, servers or answers is" in told
    assert cause in told
    assert "serve-eval serve simulated --set launcher." in told
    assert "--detach; then, with the URL that it prints: serve-eval verify GOOD URL" in told
    assert "GOOD" not in serve_eval(f"diagnose {out}").stdout, "it cannot be pasted"
    assert "no rule explains" not in told


REFUSING = "http://127.0.0.1:9/v1"
RAN = "--model m --tasks word_problems"


def test_a_run_that_was_refused_begins_with_the_recorded_error(tmp_path):
    out = tmp_path / "out"
    serve_eval(f"run --base-url {REFUSING} --no-reference -o {out} {RAN}", exits=4)
    first, why, *rest = serve_eval(f"diagnose {out}").stdout.splitlines()
    assert first.startswith(" ERROR   word_problems")
    assert why.startswith(" why      ended by: http://127.0.0.1:9/v1")
    assert "cannot connect to 127.0.0.1:9" in why
    assert "0 of 500 samples were answered before" in why
    assert f" next     serve-eval run --resume {out}" in rest


def test_the_latest_run_begins_with_its_error_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    serve_eval(f"run --base-url {REFUSING} --no-reference {RAN}", exits=4)
    found = serve_eval("diagnose")
    assert found.stdout.splitlines()[1].startswith(" why      ended by: ")
    assert found.stderr.startswith("the latest run: outputs/")


def test_a_comparison_that_ended_names_the_error_and_what_goes_on(tmp_path):
    out = tmp_path / "out"
    serve_eval(f"compare {REFUSING} http://127.0.0.1:19/v1 -o {out} {RAN}", exits=4)
    first, why, again, *_ = serve_eval(f"diagnose {out}").stdout.splitlines()
    assert first.startswith(" ERROR   comparison")
    assert "did not finish: it has no verdict; ended by: " in why
    assert "cannot connect to 127.0.0.1:" in why
    assert again == f" go on    the same serve-eval compare command with -o {out}"
    side = serve_eval(f"diagnose {out}/a").stdout
    assert "cannot connect to 127.0.0.1:" in side.splitlines()[1]
    assert f"the same serve-eval compare command with -o {out}" in side
    assert "run --resume" not in side


def test_a_verification_that_ended_is_told_and_no_usage_error(tmp_path):
    out = tmp_path / "out"
    serve_eval(f"verify {REFUSING} http://127.0.0.1:19/v1 --model m -o {out}", exits=4)
    told = serve_eval(f"diagnose {out}", exits=0, prints="cannot connect to 127.0.0.1:9")
    assert told.stdout.startswith(" ERROR   verify")
    assert f" go on    the same serve-eval verify command with -o {out}" in told.stdout


def test_runs_of_a_suite_that_ended_begin_with_their_errors(tmp_path, monkeypatch):
    text = """
defaults: {model: m, no_reference: true, tasks: [{name: word_problems}]}
plans:
  - {name: gone, launcher: {name: external, base_url: "http://127.0.0.1:9/v1"}}
"""
    (tmp_path / "suite.yaml").write_text(text)
    out = tmp_path / "out"
    serve_eval(f"run {tmp_path}/suite.yaml -o {out}", exits=4)
    for place in (out, out / "runs/gone"):
        told = serve_eval(f"diagnose {place}", exits=0, prints="cannot connect to 127.0.0.1:9")
        assert f"serve-eval run --resume {out}" in told.stdout
    monkeypatch.chdir(out / "runs/gone")
    assert f"serve-eval run --resume {out}" in serve_eval("diagnose .").stdout


PAGE = (Path(__file__).resolve().parents[2] / "docs/extending.md").read_text()


def _write_code(folder):
    """Write the example of the page, with a scorer that fails for one river."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    [task] = [one for one in blocks if "def task(*, article" in one]
    [reading] = [one for one in blocks if "def grade_name" in one]
    broken = (
        '        if sample.id == "Rhine":\n            raise KeyError("units")\n        return gr'
    )
    tasks = folder / "mine/tasks"
    tasks.mkdir(parents=True)
    (tasks / "rivers.py").write_text(task.replace("        return gr", broken))
    (tasks / "_reading.py").write_text(reading)
    return folder / "mine"


def test_a_sample_without_a_score_shows_the_error_and_what_was_expected(tmp_path):
    mine, out = _write_code(tmp_path), tmp_path / "out"
    asked = "-t rivers --launcher simulated -m m --no-reference"
    done = serve_eval(f"run --include-path {mine} -o {out} {asked}")
    assert (out / "report.json").exists(), done.stderr
    done = serve_eval(f"show {out} --failed")
    assert re.search(r"^ expected +North Sea$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ failure +KeyError: 'units'", done.stdout, re.MULTILINE)
    assert " answer " in done.stdout
    done = serve_eval(f"show {out} --failed --brief")
    row = r"^ not scored +Rhine +North Sea +the scorer failed: KeyError: "
    assert re.search(row, done.stdout, re.MULTILINE), done.stdout


def test_a_wrong_folder_of_code_is_the_only_error(tmp_path):
    lost = tmp_path / "nowhere"
    asked = "-t rivers --launcher mine --verdict own -m m"
    done = serve_eval(
        f"run --include-path {lost} -o {tmp_path}/out {asked}",
        exits=2,
        tells=f"include_path: {lost} is not a folder",
    )
    assert "unknown" not in done.stderr
    serve_eval(
        f"show --include-path {lost}",
        _write_code(tmp_path),
        exits=2,
        tells=f"include_path: {lost} is not a folder",
    )


def _break_down(act, out):
    plan = plan_for(out)
    run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), out / "out")
    found = diagnose(out / "out")
    [task] = found.runs[0].tasks
    return task.breakdown, make_document_of(out / "out")


def _one_digit_off(asked):
    return Said(text=f"{asked.target}0")


def _stated(asked):
    number = asked.target.rpartition("#### ")[2]
    said = f"All in all, the answer is {number}."
    return Said(text=said if asked.chance("so") < 0.45 else asked.target)


def _mixed(asked):
    chance = asked.chance("kind")
    if chance < 0.3:
        return Said(text="", tokens=1)
    if chance < 0.6:
        return Said(text="hm", tokens=1)
    return Said(text="no", status=400) if chance < 0.9 else Said(text=f"{asked.target}99")


@pytest.mark.parametrize(("act", "name"), [(_one_digit_off, "near"), (_stated, "unread")])
def test_near_misses_and_unread_answers_are_counted(act, name, tmp_path):
    found, said = _break_down(act, tmp_path)
    lost = sum(found.kinds.values())
    assert {"near": found.near, "unread": found.unread}[name] == lost > 30
    assert found.reference == 90.0
    assert len(found.examples) == 3
    [conclusion] = said.conclusions
    rows = [(row.label, row.text) for row in conclusion.statements]
    assert [label for label, _ in rows].count("e.g.") == 3
    [kinds] = [text for label, text in rows if label == "lost"]
    assert f"{lost} " in kinds.partition("; ")[2]
    assert any(
        line.startswith("serve-eval show ") and " --capsule " in line for line in said.commands
    )
    assert " against 90.0 " in conclusion.figures


def test_every_lost_sample_has_a_kind(tmp_path):
    found, _ = _break_down(_mixed, tmp_path)
    assert set(found.kinds) == {"unanswered", "unreadable", "empty", "wrong"}
    assert sum(found.kinds.values()) == 100
    assert all(one.answer == f"{one.target}99" for one in found.examples[: found.kinds["wrong"]])


def test_a_green_task_has_no_breakdown(tmp_path):
    found, said = _break_down(lambda asked: Said(text=asked.target), tmp_path)
    assert found is None
    assert "there is no loss to explain" in [row.text for row in said.conclusions[0].statements]
    assert not said.commands


def test_an_expected_text_keeps_its_commas(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "c:\n"
        "  - {case: a, input: {prompt: x1}, expected: 'red, green'}\n"
        "  - {case: b, input: {prompt: x2}, expected: {answer: '1,234'}}\n"
        "  - {case: c, input: {prompt: x3}, expected: ['a, b', c], scorer: set}\n"
    )
    asked = "--cases c.yaml --launcher simulated --set launcher.accuracy=0"
    serve_eval(f"run --model m --no-reference -o OUT {asked}", exits=3)
    said = serve_eval("diagnose OUT -v").stdout
    for shown in ("expected 'red, green'", "expected '1,234'", """expected '["a, b","c"]'"""):
        assert shown in said


@pytest.mark.parametrize(
    ("text", "expected", "folded"),
    [
        ("1,234", "1234", "1234"),
        ("$1,234.", "1,234", "1234"),
        ("1,2", "1,2", "1,2"),
        ("Red, green", "red, blue", "red, green"),
        ("$5, $6", "$5, $7", "$5, $6"),
    ],
)
def test_commas_go_only_where_a_number_is_expected(text, expected, folded):
    assert fold(text, expected) == folded


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("42", "43", True),
        ("42", "412", True),
        ("412", "42", True),
        ("24", "42", True),
        ("42", "42", False),
        ("42", "4213", False),
        ("142", "241", False),
        ("1234", "1342", False),
        ("", "7", True),
    ],
)
def test_one_edit(a, b, one):
    assert is_one_edit(a, b) is one


def test_what_is_absent_is_not_described():
    found = Breakdown(
        reference=None,
        kinds={"wrong": 1},
        cut={},
        near=0,
        unread=0,
        examples=(),
        judge_errors=("judge j: 2 failed of 4 judgements",),
        next=("serve-eval verify GOOD U",),
    )
    assert describe_kinds(found) == "1 wrong"
    assert list(describe_misses(found)) == []
