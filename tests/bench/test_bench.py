"""Test that every benchmark works at its smallest size; times are not checked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "startup.py": ("1",),
    "tasks.py": ("--tiny",),
    "rate_limits.py": ("--tiny",),
    "alarm.py": ("60", "1", "4"),
    "million.py": ("60", "4"),
    "finished_runs.py": ("60",),
    "launch.py": ("1",),
    "embedded.py": ("4", "1"),
    "scale.py": ("--quick",),
}
"""Parts of all benchmarks of the Makefile except the table, with their smallest size."""
SLOW = ("finished_runs.py", "launch.py", "embedded.py")
PEERS = (
    "wrk, client alone",
    "aiohttp, client alone",
    "aiohttp_idiomatic, client alone",
    "openai_aiohttp, client alone",
    "openai_async, client alone",
    "openai_sync, client alone",
    "aiohttp, streamed",
    "openai_aiohttp, streamed",
    "lm-eval local-completions",
    "AsyncOpenAI script",
    "lm_eval:TASK, serve-eval run",
    "lm-eval --model serve-eval",
    "lm-eval's requests, our client alone",
    "lm-eval's requests, its client alone",
)
OURS = ("ours, client alone", "ours, streamed", "serve-eval run")


def _bench(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "script", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in TINY]
)
def test_every_part_ends_well(script: str) -> None:
    done = _bench(f"bench/{script}", *TINY[script])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_no_part_of_the_makefile_is_forgotten() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(
        re.findall(
            r"\w+\.py", " ".join(re.findall(r"^BENCH = .*|bench/\w+\.py", makefile, re.MULTILINE))
        )
    )
    assert named == {*TINY, "client_table.py", "gate.py", "gate_check.py"}  # test_gate.py


@pytest.fixture(scope="module")
def table() -> subprocess.CompletedProcess[str]:
    """Return the output of the table with each row once."""
    return _bench("bench/client_table.py", "--tiny")


@pytest.mark.slow
def test_the_table_has_every_row_and_ends_well(table: subprocess.CompletedProcess[str]) -> None:
    assert table.returncode == 0, table.stderr
    rows = table.stdout.partition("answers after")[2].partition("goals, by")[0].splitlines()
    names = {
        re.split(r" {2,}", row)[0] for row in rows if re.search(r" {2,}(\d+ ms|200 chunks)", row)
    }
    assert names == {*PEERS, *OURS}
    assert "MISSED" in table.stdout or "reached" in table.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OURS, *PEERS])
def test_a_row_of_the_table(name: str, table: subprocess.CompletedProcess[str]) -> None:
    [row] = [line for line in table.stdout.splitlines() if line.startswith(f"{name} ")]
    if name in PEERS and (absent := re.search(r"not installed: \S+", row)):
        pytest.skip(absent.group())
    found = re.search(r" (\d+)/(\d+)$", row)
    assert found is not None, row
    assert found[1] == found[2] != "0"


FAILING = """
import sys
sys.path.insert(0, "bench")
import client_table
from rows import NotInstalled, NotMeasured, Row
from serving import Mode

ERRORS = {
    "absent": NotInstalled("absent"),
    "refused": NotMeasured("exit code 4"),
    "broken": KeyError("value"),
}

def row(name):
    def run(server):
        raise ERRORS[name]
    return Row(name=name, mode=Mode(), in_flight=1, n=1, run=run)

wanted = sys.argv[1:]
client_table.ROW_MAKERS = (lambda size, scratch: [row(name) for name in wanted],)
sys.argv[1:] = ["--tiny"]
client_table.main()
"""


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ("absent", 0, ""),
        ("absent refused", 1, "not measured: refused: exit code 4\n"),
        ("broken", 1, "not measured: broken: KeyError('value')\n"),
    ],
)
def test_a_row_that_ends_in_an_error_fails_the_benchmark(rows: str, code: int, said: str) -> None:
    done = _bench("-c", FAILING, *rows.split())
    assert done.returncode == code, done.stderr
    assert done.stderr.endswith(said)
    assert "not measured: absent" not in done.stderr
