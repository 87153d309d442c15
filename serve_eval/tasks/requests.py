"""Requests that clients once sent, from the log of a gateway; no gold answers.

`serve-eval compare A B --requests FILE` sends each body to both as it was but for the model's name
and what the plan sets, and judges B's answers by A's own differences. The value is the share of
answers in the form that their request asks for: a JSON object that parses, calls of tools that were
offered, with arguments that parse, and else a text. It is no accuracy.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET

from serve_eval.cases.case_scorers import list_versions, scorer_of, spec_of
from serve_eval.datasets.recorded_requests import (
    USUAL_FIELDS,
    RecordedLog,
    RecordedRequest,
    Steps,
    hash_body,
    list_uncompared,
    mask_body,
    read_log,
    read_paths,
    read_patterns,
    refuse_broken,
)
from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Outcome,
    Override,
    Prompt,
    Question,
    RecordedBody,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.tasks._samples import break_down

ROUTE, STREAMED, ARRIVAL = "route", "streamed", "arrival_s"
"""Keys of the metadata of a sample."""
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
USUAL_TOKENS = 1024
"""Tokens that a request without a limit is expected to cost at most."""
NO_GOLD = "recorded requests have no right answers"
AS_RECORDED = "as recorded"
"""Part of a score: 1 for an answer that equals the recorded one."""


def task(
    *,
    path: Annotated[str | None, Setting("File of requests, one JSON object a line.")] = None,
    mask_fields: Annotated[
        list[str] | None,
        Setting(
            "Paths of fields that are neither sent nor kept, such as messages[*].name. Not set:"
            f" {', '.join(USUAL_FIELDS)}."
        ),
    ] = None,
    mask_patterns: Annotated[
        list[str] | None,
        Setting("Regular expressions: what they match in texts is neither sent nor kept."),
    ] = None,
    skip_broken: Annotated[bool, Setting("Leave out lines that are no request.")] = False,
    scorer: Annotated[
        str | dict[str, dict[str, Any] | None] | None,
        Setting("Scorer of the answers, such as judge with its options. Not set: their form."),
    ] = None,
) -> Task:
    """Return the task with its options.

    Raises PlanError for a wrong path of a field, a wrong pattern, or a wrong scorer.
    """
    paths = read_paths(USUAL_FIELDS if mask_fields is None else mask_fields)
    patterns = read_patterns(mask_patterns or ())
    spec = spec_of(scorer)
    chosen = None if spec is None else scorer_of(spec)
    ask = None if chosen is None else chosen.questions

    def load(roots: DataRoots, wanted: int) -> Dataset:
        if path is None:
            raise PlanError("requests: name the file", hint="--requests FILE.jsonl")
        log = read_log(_find(path, roots))
        if not skip_broken:
            refuse_broken(log)
        samples, masked = _make_samples(log, paths, patterns)
        notes = [f"masked texts, which are neither sent nor kept: {masked}"]
        uncompared = list_uncompared([one.body for one in log.requests])
        skipped = [f"line {one.line} is left out: {one.reason}" for one in log.broken]
        return Dataset(
            samples=samples,
            files=(log.source,),
            total=len(samples),
            notes=(*(notes if masked else []), *uncompared, *skipped),
        )

    def score(sample: Sample, response: Response) -> Score:
        found = score_form(sample, response) if chosen is None else chosen.score(None, response)
        if not sample.target:
            return found
        same = name_answer(response.text) == sample.target
        return Score(
            value=found.value,
            outcome=found.outcome,
            answer=found.answer,
            parts={**found.parts, AS_RECORDED: float(same)},
            mode=found.mode,
        )

    def list_questions(sample: Sample, response: Response) -> Sequence[Question]:
        return () if ask is None else ask(sample, None, response)

    scoring = {"scorer": list_versions([(spec.name, chosen)])} if spec and chosen else {}
    return Task(
        name="requests",
        version=1,
        reference_file="requests",
        metric=Metric(name="answers in form") if chosen is None else Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=USUAL_TOKENS, temperature=None, top_p=None),
        protocol={
            "mask_fields": mask_fields,
            **({"mask_patterns": mask_patterns} if mask_patterns else {}),
            **scoring,
        },
        load=load,
        score=score,
        answers=_answers,
        questions=None if ask is None else list_questions,
        breakdown=break_down(ROUTE, STREAMED),
        no_gold=NO_GOLD,
        failure_mode=lambda sample, response, found: found.mode or found.outcome.value,
        judges_empty=True,
        scoring="inline" if chosen is None else chosen.scoring,
        recorded=True,
    )


def _find(path: str, roots: DataRoots) -> Path:
    places = [place / path for place in (Path(), *roots.roots)]
    return next((place for place in places if place.is_file()), places[0])


def _make_samples(
    log: RecordedLog, paths: Sequence[Steps], patterns: Sequence[re.Pattern[str]]
) -> tuple[list[Sample], int]:
    """Return the samples of a log in the order of their arrival, and how much was masked."""
    masked = 0
    found = []
    times = [one.at_s for one in log.requests if one.at_s is not None]
    timed = len(times) == len(log.requests)
    start = min(times, default=0.0)
    whole = all(one.answer is not None for one in log.requests)
    for one in sorted(log.requests, key=lambda one: one.at_s or 0.0) if timed else log.requests:
        body, count = mask_body(one.body, paths, patterns)
        masked += count
        found.append(
            _make_sample(one, body, None if not timed else (one.at_s or 0.0) - start, whole=whole)
        )
    groups = find_groups([one.recorded for one in found if one.recorded is not UNSET])
    times_of = Counter(groups)
    return [
        replace(one, group=f"request {group}") if times_of[group] > 1 else one
        for one, group in zip(found, groups, strict=True)
    ], masked


def find_groups(bodies: Sequence[RecordedBody]) -> list[str]:
    """Return a group for each body; equal bodies and turns of one conversation share it.

    A body is a later turn if its messages begin with all those of another body.
    """
    openings = [list(_hash_openings(one)) for one in bodies]
    first: dict[str, str] = {}
    names = [hash_body(one) for one in bodies]
    for place in sorted(range(len(bodies)), key=lambda place: len(openings[place])):
        *earlier, whole = openings[place] or [names[place]]
        known = next((first[one] for one in reversed(earlier) if one in first), names[place])
        first.setdefault(whole, known)
        names[place] = first[whole]
    return names


def _hash_openings(body: RecordedBody) -> Iterator[str]:
    """Yield a hash of the first message of a body, of the first two, and so on."""
    turns = body.fields.get("messages", body.fields.get("input"))
    read = hashlib.sha256(body.route.encode())
    for turn in turns if isinstance(turns, list) else ():
        read.update(msgspec.json.encode(turn, order="sorted"))
        yield read.hexdigest()[:16]


def _make_sample(
    one: RecordedRequest, body: RecordedBody, arrival_s: float | None, *, whole: bool
) -> Sample:
    limit = next((n for name in LIMITS if isinstance(n := body.fields.get(name), int)), None)
    return Sample(
        id=f"line-{one.line}",
        prompt=show_prompt(body),
        target=name_answer(one.answer or "") if whole else "",
        metadata={
            ROUTE: body.route.removeprefix("/"),
            STREAMED: "yes" if body.streamed else "no",
            **({} if arrival_s is None else {ARRIVAL: f"{arrival_s:.6f}"}),
        },
        override=None if limit is None else Override(max_tokens=limit),
        recorded=body,
    )


def name_answer(text: str) -> str:
    """Return the name of a recorded answer: scores keep it, and no text of a user."""
    return f"recorded {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def show_prompt(body: RecordedBody) -> Prompt:
    """Return what a reader is shown of a body: its texts, and the types of other parts."""
    fields = body.fields
    turns = fields.get("messages", fields.get("input"))
    if isinstance(turns, list):
        told = [_show_turn(one) for one in turns if isinstance(one, Mapping)]
        return tuple(told) or (Message(role="user", content=""),)
    if isinstance(turns, str):
        return (Message(role="user", content=turns),)
    prompt = fields.get("prompt")
    return prompt if isinstance(prompt, str) else json.dumps(prompt)


def _show_turn(turn: Mapping[str, Any]) -> Message:
    content = turn.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [*(_show_part(part) for part in parts if part is not None)]
    calls = turn.get("tool_calls")
    texts += [] if not calls else [json.dumps(calls)]
    return Message(role=str(turn.get("role", turn.get("type", ""))), content="\n".join(texts))


def _show_part(part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) else None
    kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
    return text if isinstance(text, str) else f"[{kind}]"


def _read_fields(sample: Sample) -> Mapping[str, Any]:
    return {} if sample.recorded is UNSET else sample.recorded.fields


def score_form(sample: Sample, response: Response) -> Score:
    """Return 1 if an answer has the form that its request asks for, else 0 with the fault."""
    fault = find_fault(_read_fields(sample), response)
    if fault is None:
        return Score(value=1.0, outcome=Outcome.CORRECT)
    empty = Outcome.EMPTY if fault == EMPTY else Outcome.WRONG
    return Score(value=0.0, outcome=empty, mode=fault)


EMPTY = "empty"


def find_fault(fields: Mapping[str, Any], response: Response) -> str | None:
    """Return the fault in the form of an answer, or None."""
    for call in response.tool_calls:
        if (names := {*_list_tools(fields)}) and call.name not in names:
            return "unknown tool"
        if not _is_json(call.arguments or "{}"):
            return "broken arguments"
    if response.tool_calls:
        return None
    if not response.text and not response.refusal:
        return None if response.reasoning and response.truncated else EMPTY
    if _asks_for_json(fields) and not _is_json(response.text):
        return "cut JSON" if response.truncated else "invalid JSON"
    return None


def _list_tools(fields: Mapping[str, Any]) -> Iterator[str]:
    for tool in fields.get("tools") or ():
        match tool:
            case {"function": {"name": str(name)}} | {"name": str(name)}:
                yield name


def _asks_for_json(fields: Mapping[str, Any]) -> bool:
    """Return True if a body demands JSON, by `response_format` or the responses' `text.format`."""
    match fields:
        case {"response_format": {"type": str(kind)}} | {"text": {"format": {"type": str(kind)}}}:
            return kind in ("json_object", "json_schema", "json")
    return "guided_json" in fields


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _answers(sample: Sample) -> tuple[str, str]:
    return ("{}", "{") if _asks_for_json(_read_fields(sample)) else ("Yes.", "")
