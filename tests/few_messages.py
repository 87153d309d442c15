"""Send the process that starts the workers only what it shows: a plugin of `make test`.

A worker of pytest-xdist sends six messages for each test: that it begins and ends, a report of each
of its three phases, and that the next one can be chosen. Packing and unpacking them costs about a
millisecond of processor time, more than most tests. Of a test that passes, the terminal shows one
report and the phases above `--durations-min`. The others are not sent.
"""

import pytest

NEVER_SHOWN = frozenset({"logstart", "logfinish"})
UNSENT = "unsent"


class FewMessages:
    """Leave out messages of one worker."""

    def __init__(self, least_shown_s):
        self._least_shown_s = least_shown_s

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report):
        """Pack a report of a passed phase without its keywords; mark it if nothing shows it."""
        if not isinstance(report, pytest.TestReport) or report.outcome != "passed":
            return None
        if hasattr(report, "wasxfail") or report.sections or report.longrepr is not None:
            return None
        if report.when != "call" and report.duration < self._least_shown_s:
            return {UNSENT: True}
        return {**report._to_json(), "$report_type": type(report).__name__, "keywords": {}}


def pytest_plugin_registered(plugin, manager):
    """Stand between a worker and its connection as soon as there is one.

    With `--junit-xml` all is sent: that file ends a test at the report of its last phase.
    """
    if type(plugin).__name__ != "WorkerInteractor":
        return
    options = plugin.config.option
    if options.xmlpath:
        return
    send = plugin.sendevent

    def send_if_shown(name, **content):
        if name in NEVER_SHOWN or (name == "testreport" and UNSENT in content["data"]):
            return
        send(name, **content)

    plugin.sendevent = send_if_shown
    manager.register(FewMessages(options.durations_min or 0))
