"""What a finished run measured that helps to plan the next: the spread of its scores, and its throughput."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage import run_folder
from serve_eval.schema import MEAN, file_stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of one task: `sigma` is the standard deviation of its scores in points, `bernoulli` that of right-or-wrong scores
    with the same mean, `per_second` the samples that the last session finished (None: not known)."""

    task: str
    n: int
    value: float
    sigma: float
    bernoulli: float
    per_second: float | None


class _Line(msgspec.Struct):
    value: float


def measured(run: Path) -> list[Measured]:
    """The tasks of a run folder. Raises RunFolderError when it has no report or no score, and for a task whose value is
    no mean of scores: their spread does not tell its own."""
    try:
        report = msgspec.json.decode((run / run_folder.REPORT_FILE).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise RunFolderError(f"{run} has no report", hint="Let the run come to its end first.") from error
    loads = run_folder.loads(run)
    rate = loads[-1].finished / loads[-1].wall_s if loads and loads[-1].wall_s else None
    found = []
    for task in report["tasks"]:
        name, scale = task["result"]["task"], task["result"]["metric"]["scale"]
        if (how := task["result"].get("aggregation", MEAN.name)) != MEAN.name:
            raise RunFolderError(f"{run}: the value of {name} is the {how}, whose spread is not that of its scores")
        lines = (run / "scores" / f"{file_stem(name)}.jsonl").read_bytes()
        values = [scale * line.value for line in msgspec.json.Decoder(_Line).decode_lines(lines)]
        if not values:
            raise RunFolderError(f"{run}: {name} has no score")
        mean = math.fsum(values) / len(values)
        share = mean / scale if scale else 0.0
        found.append(
            Measured(
                task=name,
                n=len(values),
                value=mean,
                sigma=math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values)),
                bernoulli=abs(scale) * math.sqrt(max(0.0, share * (1.0 - share))),
                per_second=rate,
            )
        )
    return found
