"""Test the commands that explain failures: `diagnose`, `show --capsule` and `show --failed`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> Path:
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
    done = serve_eval(
        "run", "--launcher", "simulated", "--model", "simulated", "--tasks", "word_problems", *flags
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"next     serve-eval diagnose {folder / 'out'}" in done.stdout
    return folder / "out"


def test_a_diagnosis_is_printed_and_is_no_verdict(red: Path) -> None:
    done = serve_eval("diagnose", red)
    assert done.returncode == 0, done.stderr
    first, _, likely, sure, *_ = done.stdout.splitlines()
    assert first.startswith(" FAIL   word_problems  ")
    assert likely.startswith(" likely   truncated: ")
    assert sure.startswith(" sure     explains up to ")
    assert "\n change   " in done.stdout
    told = json.loads(serve_eval("diagnose", red, "--json").stdout)
    assert (told["story"], told["outcome"], told["exit_code"]) == ("diagnose", "FAIL", 0)
    [run] = told["result"]["runs"]
    assert run["findings"][0]["rule"] == "truncated"
    assert 0 < run["findings"][0]["explains"] < run["tasks"][0]["wrong"]  # some were wrong before


def test_a_diagnosis_has_a_page_and_files_for_ci_and_leaves_those_of_the_run(
    red: Path, tmp_path: Path
) -> None:
    kept = ("report.html", "junit.xml", "summary.md", "report.json")
    before = [(red / name).read_bytes() for name in kept]
    junit, summary = tmp_path / "d.xml", tmp_path / "summary.md"
    done = serve_eval("diagnose", red, "-q", "--junit", junit, GITHUB_STEP_SUMMARY=str(summary))
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


def test_the_page_of_a_diagnosis_replaces_a_link_of_somebody_else(
    red: Path, tmp_path: Path
) -> None:
    shutil.copytree(red, tmp_path / "run")
    (mine := tmp_path / "mine").write_text("mine")
    page = tmp_path / "run/diagnosis.html"
    page.unlink(missing_ok=True)
    page.symlink_to(mine)
    assert serve_eval("diagnose", tmp_path / "run").returncode == 0
    assert (mine.read_text(), page.is_symlink()) == ("mine", False)


def test_the_page_of_a_diagnosis_goes_with_the_result_that_it_explains(tmp_path: Path) -> None:
    asked = ("--launcher", "simulated", "--model", "simulated", "--tasks", "word_problems")
    out = tmp_path / "out"
    serve_eval("run", *asked, "--limit", "8", "--no-reference", "-o", out)
    serve_eval("diagnose", out)
    assert (out / "diagnosis.html").exists()
    serve_eval("run", "--resume", out, "--rerun", "all")
    assert (out / "report.html").exists()
    assert not (out / "diagnosis.html").exists()


def test_a_folder_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    done = serve_eval("diagnose", tmp_path)
    assert done.returncode == 2
    assert "holds no run" in done.stderr


def test_a_capsule_says_how_it_is_sent_again(red: Path, tmp_path: Path) -> None:
    done = serve_eval("show", red, "test-3", "--capsule", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "word_problems_test-3"
    assert done.stdout.startswith(f" WRITTEN   {folder}\n")
    assert done.stdout.endswith(f" next     sh {folder / 'curl.sh'}\n")
    names = {"README.md", "actual.json", "body.json", "curl.sh", "expected.json", "versions.json"}
    assert {file.name for file in folder.iterdir()} == names
    assert serve_eval("show", red, "test-3", "--capsule", "-o", tmp_path).stdout == done.stdout
    (folder / "body.json").write_text("{}")
    assert serve_eval("show", red, "test-3", "--capsule", "-o", tmp_path).returncode == 2
    unknown = serve_eval("show", red, "test-333", "--capsule")
    assert unknown.returncode == 2
    assert "no such sample" in unknown.stderr


def fail_evenly(folder: Path) -> tuple[Path, str]:
    """Return a run of the simulated endpoint that answers evenly too few right, and its output."""
    (folder / "references").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (folder / "references/word_problems.yaml").write_text(text)
    done = serve_eval(
        "run", "--launcher", "simulated", "--model", "simulated", "--tasks", "word_problems",
        "--set", "launcher.accuracy=0.6", "--set", "word_problems.num_samples=200",
        "--references-dir", folder / "references", "-o", folder / "out",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return folder / "out", done.stdout


def test_an_even_loss_names_the_likeliest_causes_and_what_is_next(tmp_path: Path) -> None:
    out, printed = fail_evenly(tmp_path)
    cause = "weights, precision, chat template or sampling"
    assert any("likely" in line and cause in line for line in printed.splitlines())
    told = serve_eval("diagnose", out, "-v").stdout
    assert " even_loss: the loss is even: no part of the prompts, servers or answers is" in told
    assert cause in told
    assert "serve-eval serve simulated --set launcher." in told
    assert "--detach; then, with the URL that it prints: serve-eval verify GOOD URL" in told
    assert "GOOD" not in serve_eval("diagnose", out).stdout, "it cannot be pasted"
    assert "no rule explains" not in told


REFUSING = "http://127.0.0.1:9/v1"
RAN = ("--model", "m", "--tasks", "word_problems")


def test_a_run_that_was_refused_begins_with_the_recorded_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("run", "--base-url", REFUSING, *RAN, "--no-reference", "-o", out)
    assert done.returncode == 4
    first, why, *rest = serve_eval("diagnose", out).stdout.splitlines()
    assert first.startswith(" ERROR   word_problems")
    assert why.startswith(" why      ended by: http://127.0.0.1:9/v1")
    assert "cannot connect to 127.0.0.1:9" in why
    assert "0 of 500 samples were answered before" in why
    assert f" next     serve-eval run --resume {out}" in rest


def test_the_latest_run_begins_with_its_error_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = serve_eval("run", "--base-url", REFUSING, *RAN, "--no-reference")
    assert done.returncode == 4
    found = serve_eval("diagnose")
    assert found.stdout.splitlines()[1].startswith(" why      ended by: ")
    assert found.stderr.startswith("the latest run: outputs/")


def test_a_comparison_that_ended_names_the_error_and_what_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("compare", REFUSING, "http://127.0.0.1:19/v1", *RAN, "-o", out)
    assert done.returncode == 4
    first, why, again, *_ = serve_eval("diagnose", out).stdout.splitlines()
    assert first.startswith(" ERROR   comparison")
    assert "did not finish: it has no verdict; ended by: " in why
    assert "cannot connect to 127.0.0.1:" in why
    assert again == f" go on    the same serve-eval compare command with -o {out}"
    side = serve_eval("diagnose", out / "a").stdout
    assert "cannot connect to 127.0.0.1:" in side.splitlines()[1]
    assert f"the same serve-eval compare command with -o {out}" in side
    assert "run --resume" not in side


def test_a_verification_that_ended_is_told_and_no_usage_error(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = serve_eval("verify", REFUSING, "http://127.0.0.1:19/v1", "--model", "m", "-o", out)
    assert done.returncode == 4
    told = serve_eval("diagnose", out)
    assert told.returncode == 0, told.stderr
    assert "cannot connect to 127.0.0.1:9" in told.stdout
    assert told.stdout.startswith(" ERROR   verify")
    assert f" go on    the same serve-eval verify command with -o {out}" in told.stdout


def test_runs_of_a_suite_that_ended_begin_with_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
defaults: {model: m, no_reference: true, tasks: [{name: word_problems}]}
plans:
  - {name: gone, launcher: {name: external, base_url: "http://127.0.0.1:9/v1"}}
"""
    (tmp_path / "suite.yaml").write_text(text)
    out = tmp_path / "out"
    done = serve_eval("run", tmp_path / "suite.yaml", "-o", out)
    assert done.returncode == 4, done.stdout + done.stderr
    for place in (out, out / "runs/gone"):
        told = serve_eval("diagnose", place)
        assert told.returncode == 0, told.stderr
        assert "cannot connect to 127.0.0.1:9" in told.stdout
        assert f"serve-eval run --resume {out}" in told.stdout
    monkeypatch.chdir(out / "runs/gone")
    assert f"serve-eval run --resume {out}" in serve_eval("diagnose", ".").stdout


PAGE = (Path(__file__).resolve().parents[2] / "docs/extending.md").read_text()


def _write_code(folder: Path) -> Path:
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


def test_a_sample_without_a_score_shows_the_error_and_what_was_expected(tmp_path: Path) -> None:
    mine, out = _write_code(tmp_path), tmp_path / "out"
    asked = ("-t", "rivers", "--launcher", "simulated", "-m", "m", "--no-reference")
    done = serve_eval("run", *asked, "--include-path", mine, "-o", out)
    assert (out / "report.json").exists(), done.stderr
    done = serve_eval("show", out, "--failed")
    assert re.search(r"^ expected +North Sea$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ failure +KeyError: 'units'", done.stdout, re.MULTILINE)
    assert " answer " in done.stdout
    done = serve_eval("show", out, "--failed", "--brief")
    row = r"^ not scored +Rhine +North Sea +the scorer failed: KeyError: "
    assert re.search(row, done.stdout, re.MULTILINE), done.stdout


def test_a_wrong_folder_of_code_is_the_only_error(tmp_path: Path) -> None:
    lost = tmp_path / "nowhere"
    asked = ("-t", "rivers", "--launcher", "mine", "--verdict", "own", "-m", "m")
    done = serve_eval("run", *asked, "--include-path", lost, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert f"include_path: {lost} is not a folder" in done.stderr
    assert "unknown" not in done.stderr
    done = serve_eval("show", _write_code(tmp_path), "--include-path", lost)
    assert done.returncode == 2
    assert f"include_path: {lost} is not a folder" in done.stderr
