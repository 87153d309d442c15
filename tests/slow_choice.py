"""Choose the slow tests that CI runs in the time that it has: `make test-slow-chosen`.

First those that failed recently (recently_failed.txt), then those that the change can affect, the
nearest first (affected.py), then a part of all others, which the number of commits selects. The log
says what was left out.

This is a pytest plugin. `--slow-seconds-left S` chooses for S seconds on two cores and begins no
test that would end later; `--slow-base COMMIT` is the commit before the change.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.affected import changes, rank
from tests.slow_parts import EXCLUDED, SECONDS, UNKNOWN_S, commits, parts

FAILED = Path(__file__).with_name("recently_failed.txt")
KEPT_DAYS = 60
"""Days for which a test counts as recently failed."""
SHARE = 1.3
"""Seconds by the table that two workers do in a second.

The table is of tests beside other work; on a machine that is half as fast, they take as long.
"""
END_ENV, LOG_ENV = "SERVE_EVAL_SLOW_TESTS_END", "SERVE_EVAL_SLOW_TESTS_LOG"
TAKES = pytest.StashKey[dict[str, float]]()
"""The seconds of the chosen tests, by the table."""
SHOWN = 40
"""Lines of files with tests that are left out."""

FAILED_LATELY, NEAR, OTHERS = "failed recently", "affected by the change", "of all others"


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen tests with the reason, in the order of their files, and those left out."""

    chosen: Mapping[str, str]
    left_out: Sequence[str]


def choose(
    ids: Sequence[str],
    seconds: Mapping[str, float],
    *,
    ranked: Mapping[str, tuple[int, int]],
    failed: Sequence[str],
    budget_s: float,
    number: int,
) -> Choice:
    """Choose tests that take `budget_s` seconds by the table.

    `ranked` has the affected files with what comes first at the least. `number` selects a part of
    the others.
    """
    known = estimate(ids, seconds)
    chosen: dict[str, str] = {}
    left_s = budget_s
    for one, why in _in_order(ids, seconds, ranked=ranked, failed=failed, number=number):
        if one in known and one not in chosen and known[one] <= left_s:
            chosen[one] = why
            left_s -= known[one]
    return Choice(chosen, [one for one in ids if one not in chosen])


def estimate(ids: Sequence[str], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of every test: by the table, or the mean of its file, or UNKNOWN_S."""
    of_file: dict[str, list[float]] = {}
    for one, takes in seconds.items():
        of_file.setdefault(_file(one), []).append(takes)
    means = {file: sum(takes) / len(takes) for file, takes in of_file.items()}
    return {one: seconds.get(one, means.get(_file(one), UNKNOWN_S)) for one in ids}


def _in_order(
    ids: Sequence[str],
    seconds: Mapping[str, float],
    *,
    ranked: Mapping[str, tuple[int, int]],
    failed: Sequence[str],
    number: int,
) -> Iterator[tuple[str, str]]:
    yield from ((one, FAILED_LATELY) for one in failed)
    near = [one for one in ids if _file(one) in ranked and one not in EXCLUDED]
    yield from ((one, NEAR) for one in sorted(near, key=lambda one: ranked[_file(one)]))
    affected = set(near)
    made = parts([one for one in ids if one not in affected], seconds)
    for turn in range(len(made)):
        yield from ((one, OTHERS) for one in made[(number + turn) % len(made)])


def _file(test: str) -> str:
    return test.partition("::")[0]


def recently_failed(today: datetime.date, path: Path = FAILED) -> list[str]:
    """Return the tests of the list that failed in the last KEPT_DAYS days, the latest first."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            day, test = line.split(maxsplit=1)
            age = today - datetime.date.fromisoformat(day)
            if age.days <= KEPT_DAYS:
                found.append((day, test))
    return [test for _, test in sorted(found, reverse=True)]


def describe(choice: Choice, seconds: Mapping[str, float], groups: Sequence[Sequence[str]]) -> str:
    """Return what was chosen and what was left out, as lines of the log."""
    known = estimate([*choice.chosen, *choice.left_out], seconds)
    reasons = Counter(choice.chosen.values())
    said = ", ".join(f"{count} {why}" for why, count in reasons.items()) or "none"
    took = sum(known[one] for one in choice.chosen)
    files = ", then ".join(str(len(files)) for files in groups) or "none"
    lines = [
        f"slow tests: {len(choice.chosen)} of {len(known)} chosen ({said}): {took:.0f} s",
        f"changed files: {files}",
        f"left out: {len(choice.left_out)} tests, {sum(known.values()) - took:.0f} s",
    ]
    by_file: dict[str, list[float]] = {}
    for one in choice.left_out:
        by_file.setdefault(_file(one), []).append(known[one])
    longest = sorted(by_file.items(), key=lambda item: -sum(item[1]))
    lines += [f"  {file}: {len(of)} tests, {sum(of):.0f} s" for file, of in longest[:SHOWN]]
    if more := [takes for _, of in longest[SHOWN:] for takes in of]:
        files = f"{len(longest) - SHOWN} more files"
        lines.append(f"  and {files}: {len(more)} tests, {sum(more):.0f} s")
    return "\n".join(lines)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("slow tests")
    group.addoption("--slow-seconds-left", type=float, help="choose tests for so many seconds")
    group.addoption("--slow-base", help="the commit before the change")


def pytest_configure(config: pytest.Config) -> None:
    """Set the end and the file of the log once, for all workers."""
    left_s = config.getoption("--slow-seconds-left")
    if left_s is not None and END_ENV not in os.environ:
        os.environ[END_ENV] = str(time.monotonic() + left_s)
        os.environ[LOG_ENV] = str(Path(tempfile.mkdtemp(prefix="serve-eval-slow-")) / "log.txt")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_s = config.getoption("--slow-seconds-left")
    if left_s is None:
        return
    seconds = json.loads(SECONDS.read_text("utf-8"))
    groups = changes(config.getoption("--slow-base"))
    choice = choose(
        [item.nodeid for item in items],
        seconds,
        ranked=rank(groups),
        failed=recently_failed(datetime.datetime.now(datetime.UTC).date()),
        budget_s=SHARE * left_s,
        number=commits(),
    )
    Path(os.environ[LOG_ENV]).write_text(describe(choice, seconds, groups), "utf-8")
    config.hook.pytest_deselected(
        items=[item for item in items if item.nodeid not in choice.chosen]
    )
    config.stash[TAKES] = estimate(list(choice.chosen), seconds)
    order = {one: place for place, one in enumerate(choice.chosen)}
    items[:] = sorted(
        (item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid]
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no test that would probably end too late."""
    takes = item.config.stash.get(TAKES, {}).get(item.nodeid)
    if takes is not None and time.monotonic() + takes > float(os.environ[END_ENV]):
        pytest.skip("no time is left for this slow test")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was chosen, and the lines for the list of tests that failed recently."""
    if (log := os.environ.get(LOG_ENV)) and Path(log).exists():
        terminalreporter.write_line(Path(log).read_text("utf-8"))
    failed = [report.nodeid for report in terminalreporter.getreports("failed")]
    if failed:
        today = datetime.datetime.now(datetime.UTC).date()
        terminalreporter.write_line("add to tests/recently_failed.txt, until they hold:")
        for one in failed:
            terminalreporter.write_line(f"{today} {one}")
