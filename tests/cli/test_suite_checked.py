"""A suite names every run that is wrong before anything starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

GOOD = "{label: good, launcher: simulated}"
BAD = {
    "launcher": ("{label: bad, launcher: simulatd}", "unknown launcher 'simulatd'"),
    "option": ("{label: bad, launcher: {name: simulated, acuracy: 1}}", "launcher.acuracy"),
    "value": ("{label: bad, launcher: {name: simulated, accuracy: 80}}", "is not between 0 and 1"),
    "task": ("{label: bad, launcher: simulated, tasks: [pasky_short]}", "'pasky_short'"),
    "task option": (
        "{label: bad, launcher: simulated, tasks: [{passkey_short: {sentence: 5}}]}",
        "passkey_short.sentence",
    ),
    "gpus": (
        "{label: bad, launcher: {name: trtllm_disaggregated, gpus: [0]}}",
        "2 GPUs are needed",
    ),
}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _write(*runs: str) -> None:
    lines = "".join(f"    - {run}\n" for run in runs)
    Path("s.yaml").write_text(
        "defaults: {model: m, no_reference: true, tasks: [passkey_short]}\n"
        f"matrix:\n  state:\n{lines}"
    )


@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_run_is_named_beside_the_sound_ones_and_nothing_starts(kind: str) -> None:
    run, said = BAD[kind]
    _write(run, GOOD, run.replace("label: bad", "label: worse"))
    dry = serve_eval("run", "s.yaml", "--dry-run", "-o", "out")
    assert dry.returncode == 2
    assert "  good: default, verdict by reference, state good" in dry.stdout
    assert "passkey_short: 110 requests" in dry.stdout
    assert "3 runs, 2 would be refused" in dry.stdout
    for name in ("bad", "worse"):
        [listed] = [line for line in dry.stdout.splitlines() if line.startswith(f"  {name}")]
        assert f"state {name}" in listed
        assert name in dry.stderr
    assert said in dry.stdout
    assert said in dry.stderr
    done = serve_eval("run", "s.yaml", "-o", "out")
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, "")
    assert "run bad" in done.stderr or "runs bad, worse" in done.stderr
    assert "worse" in done.stderr
    assert not Path("out").exists()


def test_a_dry_run_as_json_has_the_runs_that_are_wrong() -> None:
    _write(BAD["option"][0], BAD["value"][0].replace("bad", "high"), GOOD)
    done = serve_eval("run", "s.yaml", "--dry-run", "--json")
    told = json.loads(done.stdout)
    [refused] = told["refused"]
    assert (done.returncode, refused["name"], refused["attributes"]) == (2, "bad", {"state": "bad"})
    runs = {run["name"]: run for server in told["servers"] for run in server["runs"]}
    assert [len(runs[name]["problems"]) for name in ("good", "high")] == [0, 1]
    assert runs["high"]["tasks"][0]["requests"] == 110


def test_what_this_machine_lacks_is_told_first_and_stops_only_its_own_run() -> None:
    _write(
        "{label: nodata, launcher: simulated, tasks: [mmlu]}",
        "{label: noprogram, launcher: {name: vllm, command: no-such-server}}",
        GOOD,
    )
    dry = serve_eval("run", "s.yaml", "--dry-run")
    assert (dry.returncode, "refused: the data set MMLU was not found" in dry.stdout) == (2, True)
    assert "note: no-such-server is not on PATH here" in dry.stdout
    done = serve_eval("run", "s.yaml", "-o", "out")
    first = done.stderr.index("run 1 of 3")
    for warning in (
        "warning: run nodata cannot be asked or judged as a whole: the data set MMLU",
        "warning: run noprogram cannot be asked or judged as a whole: no-such-server is not on",
    ):
        assert done.stderr.index(warning) < first
    report = json.loads(Path("out/suite_report.json").read_text())
    rows = {row["run"]: row["outcome"] for row in report["rows"]}
    assert rows == {"nodata": "ERROR", "noprogram": "ERROR", "good": "NO REFERENCE"}
    assert done.returncode == 2
