"""Test which slow tests are chosen for a change, and what the log says of the others."""

from __future__ import annotations

import datetime
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.affected import _spread, distances
from tests.slow_choice import (
    FAILED,
    FAILED_LATELY,
    KEPT_DAYS,
    NEAR,
    OTHERS,
    choose,
    estimate,
    recently_failed,
)
from tests.slow_parts import ROOT, UNKNOWN_S

IDS = [f"tests/{name}.py::test_{n}" for name in ("near", "far", "else", "other") for n in (1, 2)]
SECONDS = dict.fromkeys(IDS, 10.0)
RANKED = {"tests/near.py": (0, 1), "tests/far.py": (0, 4)}


def chosen(budget_s: float, **more: object) -> dict[str, str]:
    given = {"ranked": RANKED, "failed": ["tests/else.py::test_2"], "number": 0, **more}
    return dict(choose(IDS, SECONDS, budget_s=budget_s, **given).chosen)  # type: ignore[arg-type]


def test_what_failed_comes_first_then_the_nearest_then_a_part_of_the_others() -> None:
    assert list(chosen(80).items()) == [
        ("tests/else.py::test_2", FAILED_LATELY),
        ("tests/near.py::test_1", NEAR),
        ("tests/near.py::test_2", NEAR),
        ("tests/far.py::test_1", NEAR),
        ("tests/far.py::test_2", NEAR),
        ("tests/else.py::test_1", OTHERS),
        ("tests/other.py::test_1", OTHERS),
        ("tests/other.py::test_2", OTHERS),
    ]
    assert list(chosen(30)) == [
        "tests/else.py::test_2",
        "tests/near.py::test_1",
        "tests/near.py::test_2",
    ]


def test_a_later_change_goes_before_a_nearer_one() -> None:
    first = next(iter(chosen(10, failed=[], ranked={**RANKED, "tests/near.py": (1, 0)})))
    assert first == "tests/far.py::test_1"


@given(st.floats(0, 200), st.integers(0, 50))
def test_no_test_is_lost_and_the_budget_holds(budget_s: float, number: int) -> None:
    choice = choose(IDS, SECONDS, ranked=RANKED, failed=[], budget_s=budget_s, number=number)
    assert sorted([*choice.chosen, *choice.left_out]) == sorted(IDS)
    assert sum(SECONDS[one] for one in choice.chosen) <= budget_s


def test_a_test_that_is_gone_is_not_chosen() -> None:
    assert "tests/gone.py::test" not in chosen(80, failed=["tests/gone.py::test"])


def test_a_test_of_unknown_length_takes_as_long_as_those_of_its_file() -> None:
    ids = ["a.py::one", "a.py::two", "b.py::three"]
    assert estimate(ids, {"a.py::one": 3.0, "a.py::gone": 5.0}) == {
        "a.py::one": 3.0,
        "a.py::two": 4.0,
        "b.py::three": UNKNOWN_S,
    }


def test_a_failure_is_recent_for_a_time(tmp_path: Path) -> None:
    today = datetime.date(2026, 11, 29)
    days = [today - datetime.timedelta(age) for age in (KEPT_DAYS + 1, KEPT_DAYS, 1)]
    listed = tmp_path / "failed.txt"
    listed.write_text("# why\n\n" + "".join(f"{day} test[a b {day}]\n" for day in days))
    assert recently_failed(today, listed) == [f"test[a b {day}]" for day in reversed(days[1:])]


def test_the_list_of_failures_names_tests() -> None:
    for one in recently_failed(datetime.date.min + datetime.timedelta(KEPT_DAYS), FAILED):
        file, _, name = one.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), one


def test_distances_are_the_least_numbers_of_imports() -> None:
    used_by = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"a"}}
    found = _spread({"a": 0, "c": 3}, {one: frozenset(of) for one, of in used_by.items()})
    assert found == {"a": 0, "b": 1, "c": 1, "d": 2}


@pytest.mark.slow  # reads the imports of all modules
def test_a_change_affects_the_tests_that_use_it_and_no_others() -> None:
    client = distances(["serve_eval/client/http1/steps.py"])
    assert client["tests/client/test_steps.py"] < client["tests/cli/test_run.py"]
    assert "tests/test_yaml_source.py" not in client
    launcher = distances(["launchers/slurm.py"])
    assert "tests/launchers/test_slurm.py" in launcher
    assert "tests/client/test_steps.py" not in launcher
    documentation = distances(["docs/requests.md"])
    assert "tests/client/test_steps.py" not in documentation
    assert len(distances(["pyproject.toml"])) > len(client)


MODULE = """
import pytest
@pytest.mark.slow
@pytest.mark.parametrize("n", range(9))
def test_slow(n): assert n % 3
def test_fast(): pass
"""


def ran(folder: Path, seconds: float) -> subprocess.CompletedProcess[str]:
    (folder / "test_made.py").write_text(MODULE)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += [
        "-p",
        "no:kmock",
        "-p",
        "tests.slow_choice",
        "-m",
        "slow",
        "--slow-seconds-left",
        str(seconds),
    ]
    command += ["--slow-base", "HEAD", "-c", str(folder / "pytest.ini")]
    env = {name: value for name, value in os.environ.items() if "SLOW_TESTS" not in name}
    made = [*command, str(folder / "test_made.py")]
    return subprocess.run(made, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow  # reads the imports of all modules
def test_the_log_says_what_was_chosen_left_out_and_failed(tmp_path: Path) -> None:
    done = ran(tmp_path, seconds=100)
    count = int(100 * 1.3 / UNKNOWN_S)
    assert done.returncode == 1
    assert f"slow tests: {count} of 9 chosen" in done.stdout
    assert f"left out: {9 - count} tests, {(9 - count) * UNKNOWN_S:.0f} s" in done.stdout
    told = done.stdout.partition("add to tests/recently_failed.txt")[2]
    assert re.search(r"^\d{4}-\d\d-\d\d \S+test_slow\[[036]\]$", told, re.M)


@pytest.mark.slow  # reads the imports of all modules
def test_no_test_begins_that_would_end_too_late(tmp_path: Path) -> None:
    done = ran(tmp_path, seconds=UNKNOWN_S / 1.2)  # enough for one by the table, not by the clock
    assert done.returncode == 0, done.stdout
    assert "slow tests: 1 of 9 chosen" in done.stdout
    assert "no time is left for this slow test" in done.stdout


def test_the_command_of_ci_is_that_of_the_makefile() -> None:
    assert "    make test-slow-chosen SLOW_S=" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\ntest-slow-chosen:")[2].partition("\n\n")[0]
    assert "timeout" in rule
    assert "-p tests.slow_choice" in rule
