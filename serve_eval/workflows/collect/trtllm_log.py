"""Read results from logs of TensorRT-LLM's accuracy tests and of trtllm-eval. Pure.

The suite prints a block with the parameters of the test and the evaluated value; a test that fails
prints it again in its error. Each line may have a prefix, such as a time or pytest's "E". The
evaluator prints the average with the name of the task before the block, and trtllm-eval only that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from serve_eval.workflows.collect.rows import CollectedRow

TEST, EVAL = "trtllm-test", "trtllm-eval"
_NUMBER = r"(-?inf|-?\d+(?:\.\d+)?)"
_BEGIN = re.compile(r"= (\S.*?) HYPOTHESIS TESTING\s*$")
_END = re.compile(rf"Evaluated (.+?): {_NUMBER}\s*$")
_FIELDS = {
    "alpha": re.compile(rf"Alpha \(Type I:\s+False Positive\): {_NUMBER}"),
    "beta": re.compile(rf"Beta\s+\(Type II: False Negative\): {_NUMBER}"),
    "sigma": re.compile(rf"Sigma \(Standard deviation\): {_NUMBER}"),
    "num_samples": re.compile(r"#Samples: (\d+)"),
    "higher": re.compile(r"Higher is better: (True|False)"),
    "theta": re.compile(rf"Theta \(Minimum detectable effect\): {_NUMBER}"),
    "reference": re.compile(rf"Reference [^:]+: {_NUMBER}\s*$"),
    "threshold": re.compile(rf"Threshold: {_NUMBER}"),
}
_AVERAGE = re.compile(rf"(\S+) (?:weighted )?average accuracy: {_NUMBER}(?: \((\d+)\))?\s*$")
_NODE = re.compile(r"\.py::(Test\w+::\w+(?:\[[^\]]*\])?|test_\w+(?:\[[^\]]*\])?)")
_HEADER = re.compile(r"_{4,} (\w+)\.(test_\w+(?:\[[^\]]*\])?) _{4,}")


@dataclass(slots=True)
class _Reading:
    """The lines read so far. `average` is the last average that belongs to no result yet."""

    source: str
    test: str | None = None
    block: dict[str, str] | None = None
    average: CollectedRow | None = None
    seen: set[tuple[object, ...]] = field(default_factory=set)


def read_trtllm_log(lines: Iterable[str], source: str) -> Iterator[CollectedRow]:
    """Yield a row for each evaluated value in a log; one that is printed twice only once."""
    reading = _Reading(source)
    for line in lines:
        if (named := _find_test(line)) is not None:
            yield from _flush(reading)
            reading.test = named
        elif (begun := _BEGIN.search(line)) is not None:
            reading.block = {"metric": begun[1].lower()}
        elif reading.block is not None:
            yield from _read_line(reading, reading.block, line)
        elif (told := _AVERAGE.search(line)) is not None:
            yield from _flush(reading)
            reading.average = CollectedRow(
                source=source,
                kind=EVAL,
                test=reading.test,
                task=told[1].lower(),
                metric="accuracy",
                value=float(told[2]),
                num_samples=int(told[3]) if told[3] else None,
            )
    yield from _flush(reading)


def _find_test(line: str) -> str | None:
    """Return the name of a test that a line of pytest names, as Class::test."""
    if (node := _NODE.search(line)) is not None:
        return node[1]
    header = _HEADER.search(line)
    return None if header is None else f"{header[1]}::{header[2]}"


def _flush(reading: _Reading) -> Iterator[CollectedRow]:
    """Yield the average that no block has taken."""
    if reading.average is not None:
        yield reading.average
    reading.average = None


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
    average, reading.average = reading.average, None
    if average is not None and abs((average.value or 0.0) - value) > 0.01:
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
