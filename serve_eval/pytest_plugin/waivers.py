"""Waive tests by a file in the form of TensorRT-LLM's waives.txt.

# a comment
accuracy/test_llama.py::TestLlama::test_fp8 SKIP (https://example.org/1)
full:GH200/accuracy/test_llama.py::TestLlama::test_nvfp4[tp2] SKIP (https://example.org/2)
accuracy/test_qwen.py::TestQwen XFAIL (https://example.org/3)
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from serve_eval.frozen import freeze
from serve_eval.pytest_plugin.endings import AccuracyRegression, AccuracyWarning
from serve_eval.pytest_plugin.options import is_accuracy_test

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
