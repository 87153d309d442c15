"""Test the scorers of structured answers: JSON, tool calls and code."""

import json

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import DatasetError
from serve_eval.schema import (
    DataRoots,
    ExecutionResult,
    ExitReason,
    Outcome,
    Response,
    ToolCall,
    Usage,
)
from serve_eval.scorers._served_call import (
    POINTS_TO,
    CallFault,
    count_most_tokens,
    find_faults,
    read_expectation,
)
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.code import (
    STOP,
    behind,
    continuation,
    find_defining_block,
    program,
    score_run,
)
from serve_eval.scorers.json_schema import exact_match
from serve_eval.tasks.tool_calls import KINDS, OF_TRTLLM, task

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "size": {"type": "number"}},
        "required": ["name"],
    }
)
TARGET = '{"name": "a", "size": 1}'


@pytest.mark.parametrize(
    ("text", "outcome", "exact", "valid", "parsed"),
    [
        ('{"size": 1.0,\n "name": "a"}', Outcome.CORRECT, 1, 1, 1),
        ('{"name": "a"}', Outcome.WRONG, 0, 1, 1),
        ('{"name": "a", "size": "1"}', Outcome.WRONG, 0, 0, 1),
        ('{"size": 1}', Outcome.WRONG, 0, 0, 1),
        ("[]", Outcome.WRONG, 0, 0, 1),
        ('{"name": "a", "size": 1', Outcome.UNPARSED, 0, 0, 0),
        ('```json\n{"name": "a", "size": 1}\n```', Outcome.UNPARSED, 0, 0, 0),
        ("[" * 100_000, Outcome.UNPARSED, 0, 0, 0),
        ("", Outcome.UNPARSED, 0, 0, 0),
    ],
)
def test_exact_valid_and_parsed_are_counted_apart(text, outcome, exact, valid, parsed):
    score = exact_match(text, TARGET, SCHEMA)
    assert score.outcome is outcome
    assert score.value == exact
    assert score.parts == {"exact": exact, "schema_valid": valid, "parsed": parsed}


@pytest.mark.parametrize("schema", ["{", '{"type": 3}', '{"type": "nothing"}'])
def test_a_broken_schema_is_an_error_of_the_data(schema):
    with pytest.raises(DatasetError, match="not a JSON schema"):
        check_schema(schema)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"$dynamicRef": "#nope"}, "#nope"),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"$id": "http://made.up/x", "$ref": "nope"}}},
            "nope",
        ),
        (
            {"items": [{"$ref": "#/nope"}], "$schema": "http://json-schema.org/draft-07/schema#"},
            "#/nope",
        ),
    ],
)
def test_a_schema_that_refers_to_nothing_is_found_out_before_it_is_asked(schema, named):
    with pytest.raises(DatasetError, match=f"it refers to {named}, which is not in it"):
        check_schema(json.dumps(schema))


def test_a_reference_within_an_address_of_its_own_is_followed():
    inner = {
        "$id": "http://made.up/x",
        "$ref": "#/$defs/text",
        "$defs": {"text": {"type": "string"}},
    }
    schema = json.dumps({"$id": "http://made.up/", "$ref": "x", "$defs": {"inner": inner}})
    check_schema(schema)
    assert exact_match('"a"', '"a"', schema).value == 1.0
    assert exact_match("1", "1", schema).value == 0.0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, 1.0, 0.5, "", "a"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=5), st.sampled_from([2, 0.5, 0.1, 3]))
def test_unique_items_and_multiples_are_what_jsonschema_says(items, step):
    schema = {"uniqueItems": True, "items": {"multipleOf": step}}
    text = json.dumps(items)
    # jsonschema sorts lists and compares neighbours. In Python's order true equals 1, so it may
    # miss equal items.
    equal = any(_alike(a, b) for i, a in enumerate(items) for b in items[:i])
    multiples = jsonschema.Draft202012Validator({"items": {"multipleOf": step}}).is_valid(items)
    assert bool(exact_match(text, text, json.dumps(schema)).parts["schema_valid"]) is (
        not equal and multiples
    )


def _alike(one, other):
    return jsonschema.Draft202012Validator({"const": one}).is_valid(other)


def test_a_long_list_is_told_apart_in_time_that_grows_with_its_length():
    items = [{"a": i} for i in range(100_000)]
    assert (
        exact_match(json.dumps(items), "[]", '{"uniqueItems": true}').parts["schema_valid"] == 1.0
    )
    assert (
        exact_match(json.dumps([*items, {"a": 7}]), "[]", '{"uniqueItems": true}').parts[
            "schema_valid"
        ]
        == 0.0
    )


SAMPLES = {sample.id: sample for sample in task(kinds=list(KINDS)).load(DataRoots(), 1000).samples}


def _call(sample, **more):
    """Return the right calls to a sample as an answer."""
    calls = read_expectation(sample).calls
    right = Response(text="", finish_reason="tool_calls", tool_calls=calls)
    return msgspec.structs.replace(right, **more)


def _change(sample, arguments, name=None):
    [call] = read_expectation(sample).calls
    return _call(sample, tool_calls=(ToolCall(name or call.name, arguments),))


def _say(text, **more):
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
def test_each_error_is_found_alone(sample, response, faults):
    assert find_faults(sample, response) == faults


def test_a_token_is_a_byte_at_least_so_that_no_sound_answer_is_accused():
    shown = "東京" * 40
    most = count_most_tokens(shown, 0)
    assert most >= len(shown.encode())
    assert find_faults(NONE, _say(shown, usage=Usage(completion_tokens=most))) == ()
    accused = find_faults(NONE, _say(shown, usage=Usage(completion_tokens=most + 1)))
    assert accused == (CallFault.LOST_TOKENS,)


def test_every_error_points_to_a_part_of_a_server():
    assert set(POINTS_TO) == set(CallFault)


def test_the_set_is_fixed_by_its_seed_and_any_part_has_all_kinds():
    whole = task().load(DataRoots(), 1000)
    assert (len(whole.samples), whole.total) == (368, 368)
    assert not {sample.metadata["kind"] for sample in whole.samples} & {*OF_TRTLLM}
    assert {s.metadata["kind"] for s in whole.samples[:60]} == {*KINDS} - {*OF_TRTLLM}
    assert len({json.dumps(str(sample.prompt)) for sample in SAMPLES.values()}) == len(SAMPLES)
    other = task(random_seed=1).load(DataRoots(), 1000).samples
    assert other != whole.samples


def test_hidden_thoughts_are_no_lost_tokens():
    counted = Usage(completion_tokens=460)
    hidden = Usage(completion_tokens=460, reasoning_tokens=448)
    text = "No tool is needed."
    assert find_faults(NONE, _say(text, usage=counted)) == (CallFault.LOST_TOKENS,)
    assert find_faults(NONE, _say(text, usage=hidden)) == ()
    lost = Usage(completion_tokens=900, reasoning_tokens=448)
    assert find_faults(NONE, _say(text, usage=lost)) == (CallFault.LOST_TOKENS,)


def test_a_client_sees_the_servers_own_finish_reason():
    assert find_faults(AUTO, _call(AUTO, server_finish="tool_use")) == (CallFault.FINISH,)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\ndef other():\n    pass\n", "    return 1\n"),
        ("    return 1\n\n\nclass A: pass\n# x\n", "    return 1\n\n"),
        (
            "    x = 1\n    # within\n    return x\n\nprint(f(1))",
            "    x = 1\n    # within\n    return x\n",
        ),
        (
            "    if x:\n        return 1\n\nif __name__ == '__main__':\n",
            "    if x:\n        return 1\n",
        ),
        ("", ""),
    ],
)
def test_a_completion_ends_at_the_first_stop_string(text, kept):
    assert continuation(text, STOP) == kept


BLOCK = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Here:\n```python\n{BLOCK}```\nDone.", BLOCK),
        (f"```\n{BLOCK}```", BLOCK),
        (f"~~~py\n{BLOCK}~~~", BLOCK),
        (f"````python\n{BLOCK}````", BLOCK),
        (f"```python\ndef f(x): return 0\n```\nBetter:\n```python\n{BLOCK}```", BLOCK),
        (f"```python\n{BLOCK}```\nTry it:\n```python\nprint(f(1))\n```", BLOCK),
        (f"```python\n{BLOCK}", BLOCK),
        (f"1. So:\n   ```python\n   def f(x):\n       return x\n   ```\n{'text'}", BLOCK),
        (BLOCK, BLOCK),
        ("```python\nf = lambda x: x\n```", "f = lambda x: x\n"),
        ("```python\nasync def f(x): return x\n```", "async def f(x): return x\n"),
        ("```python\ndef f2(x): return x\n```", None),
        ("```python\n    def f(x): return x\n  x\n```", None),
        ("```python\nclass A:\n    def f(x): return x\n```", None),
        ("```python\n    return x\n```", None),
        (
            f"The function def f(x) is easy.\n\n{BLOCK}",
            f"The function def f(x) is easy.\n\n{BLOCK}",
        ),
        ("I cannot do that.", None),
    ],
)
def test_of_a_chat_answer_the_last_block_that_defines_the_function_is_taken(text, found):
    assert find_defining_block(text, "f") == found


def test_a_block_comes_behind_its_prompt_and_future_imports_before_it():
    block = "from __future__ import annotations\nimport math\ndef f(x: T): return math.pi\n"
    code = behind("def f(x):\n    'doc'\n", block)
    compile(code, "code", "exec")
    assert code.index("from __future__") < code.index("'doc'") < code.index("import math")


def test_the_tests_call_the_function_that_was_asked_for():
    made = program(
        "def f(x): return x", "def check(candidate):\n    assert candidate(1) == 1", "f", 3.0
    )
    names = {}
    exec(made.code, names)
    exec(made.checks, names)
    assert made.wall_s == 3.0
    with pytest.raises(NameError):
        exec(made.checks, {})


def test_only_the_end_of_the_tests_is_worth_a_point():
    assert score_run("code", ExecutionResult(ended=ExitReason.PASSED, exit=0)).value == 1.0
    for ended in set(ExitReason) - {ExitReason.PASSED}:
        score = score_run("code", ExecutionResult(ended=ended, exit=0, stdout="passed"))
        assert (score.value, score.outcome, score.answer) == (0.0, Outcome.WRONG, "code")
        assert score.parts == {ended.value: 1.0}
    assert score_run(None, None).outcome is Outcome.UNPARSED
