"""Results of BioChatter's benchmark to references: rows of its CSV files, matched to cases by its own hash of them.

A row has the model, the name of the case, the score, the iterations and the hash. A score is `s1;s2;.../max`, one for
each iteration, or in older rows `mean/max`; here it is a share of the points, between 0 and 1.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from serve_eval import reference, reference_samples
from serve_eval.errors import DatasetError
from serve_eval.fingerprint import sample_key
from serve_eval.protocol import build_task
from serve_eval.reference_samples import SampleScores
from serve_eval.registration import write_entry
from serve_eval.schema import DataRoots, Sample, Spec, Task

COLUMNS = ("model_name", "subtask", "score", "iterations", "md5_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result: the share of the points of each iteration, or, of an older row, their mean alone."""

    model: str
    md5: str
    scores: tuple[float, ...]
    iterations: int
    date: str
    file: Path

    @property
    def mean(self) -> float:
        return math.fsum(self.scores) / len(self.scores)

    @property
    def each(self) -> bool:
        """Whether there is a score for each iteration."""
        return len(self.scores) == self.iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One reference: its value in points over so many of the task's cases. `runs` are those with a score per sample, 0
    where there is the mean alone."""

    task: str
    model: str
    value: float
    cases: int
    of: int
    runs: int


@dataclass(slots=True, kw_only=True)
class Imported:
    """What was written, and what was not: rows of no case are orphans."""

    written: list[Written] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    rows: int = 0
    matched: int = 0

    @property
    def orphans(self) -> int:
        return self.rows - self.matched


def import_results(
    files: Sequence[Path], tasks: Sequence[Spec], references_dir: Path, *, reason: str | None = None
) -> Imported:
    """Writes a reference for each task and model of which there are results.

    The value is the mean over the cases of which there is a result, of the mean over their iterations. Where every case
    has one, the scores of each sample go with it. Raises DatasetError for rows that cannot be read, and for results of
    one case in two files, which are those of two different tests; ReferenceFileError where an entry is there and no
    `reason` is given.
    """
    found = Imported()
    built = [build_task(spec) for spec in tasks]
    samples = {task.name: list(task.load(DataRoots(), 1).samples) for task in built}
    homes = {sample.metadata["compat_md5"]: task.name for task in built for sample in samples[task.name]}
    by_task: dict[str, dict[str, dict[str, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in (row for file in files for row in read(file)):
        found.rows += 1
        if (task := homes.get(row.md5)) is None:
            continue
        found.matched += 1
        of_model = by_task[task][row.model]
        if (other := of_model.get(row.md5)) is not None and other.file != row.file:
            raise DatasetError(
                f"{other.file.name} and {row.file.name} both have results of {task} for {row.model}: "
                "they are those of two different tests of the same cases",
                hint="Import one of them.",
            )
        if other is None or other.date <= row.date:
            of_model[row.md5] = row
    for one in built:
        for model, rows in by_task[one.name].items():
            found.written.append(_write(one, samples[one.name], model, rows, references_dir, reason))
    found.warnings += [
        f"{one.task}: {one.model}: results of {one.cases} of {one.of} cases alone: no scores per sample are kept"
        for one in found.written
        if one.cases < one.of
    ]
    return found


def read(file: Path) -> list[Row]:
    """The rows of a result file. Raises DatasetError, naming the line."""
    try:
        with file.open(encoding="utf-8", newline="") as content:
            reader = csv.DictReader(content)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(f"{file}: no result file: there is no column {', '.join(missing)}")
            return [_row(file, reader.line_num, raw) for raw in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{file}: cannot be read: {error}") from error


def _row(file: Path, line: int, raw: Mapping[str, Any]) -> Row:
    try:
        scores, _, most = raw["score"].partition("/")
        shares = tuple(float(score) / float(most) for score in scores.split(";"))
        iterations = int(raw["iterations"])
    except (ValueError, ZeroDivisionError, AttributeError, TypeError) as error:
        raise DatasetError(
            f"{file}:{line}: score {raw.get('score')!r}, iterations {raw.get('iterations')!r}: "
            "expected s1;s2;.../max or mean/max, and a number"
        ) from error
    if not all(0.0 <= share <= 1.0 for share in shares) or len(shares) not in (1, iterations):
        raise DatasetError(f"{file}:{line}: score {raw['score']!r} of {iterations} iterations is none")
    return Row(
        model=raw["model_name"],
        md5=raw["md5_hash"],
        scores=shares,
        iterations=iterations,
        date=raw.get("datetime") or "",
        file=file,
    )


def _write(
    task: Task, samples: Sequence[Sample], model: str, rows: Mapping[str, Row], references_dir: Path, reason: str | None
) -> Written:
    scale = task.metric.scale
    mine = [row for sample in samples if (row := rows.get(sample.metadata["compat_md5"])) is not None]
    value = scale * math.fsum(row.mean for row in mine) / len(mine)
    files = ", ".join(dict.fromkeys(row.file.name for row in mine))
    entry: dict[str, Any] = {
        reference.value_key(task.metric.name): round(value, 6),
        "source": f"BioChatter's results, {files}: {len(mine)} of {len(samples)} cases",
        "date": max(row.date for row in mine)[:10] or datetime.now(UTC).date().isoformat(),
    }
    runs: list[array[float]] = []
    if len(mine) == len(samples):
        times = {row.iterations for row in mine if row.each}
        if len(times) == 1 and all(row.each for row in mine):
            runs = [array("d", (row.scores[i] for row in mine)) for i in range(times.pop())]
        entry["runs"] = _runs(task, samples, model, runs or [array("d", (row.mean for row in mine))], references_dir)
    write_entry(references_dir / f"{task.reference_file}.yaml", model, {}, entry, reason)
    return Written(task=task.name, model=model, value=value, cases=len(mine), of=len(samples), runs=len(runs))


def _runs(
    task: Task, samples: Sequence[Sample], model: str, runs: Sequence[array[float]], references_dir: Path
) -> dict[str, Any]:
    """The field `runs` of an entry; the scores are written to a file beside it."""
    scale, n = task.metric.scale, len(samples)
    means = [math.fsum(run) / n for run in runs]
    variance = math.fsum((value - mean) ** 2 for run, mean in zip(runs, means, strict=True) for value in run)
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in model)[:60]
    place = Path("samples") / f"{task.reference_file}-{slug}-imported.json"
    keys = b"".join(map(sample_key, samples))
    scores = SampleScores(task=task.name, lo=0.0, hi=1.0, keys=keys, runs=tuple(runs))
    return {
        "values": [round(scale * mean, 6) for mean in means],
        "n": n,
        "sigma": round(scale * math.sqrt(variance / (n * len(runs))), 3),
        "samples": place.as_posix(),
        "sha256": reference_samples.write(references_dir / place, scores),
    }
