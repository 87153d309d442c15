"""The example folder of docs/extending.md, extracted from the page and run by its commands."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from serve_eval.plugins import extensions
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import Endpoint, LaunchContext
from tests.cli.command import serve_eval

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
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


def test_the_commands_of_the_page_list_and_run_what_it_shows(
    written: list[list[str]], tmp_path: Path
) -> None:
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
    bad = serve_eval(*run, "--set", "launcher.accuracy=0.0", "-o", tmp_path / "bad")
    assert bad.returncode == 1, bad.stderr


def test_the_scorer_of_the_page_scores_the_case_of_the_page(written: list[list[str]]) -> None:
    asked = ("run", "--include-path", "my-evals", "--cases", "my-cases.yaml", "--no-reference")
    for accuracy in (1.0, 0.0):
        model = ("--launcher", "simulated", "--set", f"launcher.accuracy={accuracy}")
        done = serve_eval(*asked, *model, "-o", f"cases-{accuracy}")
        assert done.returncode == 3, done.stderr
        [task] = json.loads(Path(f"cases-{accuracy}/report.json").read_text())["tasks"]
        assert task["result"]["value"] == 100.0 * accuracy


def test_the_launcher_of_the_page_tells_of_its_server(
    written: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "address").write_text("http://node7:8000/v1\n")
    extensions.include(["my-evals"])
    launcher = load_launcher("neighbour")

    async def started() -> Endpoint:
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


def test_a_launcher_that_tells_in_another_form_is_named_with_its_line(
    written: list[list[str]], tmp_path: Path
) -> None:
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


def test_the_entry_points_of_the_page_are_those_of_the_example_package() -> None:
    [shown] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    package = (ROOT / "tests/plugins/example_package/pyproject.toml").read_text()
    wanted = tomllib.loads(shown)["project"]["entry-points"]
    assert tomllib.loads(package)["project"]["entry-points"] == wanted
    assert set(wanted) == {
        f"serve_eval.{kind}" for kind in ("tasks", "scorers", "launchers", "verdicts")
    }
