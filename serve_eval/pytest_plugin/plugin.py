"""Hooks and fixtures that pytest loads at its start, whether or not a test uses them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from serve_eval.pytest_plugin.endings import show_ending
from serve_eval.pytest_plugin.options import (
    MARKER,
    REHEARSES,
    add_options,
    is_accuracy_test,
    read_options,
)
from serve_eval.pytest_plugin.session_line import SessionLine
from serve_eval.pytest_plugin.unrewritten import leave_unrewritten

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
        from serve_eval.pytest_plugin.gpus import has_gpu
        from serve_eval.pytest_plugin.waivers import apply_waivers, read_waivers, warn_of_unused

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
            from serve_eval.pytest_plugin.rehearsed import end_rehearsed

            end_rehearsed(item, error)
        raise
    from serve_eval.pytest_plugin.rehearsed import end_rehearsed
    from serve_eval.pytest_plugin.unmeasured import end_unmeasured

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
    from serve_eval.pytest_plugin.accuracy_tests import AccuracyTests
    from serve_eval.pytest_plugin.evaluator import Evaluator

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
