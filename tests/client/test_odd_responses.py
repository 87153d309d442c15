"""Test odd and hostile streams of /v1/responses: each is an answer, a cut one, or none at all.

The orders of events are those of OpenAI, vLLM, trtllm-serve, and of gateways whose bugs are public.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.schema import ToolCall
from tests.client.test_responses import CALL, MESSAGE, REASONING, decoded, whole
from tests.client.test_responses_stream import CREATED, OPENAI, delta, ended, read

OTHER_CALL = {**CALL, "id": "fc_2", "call_id": "call_2", "name": "get_time", "arguments": "{}"}
PARIS = ToolCall(name="get_weather", arguments='{"city": "Paris"}')
TIME = ToolCall(name="get_time", arguments="{}")
REFUSAL = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
COMMENT = {**MESSAGE, "phase": "commentary", "content": [{"type": "output_text", "text": "Hm."}]}
SEARCH = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
CUT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}
ERROR = {"type": "error", "code": "server_error", "message": "engine died", "param": None}


def event(kind, **fields):
    return {"type": f"response.{kind}", **fields}


def added(item, place):
    return event("output_item.added", output_index=place, item={**item, "status": "in_progress"})


def done(item, place):
    return event("output_item.done", output_index=place, item=item)


def arguments(text, place, **fields):
    return delta(text, "function_call_arguments", **{"output_index": place, **fields})


BEGUN, OTHER_BEGUN = {**CALL, "arguments": ""}, {**OTHER_CALL, "arguments": ""}
INTERLEAVED = [
    CREATED,
    added(BEGUN, 0),
    added(OTHER_BEGUN, 1),
    arguments('{"city": ', 0),
    arguments("{", 1),
    arguments('"Paris"}', 0),
    arguments("}", 1),
]


def message(text):
    return {**MESSAGE, "content": [{"type": "output_text", "text": text}]}


ANSWERS = {
    "no event but the last": [ended(MESSAGE)],
    "no done events": [CREATED, added(MESSAGE, 0), delta("Paris."), ended(MESSAGE)],
    "pieces of no item": [delta("Par"), delta("is."), ended()],
    "pieces without numbers": [
        {**delta("Par"), "output_index": None},
        {**delta("is."), "output_index": None},
        ended(output=None),
    ],
    "a whole text without pieces": [event("output_text.done", text="Paris."), ended()],
    "a whole text of another number": [
        delta("Paris."),
        event("output_text.done", text="Paris.", output_index=0, content_index=1),
        ended(),
    ],
    "an item without pieces": [done(MESSAGE, 0), ended()],
    "pieces beside thoughts": [done(REASONING, 0), delta("Paris.", output_index=1), ended()],
    "messages interleaved": [
        delta("Pa", output_index=0),
        delta("i", output_index=1),
        delta("r", output_index=0),
        delta("s.", output_index=1),
        ended(message("Par"), message("is.")),
    ],
    "items that end in another order": [done(message("is."), 1), done(message("Par"), 0), ended()],
    "a commentary": [delta("Hm."), delta("Paris.", output_index=1), ended(COMMENT, MESSAGE)],
    "no usage": [delta("Paris."), ended(MESSAGE, usage=None)],
    "no status": [delta("Paris."), ended(MESSAGE, status=None)],
    "an unknown event and a search": [
        event("web_search_call.searching"),
        {"type": "keepalive"},
        ended(SEARCH, MESSAGE),
    ],
    "a text as an item": [ended({"type": "output_text", "text": "Paris."})],
    "an error after the end": [ended(MESSAGE), ERROR],
}


@pytest.mark.parametrize("events", ANSWERS.values(), ids=ANSWERS)
def test_a_whole_answer_is_read_from_any_order(events):
    for named in (True, False):
        said = read(events, named=named)[1]
        assert (said.text, said.finish_reason, said.tool_calls) == ("Paris.", "stop", ())


CUTS = {
    "by the event": ended(MESSAGE, kind="incomplete", **CUT),
    "under the name completed": ended(MESSAGE, **CUT),  # vLLM
    "without a reason": ended(MESSAGE, status="incomplete"),  # trtllm-serve
    "with the status completed": ended(MESSAGE, kind="incomplete"),
    "without a status": ended(MESSAGE, kind="incomplete", status=None),
    "by the status of the item": ended({**MESSAGE, "status": "incomplete"}),
}


@pytest.mark.parametrize("last", CUTS.values(), ids=CUTS)
def test_a_cut_answer_is_cut(last):
    said = read([delta("Paris."), last])[1]
    assert (said.text, said.finish_reason) == ("Paris.", "length")


def test_an_answer_cut_within_its_thoughts_has_no_text():
    said = read([delta("France", "reasoning_text"), ended(REASONING, **CUT)])[1]
    assert (said.text, said.reasoning, said.finish_reason) == ("", "France, so Paris.", "length")


CALLS = {
    "interleaved, whole at the end": [*INTERLEAVED, ended(CALL, OTHER_CALL)],
    "interleaved, in pieces alone": [*INTERLEAVED, ended()],
    "one of two items ended": [*INTERLEAVED, done(CALL, 0), ended()],
    "pieces of no item, whole at the end": [arguments("{}", 1), ended(CALL, OTHER_CALL)],
    "known at the end alone": [ended(CALL, OTHER_CALL)],  # trtllm-serve
    "by the ids of items": [
        {**one, "output_index": None, "item_id": name}
        for one, name in zip(INTERLEAVED[3:], ["fc_1", "fc_2"] * 2, strict=True)
    ]
    + [ended(CALL, OTHER_CALL)],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS)
def test_parallel_calls_are_kept_apart(events):
    said = read(events)[1]
    assert said.tool_calls == (PARIS, TIME)
    assert (said.finish_reason, said.text) == ("tool_calls", "")


def test_a_call_that_was_cut_is_cut():
    half = {**CALL, "arguments": '{"city'}
    said = read([added(BEGUN, 0), arguments('{"city', 0), ended(half, **CUT)])[1]
    assert (said.finish_reason, said.tool_calls[0].arguments) == ("length", '{"city')


REFUSALS = {
    "in pieces": [delta("N", "refusal"), delta("o.", "refusal"), ended()],
    "as a whole": [event("refusal.done", refusal="No."), ended()],
    "at the end": [ended(REFUSAL)],
    "in an item": [done(REFUSAL, 0), ended()],
}


@pytest.mark.parametrize("events", REFUSALS.values(), ids=REFUSALS)
def test_a_refusal_is_no_text(events):
    said = read(events)[1]
    assert (said.text, said.refusal, said.finish_reason) == ("", "No.", "stop")


FAILURES = {
    "cut in the middle": ([CREATED, delta("Paris.")], "without an event that ends"),
    "all but the last event": ([delta("Paris."), done(MESSAGE, 0)], "without an event that ends"),
    "an error after the text": ([delta("Paris."), ERROR], "engine died"),
    "an error in an object": (
        [delta("Paris."), {"type": "error", "error": {"message": "engine died"}}],
        "engine died",
    ),
    "an error of no type": ([delta("4"), {"error": {"message": "engine died"}}], "engine died"),
    "failed, with its error beside": (
        [delta("4"), event("failed", error={"message": "engine died"})],
        "engine died",
    ),
    "failed, with an answer": ([ended(MESSAGE, kind="failed", status="failed")], "error"),
    "a filter": ([delta("Par"), ended(MESSAGE, kind="incomplete", **FILTERED)], "content_filter"),
    "still in progress": ([ended(MESSAGE, status="in_progress")], "not finished"),
    "a lost piece": ([delta("Par"), delta("."), ended(MESSAGE)], "two texts"),
    "a lost piece, by items": ([delta("Par"), done(MESSAGE, 0), ended()], "two texts"),
    "a stream that began again": ([delta("Par"), CREATED, delta("Paris."), ended(MESSAGE)], "two"),
    "a text that the last event lacks": ([delta("Paris."), ended(REASONING)], "two texts"),
    "half a call": ([arguments("{}", 0), ended()], "a call without a name"),
    "a search alone": ([ended(SEARCH)], "web_search_call"),
    "an event without an answer": ([delta("4"), event("completed", response=[])], "not hold it"),
}


@pytest.mark.parametrize(("events", "why"), FAILURES.values(), ids=FAILURES)
def test_half_an_answer_is_none(events, why):
    with pytest.raises(InvalidResponse) as found:
        read(events)
    assert why in found.value.describe(str)


def test_items_of_a_whole_body_count_alike():
    assert decoded(whole({**MESSAGE, "status": "incomplete"})).finish_reason == "length"
    assert decoded(whole(SEARCH, MESSAGE)).text == "Paris."
    with pytest.raises(InvalidResponse, match="web_search_call"):
        decoded(whole(SEARCH, REASONING))


def test_numbers_and_pieces_of_any_kind_make_no_other_answer():
    odd = [7, None, [], {"text": "4"}, True]
    events = [{**delta(one), "output_index": number} for one in odd for number in odd]
    assert read([*events, ended(MESSAGE)])[1].text == "Paris."


@given(st.lists(st.sampled_from(range(len(OPENAI) - 1))), st.booleans())
def test_lost_and_repeated_events_never_make_another_answer(kept, ends):
    """Only the last event makes an answer, whichever of the others came, and how often."""
    events = [*(OPENAI[place] for place in kept), *([OPENAI[-1]] if ends else [])]
    try:
        said = read(events)[1]
    except InvalidResponse:
        return
    assert ends
    assert (said.text, said.reasoning, said.finish_reason) == (
        "Paris.",
        "France, so Paris.",
        "stop",
    )
