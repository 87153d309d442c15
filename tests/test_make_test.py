"""Test the plug-ins of `make test`, and which slow tests are chosen."""

import datetime
import json
import os
import re
import subprocess
import sys

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, get_cache_dir
from hypothesis import given
from hypothesis import strategies as st

from tests.compiled_once import ROOT, compile_files
from tests.few_messages import UNSENT, FewMessages
from tests.slow_choice import (
    FAILED,
    FAILED_LATELY,
    KEPT_DAYS,
    NEAR,
    OTHERS,
    _spread,
    choose,
    distances,
    estimate,
    recently_failed,
)
from tests.slow_parts import BUDGET_S, EXCLUDED, LONGEST_S, SECONDS, UNKNOWN_S, parts
from tests.temporary_in_memory import PREFIX, choose_folder


def test_pytest_reads_what_was_compiled_until_the_file_changes(tmp_path, pytestconfig):
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    assert 1 + 1 == 2\n")
    cached = get_cache_dir(file) / f"test_one{PYC_TAIL}"
    compile_files([file], pytestconfig)
    assert _read_pyc(file, cached) is not None
    written = cached.stat().st_mtime_ns
    compile_files([file], pytestconfig)
    assert cached.stat().st_mtime_ns == written
    file.write_text("def test_one():\n    assert 1 + 1 == 3\n")
    os.utime(file, ns=(written + 10**9, written + 10**9))
    assert _read_pyc(file, cached) is None
    compile_files([file], pytestconfig)
    assert _read_pyc(file, cached) is not None


def test_make_test_uses_the_plugin_and_ci_leaves_the_sandbox_to_its_own_target():
    assert " -p tests.compiled_once " in (ROOT / "Makefile").read_text(encoding="utf-8")
    steps = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert 'make test TESTS="tests --ignore=tests/sandbox"' in steps
    assert any(step.startswith("make test-sandbox ") for step in steps)


TESTS = """
import time
import warnings

import pytest


@pytest.fixture
def slow_to_start():
    time.sleep(0.06)


@pytest.fixture
def broken_at_its_end():
    print("printed at the end")
    yield
    raise ValueError("at the end")


def test_passes(): pass
def test_starts(slow_to_start): pass
def test_fails():
    print("printed by the test")
    assert 1 == 2
def test_ends_badly(broken_at_its_end): pass
def test_warns(): warnings.warn("seen", UserWarning)
def test_skips(): pytest.skip("a reason")
@pytest.mark.xfail(reason="known")
def test_known(): assert 0
@pytest.mark.xfail(reason="known no more")
def test_known_no_more(): pass
"""


def _run(folder, *options):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-n", "1", *options, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said = re.sub(r"\d+\.\d+s", "TIME", done.stdout)
    return [line for line in said.splitlines() if not line.startswith("created: ")]


def test_the_end_of_a_session_is_the_same(tmp_path):
    (tmp_path / "test_some.py").write_text(TESTS)
    options = ("-p", "no:serve_eval", "-p", "no:kmock", "--durations=9", "--durations-min=.05")
    plain = _run(tmp_path, *options)
    assert "TIME setup    test_some.py::test_starts" in plain
    assert _run(tmp_path, "-p", "tests.few_messages", *options) == plain


def _report(when, **others):
    fields = {"outcome": "passed", "longrepr": None, "duration": 0.01, **others}
    place = ("test_some.py", 0, "test_one")
    return pytest.TestReport("test_some.py::test_one", place, {"test_one": 1}, when=when, **fields)


@pytest.mark.parametrize(
    ("report", "sent"),
    [
        (_report("setup"), False),
        (_report("teardown"), False),
        (_report("call"), True),
        (_report("setup", duration=1.5), True),
        (_report("setup", sections=[("Captured stdout setup", "text")]), True),
    ],
)
def test_a_phase_that_nothing_shows_is_not_sent(report, sent):
    packed = FewMessages(least_shown_s=1).pytest_report_to_serializable(report)
    assert packed is not None or report.sections
    assert (packed is None or UNSENT not in packed) == sent


@pytest.mark.parametrize("when", ["setup", "call", "teardown"])
@pytest.mark.parametrize("outcome", ["failed", "skipped"])
def test_a_phase_that_did_not_pass_is_sent_whole(when, outcome):
    report = _report(when, outcome=outcome)
    assert FewMessages(least_shown_s=1).pytest_report_to_serializable(report) is None


def test_make_test_uses_the_plugin():
    assert " -p tests.few_messages " in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_a_folder_of_a_process_that_is_gone_is_removed(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lives, dead = (tmp_path / f"{PREFIX}{one}" for one in (os.getpid(), ended.pid))
    for folder in (lives, dead, tmp_path / "others"):
        folder.mkdir()
    assert choose_folder(tmp_path, 7, 1) == tmp_path / f"{PREFIX}7"
    assert {one.name for one in tmp_path.iterdir()} == {lives.name, "others"}


def test_without_room_pytest_keeps_them_where_it_does(tmp_path):
    assert choose_folder(tmp_path, 7, 2**62) is None
    assert choose_folder(tmp_path / "absent", 7, 1) is None


def test_make_test_uses_the_plugin_temporary_in_memory():
    assert " -p tests.temporary_in_memory " in (ROOT / "Makefile").read_text(encoding="utf-8")


IDS = [f"tests/{name}.py::test_{n}" for name in ("near", "far", "else", "other") for n in (1, 2)]
CHOICE_SECONDS = dict.fromkeys(IDS, 10.0)
RANKED = {"tests/near.py": (0, 1), "tests/far.py": (0, 4)}


def chosen(budget_s, **more):
    given = {"ranked": RANKED, "failed": ["tests/else.py::test_2"], "number": 0, **more}
    return dict(choose(IDS, CHOICE_SECONDS, budget_s=budget_s, **given).chosen)


def test_what_failed_comes_first_then_the_nearest_then_a_part_of_the_others():
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


def test_a_later_change_goes_before_a_nearer_one():
    first = next(iter(chosen(10, failed=[], ranked={**RANKED, "tests/near.py": (1, 0)})))
    assert first == "tests/far.py::test_1"


@given(st.floats(0, 200), st.integers(0, 50))
def test_no_test_is_lost_and_the_budget_holds(budget_s, number):
    choice = choose(IDS, CHOICE_SECONDS, ranked=RANKED, failed=[], budget_s=budget_s, number=number)
    assert sorted([*choice.chosen, *choice.left_out]) == sorted(IDS)
    assert sum(CHOICE_SECONDS[one] for one in choice.chosen) <= budget_s


def test_a_test_that_is_gone_is_not_chosen():
    assert "tests/gone.py::test" not in chosen(80, failed=["tests/gone.py::test"])


def test_a_test_of_unknown_length_takes_as_long_as_those_of_its_file():
    ids = ["a.py::one", "a.py::two", "b.py::three"]
    assert estimate(ids, {"a.py::one": 3.0, "a.py::gone": 5.0}) == {
        "a.py::one": 3.0,
        "a.py::two": 4.0,
        "b.py::three": UNKNOWN_S,
    }


def test_a_failure_is_recent_for_a_time(tmp_path):
    today = datetime.date(2026, 11, 29)
    days = [today - datetime.timedelta(age) for age in (KEPT_DAYS + 1, KEPT_DAYS, 1)]
    listed = tmp_path / "failed.txt"
    listed.write_text("# why\n\n" + "".join(f"{day} test[a b {day}]\n" for day in days))
    assert recently_failed(today, listed) == [f"test[a b {day}]" for day in reversed(days[1:])]


def test_the_list_of_failures_names_tests():
    for one in recently_failed(datetime.date.min + datetime.timedelta(KEPT_DAYS), FAILED):
        file, _, name = one.partition("::")
        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text("utf-8"), one


def test_distances_are_the_least_numbers_of_imports():
    used_by = {"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": {"a"}}
    found = _spread({"a": 0, "c": 3}, {one: frozenset(of) for one, of in used_by.items()})
    assert found == {"a": 0, "b": 1, "c": 1, "d": 2}


@pytest.mark.slow  # reads the imports of all modules
def test_a_change_affects_the_tests_that_use_it_and_no_others():
    client = distances(["serve_eval/client/http1/connection.py"])
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


def ran(folder, seconds):
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
def test_the_log_says_what_was_chosen_left_out_and_failed(tmp_path):
    done = ran(tmp_path, seconds=100)
    count = int(100 * 1.3 / UNKNOWN_S)
    assert done.returncode == 1
    assert f"slow tests: {count} of 9 chosen" in done.stdout
    assert f"left out: {9 - count} tests, {(9 - count) * UNKNOWN_S:.0f} s" in done.stdout
    told = done.stdout.partition("add to tests/recently_failed.txt")[2]
    assert re.search(r"^\d{4}-\d\d-\d\d \S+test_slow\[[036]\]$", told, re.M)


@pytest.mark.slow  # reads the imports of all modules
def test_no_test_begins_that_would_end_too_late(tmp_path):
    done = ran(tmp_path, seconds=UNKNOWN_S / 1.2)  # enough for one by the table, not by the clock
    assert done.returncode == 0, done.stdout
    assert "slow tests: 1 of 9 chosen" in done.stdout
    assert "no time is left for this slow test" in done.stdout


def test_the_command_of_ci_is_that_of_the_makefile():
    assert "    make test-slow-chosen SLOW_S=" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rule = makefile.partition("\ntest-slow-chosen:")[2].partition("\n\n")[0]
    assert "timeout" in rule
    assert "-p tests.slow_choice" in rule


KNOWN = json.loads(SECONDS.read_text(encoding="utf-8"))
NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.lists(NAMES, unique=True), st.dictionaries(NAMES, st.floats(0.0, 2 * BUDGET_S)))
def test_every_test_is_in_one_part_and_no_part_is_too_long(ids, seconds):
    made = parts(ids, seconds)
    assert [one for part in made for one in part] == ids
    for part in made:
        takes = [seconds.get(one, UNKNOWN_S) for one in part]
        assert len(part) <= 1 or sum(takes) <= BUDGET_S + 1e-9


def test_a_part_holds_as_much_as_fits():
    assert parts(list("abcde"), {"a": 40.0, "b": 20.0, "c": 1.0, "d": 200.0}) == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]
    assert parts([*EXCLUDED, "a"], {}) == [["a"]]


def test_known_tests_are_there_and_fit_into_a_part_or_are_excluded():
    for one in {*KNOWN, *EXCLUDED}:
        file, _, name = one.partition("::")
        assert re.search(
            rf"^(async )?def {name.partition('[')[0]}\(",
            (ROOT / file).read_text(encoding="utf-8"),
            re.M,
        ), one
    assert {one for one, takes in KNOWN.items() if takes > LONGEST_S} == set(EXCLUDED)
    assert all(reason for reason in EXCLUDED.values())


STEPS = [
    ".venv/.dev",
    "bench-gate",
    "debian",
    "docs",
    "lint",
    "test",
    "test-page",
    "test-peer",
    "test-sandbox",
    "test-slow-chosen",
    "test-wheel",
]


def ci_by_made_up_steps(folder, *, failing):
    """Run CI with a `make` and a `python3` of our own, which print what they should do."""
    (folder / "make").write_text(
        "#!/bin/sh\n"
        'for step in "$@"; do\n'
        '  case "$step" in *=*) continue;; esac\n'
        '  echo "made $step"\n'
        f'  [ "$step" != {failing} ] || exit 1\n'
        "done\n"
    )
    (folder / "python3").write_text(
        "#!/bin/sh\n"
        "mkdir -p .venv/bin\n"
        f"printf '#!/bin/sh\\n[ {failing} != uv ]\\n' > .venv/bin/python\n"
        "chmod +x .venv/bin/python\n"
    )
    for name in ("make", "python3"):
        (folder / name).chmod(0o755)
    script = folder / ".ci/run"
    script.parent.mkdir()
    script.write_bytes((ROOT / ".ci/run").read_bytes())
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(["bash", script], env=environ, capture_output=True, text=True)


@pytest.mark.parametrize("failing", ["none", "uv"])
def test_ci_makes_every_step_once(tmp_path, failing):
    done = ci_by_made_up_steps(tmp_path, failing=failing)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(["made"] * len(STEPS) + STEPS)


@pytest.mark.parametrize("failing", sorted({*STEPS} - {"debian"}))
def test_ci_fails_with_any_step_and_prints_it(tmp_path, failing):
    done = ci_by_made_up_steps(tmp_path, failing=failing)
    assert done.returncode != 0
    assert f"made {failing}\n" in done.stdout


@pytest.mark.parametrize("marker", ["slurm", "mpi", "peers", "gpu"])
def test_what_needs_more_than_this_machine_is_in_no_part(marker):
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    chosen = re.search(r'^SLOW = "(.*)"$', text, re.M)
    assert f"not {marker}" in chosen[1]
