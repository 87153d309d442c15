"""Choose the slow tests that CI runs in the time that it has: `make test-slow-chosen`.

The imports are those of grimp, which import-linter brings. A tool that records which test runs
which line (pytest-testmon) needs the records of an earlier run, which a clean clone lacks.

Three kinds of use are no imports, and are taken from the text of a test: a command, launcher, task,
scorer or rule, which is found by its name; a file that is no module, such as a page of the
documentation; and conftest.py of the folders above.

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
import re
import subprocess
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import grimp
import pytest

from tests.slow_parts import EXCLUDED, SECONDS, UNKNOWN_S, commits, parts

ROOT = Path(__file__).resolve().parents[1]
BY_NAME = (
    *("checks.kinds", "cli", "launchers", "report.results_table", "scorers", "tasks"),
    "verdicts.rules",
)
"""Packages whose modules are found by their names."""
FOR_ALL = ("constraints.txt", "pyproject.toml", "tests/conftest.py")
"""Files that can affect every test."""
OF_MODULES = ("launchers/", "serve_eval/", "tests/")
FAR = 99
"""The distance of a test that only such a file affects."""
DAY_S = 86_400


def changes(base):
    """Return groups of changed files, the most recent first.

    With a `base`, there is one: all that has changed since. Without one, there are the last commit
    (all of its branch, if it is a merge) with what is not committed, and the commits of the day
    before it: what is pushed together is seldom older. Without git, there are none.
    """
    if base:
        return [_git("diff", "--name-only", base)]
    here = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    last = _git("diff", "--name-only", "HEAD^1", "HEAD")
    when = _git("log", "-1", "--format=%ct")
    if not when:
        return []
    since = f"--since=@{int(when[0]) - DAY_S}"
    day = _git("log", since, "--name-only", "--format=", "HEAD")
    return [sorted({*here, *last}), sorted({*day} - {""})]


def _git(*arguments):
    command = ["git", "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def module_of(file):
    """Return the name of the module of a Python file of this repository."""
    path = PurePosixPath(file)
    if path.parts[0] == "launchers":  # serve_eval/launchers is a link to it
        path = "serve_eval" / path
    named = path.with_suffix("")
    return ".".join(named.parent.parts if named.name == "__init__" else named.parts)


def file_of(module):
    """Return the file of a module, or of a package's __init__."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imports():
    """Return for each module of the product and of its tests the modules that use it."""
    graph = grimp.build_graph("serve_eval", "tests", cache_dir=None)
    used_by = {one: set(graph.find_modules_that_directly_import(one)) for one in graph.modules}
    for test, text in texts().items():
        for module in _named_in(text, used_by):
            used_by[module].add(test)
        for above in PurePosixPath(test.replace(".", "/")).parents:
            conftest = ".".join((*above.parts, "conftest"))
            if conftest in used_by and conftest not in (test, "tests.conftest"):
                used_by[conftest].add(test)
    return {module: frozenset(users) for module, users in used_by.items()}


@cache
def texts():
    """Return the text of each module of the tests."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {module_of(file.relative_to(ROOT).as_posix()): file.read_text("utf-8") for file in files}


@cache
def _by_name():
    """Return the modules that are found by their names, by the last part of their names."""
    graph = {}
    for package in BY_NAME:
        for file in sorted(ROOT.joinpath("serve_eval", *package.split(".")).glob("[a-z]*.py")):
            graph.setdefault(file.stem, []).append(f"serve_eval.{package}.{file.stem}")
    return {stem: tuple(modules) for stem, modules in graph.items()}


def _named_in(text, known):
    """Yield the modules that a text names: commands in quotes or behind serve-eval, others so."""
    words = set(re.findall(r"[a-z_0-9]+", text.replace("-", "_")))
    commands = {one or other for one, other in re.findall(r'"([a-z]+)"|serve-eval ([a-z]+)', text)}
    for stem in words & _by_name().keys():
        for module in _by_name()[stem]:
            if module in known and (stem in commands or not module.startswith("serve_eval.cli.")):
                yield module


def distances(files):
    """Return the tests that changed files can affect, with the imports between them.

    The tests are files, such as tests/test_masking.py.
    """
    start = {}
    for file in files:
        if file in FOR_ALL:
            start.update(dict.fromkeys(texts(), FAR) | start)
        elif file.endswith(".py") and file.startswith(OF_MODULES):
            start[module_of(file)] = 0
        else:
            start.update(dict.fromkeys(_mentioning(file), 1) | start)
    found = _spread(start, imports())
    return {
        file_of(module).relative_to(ROOT).as_posix(): distance
        for module, distance in found.items()
        if module.split(".")[0] == "tests" and module.split(".")[-1].startswith("test_")
    }


def _mentioning(file):
    """Yield the modules of tests that name a file, or that stand in its folder."""
    name, folder = PurePosixPath(file).name, PurePosixPath(file).parent.as_posix()
    for module, text in texts().items():
        beside = folder.startswith("tests/") and module.startswith(folder.replace("/", ".") + ".")
        if beside or name in text:
            yield module


def _spread(start, used_by):
    """Return the least distance of every module that uses one of `start`, directly or not."""
    found = dict(start)
    queue = deque(sorted(found, key=lambda module: found[module]))
    while queue:
        module = queue.popleft()
        for user in used_by.get(module, ()):
            if found[module] + 1 < found.get(user, FAR + 1):
                found[user] = found[module] + 1
                queue.append(user)
    return found


def rank(groups):
    """Return the affected test files with the group of the change and the distance from it."""
    ranked = {}
    for number, files in enumerate(groups):
        for test, distance in distances(files).items():
            ranked.setdefault(test, (number, distance))
    return ranked


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
    ids,
    seconds,
    *,
    ranked,
    failed,
    budget_s,
    number,
):
    """Choose tests that take `budget_s` seconds by the table.

    `ranked` has the affected files with what comes first at the least. `number` selects a part of
    the others.
    """
    known = estimate(ids, seconds)
    chosen = {}
    left_s = budget_s
    for one, why in _in_order(ids, seconds, ranked=ranked, failed=failed, number=number):
        if one in known and one not in chosen and known[one] <= left_s:
            chosen[one] = why
            left_s -= known[one]
    return Choice(chosen, [one for one in ids if one not in chosen])


def estimate(ids, seconds):
    """Return the seconds of every test: by the table, or the mean of its file, or UNKNOWN_S."""
    of_file = {}
    for one, takes in seconds.items():
        of_file.setdefault(_file(one), []).append(takes)
    means = {file: sum(takes) / len(takes) for file, takes in of_file.items()}
    return {one: seconds.get(one, means.get(_file(one), UNKNOWN_S)) for one in ids}


def _in_order(
    ids,
    seconds,
    *,
    ranked,
    failed,
    number,
):
    yield from ((one, FAILED_LATELY) for one in failed)
    near = [one for one in ids if _file(one) in ranked and one not in EXCLUDED]
    yield from ((one, NEAR) for one in sorted(near, key=lambda one: ranked[_file(one)]))
    affected = set(near)
    made = parts([one for one in ids if one not in affected], seconds)
    for turn in range(len(made)):
        yield from ((one, OTHERS) for one in made[(number + turn) % len(made)])


def _file(test):
    return test.partition("::")[0]


def recently_failed(today, path=FAILED):
    """Return the tests of the list that failed in the last KEPT_DAYS days, the latest first."""
    found = []
    for line in path.read_text("utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            day, test = line.split(maxsplit=1)
            age = today - datetime.date.fromisoformat(day)
            if age.days <= KEPT_DAYS:
                found.append((day, test))
    return [test for _, test in sorted(found, reverse=True)]


def describe(choice, seconds, groups):
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
    by_file = {}
    for one in choice.left_out:
        by_file.setdefault(_file(one), []).append(known[one])
    longest = sorted(by_file.items(), key=lambda item: -sum(item[1]))
    lines += [f"  {file}: {len(of)} tests, {sum(of):.0f} s" for file, of in longest[:SHOWN]]
    if more := [takes for _, of in longest[SHOWN:] for takes in of]:
        files = f"{len(longest) - SHOWN} more files"
        lines.append(f"  and {files}: {len(more)} tests, {sum(more):.0f} s")
    return "\n".join(lines)


def pytest_addoption(parser):
    group = parser.getgroup("slow tests")
    group.addoption("--slow-seconds-left", type=float, help="choose tests for so many seconds")
    group.addoption("--slow-base", help="the commit before the change")


def pytest_configure(config):
    """Set the end and the file of the log once, for all workers."""
    left_s = config.getoption("--slow-seconds-left")
    if left_s is not None and END_ENV not in os.environ:
        os.environ[END_ENV] = str(time.monotonic() + left_s)
        os.environ[LOG_ENV] = str(Path(tempfile.mkdtemp(prefix="serve-eval-slow-")) / "log.txt")


@pytest.hookimpl(trylast=True)  # after -m
def pytest_collection_modifyitems(config, items):
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


def pytest_runtest_setup(item):
    """Begin no test that would probably end too late."""
    takes = item.config.stash.get(TAKES, {}).get(item.nodeid)
    if takes is not None and time.monotonic() + takes > float(os.environ[END_ENV]):
        pytest.skip("no time is left for this slow test")


def pytest_terminal_summary(terminalreporter):
    """Print what was chosen, and the lines for the list of tests that failed recently."""
    if (log := os.environ.get(LOG_ENV)) and Path(log).exists():
        terminalreporter.write_line(Path(log).read_text("utf-8"))
    failed = [report.nodeid for report in terminalreporter.getreports("failed")]
    if failed:
        today = datetime.datetime.now(datetime.UTC).date()
        terminalreporter.write_line("add to tests/recently_failed.txt, until they hold:")
        for one in failed:
            terminalreporter.write_line(f"{today} {one}")
