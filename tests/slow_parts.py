"""Split the slow tests into parts of about a minute, and measure their seconds.

Neighbours share a part, since they share the fixtures of their module. slow_choice.py begins what
the change does not affect with the part that the number of commits selects, so that as many commits
as there are parts run all.

This is a pytest plugin. slow_seconds.json has the duration of each test in seconds, measured under
other load; `--slow-seconds FILE` writes them.
"""

import json
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SECONDS = Path(__file__).with_name("slow_seconds.json")
BUDGET_S = 60.0
"""Limit of a part in seconds, by the table."""
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


def parts(ids, seconds):
    """Assign every test but the excluded ones to one part, in order.

    Only a part with a single test may exceed the budget.
    """
    made = [[]]
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


def commits():
    """Return the number of commits up to the current one; 0 without git."""
    command = ["git", "rev-list", "--count", "HEAD"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return int(done.stdout) if done.returncode == 0 else 0


def pytest_addoption(parser):
    group = parser.getgroup("slow tests")
    group.addoption("--slow-seconds", help="write the seconds of each test to this file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    started = time.monotonic()
    result = yield
    if out := item.config.getoption("--slow-seconds"):
        path = Path(out)
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        known[item.nodeid] = round(time.monotonic() - started, 1)
        path.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return result
