"""Read results from logs of TensorRT-LLM's accuracy tests and of trtllm-eval.

The suite prints a block with the parameters of the test and the evaluated value; a test that fails
prints it again in its error. Each line may have a prefix, such as a time or pytest's "E". The
evaluator prints its values before the block (`trtllm_lines`), and trtllm-eval only those.

Most evaluators print one line: a task with its average, a filter of lm-evaluation-harness, JSON
Mode Eval, BLEU or a word error rate. Others print a heading with the values below it: ROUGE by
beam, LongBench v2, NeMo-Skills, and the table of lm-evaluation-harness, in which only the row of
the task itself is in points.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from serve_eval.workflows.collect.document import CollectedRow


class EvalValue(NamedTuple):
    """A value of an evaluator; `main`: the one that its test judges, `table`: of lm-eval's table.

    `task` is None if the line does not tell which of several tasks it is.
    """

    task: str | None
    metric: str
    value: float
    samples: int | None = None
    main: bool = False
    table: bool = False


NUMBER = r"(-?inf|-?\d+(?:\.\d+)?)"
_Form = tuple[re.Pattern[str], Callable[[re.Match[str]], EvalValue]]


def _count(text: str | None) -> int | None:
    return int(text) if text else None


_LINES: Sequence[_Form] = (
    (
        re.compile(rf"(\S+) (?:weighted )?average accuracy: {NUMBER}(?: \((\d+)\))?\s*$"),
        lambda m: EvalValue(m[1].lower(), "accuracy", float(m[2]), _count(m[3]), main=True),
    ),
    (
        re.compile(rf"lm-eval (\S+) (\S+) accuracy: {NUMBER}\s*$"),
        lambda m: EvalValue(m[1].lower(), m[2], float(m[3]), main=True),
    ),
    (
        re.compile(rf"JSON Mode Eval (grammar )?accuracy: {NUMBER}(?: \((\d+)\))?\s*$"),
        lambda m: EvalValue(
            "json_mode_eval", f"{m[1] or ''}accuracy", float(m[2]), _count(m[3]), main=not m[1]
        ),
    ),
    (
        re.compile(rf"CoVoST2 \[(\S+)\] corpus BLEU = {NUMBER}"),
        lambda m: EvalValue("covost2", "bleu", float(m[2]), main=True),
    ),
    (
        re.compile(rf"\bASR WER: {NUMBER}\s*$"),
        lambda m: EvalValue("audio_asr", "wer", float(m[1]), main=True),
    ),
)
_ROUGE, _ROUGE_VALUE = (
    re.compile(r"\bBeam (\d+) rouge scores:\s*$"),
    re.compile(rf"\b(rouge\w*): {NUMBER}\s*$", re.IGNORECASE),
)
_LONGBENCH, _OVERALL = (
    re.compile(r"\bLongBench v2 Evaluation Results\s*$"),
    re.compile(rf"\bOverall Accuracy: {NUMBER}% \(\d+/(\d+)\)\s*$"),
)
_NEMO, _SHARE, _LEVELS = (
    re.compile(r"\bNeMo-Skills (\w+)\b.* results\b.*:\s*$"),
    re.compile(rf"^\s+(\w*accuracy)\s*= {NUMBER}%\s+\(\d+/(\d+)\)\s*$"),
    re.compile(rf"^\s+(strict|loose)\s+prompt-level={NUMBER}%\s+instruction-level={NUMBER}%\s*$"),
)
_TABLE = re.compile(r"\blm-eval (\S+) results \(scores normalized")
_PART = re.compile(rf"^\s+no_answer\s*= {NUMBER}%|\bEvaluated .+: {NUMBER}\s*$")
"""A line of a known result that is no result of its own."""
_METRIC = re.compile(
    r"\b(?:accuracy|acc|exact[_ -]?match|rouge\w*|s?bleu|chrf|wer|cer|f1|pass@\d+|perplexity|ppl"
    r"|score|win[_ ]rate)\b[^:=|]{0,40}[:=]\s*-?\d",
    re.IGNORECASE,
)


@dataclass(slots=True)
class LineReader:
    """Reads line after line.

    `heading` is the last one that has values below it, and `name` what it names. `columns` and
    `row_task` are those of lm-eval's table, whose rows leave out a task that the row above has.
    """

    heading: re.Pattern[str] | None = None
    name: str = ""
    columns: list[str] = field(default_factory=list)
    row_task: str = ""

    def read(self, line: str) -> list[EvalValue] | None:
        """Return the values of a line, or None if it has none that is known."""
        for pattern, build in _LINES:
            if (found := pattern.search(line)) is not None:
                self.heading = None
                return [build(found)]
        for pattern in (_ROUGE, _LONGBENCH, _NEMO, _TABLE):
            if (found := pattern.search(line)) is not None:
                self.heading, self.columns = pattern, []
                self.name = found[1].lower() if pattern.groups else ""
                return []
        return None if self.heading is None else self._read_below(line)

    def _read_below(self, line: str) -> list[EvalValue] | None:
        """Return the values of a line below a heading, or None if it is none of its lines."""
        if self.heading is _ROUGE and (found := _ROUGE_VALUE.search(line)) is not None:
            first, name = self.name == "0", found[1].lower()
            beam = "" if first else f" of beam {self.name}"
            main = first and name == "rouge1"
            return [EvalValue(None, f"{name}{beam}", float(found[2]), main=main)]
        if self.heading is _LONGBENCH and (found := _OVERALL.search(line)) is not None:
            value, n = float(found[1]), int(found[2])
            return [EvalValue("longbench_v2", "accuracy", value, n, main=True)]
        if self.heading is _NEMO:
            return self._read_nemo(line)
        if self.heading is _TABLE and line.lstrip().startswith("|"):
            return list(self._read_row([cell.strip() for cell in line.strip().split("|")[1:-1]]))
        return None

    def _read_nemo(self, line: str) -> list[EvalValue] | None:
        if (found := _SHARE.search(line)) is not None:
            value, main = float(found[2]), found[1] != "subtask_accuracy"
            return [EvalValue(self.name, found[1], value, int(found[3]), main=main)]
        if (found := _LEVELS.search(line)) is not None:
            names = (f"{found[1]} prompt-level", f"{found[1]} instruction-level")
            values = zip(names, (float(found[2]), float(found[3])), strict=True)
            return [
                EvalValue(self.name, name, x, main=name == names[0] and found[1] == "strict")
                for name, x in values
            ]
        return None

    def _read_row(self, cells: list[str]) -> Iterator[EvalValue]:
        """Yield the value of a row of the table, if the row belongs to the task itself."""
        if "Metric" in cells:
            self.columns, self.row_task = cells, ""
            return
        row = dict(zip(self.columns, cells, strict=False))
        self.row_task = row.get("Tasks", row.get("Groups")) or self.row_task
        try:
            value = float(row.get("Value", ""))
        except ValueError:
            return
        if self.row_task.lower() == self.name:
            metric = f"{row.get('Metric', '')},{row.get('Filter') or 'none'}"
            yield EvalValue(self.name, metric, value, table=True)


def is_unread_metric(line: str) -> bool:
    """Return True if a line, in which no value was found, looks as if it gave one."""
    return _METRIC.search(line) is not None and _PART.search(line) is None


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
