"""Other models grade the answer, metric by metric (docs/own-questions.md).

They are asked after the last answer. This module makes the questions, and the score from the
judgements.

Each has its prompt and a function that reads its verdict.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import (
    Connection,
    Judge,
    Judgement,
    Message,
    Outcome,
    Question,
    Response,
    Sample,
    SamplingParams,
    Score,
    Scorer,
)
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.scorers import _judge_prompts as prompts
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers._judge_prompts import reader
from serve_eval.secret_signs import ADVICE, find_secrets

JUDGES_APART, ROUNDS_APART = "judges_apart", "rounds_apart"
"""Parts of a score: the spread of the judges, and of the rounds of one judge."""


def scorer(
    *,
    judges: tuple[JudgeEntry, ...] = (),
    metrics: tuple[str | MetricEntry, ...] = ("correctness",),
    rounds: int = 1,
    majority: bool = False,
) -> Scorer:
    """Return a scorer that gives the mean over `metrics` of the judgements.

    Each metric has the mean over the readable judgements of all `judges` in all `rounds`, or with
    `majority` what more than half of them said; a tie counts as half. At least one judge is needed.
    Raises PlanError with what is wrong with the options.
    """
    (asked, wrong_judges), (wanted, wrong_metrics) = panel(judges), check_metrics(metrics)
    problems = [*wrong_judges, *wrong_metrics]
    if rounds < 1:
        problems.append("judge.rounds: must be 1 or more")
    if rounds > 1 and any(judge.sampling.seed is not None for judge in asked):
        problems.append(
            "judge.rounds: with a sampling.seed every round gives the same; leave one of them out"
        )
    if majority and any(
        isinstance(metric, MetricEntry) and metric.points is not None for metric in metrics
    ):
        problems.append("judge.majority: points have a mean, not a majority; leave it out")
    if problems:
        raise PlanError(problems)

    def questions(sample: Sample, expected: object, response: Response) -> list[Question]:
        texts = prompts.material(sample.prompt, expected, prompts.answer_text(response))
        return [
            Question(judge=judge, metric=metric.name, round=number, prompt=prompt, read=metric.read)
            for metric, prompt in [(metric, metric.ask(texts)) for metric in wanted]
            for judge in asked
            for number in range(1, rounds + 1)
        ]

    def score(expected: object, response: Response) -> Score:
        said = response.judgements
        if not said:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        values = {metric.part: _worth(metric.name, said, majority=majority) for metric in wanted}
        told = ", ".join(f"{part} {value:g}" for part, value in values.items())
        apart = {JUDGES_APART: judges_apart(said)} if len(asked) > 1 else {}
        apart |= {ROUNDS_APART: rounds_apart(said)} if rounds > 1 else {}
        lowest = min(values, key=values.__getitem__)
        return grade_value(
            math.fsum(values.values()) / len(values),
            told,
            {**values, **apart},
            mode=f"low {lowest}",
        )

    def wrong(expected: object) -> list[str]:
        return prompts.list_expected_problems(
            expected, (metric.name for metric in wanted if metric.needs_expected)
        )

    def answers(expected: object) -> tuple[str, str]:
        """Return two texts that a judge should tell apart: no text has a score of its own."""
        return prompts.format_expected(expected) or "This is what you asked for.", "I do not know."

    who = [
        {
            "name": judge.name,
            "model": judge.model,
            "sampling": judge.sampling,
            "extra_body": judge.extra,
        }
        for judge in asked
    ]
    decisive = {"judges": who, "metrics": metrics, "rounds": rounds, "majority": majority}
    return Scorer(
        version=2,
        score=score,
        answers=answers,
        problems=wrong,
        questions=questions,
        scoring="inline",
        # In the form that a reference file gives back.
        decisive=msgspec.json.decode(msgspec.json.encode(decisive)),
    )


def _worth(metric: str, said: Iterable[Judgement], *, majority: bool) -> float:
    values = [one.value for one in said if one.metric == metric and one.value is not None]
    mean = math.fsum(values) / len(values)
    return mean if not majority or mean == 0.5 else float(mean > 0.5)


def judges_apart(said: Sequence[Judgement]) -> float:
    """Return the distance of the highest judge from the lowest, on average over the metrics.

    A judge counts by the mean of its rounds. For yes and no in one round, it is the share of
    metrics on which judges disagree.
    """
    return _mean_spread(
        [list(map(statistics.fmean, judges.values())) for judges in _group(said).values()]
    )


def rounds_apart(said: Sequence[Judgement]) -> float:
    """Return the spread of the rounds of a judge, on average over judges and metrics."""
    return _mean_spread([rounds for judges in _group(said).values() for rounds in judges.values()])


def _group(said: Iterable[Judgement]) -> dict[str, dict[str, list[float]]]:
    """Return the readable judgements by metric and judge."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in said:
        if one.value is not None:
            found.setdefault(one.metric, {}).setdefault(one.judge, []).append(one.value)
    return found


def _mean_spread(groups: Sequence[Sequence[float]]) -> float:
    return statistics.fmean(max(values) - min(values) for values in groups)


class MetricEntry(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A metric as a file has it.

    It is judged by the `criterion` in a prompt of ours, or by a user's `prompt` with ${answer}, and
    optionally ${prompt} and ${expected}; with neither, by the built-in metric of that `name`.

    The verdict is one of the words `success` and `failure`, or a number from 0 to `points`;
    `pattern` finds it in what the judge says (None: on a last line of ours, which the judge is
    asked for). `inverted`: success, or many points, is bad (None: as built in).
    """

    name: str
    criterion: str | None = None
    prompt: str | None = None
    success: tuple[str, ...] = ("yes",)
    failure: tuple[str, ...] = ("no",)
    points: float | None = None
    pattern: str | None = None
    inverted: bool | None = None


@dataclass(frozen=True, slots=True)
class JudgeMetric:
    """A valid metric. `part` is the name of its mean in the report."""

    name: str
    part: str
    needs_expected: bool
    ask: Callable[[prompts.Material], tuple[Message, ...]]
    read: Callable[[str], float | None]


def check_metrics(entries: Sequence[str | MetricEntry]) -> tuple[list[JudgeMetric], list[str]]:
    """Return the metrics of a file, and what is wrong with them."""
    found: list[JudgeMetric] = []
    problems = [] if entries else ["judge.metrics: name at least one"]
    for i, given in enumerate(entries):
        entry = MetricEntry(name=given) if isinstance(given, str) else given
        wrong = list(_problems(entry))
        if any(metric.name == entry.name for metric in found):
            wrong.append(f"name: {entry.name!r} is listed twice")
        try:
            if not wrong:
                found.append(_metric(entry))
        except PlanError as error:
            wrong = error.problems
        problems += [f"judge.metrics[{i}].{problem}" for problem in wrong]
    return found, problems


def _problems(entry: MetricEntry) -> Iterator[str]:
    if not entry.name or any(c.isspace() or not c.isprintable() for c in entry.name):
        yield "name: must be a word without spaces"
    if entry.criterion is not None and entry.prompt is not None:
        yield "criterion: belongs to our own prompt; leave it out if you give a prompt"
    if entry.criterion is None and entry.prompt is None and entry.name not in prompts.BUILT_IN:
        hint = nearest(entry.name, prompts.BUILT_IN)
        yield (f"name: {entry.name!r} is not built in, and has neither criterion nor prompt.{hint}")
    if entry.prompt is not None:
        yield from (f"prompt: {problem}" for problem in prompts.problems(entry.prompt))


def _metric(entry: MetricEntry) -> JudgeMetric:
    """Return the metric. Raises PlanError for a verdict that cannot be read."""
    prompt, criterion = entry.prompt, entry.criterion
    if prompt is not None:
        usual = prompts.BuiltIn("", needs_expected=prompts.asks_for_expected(prompt))
    else:
        usual = prompts.BUILT_IN[entry.name] if criterion is None else prompts.BuiltIn(criterion)
    inverted = usual.inverted if entry.inverted is None else entry.inverted
    read = reader(entry.success, entry.failure, entry.points, entry.pattern, inverted=inverted)
    ending = (
        ""
        if entry.pattern
        else prompts.describe_ending(entry.success[0], entry.failure[0], entry.points)
    )

    def ask(texts: prompts.Material) -> tuple[Message, ...]:
        if prompt is not None:
            return prompts.by_prompt(prompt, texts, ending)
        return prompts.by_criterion(usual.criterion, texts, ending)

    part = f"{entry.name}_inverted" if inverted else entry.name
    return JudgeMetric(
        name=entry.name, part=part, needs_expected=usual.needs_expected, ask=ask, read=read
    )


ITSELF = "itself"
"""Name of the judged endpoint if it is its own judge."""


class JudgeSampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sampling of a judge's answers, with room for its reasons before the verdict."""

    max_tokens: int = 2048
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


class JudgeEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A judge as a file has it.

    Without `base_url` it is the judged endpoint. `api_key_env` is the name of the variable that
    holds the key; without it no key is sent. `${VARIABLE}` replaces a secret in `headers` and
    `proxy`.
    """

    base_url: str | None = None
    model: str | None = None
    name: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    proxy: str | None = None
    ca_bundle: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    client_key_password_env: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    sampling: JudgeSampling = JudgeSampling()
    extra_body: dict[str, object] = {}
    concurrency: int | None = None
    rate_limit: float | None = None
    requests_per_minute: int | None = None


def panel(entries: Sequence[JudgeEntry]) -> tuple[list[Judge], list[str]]:
    """Return the judges of a file, and what is wrong with them."""
    found: list[Judge] = []
    problems = [] if entries else ["judge.judges: name at least one; {} is the endpoint itself"]
    for i, entry in enumerate(entries):
        name = entry.name or entry.model or ITSELF
        wrong = list(_panel_problems(entry))
        if any(c.isspace() or not c.isprintable() for c in name):
            wrong.append("name: must be a word without spaces")
        if any(judge.name == name for judge in found):
            wrong.append(f"name: two judges are called {name!r}; give each its own name")
        problems += [f"judge.judges[{i}].{problem}" for problem in wrong]
        if not wrong:
            found.append(
                Judge(
                    name=name,
                    base_url=None if entry.base_url is None else normalise_base_url(entry.base_url),
                    model=entry.model,
                    sampling=msgspec.convert(entry.sampling, SamplingParams, from_attributes=True),
                    connection=Connection(
                        api_key_env=entry.api_key_env or "",
                        headers=entry.headers,
                        proxy=entry.proxy,
                        ca_bundle=entry.ca_bundle,
                        client_cert=entry.client_cert,
                        client_key=entry.client_key,
                        client_key_password_env=entry.client_key_password_env,
                        max_tokens_field=entry.max_tokens_field,
                    ),
                    extra=entry.extra_body,
                    concurrency=entry.concurrency,
                    rate_limit=entry.rate_limit,
                    requests_per_minute=entry.requests_per_minute,
                )
            )
    return found, problems


def _panel_problems(entry: JudgeEntry) -> Iterator[str]:
    told = {
        "headers": entry.headers,
        "api_key_env": entry.api_key_env,
        "proxy": entry.proxy,
        "client_cert": entry.client_cert,
        "client_key": entry.client_key,
        "client_key_password_env": entry.client_key_password_env,
    }
    # The environment needs the variables only if the judge is asked, not if a run is only read.
    named = {entry.api_key_env or "": "", entry.client_key_password_env or "": ""}
    for path, problem in connection.problems(told, named):
        yield f"{'.'.join(path)}: {problem}"
    if entry.base_url is None:
        own = JudgeEntry(name=entry.name, sampling=entry.sampling, extra_body=entry.extra_body)
        if own != entry:
            yield (
                "base_url: required; only name, sampling and extra_body can be set for the endpoint"
                " itself as a judge"
            )
    else:
        if not entry.model:
            yield "model: required"
        try:
            normalise_base_url(entry.base_url)
        except PlanError as error:
            yield str(error)
    for place in find_secrets({"extra_body": entry.extra_body}):
        yield f"{'.'.join(map(str, place))}: {ADVICE}"
    if entry.sampling.max_tokens < 1:
        yield "sampling.max_tokens: must be 1 or more"
    yield from _load_problems(entry)


def _load_problems(entry: JudgeEntry) -> Iterator[str]:
    for field in ("concurrency", "requests_per_minute"):
        if (count := getattr(entry, field)) is not None and count < 1:
            yield f"{field}: must be 1 or more"
    if entry.rate_limit is not None and entry.rate_limit <= 0.0:
        yield "rate_limit: must be above 0"
