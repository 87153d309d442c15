"""Tool calls and guided decoding: valid calls, names, schemas and endings; generated.

No benchmark of models: the requests are easy, and what fails is mostly a parser, a stream or
guided decoding. A sample offers tools, such as get_weather(city, days), and asks "Please get the
weather forecast for Oslo for 3 days", or has a `response_format` and dictates the JSON. It is right
if nothing is wrong: JSON, name, schema, call or none, marks, finish_reason, ids and indexes, and
token counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    CallMessage,
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Need,
    Override,
    Response,
    ResultMessage,
    Sample,
    SamplingParams,
    Score,
    Scored,
    Task,
)
from serve_eval.scorers._served_call import (
    CallFault,
    ServedExpectation,
    count_trigger,
    read_expectation,
    score_served,
)
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.tool_call import as_text
from serve_eval.tasks._samples import RandomSeed, break_down
from serve_eval.tasks._tool_shapes import (
    NAMES,
    SHAPES,
    TOOLS,
    WORDS,
    Schema,
    Wish,
    ask_without_need,
    call_of,
    draw_wishes,
    offer,
    offer_everyday,
)


class AskedRequest(NamedTuple):
    """A request: its turns, its fields, what it expects, and the shape of its schema, if any."""

    turns: tuple[Message, ...]
    fields: Mapping[str, Any]
    expected: ServedExpectation
    shape: str = ""


Kind = Callable[[int, random.Random], AskedRequest]
"""Returns the request with a number. Numbers within texts make every prompt unique."""
RESULT = '{"status": "done", "value": 7}'
NO_CALL_RIGHT = "It is done, and the value is 7."


def _offer_all(choice: object = "auto", **more: Any) -> dict[str, Any]:
    return {"tools": offer_everyday(*TOOLS), "tool_choice": choice, **more}


def _say(text: str) -> tuple[Message, ...]:
    return (Message(role="user", content=text),)


def _expect_call(wish: Wish, *, auto: bool) -> ServedExpectation:
    return ServedExpectation(wanted="call", calls=(wish.call,), auto=auto)


def _ask_auto(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Request {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all(), _expect_call(wish, auto=True))


def _ask_no_tool(number: int, rng: random.Random) -> AskedRequest:
    question, right = ask_without_need(rng)
    turns = _say(f"Question {number}. {question}")
    return AskedRequest(
        turns, _offer_all(), ServedExpectation(wanted="no call", right=right, auto=True)
    )


def _ask_required(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Order {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all("required"), _expect_call(wish, auto=False))


def _ask_none(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Note {number}. Say in one sentence how you would {wish.text}.")
    right = "I would ask a colleague to do it."
    return AskedRequest(turns, _offer_all("none"), ServedExpectation(wanted="no call", right=right))


def _ask_named(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    choice = {"type": "function", "function": {"name": wish.call.name}}
    turns = _say(f"Task {number}. Please {wish.text}.")
    return AskedRequest(turns, _offer_all(choice), _expect_call(wish, auto=False))


def _ask_parallel(number: int, rng: random.Random) -> AskedRequest:
    wishes = draw_wishes(rng, rng.randint(2, 3))
    text = f"List {number}. Do all of this at once, each with its tool: "
    turns = _say(text + "; ".join(wish.text for wish in wishes) + ".")
    calls = tuple(wish.call for wish in wishes)
    expected = ServedExpectation(
        wanted="call", calls=calls, least=len(calls), most=len(calls), auto=True
    )
    return AskedRequest(turns, _offer_all(), expected)


def _build_answered(number: int, wish: Wish) -> tuple[Message, ...]:
    """Return a wish with its call and the call's result."""
    one_id = f"call_{number}"
    asked = CallMessage(role="assistant", content="", tool_calls=(wish.call,), call_ids=(one_id,))
    return (
        *_say(f"Job {number}. Please {wish.text}."),
        asked,
        ResultMessage(role="tool", content=RESULT, call_id=one_id),
    )


def _ask_turns(number: int, rng: random.Random) -> AskedRequest:
    first, second = draw_wishes(rng, 2)
    turns = (
        *_build_answered(number, first),
        Message(role="assistant", content=NO_CALL_RIGHT),
        *_say(f"Thank you. Now, for job {number}, please {second.text}."),
    )
    return AskedRequest(turns, _offer_all(), _expect_call(second, auto=True))


def _ask_after_result(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    expected = ServedExpectation(wanted="no call", right=NO_CALL_RIGHT, auto=True)
    return AskedRequest(_build_answered(number, wish), _offer_all(), expected)


def _ask_thinking(number: int, rng: random.Random) -> AskedRequest:
    [wish] = draw_wishes(rng, 1)
    turns = _say(f"Puzzle {number}. Think about which tool fits, then {wish.text}.")
    fields = _offer_all(chat_template_kwargs={"enable_thinking": True})
    return AskedRequest(turns, fields, _expect_call(wish, auto=True))


def _ask_schemas(number: int, rng: random.Random) -> AskedRequest:
    shape = list(SHAPES)[number % len(SHAPES)]
    schema, value = SHAPES[shape](rng)
    call = call_of("submit_form", value)
    turns = _say(
        f"Form {number}. Call the tool submit_form with exactly these arguments: {call.arguments}"
    )
    fields = {"tools": [offer("submit_form", "Submit a form.", schema)], "tool_choice": "auto"}
    expected = ServedExpectation(wanted="call", calls=(call,), auto=True, exact=True)
    return AskedRequest(turns, fields, expected, shape)


TOOL_KINDS: Mapping[str, tuple[int, Kind]] = {
    "auto": (56, _ask_auto),
    "no_tool": (40, _ask_no_tool),
    "required": (24, _ask_required),
    "none": (20, _ask_none),
    "named": (24, _ask_named),
    "parallel": (24, _ask_parallel),
    "turns": (24, _ask_turns),
    "after_result": (16, _ask_after_result),
    "thinking": (16, _ask_thinking),
    "schemas": (72, _ask_schemas),
}
"""The number of requests of each kind, and what generates one."""


ANIMALS = ("cat", "dog", "owl")
GRAMMAR = """root ::= animal " " digit digit
animal ::= "cat" | "dog" | "owl"
digit ::= [0-9]
"""
BEGIN, END = "<answer>", "</answer>"


def _build_request(
    text: str, form: Mapping[str, Any], expected: ServedExpectation, shape: str = ""
) -> AskedRequest:
    turns = (Message(role="user", content=text),)
    return AskedRequest(turns, {"response_format": dict(form)}, expected, shape)


def _ask_json_object(number: int, rng: random.Random) -> AskedRequest:
    found = {"name": rng.choice(NAMES), "age": rng.randint(1, 99)}
    text = f"Card {number}. Write {found['name']}, aged {found['age']}, as a JSON object."
    schema = json.dumps({"type": "object"})
    expected = ServedExpectation(wanted="json", right=json.dumps(found), schema=schema)
    return _build_request(text, {"type": "json_object"}, expected)


def _copy_value(
    opening: str, number: int, rng: random.Random
) -> tuple[str, Schema, ServedExpectation, str]:
    shape = list(SHAPES)[number % len(SHAPES)]
    schema, value = SHAPES[shape](rng)
    right = json.dumps(value, ensure_ascii=False)
    expected = ServedExpectation(wanted="json", right=right, exact=True, schema=json.dumps(schema))
    return f"{opening} {number}. Answer with exactly this JSON: {right}", schema, expected, shape


def _ask_json_schema(number: int, rng: random.Random) -> AskedRequest:
    text, schema, expected, shape = _copy_value("Copy", number, rng)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    return _build_request(text, form, expected, shape)


def _ask_json_trtllm(number: int, rng: random.Random) -> AskedRequest:
    text, schema, expected, shape = _copy_value("Sheet", number, rng)
    return _build_request(text, {"type": "json", "schema": schema}, expected, shape)


def _ask_regex(number: int, rng: random.Random) -> AskedRequest:
    what, pattern, right = rng.choice(
        (
            ("a date in the form 2024-05-31", "[0-9]{4}-[0-9]{2}-[0-9]{2}", "2024-05-31"),
            ("a plate such as AB-1234", "[A-Z]{2}-[0-9]{4}", "KX-2048"),
            ("a colour and a number such as red 123", "(?:red|green|blue) [0-9]{3}", "blue 512"),
        )
    )
    expected = ServedExpectation(wanted="text", right=right, pattern=pattern)
    form = {"type": "regex", "regex": pattern}
    return _build_request(f"Slip {number}. Write {what}, and nothing else.", form, expected)


def _ask_ebnf(number: int, rng: random.Random) -> AskedRequest:
    right = f"{rng.choice(ANIMALS)} {rng.randint(10, 99)}"
    pattern = f"(?:{'|'.join(ANIMALS)}) [0-9][0-9]"
    expected = ServedExpectation(wanted="text", right=right, pattern=pattern)
    text = f"Tag {number}. Write an animal (cat, dog or owl) and two digits, and nothing else."
    return _build_request(text, {"type": "ebnf", "ebnf": GRAMMAR}, expected)


def _ask_structural_tag(number: int, rng: random.Random) -> AskedRequest:
    shape = ("enum", "ranges", "nested objects", "unicode keys")[number % 4]
    schema, value = SHAPES[shape](rng)
    right = f"{BEGIN}{json.dumps(value, ensure_ascii=False)}{END}"
    content = {"type": "json_schema", "json_schema": schema}
    form = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": BEGIN, "content": content, "end": END},
    }
    expected = ServedExpectation(
        wanted="text", right=right, pattern=f"{BEGIN}(.*){END}", schema=json.dumps(schema)
    )
    word = rng.choice(WORDS)
    return _build_request(
        f"Box {number} {word}. Answer with exactly this: {right}", form, expected, shape
    )


GUIDED_KINDS: Mapping[str, tuple[int, Kind]] = {
    "json_object": (16, _ask_json_object),
    "json_schema": (36, _ask_json_schema),
    "json_trtllm": (12, _ask_json_trtllm),
    "regex": (12, _ask_regex),
    "ebnf": (8, _ask_ebnf),
    "structural_tag": (8, _ask_structural_tag),
}
"""The number of requests of each kind, and what generates one."""


SET_VERSION = 1
"""Rises when a seed gives other requests."""
KINDS: Mapping[str, tuple[int, Kind]] = {**TOOL_KINDS, **GUIDED_KINDS}
OF_TRTLLM = ("json_trtllm", "regex", "ebnf", "structural_tag")
"""Kinds with fields that OpenAI does not have."""
COMMON = tuple(kind for kind in KINDS if kind not in OF_TRTLLM)
KIND, SHAPE = "kind", "shape"
"""Keys of the metadata of a sample."""


def generate_samples(seed: int, kinds: Collection[str]) -> list[Sample]:
    """Return the requests of these kinds, mixed so that any part has all kinds."""
    placed = [
        ((i + 0.5) / KINDS[kind][0], kind, i)
        for kind in KINDS
        if kind in kinds
        for i in range(KINDS[kind][0])
    ]
    return [_generate_sample(seed, kind, i) for _, kind, i in sorted(placed)]


def _generate_sample(seed: int, kind: str, i: int) -> Sample:
    asked = KINDS[kind][1](i, random.Random(f"{seed}:{kind}:{i}"))
    return Sample(
        id=f"{kind}-{i}",
        prompt=asked.turns,
        target=msgspec.json.encode(asked.expected).decode(),
        metadata={KIND: kind, **({SHAPE: asked.shape} if asked.shape else {})},
        override=Override(extra=asked.fields),
    )


def task(
    *,
    num_samples: Annotated[
        int | None, Setting("Number of samples to ask. Not set: all of the chosen kinds.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        Setting("Kinds of requests. Not set: all that OpenAI's API has."),
    ] = None,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    Raises PlanError for a number below 1 and for unknown kinds.
    """
    chosen = COMMON if kinds is None else tuple(kind for kind in KINDS if kind in kinds)
    if unknown := sorted({*(kinds or ())} - {*KINDS}):
        raise PlanError(
            f"tool_calls: unknown kinds: {', '.join(unknown)}", hint=f"Known: {', '.join(KINDS)}."
        )
    most = sum(KINDS[kind][0] for kind in chosen)
    asked = most if num_samples is None else num_samples
    if not 1 <= asked <= most:
        raise PlanError(f"tool_calls: num_samples must be from 1 to {most}")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        check_schema("{}")  # The first one imports the validator: not while answers arrive.
        samples = generate_samples(random_seed, chosen)
        return Dataset(samples=samples[:wanted], files=(), total=len(samples))

    return Task(
        name="tool_calls",
        version=1,
        reference_file="tool_calls",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=asked),
        sampling=SamplingParams(max_tokens=1024),
        chat=True,
        protocol={
            "set_version": SET_VERSION,
            "kinds": list(chosen),
            "random_seed": random_seed,
        },
        load=load,
        score=score_served,
        answers=_answers,
        breakdown=break_down(KIND, SHAPE),
        secondary=_measure_trigger,
        requires=frozenset({Need.TOOLS}) if {*chosen} & {*TOOL_KINDS} else frozenset(),
        failure_mode=_name_fault,
        judges_empty=True,
        scoring="inline",
    )


def _answers(sample: Sample) -> tuple[str, str]:
    expected = read_expectation(sample)
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments)} for call in expected.calls
    ]
    if expected.wanted == "call":
        return as_text(calls), "I will not call a tool."
    if expected.wanted == "no call":
        needless = as_text([{"name": "set_timer", "arguments": {"minutes": 5}}])
        return expected.right, needless if expected.auto else "<tool_call>"
    return expected.right, "???"


def _name_fault(sample: Sample, response: Response, score: Score) -> str:
    return score.mode or score.outcome.value


def _measure_trigger(scored: Scored) -> Mapping[str, float]:
    """Return precision, recall and F1 of calling where the model may choose, in points."""
    labels = []
    for sample, score in scored:
        expected = read_expectation(sample)
        if expected.auto:
            wanted = expected.wanted == "call"
            missed = bool(score.parts.get(CallFault.MISSED))
            unwanted = bool(score.parts.get(CallFault.UNWANTED))
            labels.append((wanted, not missed if wanted else unwanted))
    found = count_trigger(labels)
    return {
        "trigger precision": 100.0 * found.precision,
        "trigger recall": 100.0 * found.recall,
        "trigger F1": 100.0 * found.f1,
    }
