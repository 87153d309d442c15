"""Check the metrics and the judges of a file by which answers are judged.

Each has its prompt and a function that reads its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import Struct

from serve_eval.client import connection
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import Connection, Judge, Message, SamplingParams
from serve_eval.schema.base_url import normalise_base_url
from serve_eval.scorers import _judge_prompts as prompts
from serve_eval.scorers._judge_prompts import reader
from serve_eval.secret_signs import ADVICE, find_secrets


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


def metrics(entries: Sequence[str | MetricEntry]) -> tuple[list[JudgeMetric], list[str]]:
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
            found.append(_judge(name, entry))
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


def _judge(name: str, entry: JudgeEntry) -> Judge:
    return Judge(
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
