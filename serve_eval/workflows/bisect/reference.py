"""Keep the scores of the good configuration as the reference of all others."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evidence.agreement.answer_pairs import read_task
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.fingerprint import sample_key
from serve_eval.schema import MEAN, Report
from serve_eval.stats.classic import classic_test
from serve_eval.storage.file_names import BISECTION_REFERENCES
from serve_eval.storage.json_files import write_private
from serve_eval.verdicts import reference_samples, references
from serve_eval.verdicts.reference_samples import SampleScores

MODEL = "the good configuration"
"""The name under which every configuration looks its reference up."""


def check_tasks(prepared: Sequence[PreparedTask]) -> None:
    """Raise PlanError for tasks whose scores cannot be compared prompt by prompt."""
    problems = []
    for p in prepared:
        name, metric = p.task.name, p.task.metric
        if p.task.aggregation is not MEAN:
            problems.append(f"{name}: its value is the {p.task.aggregation.name}, not a mean")
        elif metric.lo is None or metric.hi is None:
            problems.append(f"{name}: {metric.name} has no range, which an early stop needs")
    files = Counter(p.task.reference_file for p in prepared)
    problems += [
        f"{p.task.name}: shares the reference file {p.task.reference_file} with another task"
        for p in prepared
        if files[p.task.reference_file] > 1
    ]
    if problems:
        raise PlanError(problems, hint="Leave these tasks out: --tasks A,B.")


def list_usual_margins(prepared: Sequence[PreparedTask]) -> dict[str, float]:
    """Return the drop in points that the classic test of each task detects, at its own alpha."""
    found = {}
    for p in prepared:
        h = p.hypothesis
        limit = classic_test(len(p.dataset.samples), 0.0, h.sigma, h.alpha, h.beta, True).threshold
        found[p.task.name] = abs(limit)
    return found


def write_references(
    out_dir: Path, run: Path, report: Report, prepared: Sequence[PreparedTask], alpha: float
) -> None:
    """Write a reference of each task, for tests at this `alpha`.

    Raises RunFolderError if a score is missing: a failure is no wrong answer.
    """
    folder = out_dir / BISECTION_REFERENCES
    for p in prepared:
        known = read_task(run, report, p.task.name).lines[0]
        found = [known.get(sample.id) for sample in p.dataset.samples]
        scores = array("d", (math.nan if one is None else one.value for one in found))
        if missing := sum(map(math.isnan, scores)):
            raise RunFolderError(
                f"the good configuration has no answer or no score for {missing} of"
                f" {len(scores)} samples of {p.task.name}",
                hint=f"Run the same command again to ask them again; {run} keeps the others.",
            )
        write_private(
            _create(folder) / f"{p.task.reference_file}.yaml",
            msgspec.json.format(msgspec.json.encode({MODEL: [_entry(folder, p, scores, alpha)]}))
            + b"\n",
        )


def _entry(folder: Path, p: PreparedTask, scores: array[float], alpha: float) -> dict[str, Any]:
    metric, n = p.task.metric, len(scores)
    assert metric.lo is not None
    assert metric.hi is not None
    place = Path(f"{p.task.reference_file}.json")
    keys = b"".join(map(sample_key, p.dataset.samples))
    kept = SampleScores(task=p.task.name, lo=metric.lo, hi=metric.hi, keys=keys, runs=(scores,))
    sha256 = reference_samples.write(folder / place, kept)
    value = metric.scale * math.fsum(scores) / n
    variance = math.fsum((metric.scale * one - value) ** 2 for one in scores) / n
    return {
        references.value_key(metric.name): value,
        "alpha": alpha,
        "runs": {
            "values": [round(value, 6)],
            "n": n,
            "sigma": round(math.sqrt(variance), 3),
            "samples": place.as_posix(),
            "sha256": sha256,
        },
        "protocol": dict(p.task.protocol),
        "source": "serve-eval bisect",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _create(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{folder}: cannot be used as a folder: {error.strerror}") from error
    return folder
