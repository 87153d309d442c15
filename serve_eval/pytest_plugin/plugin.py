"""Define the hooks and fixtures that pytest loads at its start, and read its file of waivers.

pytest loads this module at each start, so what needs more than pytest is imported on first use.

pytest rewrites each package that has a plug-in, and caches the result among its modules, in files
that pip does not remove: after uninstalling, an empty `serve_eval` could still be imported.

Waivers have the form of TensorRT-LLM's waives.txt:

    # a comment
    accuracy/test_llama.py::TestLlama::test_fp8 SKIP (https://example.org/1)
    full:GH200/accuracy/test_llama.py::TestLlama::test_nvfp4[tp2] SKIP (https://example.org/2)
    accuracy/test_qwen.py::TestQwen XFAIL (https://example.org/3)
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from serve_eval.frozen import freeze
from serve_eval.pytest_plugin.endings import (
    AccuracyNotMeasured,
    AccuracyRegression,
    AccuracyWarning,
    show_ending,
)
from serve_eval.pytest_plugin.options import (
    MARKER,
    PREFIX,
    REHEARSES,
    USED_ADDRESS,
    add_options,
    is_accuracy_test,
    read_options,
)

if TYPE_CHECKING:
    from serve_eval.pytest_plugin.evaluator import Evaluator
    from serve_eval.pytest_plugin.workbench import Workbench
    from serve_eval.schema import Endpoint


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options, and keep the package as it is installed."""
    leave_unrewritten(pluginmanager.rewrite_hook)
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and what tells the result of the session."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(*tasks, gpus=N, **options): tasks and options of an evaluation by serve-eval;"
        " the test is skipped on a machine with fewer GPUs",
    )
    config.pluginmanager.register(SessionLine(read_options(config).notify))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that are waived, and those whose markers ask for more GPUs than there are."""
    if (file := read_options(config).waivers) is not None:
        from serve_eval.pytest_plugin.workbench import has_gpu

        waived = read_waivers(file)
        apply_waivers(waived, items, has_gpu)
        warn_of_unused(waived, items, has_gpu, config, file)
    for item in [one for one in items if one.get_closest_marker(MARKER) is not None]:
        from serve_eval.pytest_plugin.evaluator import skip_without_gpus

        skip_without_gpus(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """End a test of accuracy that passed although it measured nothing, or only rehearsed."""
    if not is_accuracy_test(item):
        return (yield)
    try:
        done = yield
    except AssertionError as error:
        if item.stash.get(REHEARSES, False):
            from serve_eval.pytest_plugin.lines_of_tests import end_rehearsed

            end_rehearsed(item, error)
        raise
    from serve_eval.pytest_plugin.lines_of_tests import end_rehearsed, end_unmeasured

    end_rehearsed(item)
    end_unmeasured(item)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report a test that measured nothing as an error, and what others say of it in one line."""
    report = yield
    show_ending(report, call, rehearses=item.stash.get(REHEARSES, False))
    return report


@pytest.fixture(scope="session")
def _serve_eval_workbench(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workbench]:
    """Yield what the tests share; its servers end after the last test, and on Ctrl-C."""
    from serve_eval.pytest_plugin.workbench import Workbench

    scratch = Path(tmp_path_factory.getbasetemp()) / "serve-eval"
    workbench = Workbench(read_options(pytestconfig), scratch)
    try:
        yield workbench
    finally:
        workbench.close()


@pytest.fixture
def serve_eval(request: pytest.FixtureRequest, _serve_eval_workbench: Workbench) -> Evaluator:
    """Evaluate an endpoint: serve_eval.evaluate("gsm8k", quant_algo="FP8")."""
    from serve_eval.pytest_plugin.evaluator import AccuracyTests, Evaluator

    tests = request.instance
    defaults = tests.list_defaults() if isinstance(tests, AccuracyTests) else {}
    return Evaluator(request.node, _serve_eval_workbench, defaults)


@pytest.fixture
def serve_eval_endpoint(serve_eval: Evaluator) -> Endpoint:
    """Return the endpoint that serve_eval.evaluate would ask; without one, skip the test."""
    return serve_eval.find_endpoint()


@pytest.fixture(scope="session")
def serve_eval_server(_serve_eval_workbench: Workbench) -> Callable[..., Endpoint]:
    """Launch a server for the session: serve_eval_server("trtllm", model="m", tp=2)."""
    return _serve_eval_workbench.start_server


FLAG = "--serve-eval-notify"
UNUSED_ADDRESS = (
    "serve-eval: warning: no test asked the address of --serve-eval-base-url: tests with a launcher"
    " or an address of their own do not; launcher=None in evaluate() or the marker makes them"
)
_PHASES = ("setup", "call", "teardown")


class SessionLine:
    """Collects a line for each test of accuracy, and tells that of the worst one.

    Workers of pytest-xdist send theirs with their reports. `file` gets the line. Raises UsageError
    for a file that cannot be written.
    """

    def __init__(self, file: Path | None, environ: Mapping[str, str] = os.environ) -> None:
        if file is not None and (file.name == "-" or file.is_dir() or not file.parent.is_dir()):
            raise pytest.UsageError(f"{FLAG}: {file}: name a file in a folder that exists")
        self._file, self._environ, self._used_address = file, environ, False
        self._hidden: list[str] = []
        self._ended: list[tuple[str, str, dict[str, Any]]] = []
        self._lost: list[pytest.TestReport | pytest.CollectReport] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the line of a test of accuracy to its report."""
        report = yield
        if not is_accuracy_test(item):
            return report
        report.__dict__["serve_eval_used_address"] = item.stash.get(USED_ADDRESS, False)
        from dataclasses import asdict

        from serve_eval.pytest_plugin.lines_of_tests import describe_phase

        if (line := describe_phase(item, call, report)) is not None:
            report.__dict__["serve_eval_line"] = asdict(line)
        error = None if call.excinfo is None else call.excinfo.value
        if hasattr(report, "wasxfail") and isinstance(error, AccuracyNotMeasured):
            report.__dict__["serve_eval_hidden"] = error.line
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the line of a report; that of an attempt which is repeated does not count."""
        self._used_address |= getattr(report, "serve_eval_used_address", False)
        if hidden := getattr(report, "serve_eval_hidden", ""):
            self._hidden.append(hidden)
        given = getattr(report, "serve_eval_line", None)
        if given is not None and str(report.outcome) != "rerun":
            self._ended.append((report.nodeid, count_as(report), given))
        elif given is None and report.when not in _PHASES and report.failed:  # a lost worker
            self._lost.append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Take what could not be collected as an error: its tests are not known."""
        if report.failed:
            self._lost.append(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Tell the result, unless this is a worker or no test of accuracy was to run."""
        config = session.config
        if hasattr(config, "workerinput") or config.getoption("collectonly"):
            return
        lines = [*self._report_result(session, exitstatus), *self._list_unused(config)]
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if lines and reporter is not None:
            reporter.ensure_newline()
            for line in ("", *lines):
                reporter.write_line(line)

    def _report_result(self, session: pytest.Session, exitstatus: int) -> list[str]:
        """Write the file, annotate on GitHub, and return lines for the terminal."""
        if self._file is None and not self._ended:
            return []
        from serve_eval.pytest_plugin.lines_of_tests import TellSession

        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        told = TellSession(self._ended, self._lost, self._environ, interrupted=interrupted)
        lines = [*told.list_unmeasured(), *told.list_hidden(self._hidden), *told.tell_github()]
        if told.measured_nothing and read_options(session.config).strict:
            session.exitstatus = max(int(exitstatus), pytest.ExitCode.TESTS_FAILED)
            lines.append("error: --serve-eval-strict: a session that measured nothing is not green")
        if self._file is not None and (error := told.write(self._file)):
            session.exitstatus = max(int(exitstatus), pytest.ExitCode.TESTS_FAILED)
            lines.append(f"error: {FLAG}: {error}")
        return lines

    def _list_unused(self, config: pytest.Config) -> list[str]:
        """Return a warning if the address of the command line was asked by no test."""
        if self._used_address or not config.getoption(f"{PREFIX}base_url"):
            return []
        return [UNUSED_ADDRESS]


def count_as(report: pytest.TestReport) -> str:
    """Return the word under which pytest counts a report."""
    expected = hasattr(report, "wasxfail")
    if report.passed:
        return "XPASS" if expected else "PASS"
    if report.skipped:
        return "XFAIL" if expected else "SKIPPED"
    return "FAIL" if report.when == "call" else "ERROR"


PACKAGE = __name__.partition(".")[0]


def leave_unrewritten(hook: object) -> None:
    """Unmark the package in pytest's import hook, and remove what was cached before.

    A pytest whose hook looks otherwise goes on rewriting.
    """
    marked, seen = (
        getattr(hook, name, None) for name in ("_must_rewrite", "_marked_for_rewrite_cache")
    )
    if not isinstance(marked, set) or not isinstance(seen, dict):
        return
    marked.difference_update([name for name in marked if _is_ours(str(name))])
    seen.clear()
    stems: dict[Path, set[str]] = {}
    for name, module in list(sys.modules.items()):
        if _is_ours(name) and (place := getattr(module, "__file__", None)):
            cached = Path(cache_from_source(str(place)))
            stems.setdefault(cached.parent, set()).add(cached.name.partition(".")[0])
    for folder, loaded in stems.items():
        _remove_caches(folder, loaded)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == PACKAGE


def _remove_caches(folder: Path, stems: Container[str]) -> None:
    """Remove what pytest cached of these modules, reading their folder once."""
    with suppress(OSError):
        for file in folder.iterdir():
            stem, _, more = file.name.partition(".")
            if stem in stems and "-pytest-" in more and more.endswith(".pyc"):
                with suppress(OSError):  # another process was quicker, or the folder is read-only
                    file.unlink()


_LINE = re.compile(
    r"(?:full:(?P<gpu>[^/\s]+)/)?(?P<test>\S.*?)\s+"
    r"(?P<mark>SKIP|XFAIL|UNSTABLE|TIMEOUT|ISOLATION)\s*(?:\((?P<reason>.*)\))?"
)
_APPLIED = {"SKIP": "skip", "XFAIL": "xfail"}
"""The markers of pytest by the words that waive a test; the other words of test lists do not."""
_SELECTING = ("keyword", "markexpr", "deselect", "lf", "stepwise")
"""Options of pytest that leave tests out of a file."""
_BOUNDS = ("::", "[", "/")


@freeze
class WaivedTest:
    """A line of the file. `test` is a test, or what holds tests: a class, a file, a folder.

    With `gpu`, the line, the one with this number, is for machines with such a GPU only.
    """

    test: str
    mark: Literal["skip", "xfail"]
    reason: str
    gpu: str | None = None
    line: int = 0

    @property
    def file(self) -> WaivedTest | None:
        """The waiver of the whole file, if this one is of tests in it."""
        name, within, _ = self.test.partition("::")
        return replace(self, test=name) if within else None

    def covers(self, nodeid: str) -> bool:
        """Return True if pytest would select this test for the same argument.

        The path may begin below pytest's root, as in the lists of another repository.
        """
        at = nodeid.find(self.test)
        if at < 0 or (at > 0 and nodeid[at - 1] != "/"):
            return False
        rest = nodeid[at + len(self.test) :]
        return not rest or rest.startswith(_BOUNDS) or self.test.endswith("/")


def read_waivers(file: Path) -> list[WaivedTest]:
    """Return the waivers of a file. Raises pytest.UsageError for each line that is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise pytest.UsageError(f"serve-eval waivers: {file}: {error}") from None
    found, wrong = [], []
    for number, line in enumerate(lines, start=1):
        text = re.sub(r"(^|\s)#.*", "", line).strip()
        if not text:
            continue
        if (match := _LINE.fullmatch(text)) is None:
            wrong.append(f"{file}:{number}: expected TEST SKIP (reason), not {text!r}")
        elif (mark := _APPLIED.get(match["mark"])) is not None:
            reason = f"waived: {match['reason'] or f'{file.name}:{number}'}"
            one = WaivedTest(
                test=match["test"],
                mark="skip" if mark == "skip" else "xfail",
                reason=reason,
                gpu=match["gpu"],
                line=number,
            )
            found.append(one)
    if wrong:
        raise pytest.UsageError("serve-eval waivers:\n" + "\n".join(wrong))
    return found


def apply_waivers(
    waived: Sequence[WaivedTest],
    items: Iterable[pytest.Item],
    has_gpu: Callable[[str], bool],
) -> None:
    """Mark the waived tests. `has_gpu` is asked only if a line needs it.

    XFAIL covers the failure of a test of accuracy, or of its own assertions: where the endpoint
    does not answer, nothing is known of the accuracy.
    """
    for item in items:
        for one in waived:
            if one.covers(item.nodeid) and (one.gpu is None or has_gpu(one.gpu)):
                covered: dict[str, Any] = {}
                if one.mark == "xfail" and is_accuracy_test(item):
                    covered["raises"] = (AccuracyRegression, AssertionError)
                item.add_marker(getattr(pytest.mark, one.mark)(reason=one.reason, **covered))
                break


def warn_of_unused(
    waived: Sequence[WaivedTest],
    items: Sequence[pytest.Item],
    has_gpu: Callable[[str], bool],
    config: pytest.Config,
    file: Path,
) -> None:
    """Warn of each line without a test, if all tests of its file were collected.

    That is unknown if tests were selected by name, expression or marker, or by how they ended. Of
    the workers of pytest-xdist, which collect the same, the first one warns. Raises UsageError if
    a filter makes the warning an error.
    """
    selected = any(config.getoption(name, None) for name in _SELECTING)
    worker = getattr(config, "workerinput", {"workerid": "gw0"})["workerid"]
    if selected or any("::" in one for one in config.args) or worker != "gw0":
        return
    tests = [item.nodeid for item in items]
    for one in waived:
        whole = one.file if one.gpu is None or has_gpu(one.gpu) else None
        if whole is None or any(map(one.covers, tests)) or not any(map(whole.covers, tests)):
            continue
        told = f"waiver of {one.test}: its file was collected, and has no such test"
        try:
            warnings.warn_explicit(AccuracyWarning(told), None, str(file), one.line)
        except AccuracyWarning:
            raise pytest.UsageError(f"{file}:{one.line}: {told}") from None
