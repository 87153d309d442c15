"""Read results from logs of TensorRT-LLM's accuracy tests and of trtllm-eval. Pure.

The suite prints a block with the parameters of the test and the evaluated value; a test that fails
prints it again in its error. Each line may have a prefix, such as a time or pytest's "E". The
evaluator prints its values before the block (`trtllm_lines`), and trtllm-eval only those.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from serve_eval.workflows.collect.rows import CollectedRow
from serve_eval.workflows.collect.trtllm_lines import (
    NUMBER,
    EvalValue,
    LineReader,
    is_unread_metric,
)

TEST, EVAL = "trtllm-test", "trtllm-eval"
ROUNDED = 0.01
"""Largest difference of two texts of one value, in points."""
_BEGIN = re.compile(r"= (\S.*?) HYPOTHESIS TESTING\s*$")
_END = re.compile(rf"Evaluated (.+?): {NUMBER}\s*$")
_FIELDS = {
    "alpha": re.compile(rf"Alpha \(Type I:\s+False Positive\): {NUMBER}"),
    "beta": re.compile(rf"Beta\s+\(Type II: False Negative\): {NUMBER}"),
    "sigma": re.compile(rf"Sigma \(Standard deviation\): {NUMBER}"),
    "num_samples": re.compile(r"#Samples: (\d+)"),
    "higher": re.compile(r"Higher is better: (True|False)"),
    "theta": re.compile(rf"Theta \(Minimum detectable effect\): {NUMBER}"),
    "reference": re.compile(rf"Reference [^:]+: {NUMBER}\s*$"),
    "threshold": re.compile(rf"Threshold: {NUMBER}"),
}
_NODE = re.compile(r"\.py::(Test\w+::\w+(?:\[[^\]]*\])?|test_\w+(?:\[[^\]]*\])?)")
_HEADER = re.compile(r"_{4,} (\w+)\.(test_\w+(?:\[[^\]]*\])?) _{4,}")


@dataclass(slots=True)
class _Reading:
    """The lines read so far.

    `main` is the last value of an evaluator that belongs to no result of a test yet; `more` are its
    other values and `table` those of lm-eval's table that no line has repeated.
    """

    source: str
    test: str | None = None
    block: dict[str, str] | None = None
    main: CollectedRow | None = None
    more: list[CollectedRow] = field(default_factory=list)
    table: list[CollectedRow] = field(default_factory=list)
    lines: LineReader = field(default_factory=LineReader)
    seen: set[tuple[object, ...]] = field(default_factory=set)


def read_trtllm_log(
    lines: Iterable[str], source: str, unread: Callable[[str], None] | None = None
) -> Iterator[CollectedRow]:
    """Yield a row for each evaluated value in a log; one that is printed twice only once.

    `unread` receives each line that looks like a value and is not read.
    """
    reading = _Reading(source)
    for line in lines:
        if (named := _find_test(line)) is not None:
            yield from _flush(reading)
            reading.test = named
        elif (begun := _BEGIN.search(line)) is not None:
            reading.block = {"metric": begun[1].lower()}
        elif reading.block is not None:
            yield from _read_line(reading, reading.block, line)
        elif (values := reading.lines.read(line)) is not None:
            for value in values:
                yield from _take(reading, value)
        elif unread is not None and is_unread_metric(line):
            unread(line.strip())
    yield from _flush(reading)


def _take(reading: _Reading, found: EvalValue) -> Iterator[CollectedRow]:
    """Take a value of an evaluator; yield the rows that can have no further part."""
    # Two tasks of the suite print ROUGE, and one command of trtllm-eval.
    rouge = "cnn_dailymail" if reading.test is None else None
    row = CollectedRow(
        source=reading.source,
        kind=EVAL,
        test=reading.test,
        task=found.task or rouge,
        metric=found.metric,
        value=found.value,
        num_samples=found.samples,
    )
    if found.table:
        reading.table.append(row)
    elif not found.main:
        reading.more.append(row)
    else:
        # A line repeats one value of the table.
        table = [one for one in reading.table if abs((one.value or 0.0) - found.value) > ROUNDED]
        reading.table = []
        yield from _flush(reading)
        reading.main, reading.more = row, table


def _find_test(line: str) -> str | None:
    """Return the name of a test that a line of pytest names, as Class::test."""
    if (node := _NODE.search(line)) is not None:
        return node[1]
    header = _HEADER.search(line)
    return None if header is None else f"{header[1]}::{header[2]}"


def _flush(reading: _Reading) -> Iterator[CollectedRow]:
    """Yield the values that no block has taken."""
    rows = [] if reading.main is None else [reading.main]
    rows += [*reading.more, *reading.table]
    reading.main, reading.more, reading.table = None, [], []
    yield from rows


def _read_line(reading: _Reading, block: dict[str, str], line: str) -> Iterator[CollectedRow]:
    """Take a line of a block; yield its row at the evaluated value."""
    if (ended := _END.search(line)) is not None:
        reading.block = None
        yield from _end_block(reading, block, float(ended[2]))
        return
    for name, pattern in _FIELDS.items():
        if (found := pattern.search(line)) is not None:
            block[name] = found[1]


def _end_block(reading: _Reading, block: dict[str, str], value: float) -> Iterator[CollectedRow]:
    key = (reading.test, value, *sorted(block.items()))
    if key in reading.seen or not {"reference", "threshold"} <= block.keys():
        return
    reading.seen.add(key)
    average, reading.main = reading.main, None
    if average is not None and abs((average.value or 0.0) - value) > ROUNDED:
        yield average
        average = None
    sign = 1.0 if block.get("higher", "True") == "True" else -1.0

    def read(name: str) -> float | None:
        return float(block[name]) if name in block and "inf" not in block[name] else None

    passed = sign * (value - float(block["threshold"])) >= 0.0
    yield CollectedRow(
        source=reading.source,
        kind=TEST,
        test=reading.test,
        task=None if average is None else average.task,
        verdict="PASS" if passed else "FAIL",
        metric=block["metric"],
        value=value,
        num_samples=int(block["num_samples"]) if "num_samples" in block else None,
        reference=read("reference"),
        threshold=read("threshold"),
        theta=read("theta"),
        alpha=read("alpha"),
        beta=read("beta"),
        sigma=read("sigma"),
    )
    yield from _flush(reading)
