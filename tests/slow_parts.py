"""Split the slow tests into parts of less than five minutes: `make test-slow-part`.

CI runs one part per commit.

This is a pytest plugin. Neighbours share a part, since they share the fixtures of their module.
`--slow-part N` runs part N, and `--slow-part auto` the one that the number of commits selects, so
that as many commits as there are parts run them all. slow_seconds.json has the duration of each
test in seconds, measured under other load; `--slow-seconds FILE` writes them.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = Path(__file__).with_name("slow_seconds.json")
BUDGET_S = 60.0
"""Limit of a part in seconds, by the table.

The hard limit is 300 s. The rest is for starting, for another test next to it, and for a machine
that is half as fast: parts of 120 s and 72 s took 176 s and 172 s.
"""
LONGEST_S = 105.0
"""Limit of a test that has a part of its own, in seconds by the table."""
UNKNOWN_S = 20.0
"""Assumed seconds of a test that is not in the table yet."""
EXCLUDED = {
    "tests/detectors/test_faults_are_found.py::test_a_healthy_pair_is_accused_no_more_often_than_alpha_says": (  # noqa: E501
        "hundreds of comparisons: 93 s of CPU time and 344 s beside other work"
    ),
    **dict.fromkeys(
        (
            f"tests/attack/test_attack.py::test_ten_thousand_samples_hold_against_every_fault_and_thirty_kills[{stream}]"
            for stream in (True, False)
        ),
        "thirty-one starts and 10,000 samples: 151 s beside other work",
    ),
}
"""Tests that fit into no part, with the reason. `make test-slow` runs them."""


def parts(ids: Sequence[str], seconds: Mapping[str, float]) -> list[list[str]]:
    """Assign every test but the excluded ones to one part, in order.

    Only a part with a single test may exceed the budget.
    """
    made: list[list[str]] = [[]]
    left = BUDGET_S
    for one in ids:
        if one in EXCLUDED:
            continue
        takes = seconds.get(one, UNKNOWN_S)
        if made[-1] and takes > left:
            made.append([])
            left = BUDGET_S
        made[-1].append(one)
        left -= takes
    return made


def commits() -> int:
    """Return the number of commits up to the current one; 0 without git."""
    command = ["git", "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption(
        "--slow-part", help="run one part of the chosen tests: its number from 0, or auto"
    )
    group.addoption("--slow-seconds", help="write the seconds of each test to this file")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (wanted := config.getoption("--slow-part")) is None:
        return
    known = json.loads(SECONDS.read_text(encoding="utf-8"))
    made = parts([item.nodeid for item in items], known)
    number = (commits() if wanted == "auto" else int(wanted)) % len(made)
    chosen = set(made[number])
    takes = sum(known.get(one, UNKNOWN_S) for one in chosen)
    print(
        f"\nslow tests, part {number} of {len(made)} (make test-slow-part PART={number}): "
        f"{len(chosen)} tests, {takes:.0f} s by tests/slow_seconds.json"
    )
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
    items[:] = [item for item in items if item.nodeid in chosen]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    started = time.monotonic()
    result = yield
    if out := item.config.getoption("--slow-seconds"):
        path = Path(out)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        known[item.nodeid] = round(time.monotonic() - started, 1)
        path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return result
