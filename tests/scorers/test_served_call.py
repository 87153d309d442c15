"""Test each error of a tool call or a guided answer, on the generated requests."""

from __future__ import annotations

import json

import msgspec
import pytest

from serve_eval.schema import DataRoots, Response, Sample, ToolCall, Usage
from serve_eval.scorers._served_call import (
    POINTS_TO,
    CallFault,
    count_most_tokens,
    find_faults,
    read_expectation,
)
from serve_eval.tasks._tool_requests import KINDS, OF_TRTLLM
from serve_eval.tasks.tool_calls import task

SAMPLES = {sample.id: sample for sample in task(kinds=list(KINDS)).load(DataRoots(), 1000).samples}


def _call(sample: Sample, **more: object) -> Response:
    """Return the right calls to a sample as an answer."""
    calls = read_expectation(sample).calls
    right = Response(text="", finish_reason="tool_calls", tool_calls=calls)
    return msgspec.structs.replace(right, **more)


def _change(sample: Sample, arguments: str, name: str | None = None) -> Response:
    [call] = read_expectation(sample).calls
    return _call(sample, tool_calls=(ToolCall(name or call.name, arguments),))


def _say(text: str, **more: object) -> Response:
    return msgspec.structs.replace(Response(text=text, finish_reason="stop"), **more)


AUTO, NONE, NAMED = SAMPLES["auto-0"], SAMPLES["no_tool-0"], SAMPLES["named-0"]
FORM, GUIDED = SAMPLES["schemas-0"], SAMPLES["json_schema-0"]
PARALLEL = SAMPLES["parallel-0"]
RIGHT = read_expectation(AUTO).calls[0].arguments


@pytest.mark.parametrize(
    ("sample", "response", "faults"),
    [
        (AUTO, _call(AUTO), ()),
        (AUTO, _change(AUTO, RIGHT[:-1]), (CallFault.INVALID_JSON,)),
        (AUTO, _change(AUTO, "[]"), (CallFault.INVALID_JSON,)),
        (AUTO, _change(AUTO, ""), (CallFault.EMPTY_ARGUMENTS, CallFault.SCHEMA)),
        (AUTO, _change(AUTO, RIGHT, "set_time"), (CallFault.UNKNOWN_NAME,)),
        (AUTO, _change(AUTO, "{}"), (CallFault.SCHEMA,)),
        (AUTO, _say("I set it."), (CallFault.MISSED,)),
        (AUTO, _call(AUTO, text="</tool_call>"), (CallFault.MARKUP,)),
        (AUTO, _change(AUTO, RIGHT[:-1] + ', "x": "<tool_call>"}'), (CallFault.MARKUP,)),
        (
            AUTO,
            _say('{"name": "set_timer", "arguments": {}}'),
            (CallFault.MARKUP, CallFault.MISSED),
        ),
        (AUTO, _change(AUTO, RIGHT[:-1] + ', "x": "Z\ufffdrich"}'), (CallFault.BROKEN_TEXT,)),
        (AUTO, _call(AUTO, finish_reason="stop"), (CallFault.FINISH,)),
        (AUTO, _say("Done.", finish_reason="tool_calls"), (CallFault.MISSED, CallFault.FINISH)),
        (AUTO, _call(AUTO, finish_reason="length"), (CallFault.CUT,)),
        (AUTO, _call(AUTO, call_faults=("two calls have one id",)), (CallFault.FRAME,)),
        (AUTO, _call(AUTO, usage=Usage(completion_tokens=900)), (CallFault.LOST_TOKENS,)),
        (AUTO, _call(AUTO, reasoning="o" * 900, usage=Usage(completion_tokens=900)), ()),
        (NONE, _say("cold"), ()),
        (NONE, _call(AUTO), (CallFault.UNWANTED,)),
        (NONE, _say(" "), (CallFault.EMPTY,)),
        (NAMED, _call(NAMED, finish_reason="stop"), ()),
        (NAMED, _change(NAMED, "{}", "book_room"), (CallFault.UNKNOWN_NAME,)),
        (
            PARALLEL,
            _call(PARALLEL, tool_calls=read_expectation(PARALLEL).calls[:1]),
            (CallFault.MISSED,),
        ),
        (
            FORM,
            _change(FORM, '{"buyer": {"name": "a", "age": 1}, "items": []}'),
            (CallFault.VALUES,),
        ),
        (GUIDED, _say(read_expectation(GUIDED).right), ()),
        (GUIDED, _say("no JSON"), (CallFault.INVALID_JSON,)),
        (GUIDED, _say("{}"), (CallFault.SCHEMA,)),
        (SAMPLES["regex-0"], _say("AB-12"), (CallFault.SCHEMA,)),
        (SAMPLES["structural_tag-0"], _say("<answer>{}</answer>"), (CallFault.SCHEMA,)),
    ],
)
def test_each_error_is_found_alone(
    sample: Sample, response: Response, faults: tuple[CallFault, ...]
) -> None:
    assert find_faults(sample, response) == faults


def test_a_token_is_a_byte_at_least_so_that_no_sound_answer_is_accused() -> None:
    shown = "東京" * 40
    most = count_most_tokens(shown, 0)
    assert most >= len(shown.encode())
    assert find_faults(NONE, _say(shown, usage=Usage(completion_tokens=most))) == ()
    accused = find_faults(NONE, _say(shown, usage=Usage(completion_tokens=most + 1)))
    assert accused == (CallFault.LOST_TOKENS,)


def test_every_error_points_to_a_part_of_a_server() -> None:
    assert set(POINTS_TO) == set(CallFault)


def test_the_set_is_fixed_by_its_seed_and_any_part_has_all_kinds() -> None:
    whole = task().load(DataRoots(), 1000)
    assert (len(whole.samples), whole.total) == (368, 368)
    assert not {sample.metadata["kind"] for sample in whole.samples} & {*OF_TRTLLM}
    assert {s.metadata["kind"] for s in whole.samples[:60]} == {*KINDS} - {*OF_TRTLLM}
    assert len({json.dumps(str(sample.prompt)) for sample in SAMPLES.values()}) == len(SAMPLES)
    other = task(random_seed=1).load(DataRoots(), 1000).samples
    assert other != whole.samples


def test_hidden_thoughts_are_no_lost_tokens() -> None:
    counted = Usage(completion_tokens=460)
    hidden = Usage(completion_tokens=460, reasoning_tokens=448)
    text = "No tool is needed."
    assert find_faults(NONE, _say(text, usage=counted)) == (CallFault.LOST_TOKENS,)
    assert find_faults(NONE, _say(text, usage=hidden)) == ()
    lost = Usage(completion_tokens=900, reasoning_tokens=448)
    assert find_faults(NONE, _say(text, usage=lost)) == (CallFault.LOST_TOKENS,)


def test_a_client_sees_the_servers_own_finish_reason() -> None:
    assert find_faults(AUTO, _call(AUTO, server_finish="tool_use")) == (CallFault.FINISH,)
