"""Tell which worker of a deployment had a hand in which answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerShare:
    """What came of the answers that one worker had a hand in, beside those of all others of its
    role.

    `role` is context, generation, pair (of both) or server; `measure` what is counted as bad: wrong
    answers, empty answers, failures. A pair is named as `CONTEXT + GENERATION`. `p` is that of an
    exact one-sided test that this worker is no worse than the others
    (serve_eval.stats.contingency), `p_holm` the same corrected over all rows of the task.
    `accused`: it is, beyond the level that stands in the attribution.
    """

    worker: str
    role: str
    measure: str
    answers: int
    bad: int
    others: int
    others_bad: int
    p: float
    p_holm: float
    accused: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """What was measured of the requests that one worker had a hand in: medians, None where the
    server tells nothing.

    `kv_transfer_s` is the time that the KV cache of a prompt took from the context to the
    generation server, and `kv_bytes` its size. `cached_tokens` of `prompt_tokens`, in all, came out
    of a prefix cache.
    """

    worker: str
    role: str
    answers: int
    kv_transfer_s: float | None = None
    kv_bytes: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How long the answers took that one worker had a hand in, beside those of the others (medians,
    in seconds).

    `role` and names are those of a WorkerShare; a `worker` without a name are all servers of the
    role, beside those of the other. `longer` of `answers` took more than twice as long as those
    beside them; `p` is that of the sign test that no more than half do, `p_holm` the same corrected
    over all rows. `slow`: that is .01 or below.
    """

    worker: str
    role: str
    taken_s: float
    others_s: float
    longer: int
    answers: int
    p: float
    p_holm: float
    slow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Which of the workers behind one door had a hand in which answers, and who is to blame.

    `how` says how that is known: ids (of responses), times (of arrival) or asked (each worker, or
    pair, was asked by itself). `joined` of `planned` samples are known. `alpha` is the probability
    of accusing anybody of healthy workers. `times` tell who lets wait, which is no accusation.
    `counted` says which answers are wrong ones, and of which prompts, where a reference decides it.
    `dealt_by` names what the router's choice had to do with (subject, beginning, place,
    difficulty): only answers to prompts that are alike in it were compared.
    """

    how: str
    joined: int
    planned: int
    alpha: float
    rows: tuple[WorkerShare, ...]
    figures: tuple[WorkerFigures, ...] = ()
    times: tuple[WorkerTimes, ...] = ()
    counted: str = ""
    dealt_by: tuple[str, ...] = ()
