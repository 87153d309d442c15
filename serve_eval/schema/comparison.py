"""Types that compare two runs over the same prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.schema.plan import Spec
from serve_eval.schema.report import Attribution
from serve_eval.schema.result import ResultHeader, TaskResult
from serve_eval.schema.traffic import ArrivalLateness, Traffic
from serve_eval.schema.verdict import Verdict


@freeze
class FirstDifference:
    """The place where two texts begin to differ.

    `character` and `word` count from 0. `a` and `b` are the texts from shortly before that place.
    """

    character: int
    word: int
    a: str
    b: str


@freeze
class Divergence:
    """The first token in which two endpoints differ, measured with log-probabilities.

    `kind`: "near tie" if at both endpoints the two tokens are less than 0.1 nat apart, so that
    numerical differences decide; "confident" if they are farther apart at one of them; "overruled"
    if the endpoint `overruled`, which answers greedily, did not write the token that it ranks
    first, though both rank alike; "same again" if the answers did not differ this time; "unknown"
    with the reason in `why`. `gaps` is the least number of nats by which each endpoint preferred
    its own token.
    """

    kind: Literal["near tie", "confident", "overruled", "same again", "unknown"]
    token: int | None = None
    tokens: tuple[str, str] | None = None
    gaps: tuple[float, float] | None = None
    why: str = ""
    overruled: Literal["A", "B"] | None = None


@freeze
class Flip:
    """A prompt with different scores for A and B: their scores, extracted answers and texts."""

    id: str
    scores: tuple[float, float]
    answers: tuple[str | None, str | None]
    target: str
    texts: tuple[str, str]
    first_difference: FirstDifference | None
    divergence: Divergence | None = None


@freeze
class DivergencePlaces:
    """The tokens, counted from 0, at which the examined flips of a task first differ.

    `counts` has the flips by range of tokens ("0", "1-3" ... "32+"), the "same again" ones and
    those of an "unknown" place; `confident` has the confident ones of each range. `overruled` is
    the endpoint that did not write its likeliest token in most of them (None: neither). `reading`
    is a sentence about that, or about the token at which most of them differ, else empty.
    """

    counts: Mapping[str, int]
    confident: Mapping[str, int]
    reading: str = ""
    overruled: Literal["A", "B"] | None = None


@freeze
class TextPlaces:
    """The places at which the different `texts` of A and B part.

    `at_start` of them differ in the first character. `median_character` counts from 0;
    `median_share` is the median of that place as a share of the longer text.
    """

    texts: int
    at_start: int
    median_character: float
    median_share: float


@freeze
class Parting:
    """The place at which two answers to a prompt part, counted from 0.

    `word` is that of the text, `token` that of the answer's tokens (None: not known). `before` is
    the end of the common text, `a` and `b` the beginnings of both continuations.
    """

    character: int
    word: int
    token: int | None
    before: str
    a: str
    b: str


@freeze
class FirstDivergences:
    """The places of the first divergences of `parted` pairs of answers, in tokens or words.

    `unplaced` further pairs part at a token that is not known. `counts` has the pairs by range
    ("0", "1-3" ... "32+"). `usual` is the place at which most of them part (None: there is none),
    `at_usual` the pairs that part there, and `beginnings` the different texts before that place.
    """

    unit: Literal["token", "word"]
    parted: int
    unplaced: int
    counts: Mapping[str, int]
    least: int
    median: float
    most: int
    usual: int | None
    at_usual: int
    beginnings: int


@freeze
class TokenEquality:
    """The comparison of A's and B's answers token by token, for deployments that promise equality.

    Of the `answers` that both gave, `different` have other texts, and `other_counts` the same text
    in another number of tokens. `counts` says if numbers of generated tokens were "compared", were
    "none" (not reported) or are counted "otherwise" at the two sides, which says nothing. `missing`
    answers are no differences. `own` counts the prompts to which A, and B, gave another text when
    asked again, and those asked again (None: asked once). `partings` has some of the different
    texts by prompt, and `places` the places of all of them, or of those whose token is known (None:
    no text differs).
    """

    answers: int
    missing: int
    different: int
    other_counts: int
    counts: Literal["compared", "none", "otherwise"]
    own: tuple[tuple[int, int] | None, tuple[int, int] | None]
    partings: Mapping[str, Parting]
    places: FirstDivergences | None


@freeze
class Agreement:
    """Agreement of two answers to each of `prompts` prompts, or of `pairs` pairs of answers.

    Answers are `identical` to the character, have the `same_answer` in other words, or are
    `different`. Without an extracted answer two texts count as the same if they have the same
    score. `pairs` is None if each prompt has one pair.
    """

    prompts: int
    identical: int
    same_answer: int
    different: int
    pairs: int | None = None

    @property
    def counted(self) -> int:
        """Number of pairs of answers."""
        return self.prompts if self.pairs is None else self.pairs


@freeze
class SelfFlips:
    """The test whether two endpoints differ more than one of them differs from itself.

    `endpoint` is the one that answered twice. Over the `prompts` with a score each time: `own`
    changed their score (for an Invariant: their answer) between its two answers, `other` between
    its first one and the other endpoint's; `only_own` and `only_other` of them in that way alone.
    `own_texts` and `other_texts` count changed texts likewise. The other endpoint's answer is
    farther from the first one than the endpoint's own second one in `score_farther` prompts by the
    distance of the scores, and nearer in `score_nearer`; `text_farther` and `text_nearer` are the
    same by the place where the texts part. None: not counted, because there are no texts or by the
    version that wrote the file.

    `p` is that of "the other endpoint's answers are like its own second ones" (one-sided, mid-p,
    corrected for the two measures). `measure` names the measure that decided it; "": nothing
    differed, or an older file. `more`: p is at most `alpha`.

    `repeats`, if any, are the numbers of answers of the endpoint and of the other one, which are
    all compared: `own` and `own_texts` count pairs of the endpoint's answers, `other` and
    `other_texts` pairs of one of either, `only_other` prompts with other scores only across.
    Prompts are farther or nearer in the mean; p is that of `stats.own_repeats`.
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
    repeats: tuple[int, int] | None = None

    @property
    def own_pairs(self) -> int:
        """Number of pairs of two own answers."""
        times = 2 if self.repeats is None else self.repeats[0]
        return self.prompts * times * (times - 1) // 2

    @property
    def other_pairs(self) -> int:
        """Number of pairs of an answer of the endpoint and one of the other."""
        return self.prompts * (1 if self.repeats is None else self.repeats[0] * self.repeats[1])


@freeze
class AnswerMeasure:
    """One way in which two answers to a request differ, and how often they do.

    `name` is text, length, ending, calls or score. `own` counts the pairs of answers of one
    endpoint that differ, of `own_pairs`, and `other` those of an answer of either, of
    `other_pairs`. `p` is that of this measure alone.
    """

    name: Literal["text", "length", "ending", "calls", "score"]
    own: int
    own_pairs: int
    other: int
    other_pairs: int
    p: float


@freeze
class ChangedAnswers:
    """The test whether B's answers to recorded requests differ from A's more than A's own do.

    `endpoint` is the one that answered each of `requests` requests several times, `answers` the
    numbers of answers of it and of the other one. Equal requests are one of the `units`. `p` is
    that of "no more", corrected for all `measures`; `more`: it is at most `alpha`. `examples` has
    the places at which some answers of A and B part where the endpoint's own are all equal.
    """

    endpoint: Literal["A", "B"]
    requests: int
    units: int
    answers: tuple[int, int]
    measures: tuple[AnswerMeasure, ...]
    p: float
    alpha: float
    examples: Mapping[str, Parting] = field(default_factory=dict)

    @property
    def more(self) -> bool:
        """True if B differs from A more than the endpoint from itself."""
        return self.p <= self.alpha


@freeze
class ComparedTask:
    """One task, answered by A and by B.

    `verdict` is that of B with A as the reference. `worse` and `better` count the answers whose
    score fell and rose from A to B, repeat by repeat, among the pairs of `agreement`; `flips` are
    some of them, the worse ones first: their ids have the number of a repeat after the first.
    `itself` is None if no answers show how an endpoint differs from itself, and `unmeasured` says
    why if repeats do not. `apart_s` is the median time between the
    two requests for a prompt in seconds: requests far apart may have met different load.
    `attributions` show for either side which of its workers gave the bad answers (None: not known).

    `own` is the agreement of A with its second answers or of its repeats, and that of B (None: not
    known). `places` is about the examined flips (None: too few) and `text_places` about all texts
    (None: none differs). Older files lack all three. `exact` exists under the rule `tokens`.
    `changed` exists for recorded requests, if a side answered them twice.
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
    own: tuple[Agreement | None, Agreement | None] = (None, None)
    places: DivergencePlaces | None = None
    text_places: TextPlaces | None = None
    unmeasured: str = ""
    exact: TokenEquality | None = None
    changed: ChangedAnswers | None = None


@freeze
class ComparedSide:
    """A or B: a run folder, and the endpoint that answered.

    `version` is the version of the software that the server reports; `per_second` the requests
    answered per second in the last session with requests (None: not known). `servers` describes
    each kind of server behind the endpoint. `hidden_retries` counts, by kind, the requests that its
    orchestrator repeated to them, if it counts them. `lateness` exists if requests started at
    recorded times.
    """

    folder: str
    model: str | None
    base_url: str
    version: str | None
    per_second: float | None
    servers: Mapping[str, str] = field(default_factory=dict)
    hidden_retries: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    lateness: ArrivalLateness | None = None


@freeze
class Comparison(ResultHeader):
    """The comparison of two runs, as stored in comparison.json. Its `model` is that of B."""

    a: ComparedSide
    b: ComparedSide
    rule: Spec
    tasks: tuple[ComparedTask, ...]
    warnings: tuple[str, ...] = ()
