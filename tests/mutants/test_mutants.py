"""Test the lists of mutants and what counts as noticed."""

import signal

import pytest

from tests.mutants.drawing import CONCERNING, PACKAGES, listed, tried
from tests.mutants.named import LATE, MOST_S, Named, is_noticed
from tests.mutants.named import listed as named_listed
from tests.root import ROOT


@pytest.mark.parametrize("package", PACKAGES)
def test_the_files_of_a_part_and_of_its_tests_are_there(package):
    assert [path for path in CONCERNING[package] if not (ROOT / path).exists()] == []
    assert [pattern for pattern in PACKAGES[package] if not list(ROOT.glob(pattern))] == []


def test_every_explained_mutant_changes_lines_that_are_there():
    for (file, *diff), reason in listed().items():
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
        removed = [line[1:] for line in diff if line.startswith("-")]
        assert removed, file
        assert [line for line in removed if line not in lines] == [], (
            f"{file}: no longer there: remove the entry"
        )
        assert len(reason) > 20, file


@pytest.mark.parametrize("one", named_listed(), ids=lambda one: one.name)
def test_a_named_change_replaces_what_its_file_holds_once(one):
    source = (ROOT / one.file).read_text(encoding="utf-8")
    assert source.count(one.old) == 1, "the code has changed: change the entry of named.toml"
    changed = source.replace(one.old, one.new)
    assert changed != source
    compile(changed, one.file, "exec")
    for test in one.tests:
        file, _, function = test.partition("::")
        assert (ROOT / file).exists(), test
        assert (
            f"def {function.split('[')[0]}(" in (ROOT / file).read_text("utf-8")
            if function
            else True
        )


@pytest.mark.parametrize(
    ("script", "noticed"),
    [
        ([(True, "")], False),
        ([(False, "FAILED tests/test_a.py")], True),
        ([(False, LATE), (True, "")], True),
        ([(False, LATE), (False, LATE)], False),
    ],
)
def test_tests_that_are_late_notice_a_change_only_if_they_pass_without_it(
    tmp_path, script, noticed
):
    (tmp_path / "a.py").write_text("x = 1\n", encoding="utf-8")
    seen = []

    def passes(copy, tests, limit_s):
        assert tests == ("tests/test_a.py",)
        seen.append(((copy / "a.py").read_text(encoding="utf-8"), limit_s))
        return script[len(seen) - 1]

    one = Named("one more", "a.py", "x = 1", "x = 2", ("tests/test_a.py",))
    assert is_noticed(tmp_path, one, passes) is noticed
    assert seen == [("x = 2\n", MOST_S), ("x = 1\n", MOST_S / 2)][: len(script)]


SECONDS = {"tests/test_a.py::test_x": 1.0, "tests/test_a.py::test_y[1]": 3.0}


class Machine:
    """Answers jobs with the statuses and seconds of a script, and keeps the jobs."""

    def __init__(self, *script):
        self._script, self.jobs = list(script), []

    def done(self, job):
        self.jobs.append(job)
        status, seconds = self._script.pop(0)
        return {"status": status, "seconds": seconds, "output": ""}


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ([(0, 3.0)], "survived"),
        ([(5, 0.1)], "survived"),
        ([(1, 9.0)], "killed"),
        ([(-signal.SIGSEGV, 2.0)], "killed"),
        ([(1, 9.1), (0, 4.0)], "killed"),
        ([(None, 31.0), (0, 15.5)], "timeout"),
        ([(-signal.SIGALRM, 19.0), (0, 4.0)], "timeout"),
        ([(None, 31.0), (0, 15.6), (None, 62.0), (0, 31.0)], "timeout"),
        ([(None, 31.0), (None, 31.0), (0, 40.0)], "survived"),
        ([(1, 20.0), (1, 20.0), (1, 3.0)], "killed"),
        ([(None, 31.0), (1, 3.0)] * 4, "undecided"),
    ],
)
def test_what_took_long_counts_only_if_the_unchanged_code_passes_then(script, outcome):
    machine = Machine(*script)
    assert tried(machine.done, {"a.py": "changed"}, SECONDS)["outcome"] == outcome
    assert [bool(job["files"]) for job in machine.jobs] == [
        number % 2 == 0 for number in range(len(script))
    ]


def test_limits_double_with_each_attempt():
    machine = Machine(*[(None, 31.0), (1, 3.0)] * 4)
    tried(machine.done, {"a.py": "changed"}, SECONDS)
    assert [job["limit_s"] for job in machine.jobs[::2]] == [31.0, 62.0, 124.0, 248.0]
    first, second = machine.jobs[0], machine.jobs[2]
    assert first["tests"] == dict(zip(SECONDS, (19.0, 27.0), strict=True))
    assert second["tests"] == dict(zip(SECONDS, (38.0, 54.0), strict=True))
    assert first["paths"] == ["tests/test_a.py"]
