"""Write the scores of single answers that another tool gave, next to the entry of a reference."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from serve_eval.protocol.fingerprint import sample_key
from serve_eval.schema import Sample, Task
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores


def write_runs(
    task: Task,
    samples: Sequence[Sample],
    model: str,
    runs: Sequence[array[float]],
    references_dir: Path,
) -> dict[str, Any]:
    """Return the field `runs` of an entry, and write the scores to a file next to it.

    The scores are between 0 and 1. The name of the file follows from its content.
    """
    scale, n = task.metric.scale, len(samples)
    means = [math.fsum(run) / n for run in runs]
    variance = math.fsum(
        (value - mean) ** 2 for run, mean in zip(runs, means, strict=True) for value in run
    )
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in model)[:60]
    keys = b"".join(map(sample_key, samples))
    scores = SampleScores(task=task.name, lo=0.0, hi=1.0, keys=keys, runs=tuple(runs))
    own = hashlib.sha256(
        b"".join([model.encode(), keys, *(run.tobytes() for run in runs)])
    ).hexdigest()[:8]
    place = Path("samples") / f"{task.reference_file}-{slug}-{own}-imported.json"
    return {
        "values": [round(scale * mean, 6) for mean in means],
        "n": n,
        "sigma": round(scale * math.sqrt(variance / (n * len(runs))), 3),
        "samples": place.as_posix(),
        "sha256": reference_samples.write(references_dir / place, scores),
    }
