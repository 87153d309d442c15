"""--quiet prints the conclusion and errors, and changes no exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

pytestmark = pytest.mark.usefixtures("simulated_here")

RUN = ("run", "--launcher", "simulated", "--model", "m", "--limit", "20", "--no-reference")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("tasks", ["passkey_short", "passkey_short,word_problems"])
def test_a_run_prints_its_first_line_and_nothing_else(tasks: str) -> None:
    done = serve_eval(*RUN, "-t", tasks, "-q", "-o", "out")
    assert (done.returncode, done.stderr) == (3, "")
    [line] = done.stdout.splitlines()
    assert "NO REFERENCE" in line
    whole = serve_eval("judge", "out").stdout
    assert whole.startswith(line)
    a, b = "out", "out2"
    serve_eval(*RUN, "-t", tasks, "-q", "-o", b, "--set", "launcher.accuracy=0.5")
    compared = serve_eval("compare", a, b, "-q", "-o", "compared")
    assert compared.stderr == ""
    assert len(compared.stdout.splitlines()) == 1


def test_json_stays_whole() -> None:
    done = serve_eval(*RUN, "-t", "passkey_short", "-q", "--json", "-o", "out")
    report = json.loads(Path("out/report.json").read_text())
    assert (done.stderr, json.loads(done.stdout)["result"]) == ("", report)


def test_errors_are_printed_with_their_hint() -> None:
    done = serve_eval("run", "--base-url", "127.0.0.1:9", "-t", "passkey_short", "-m", "m", "-q")
    assert done.returncode == 3
    assert done.stderr.startswith("error: passkey_short: there is no reference file")
    assert "serve-eval references take" in done.stderr
    again = serve_eval("run", "-t", "passkey_short", "--no-reference", "-m", "m")
    assert again.stderr.startswith("serve-eval: "), "the next command is not quiet"


def test_a_suite_prints_its_verdict() -> None:
    plan = "launcher: simulated, model: m, tasks: [passkey_short], limit: 5, no_reference: true"
    Path("suite.yaml").write_text(f"name: s\nplans:\n  - {{{plan}, name: a}}\n")
    done = serve_eval("run", "suite.yaml", "-q", "-o", "out")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [done.stdout.strip("\n")]
    assert "suite s: 1 run" in done.stdout


def test_a_smoke_test_prints_its_counts() -> None:
    with create(Quirks()).serve_in_thread() as url:
        done = serve_eval("smoke", url, "-q")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert re.fullmatch(r" PASS   smoke test  \d+ passed", line)
