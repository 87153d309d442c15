"""Record the lines that each test runs, and run only the tests that concern a mutant.

Both are pytest plugins.
"""

import json
import os
import signal
import time
from pathlib import Path

import pytest

SOURCES = ("serve_eval", "launchers")


class Chosen:
    """Runs only the tests of a list, in its order.

    A test that exceeds its limit in seconds ends the process by SIGALRM, so a mutant that never
    ends costs the time of one test instead of all.
    """

    def __init__(self, limits_s):
        self._limits_s, self._places = (
            limits_s,
            {name: place for place, name in enumerate(limits_s)},
        )

    def pytest_collection_modifyitems(self, items):
        items[:] = sorted(
            (item for item in items if item.nodeid in self._places),
            key=lambda item: self._places[item.nodeid],
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        signal.setitimer(signal.ITIMER_REAL, self._limits_s[item.nodeid])
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


class Traced:
    """Writes, for every passed test, its duration and the lines of ours that it ran."""

    def __init__(self, out):
        from coverage import Coverage

        self._out, self._root, self._failed = out, Path.cwd(), set()
        self._coverage = Coverage(
            data_file=None, source=list(SOURCES), concurrency=["thread"], branch=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self._coverage.switch_context(item.nodeid)
        started = time.monotonic()
        result = yield
        taken = time.monotonic() - started
        self._coverage.switch_context("")
        if item.nodeid not in self._failed:
            with self._out.open("a") as file:
                file.write(json.dumps({"test": item.nodeid, "seconds": round(taken, 3)}) + "\n")
        return result

    def pytest_runtest_logreport(self, report):
        if not report.passed:  # skipped ones too: they prove nothing about a mutant
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self):
        self._coverage.stop()
        data = self._coverage.get_data()
        with self._out.open("a") as file:
            for name in data.measured_files():
                path = os.path.relpath(name, self._root)
                for line, tests in data.contexts_by_lineno(name).items():
                    ran = [test for test in tests if test and test not in self._failed]
                    if ran:
                        file.write(json.dumps({"path": path, "line": line, "tests": ran}) + "\n")
