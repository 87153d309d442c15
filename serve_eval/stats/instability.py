"""How much does one endpoint disagree with itself? Measured on repeated runs of the same prompts.

The run variance v and the A/A flip rate say how much of a difference is noise; Cochran's Q says whether runs differ as
a whole (a replica, a time of day), in which case prompts are not independent and the paired level is too optimistic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.errors import ServeEvalError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from serve_eval.stats.inputs import FloatArray


@dataclass(frozen=True, slots=True)
class Instability:
    """Of `prompts` prompts scored in each of `runs` runs.

    `variance`: mean variance of a prompt's score between runs, in squared units of the score. The other values exist
    for right/wrong scores only: `flip_rate`, the chance that two runs disagree on a prompt; `mixed`, the share of
    prompts that were both right and wrong; `cochran_q` with `df` degrees of freedom and its p, None when no prompt was
    mixed.
    """

    runs: int
    prompts: int
    variance: float
    flip_rate: float | None
    mixed: float | None
    cochran_q: float | None
    df: int
    p: float | None


def instability(runs: ArrayLike) -> Instability:
    """Rows are runs, columns prompts; a prompt with a missing score (NaN) in any run is left out.

    v = sum S (K - S) / (n K (K - 1)) for S of K runs right, which is the mean sample variance per prompt; flip rate =
    2 v. Q = (K - 1)(K sum C^2 - T^2) / (K T - sum S^2) for C right answers per run and T in total, chi-squared with K
    - 1 degrees of freedom when runs are exchangeable (Cochran 1950, "The comparison of percentages in matched
    samples"). Raises ServeEvalError for fewer than two runs, no complete prompt or infinite scores.
    """
    import numpy

    scores = numpy.asarray(runs, dtype=numpy.float64)
    if scores.ndim != 2 or scores.shape[0] < 2:
        raise ServeEvalError(
            "instability needs two or more runs of the same prompts", hint="run the same plan again into another folder"
        )
    scores = scores[:, ~numpy.isnan(scores).any(axis=0)]
    if scores.shape[1] == 0:
        raise ServeEvalError("no prompt was scored in every run", hint="look at the failures of the runs")
    if numpy.isinf(scores).any():
        raise ServeEvalError("instability needs finite scores", hint="look at the scorer: it gave an infinite score")
    count, prompts = scores.shape
    variance = float(scores.var(axis=0, ddof=1).mean())
    if not ((scores == 0.0) | (scores == 1.0)).all():
        return Instability(count, prompts, variance, None, None, None, count - 1, None)
    per_prompt = scores.sum(axis=0)
    q, p = _cochran(scores)
    return Instability(
        runs=count,
        prompts=prompts,
        variance=variance,
        flip_rate=2.0 * variance,
        mixed=float(((per_prompt > 0) & (per_prompt < count)).mean()),
        cochran_q=q,
        df=count - 1,
        p=p,
    )


def _cochran(scores: FloatArray) -> tuple[float | None, float | None]:
    count = len(scores)
    per_run, per_prompt = scores.sum(axis=1), scores.sum(axis=0)
    total = float(per_run.sum())
    spread = count * total - float(per_prompt @ per_prompt)
    if spread == 0.0:
        return None, None
    from scipy.special import chdtrc

    q = (count - 1) * (count * float(per_run @ per_run) - total**2) / spread
    return q, float(chdtrc(count - 1, q))
