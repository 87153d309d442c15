"""See at which deployment a reference was taken, wherever it is shown or judges."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

pytestmark = pytest.mark.usefixtures("simulated_here")

ASKED = [
    "--launcher", "simulated", "-m", "org/m", "-t", "word_problems",
    "--set", "word_problems.num_samples=60",
]  # fmt: skip
DAMAGED = ["--set", "launcher.damage=0.5"]
TAKEN = "launcher simulated, server simulator, damage 0.5"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, simulated_here: None) -> Path:
    """Return a folder with a reference of a damaged server in refs, and a judged run in sound."""
    top = tmp_path_factory.mktemp("deployments")
    refs = ["--references-dir", top / "refs"]
    words = ["--runs", "1", *ASKED, *DAMAGED, *refs, "-o", top / "taken"]
    taken = serve_eval("references", "take", *words)
    assert (taken.returncode, f"taken at {TAKEN}" in taken.stdout) == (0, True), taken.stderr
    done = serve_eval("run", *ASKED, *refs, "-o", top / "sound")
    assert done.returncode == 0, done.stderr
    (top / "printed").write_text(done.stdout)
    return top


def test_the_options_of_the_server_are_shown(made: Path) -> None:
    own = ("--model", "org/m", "--references-dir", made / "refs")
    shown = serve_eval("references", "show", "word_problems", *own)
    assert f"taken at {TAKEN}" in shown.stdout
    assert serve_eval("references", "check", made / "refs").returncode == 0


def test_a_run_says_that_its_reference_was_launched_otherwise(made: Path) -> None:
    line = (
        "the reference was taken at launcher simulated, damage 0.5; this run is at launcher"
        " simulated"
    )
    assert line in (made / "printed").read_text()
    alike = serve_eval(
        "run", *ASKED, *DAMAGED, "--references-dir", made / "refs", "-o", made / "alike"
    )
    assert "the reference was taken at" not in alike.stdout


@pytest.mark.parametrize("to_format", ["table", "markdown", "latex", "svg"])
def test_a_table_names_the_deployment_of_its_reference(made: Path, to_format: str) -> None:
    for more in ([], ["--differences"]):
        done = serve_eval(
            "runs", "export", made / "sound", "--format", to_format, *more, COLUMNS="200"
        )
        assert done.returncode == 0, done.stderr
        assert "damage 0.5" in done.stdout, more
    done = serve_eval("runs", "export", made / "sound", "--format", "csv")
    [row] = csv.DictReader(done.stdout.splitlines())
    assert TAKEN in row["word_problems reference of"]


def test_runs_of_different_deployments_are_pointed_out(made: Path) -> None:
    refs = made / "mixed"
    runs = [made / "taken/run_1", made / "sound"]
    done = serve_eval("references", "register", *runs, "--references-dir", refs)
    assert done.returncode == 0, done.stderr
    assert "the runs are of 2 different deployments" in done.stdout
    own = ("--model", "org/m", "--references-dir", refs)
    shown = serve_eval("references", "show", "word_problems", *own)
    assert f"taken at {TAKEN} and launcher simulated, server simulator" in shown.stdout


def test_an_endpoint_that_runs_is_named_by_its_address(tmp_path: Path) -> None:
    refs = ["--references-dir", tmp_path / "refs"]
    with create(Quirks()).serve_in_thread() as url:
        done = serve_eval(
            "references", "take", url, "--runs", "1", "-t", "passkey_short", *refs,
            "-o", tmp_path / "taken",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert f" taken at endpoint {url}, server" in done.stdout
        judged = serve_eval(
            "run", "--base-url", url, "-t", "passkey_short", *refs, "-o", tmp_path / "judged"
        )
    assert "the reference was taken at" not in judged.stdout
