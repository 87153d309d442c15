"""Test the tables of bench/scale.py, and its measurements at their smallest size."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("short", "medium", "long", "long, streamed", "log-probs")
WIDEST = 100


def _python(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return measurements in which each answer takes 0.1 ms, a token of a stream 0.01 ms."""
    path = tmp_path_factory.mktemp("scale") / "costs.json"
    kinds = []
    for name in KINDS:
        cpu_s = 0.02 if name == "long, streamed" else 1e-4
        rounds = {"cpu_s": [cpu_s], "user_s": [cpu_s], "system_s": [0.0], "wall_s": [cpu_s]}
        event_s = 1e-5 if name == "long, streamed" else 1e-4
        one = {"name": name, "rounds": rounds, "bytes": [4800.0, 900.0, 1200.0]}
        backlog_s = 0.005 if name == "long, streamed" else 0.0
        kinds.append({**one, "busy": [event_s], "idle": [event_s], "backlog_s": backlog_s})
    told = {"kinds": kinds, "levels": [[16, 1e-4, 70.0]], "growth_bytes": 64.0}
    path.write_text(json.dumps({**told, "around_s": 1.5}))
    return path


@pytest.fixture(scope="module")
def printed(costs: Path) -> str:
    given = ("--costs", str(costs), "--tries", "0", "--most-samples", "20000")
    return _python("bench/scale.py", *given, "--answers-per-gpu", "medium=50")


def _rows(printed: str, title: str) -> dict[str, list[str]]:
    """Return the rows of the first table whose title begins so, by their first cell."""
    body = re.split(rf"^{re.escape(title)}.*\n\n", printed, maxsplit=1, flags=re.MULTILINE)[1]
    body = body.split("\n\n")[0].split("\n```")[0]
    rows = {}
    for line in body.splitlines():
        cells = re.split(r" {2,}", line.strip())
        if not line.startswith(" ") and len(cells) > 1:
            rows[cells[0]] = cells[1:]
    return rows


def test_every_table_fits_and_has_a_row_per_kind(printed: str) -> None:
    assert max(map(len, printed.splitlines())) <= WIDEST
    assert tuple(_rows(printed, "One process")) == KINDS
    assert tuple(_rows(printed, "Assumed rates")) == KINDS
    fleets = {f"{gpus} GPUs: {kind}" for gpus in ("100", "1,000") for kind in KINDS}
    for title in ("Llama 3.3 70B: one", "GPT-OSS 20B: one", "Llama 3.3 70B: seconds"):
        rows = _rows(printed, title)
        assert set(rows) == fleets
        assert len({len(row) for row in rows.values()}) == 1


def test_a_given_rate_replaces_the_assumed_one(printed: str) -> None:
    rate, in_flight, busy, p50, p99, *_, shards = _rows(printed, "Llama 3.3 70B: one")[
        "100 GPUs: medium"
    ]
    assert (rate, busy, shards) == ("5,000", "50", "1")
    assert in_flight == f"{5000 * (0.2 + 150 * 0.03):,.0f}"
    # M/D/1 at half load: the mean wait is half a service, and most answers find nobody.
    assert 0.1 <= float(p50) < 0.15 < float(p99) < 0.6


def test_an_overloaded_process_says_so(printed: str) -> None:
    row = _rows(printed, "Llama 3.3 70B: one")["1,000 GPUs: medium"]
    assert row[2:] == ["500", "grows", "grows", "grows", "grows", "8"]


def test_the_slower_side_sets_the_length(printed: str) -> None:
    row = [
        float(cell.replace(",", ""))
        for cell in _rows(printed, "Llama 3.3 70B: seconds")["1,000 GPUs: medium"]
    ]
    endpoint, one, four = row[4:7]
    latency_s, start_s = 0.2 + 150 * 0.03, 1.5
    assert endpoint == pytest.approx(latency_s + 20_000 / 50_000, abs=0.01)
    assert one == pytest.approx(latency_s + start_s + 20_000 * 1e-4, rel=0.02)
    assert four == pytest.approx(latency_s + start_s + 20_000 * 1e-4 / 4, rel=0.02)


def test_late_tokens_of_a_stream_come_at_once(printed: str) -> None:
    row = _rows(printed, "Llama 3.3 70B: seconds")["1,000 GPUs: long, streamed"]
    assert float(row[5]) == pytest.approx(0.2 + 2000 * 0.03 + 1.5 + 20_000 * 0.005, rel=0.02)


def test_nothing_printed_names_a_place(printed: str) -> None:
    assert not re.search(r"\s/\w+/|" + re.escape(str(ROOT)), printed)


def test_an_unknown_kind_is_refused(costs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "bench/scale.py", "--costs", str(costs), "--answers-per-gpu", "tiny=1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "tiny: not one of short" in done.stderr


EACH_KIND = """
import sys
sys.path.insert(0, "bench")
import dataclasses
from kinds import KINDS, measure
from serving import Mode
for kind in KINDS:
    if kind.streamed:
        kind = dataclasses.replace(kind, tokens=100)
    flow = measure(kind, in_flight=8, n=40)
    print(kind.name, flow.cpu_s > 0, len(flow.times_s), round(flow.received_bytes), sep="|")
stamped = Mode(tokens=150, spread=True, step_ms=20, latency_ms=30, stamped=True)
flow = measure(KINDS[1], in_flight=8, n=40, mode=stamped)
print(0 < flow.delays_s.min() < flow.delays_s.max() < 10)
"""


@pytest.mark.slow
def test_every_kind_is_answered_and_measured() -> None:
    *kinds, stamped = _python("-c", EACH_KIND).splitlines()
    told = [line.split("|") for line in kinds]
    assert tuple(name for name, *_ in told) == KINDS
    assert {(positive, count) for _, positive, count, _ in told} == {("True", "32")}
    received = {name: int(number) for name, *_, number in told}
    assert received["short"] < received["medium"] < received["long"] < received["log-probs"]
    assert stamped == "True"


TABLES = ("One process", "Medium answers", "Assumed rates", "Delay of medium answers by load")


def test_the_page_has_the_tables_of_the_script(printed: str) -> None:
    page = (ROOT / "docs/scale.md").read_text()
    for title in (*TABLES, "Llama 3.3 70B: one", "GPT-OSS 20B: seconds"):
        line = next(line for line in printed.splitlines() if line.startswith(title))
        assert line in page
        assert list(_rows(page, title)) == list(_rows(printed, title)) or title == TABLES[1]
    told = _rows(page, "Assumed rates")
    for kind, row in _rows(printed, "Assumed rates").items():
        assert told[kind][2:4] == row[2:4] or kind == "medium"  # a given rate
