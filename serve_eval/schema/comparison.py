"""Describe two runs that answered the same prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serve_eval.schema.attribution import Attribution
from serve_eval.schema.plan import Spec
from serve_eval.schema.result import TaskResult
from serve_eval.schema.traffic import Traffic
from serve_eval.schema.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where two texts begin to differ: the character and the word, counted from 0, and how each
    goes on from a little before there.
    """

    character: int
    word: int
    a: str
    b: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first token in which two endpoints differ, asked again with log-probabilities.

    `kind`: "near tie" where at both endpoints the two tokens are less than 0.1 nat apart, which
    other numerics decide; "confident" where they are farther apart at one of them; "same again"
    where the answers did not differ this time; "unknown" with the reason in `why`. `gaps` says by
    how many nats each endpoint preferred its own token, at least.
    """

    kind: Literal["near tie", "confident", "same again", "unknown"]
    token: int | None = None
    tokens: tuple[str, str] | None = None
    gaps: tuple[float, float] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A prompt that A and B are not given the same score for: scores, extracted answers and texts
    of A and B.
    """

    id: str
    scores: tuple[float, float]
    answers: tuple[str | None, str | None]
    target: str
    texts: tuple[str, str]
    first_difference: FirstDifference | None
    divergence: Divergence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of `prompts` that were answered twice: `identical` to the character, `same_answer` in other
    words, and the others. Without an extracted answer two texts count as the same when they have
    the same score.
    """

    prompts: int
    identical: int
    same_answer: int
    different: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfFlips:
    """Whether two endpoints differ more than one of them does from itself.

    The one that was asked twice is `endpoint`. Over the `prompts` with a score each time: `own`
    changed their score (for an Invariant: their answer) between its two answers, `other` between
    its first one and the other endpoint's; `only_own` and `only_other` of them in that way alone.
    `own_texts` and `other_texts` count changed texts likewise. The other endpoint's answer lies
    farther from the first one than the own second one does in `score_farther` prompts by the
    distance of the scores, nearer in `score_nearer`; by the place where the texts part in
    `text_farther` and `text_nearer`. None: not counted, as where there are no texts, or by the
    version that wrote the file.

    `p` is that of "the other endpoint's answers are such as its own second ones" (one-sided, mid-p,
    corrected for the two measures). `measure` names the one that carried it; "": nothing differed,
    or an older file. `more` is that p being `alpha` at most.
    """

    endpoint: str
    prompts: int
    own: int
    other: int
    only_own: int
    only_other: int
    p: float
    alpha: float
    more: bool
    agreement: Agreement
    measure: Literal["", "score", "text"] = ""
    score_farther: int | None = None
    score_nearer: int | None = None
    own_texts: int | None = None
    other_texts: int | None = None
    text_farther: int | None = None
    text_nearer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedTask:
    """One task, answered by A and by B. `verdict` is that of B with A in the place of the
    reference. `worse` and `better` count the prompts whose score fell and rose from A's first run
    to B's; `flips` are some of them, the worse ones first. `itself` is None where neither was asked
    twice. `apart_s` is the median time between the two requests for a prompt in seconds: what lies
    far apart was not asked under the same load. `attributions` tell of either side which of its
    workers gave the bad answers (None: not known).
    """

    task: str
    a: TaskResult
    b: TaskResult
    traffic: tuple[Traffic, Traffic]
    verdict: Verdict
    worse: int
    better: int
    agreement: Agreement
    apart_s: float | None
    itself: SelfFlips | None
    flips: tuple[Flip, ...]
    warnings: tuple[str, ...] = ()
    attributions: tuple[Attribution | None, Attribution | None] = (None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSide:
    """A or B: the run folder with what it answered, where it was reached, the version of the
    software that it told, and requests answered per second in the session that asked last (None:
    not known). `servers` tells of each kind of server behind it; `hidden_retries` is what its
    orchestrator asked them again, by kind, where it counts that.
    """

    folder: str
    model: str | None
    base_url: str
    version: str | None
    per_second: float | None
    servers: Mapping[str, str] = field(default_factory=dict)
    hidden_retries: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The truth about two runs beside each other: what comparison.json holds."""

    schema_version: int
    a: ComparedSide
    b: ComparedSide
    rule: Spec
    tasks: tuple[ComparedTask, ...]
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()
