"""Test the example package and the example folder of docs/extending.md by commands."""

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serve_eval.cases import file
from serve_eval.cases.case_scorers import scorer_of
from serve_eval.cases.questions import questions
from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext, Outcome, Response
from tests.cli.command import in_a_process, serve_eval
from tests.root import ROOT

pytestmark = pytest.mark.usefixtures("simulated_here")

PACKAGE = Path(__file__).with_name("example_package")
MODEL = "calculator"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder with the package installed, without network access."""
    target = tmp_path_factory.mktemp("site")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
    ]
    done = subprocess.run(
        [*pip, "--target", str(target), str(PACKAGE)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def path(site, monkeypatch):
    """Yield a PYTHONPATH with the package; meanwhile this process finds it too."""
    monkeypatch.syspath_prepend(site)
    extensions._find_installed.cache_clear()
    yield os.pathsep.join([str(site), str(Path(__file__).resolve().parents[2])])
    extensions._find_installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("serve_eval_example")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    folder = tmp_path_factory.mktemp("references")
    (folder / "sums.yaml").write_text(f"{MODEL}:\n  - accuracy: 99.0\n    source: declared\n")
    return str(folder)


def test_the_list_names_all_four_with_their_package_and_options(path):
    done = in_a_process("data", "list", PYTHONPATH=path)
    assert done.returncode == 0, done.stderr
    for kind, module, name, option in (
        ("tasks", "sums", "sums", r"num_samples +\(whole number; 50\)"),
        ("scorers", "near", "near", r"tolerance +\(number; 0\)"),
        ("launchers", "calculator", "calculator", r"wrong_by +\(whole number; 0\)"),
        ("verdicts", "within:judge", "within", r"points +\(number; 1\)"),
    ):
        entry = re.search(rf"^  {name}: .+\n(?:    .+\n)+", done.stdout, re.MULTILINE)
        assert entry is not None, done.stdout
        *summary, place = map(str.strip, entry[0].splitlines())
        assert len(" ".join(summary)) > 30
        assert place == f"from serve_eval_example.{module} of serve-eval-example 0.3"
        one = in_a_process("data", "list", kind, name, PYTHONPATH=path)
        assert re.search(option, one.stdout), one.stdout


@pytest.mark.parametrize(("wrong_by", "code", "outcome"), [(0, 0, "PASS"), (1, 1, "FAIL")])
def test_task_launcher_and_verdict_rule_make_a_run_together(
    path, references, tmp_path, wrong_by, code, outcome
):
    asked = [
        "run",
        "--launcher",
        "calculator",
        "--set",
        f"launcher.wrong_by={wrong_by}",
        "--model",
        MODEL,
    ]
    judged = ["--verdict", "within", "--set", "verdict.points=2.5", "--references-dir", references]
    done = serve_eval(
        *asked, *judged, "--tasks", "sums", "--json", "-o", tmp_path / "out", PYTHONPATH=path
    )
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)["result"]
    [task] = report["tasks"]
    assert (task["result"]["value"], task["verdict"]["outcome"]) == (
        100.0 * (wrong_by == 0),
        outcome,
    )
    assert (task["verdict"]["rule"], task["verdict"]["threshold"]) == ("within", 96.5)
    assert set(report["environment"]["extensions"]) == {
        "tasks.sums",
        "launchers.calculator",
        "verdicts.within",
    }
    info = report["endpoint"]["info"]
    assert (info["launcher"], info["log_file"]) == (
        "calculator",
        str(tmp_path / "out/logs/calculator.log"),
    )
    told = [warning for warning in report["warnings"] if "serve-eval-example 0.3" in warning]
    assert len(told) == 3
    again = serve_eval("judge", "--rescore", tmp_path / "out")
    assert again.stdout.splitlines()[-1] == " samples  none of 50 changed", again.stderr


def test_the_simulated_endpoint_knows_its_task_and_our_rules_judge_it(path, references, tmp_path):
    asked = [
        "run",
        "--launcher",
        "simulated",
        "--set",
        "launcher.accuracy=0.3",
        "--model",
        MODEL,
        "--tasks",
        "sums",
    ]
    done = serve_eval(*asked, "--references-dir", references, "--json", "-o", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    [task] = json.loads(done.stdout)["result"]["tasks"]
    assert task["verdict"]["outcome"] == "FAIL"
    assert 0 < task["result"]["value"] < 70


def test_its_dry_run_shows_its_command_and_a_misspelt_option_is_told(path, references):
    asked = [
        "run",
        "--launcher",
        "calculator",
        "--model",
        MODEL,
        "--tasks",
        "sums",
        "--references-dir",
        references,
    ]
    done = serve_eval(*asked, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "-m serve_eval_example._server" in done.stdout
    wrong = serve_eval(*asked, "--set", "launcher.wrong_bi=1", "--set", "sums.num_samples=0")
    assert wrong.returncode == 2
    assert "launcher.wrong_bi: unknown option. Did you mean 'wrong_by'?" in wrong.stderr
    assert "sums: num_samples must be 1 or more" in wrong.stderr


def test_the_named_scorer_scores(path):
    make = registry.load("serve_eval.scorers", "near")
    scorer = make(**registry.check_options(make, {"tolerance": 1}, "near"))
    for expected in (4, {"answer": 4.0}):
        texts = ("5", "6", "none", *scorer.answers(expected))
        scores = [
            scorer.score(expected, Response(text=text, finish_reason="stop")) for text in texts
        ]
        assert [score.value for score in scores] == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert (scores[2].outcome, scorer.problems({"answer": "four"})) == (
        Outcome.UNPARSED,
        ["expected a number"],
    )


def test_a_run_of_a_shipped_task_imports_nothing_of_it(path, data_root):
    asked = [
        "run",
        "--tasks",
        "gsm8k",
        "--dry-run",
        "--no-reference",
        "--model",
        "m",
        "--limit",
        "3",
    ]
    done = serve_eval(*asked, "--dataset-root", data_root)
    assert done.returncode == 0, done.stderr
    assert "sums" in registry.names("serve_eval.tasks")
    assert not [name for name in sys.modules if name.startswith("serve_eval_example")]


PAGE = (ROOT / "docs/extending.md").read_text()


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write the page's files into the working directory and return the page's commands."""
    monkeypatch.chdir(tmp_path)
    files = re.findall(
        r"^`(my-[\w/.-]+)`[^\n]*\n\n```\w+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    assert len(files) == 7
    for name, text in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    [commands] = re.findall(r"^```\n(serve-eval .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in commands.replace("\\\n", "").splitlines()]


def test_the_commands_of_the_page_list_and_run_what_it_shows(written, tmp_path):
    (_, *listing), (_, *run) = written
    told = serve_eval(*listing)
    assert told.returncode == 0, told.stderr
    assert f"\n      from {tmp_path}/my-evals/tasks/rivers.py\n" in told.stdout
    good = serve_eval(*run)
    assert good.returncode == 0, good.stderr
    report = json.loads((tmp_path / "OUT/report.json").read_text())
    [task] = report["tasks"]
    assert (task["result"]["value"], task["verdict"]["rule"], task["verdict"]["threshold"]) == (
        100.0,
        "within",
        95.0,
    )
    assert set(report["environment"]["extensions"]) == {"tasks.rivers", "verdicts.within"}
    headline, ruler = (line for line in good.stdout.splitlines() if "┃" in line)
    assert headline.endswith("┃ fails below 95.0 (within)"), good.stdout
    assert ruler.strip().startswith("0 ┴"), good.stdout
    page = (tmp_path / "OUT/report.html").read_text()
    assert "fails below 95.0 (within)" in page
    assert "┃ threshold 95.0" in page
    bad = serve_eval(*run, "--set", "launcher.accuracy=0.0", "-o", tmp_path / "bad")
    assert bad.returncode == 1, bad.stderr
    junit = (tmp_path / "OUT/junit.xml").read_text()
    assert "fails below" in bad.stdout
    assert 'name="threshold" value="95"' in junit
    task_file = tmp_path / "my-evals/tasks/rivers.py"
    task_file.write_text(task_file.read_text() + "\n\ndef broken(*_):\n    return True\n")
    task_file.write_text(re.sub(r"score=[\w.]+", "score=broken", task_file.read_text()))
    none = serve_eval(*run, "-o", tmp_path / "none")
    assert none.returncode == 4, none.stdout + none.stderr
    assert "nothing_scored: none of" in none.stdout
    assert "the rule within said FAIL" in none.stdout


def test_the_scorer_of_the_page_scores_the_case_of_the_page(written):
    asked = ("run", "--include-path", "my-evals", "--cases", "my-cases.yaml", "--no-reference")
    for accuracy in (1.0, 0.0):
        model = ("--launcher", "simulated", "--set", f"launcher.accuracy={accuracy}")
        done = serve_eval(*asked, *model, "-o", f"cases-{accuracy}")
        assert done.returncode == 3, done.stderr
        [task] = json.loads(Path(f"cases-{accuracy}/report.json").read_text())["tasks"]
        assert task["result"]["value"] == 100.0 * accuracy


@pytest.mark.parametrize(("said", "value"), [("Yes, it is.", 1.0), ("No.", 0.0), ("True.", 0.0)])
def test_the_case_of_the_page_gives_a_right_answer_its_point(written, said, value):
    extensions.include(["my-evals"])
    [asked] = questions(file.read(["my-cases.yaml"]), "openings").asked
    response = Response(text=said, finish_reason="stop")
    assert scorer_of(asked.scorer).score(asked.expected, response).value == value


UNQUOTED = {
    "yes": ("yes as true or false", "true"),
    "Off": ("Off as true or false", "false"),
    "True": ("True as true or false", "true"),
    "3.10": ("3.10 as a number", "3.1"),
    "1_000": ("1_000 as a number", "1000"),
    "0x1F": ("0x1F as a number", "31"),
    "~": ("~ as nothing", "null"),
    "NULL": ("NULL as nothing", "null"),
    "": ("no value as nothing", "null"),
}


@pytest.mark.parametrize("scorer", ["opening", "{any_of: {scorer: opening}}"])
@pytest.mark.parametrize("value", UNQUOTED)
@pytest.mark.parametrize("key", ["", "answer"])
def test_an_expected_value_that_yaml_reads_as_another_is_refused(written, value, scorer, key):
    """A scorer of one's own would get True for yes, and give every right answer 0."""
    reading, plain = UNQUOTED[value]
    expected = f"{{answer: {value}}}" if key else value
    Path("c.yaml").write_text(
        f"c:\n  - case: a\n    input: {{prompt: x}}\n    scorer: {scorer}\n"
        f"    expected: {expected}\n"
    )
    extensions.include(["my-evals"])
    with pytest.raises(PlanError) as caught:
        questions(file.read(["c.yaml"]), "c")
    place = f"expected.{key}" if key else "expected"
    assert caught.value.problems == [
        f"c.yaml:5: c: case a: {place}: YAML reads {reading}: put it in quotes for a text, or"
        f" write {plain} for that value"
    ]


@pytest.mark.parametrize(
    "expected", ['"yes"', "true", "3.1", "null", "12", "2026-01-02", "'~'", "[yes please, no more]"]
)
def test_an_expected_value_that_reads_as_it_is_written_is_taken(written, expected):
    Path("c.yaml").write_text(
        f"c:\n  - {{case: a, input: {{prompt: x}}, scorer: opening, expected: {expected}}}\n"
    )
    extensions.include(["my-evals"])
    assert len(questions(file.read(["c.yaml"]), "c").asked) == 1


def test_unquoted_values_by_axis_are_refused_once(written):
    Path("c.yaml").write_text(
        "c:\n  scorer: opening\n  cases:\n    - case: a\n      axes: [k]\n"
        '      input: {prompt: "${k}", k: {m: 1, n: 2}}\n'
        "      expected: {by: k, values: {m: yes, n: no}}\n"
    )
    refused = serve_eval("run", "--include-path", "my-evals", "--cases", "c.yaml", "--dry-run")
    assert refused.returncode == 2, refused.stderr
    assert refused.stderr.count("put it in quotes for a text") == 2
    assert "expected.values.m: YAML reads yes as true or false" in refused.stderr
    assert "expected.values.n: YAML reads no as true or false" in refused.stderr


def test_the_launcher_of_the_page_tells_of_its_server(written, tmp_path, monkeypatch):
    (tmp_path / "address").write_text("http://node7:8000/v1\n")
    extensions.include(["my-evals"])
    launcher = load_launcher("neighbour")

    async def started():
        context = LaunchContext(model="m", log_dir=tmp_path)
        async with launcher.launch(
            context, **launcher.check_options({"file": str(tmp_path / "address")})
        ) as endpoint:
            return endpoint

    endpoint = asyncio.run(started())
    assert (endpoint.base_url, endpoint.info.servers) == (
        "http://node7:8000/v1",
        {"neighbour": "http://node7:8000/v1"},
    )
    assert endpoint.info.extra == {"address_file": str(tmp_path / "address")}


def test_a_launcher_that_tells_in_another_form_is_named_with_its_line(written, tmp_path):
    file = tmp_path / "my-evals/launchers/neighbour.py"
    text = (
        file.read_text()
        .replace('servers={"neighbour": url}', "servers=[url]")
        .replace("ServerInfo(", "dict(")
    )
    file.write_text(text)
    (tmp_path / "address").write_text("http://127.0.0.1:9/v1\n")
    line = 1 + next(i for i, one in enumerate(text.splitlines()) if "yield Endpoint" in one)
    command = written[1][1:]
    command[command.index("simulated")] = "neighbour"
    command[command.index("launcher.accuracy=1.0")] = "launcher.file=address"
    done = serve_eval(*command)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-2:] == [
        (
            "error: unexpected TypeError: info of an endpoint: Expected `object | null`, got"
            " `array` - at `$.servers`"
        ),
        f"This is a defect of {file}:{line}. Set SERVE_EVAL_TRACEBACK=1 to see the traceback.",
    ]


def test_the_entry_points_of_the_page_are_those_of_the_example_package():
    [shown] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    package = (ROOT / "tests/plugins/example_package/pyproject.toml").read_text()
    wanted = tomllib.loads(shown)["project"]["entry-points"]
    assert tomllib.loads(package)["project"]["entry-points"] == wanted
    assert set(wanted) == {
        f"serve_eval.{kind}" for kind in ("tasks", "scorers", "launchers", "verdicts")
    }
