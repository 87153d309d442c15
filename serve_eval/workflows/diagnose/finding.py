"""What a rule found, and the tests by which a rule may speak of a share."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serve_eval.stats.hypergeometric import no_worse

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.evidence import AskedSample, Evidence, TaskEvidence

ALPHA = 0.001
"""The probability with which a rule that compares shares speaks of a healthy run."""
SHOWN = 5
"""Sample ids that stand with a finding."""
LEAST, LEAST_SHARE = 3, 0.05
"""A finding about answers explains at least so many wrong or missing ones, and this share of
them."""
_FEW, _MANY = 10, 20
_RED, _UNJUDGED = 0.5, 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is probably wrong, and what to change.

    `count` of `of` is the evidence. It `explains` up to so many of the `lost` samples, which are
    wrong or missing (None: how many cannot be told). `change` are options to copy, the best first;
    `log` are lines of servers' logs. `task` is None for what concerns the whole run. `p` is that of
    the test by which the rule spoke (None: a fact).
    """

    rule: str
    told: str
    change: tuple[str, ...]
    count: int
    of: int
    explains: int | None = None
    lost: int = 0
    task: str | None = None
    samples: tuple[str, ...] = ()
    log: tuple[str, ...] = ()
    p: float | None = None


def about(
    task: TaskEvidence,
    rule: str,
    told: str,
    change: Sequence[str],
    shown: Sequence[AskedSample],
    *,
    of: int,
    p: float | None = None,
    log: Sequence[str] = (),
) -> Finding:
    """A finding about the samples that show a sign."""
    lost = [asked for asked in shown if asked.lost]
    return Finding(
        rule=rule,
        told=told,
        change=tuple(change),
        count=len(shown),
        of=of,
        explains=len(lost),
        lost=len(task.lost),
        task=task.name,
        samples=ids(lost or shown),
        p=p,
        log=tuple(log),
    )


def ids(asked: Iterable[AskedSample]) -> tuple[str, ...]:
    """A few ids that may be shown."""
    return tuple([one.id for one in asked if one.shown][:SHOWN])


def capsule_of(run: Evidence, task: TaskEvidence, shown: Iterable[AskedSample]) -> str:
    """The command for a capsule of the first of these samples that may be shown, as a shell takes
    it.
    """
    one = next((one.id for one in shown if one.shown), "ID")
    return (
        f"serve-eval capsule {run.place} --task {shlex.quote(task.name)} --sample"
        f" {shlex.quote(one)}"
    )


def matters(task: TaskEvidence, shown: Sequence[AskedSample]) -> bool:
    """Whether what these samples show can explain enough of what is wrong."""
    lost = sum(asked.lost for asked in shown)
    return lost >= max(LEAST, LEAST_SHARE * len(task.lost))


def worse(
    task: TaskEvidence,
    shown: Sequence[AskedSample],
    others: Sequence[AskedSample],
    *,
    signs: int = 1,
) -> float | None:
    """The p-value where samples with a sign are lost more often than those without; None where that
    is not proven, for one of so many `signs` that a rule looks at.

    With hardly any others there is nothing to compare with: then the sign speaks where most of the
    samples that show it are lost, and the task does not pass.
    """
    p = larger_share(task, shown, others)
    if p <= ALPHA / signs:
        return p
    least = None if task.passes else _RED if task.red else _UNJUDGED
    overwhelming = least is not None and sum(asked.lost for asked in shown) >= least * len(shown)
    return p if overwhelming and len(others) < _FEW and len(shown) >= _MANY else None


def larger_share(
    task: TaskEvidence, shown: Sequence[AskedSample], others: Sequence[AskedSample]
) -> float:
    """Fisher's p-value for a larger share of lost samples among those shown, each prompt taken
    once.
    """
    a, b = task.witnesses(shown), task.witnesses(others)
    return no_worse([(len(a), sum(one.lost for one in a), len(b), sum(one.lost for one in b))])
