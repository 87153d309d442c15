"""Test that a refused value is told from an unknown field, in the words of several servers."""

from __future__ import annotations

import pytest

from serve_eval.client.wire_format.refusal import find_refused, shorten

VLLM_FORM = (
    "HTTP 400: 6 validation errors:\n  {'type': 'literal_error', 'loc':"
    " 'body.response_format.type', 'msg': \"Input should be 'text', 'json_object' or"
    " 'json_schema'\", 'input': 'json', 'ctx': {'expected': \"'text'\"}}\n "
    " {'type': 'literal_error', 'loc': 'body.response_format.type',"
    " 'msg': \"Input should be 'structural_tag'\", 'input': 'json'}\n  {'type': 'missing', 'loc':"
    " 'body.response_format.format', 'msg': 'Field required', 'input': '<dict of 2 items>'}"
)
"""vLLM 0.32, for the form of trtllm-serve, shortened."""
UNION = (
    "HTTP 400: [{'type': 'missing', 'loc': ('body', 'CompletionRequest', 'prompt'), 'msg': 'Field"
    " required', 'input': {'temperature': 0.0, 'foo': 1}}, {'type': 'extra_forbidden', 'loc':"
    " ('body', 'CompletionRequest', 'messages'), 'msg': 'Extra inputs are not permitted', 'input':"
    " []}, {'type': 'extra_forbidden', 'loc': ('body', 'ChatCompletionRequest', 'foo'), 'msg':"
    " 'Extra inputs are not permitted', 'input': 1}]"
)
"""An orchestrator of trtllm-serve 1.2, which tries both kinds of requests and repeats the body."""
OLD = (
    "1 validation error for CompletionRequest\nguided_json\n  Extra inputs are not permitted"
    " [type=extra_forbidden, input_value={}, input_type=dict]"
)
CUT = (
    "vLLM: truncate_prompt_tokens=1024 cannot be greater than max_model_len = 512. Please request a"
    " smaller truncation size. (parameter=truncate_prompt_tokens, value=1024)"
)
SEED = (
    "[{'type': 'int_parsing', 'loc': ('body', 'seed'), 'msg': 'Input should be a valid integer'}]"
)
FIELD, VALUE = False, True


@pytest.mark.parametrize(
    ("message", "names", "found"),
    [
        (VLLM_FORM, ["type", "response_format"], ("response_format", VALUE)),
        (UNION, ["temperature", "foo"], ("foo", FIELD)),
        (UNION, ["temperature", "prompt"], None),
        (OLD, ["guided_json"], ("guided_json", FIELD)),
        ("[{'type': 'extra_forbidden', 'loc': ('body', 'x')}]", ["x"], ("x", FIELD)),
        (SEED, ["seed"], ("seed", VALUE)),
        (CUT, ["truncate_prompt_tokens"], ("truncate_prompt_tokens", VALUE)),
        ("top_k must be 0 (disable), or at least 1, got -5.", ["top_k"], ("top_k", VALUE)),
        ("stop cannot contain an empty string.", ["'stop'"], ("stop", VALUE)),
        ("HTTP 400: stop cannot contain an empty string.", ["'stop'"], ("stop", VALUE)),
        ("Unsupported parameter: 'stop' is not supported", ["'stop'"], ("stop", FIELD)),
        ("the engine had to stop", ["'stop'"], None),
        (
            "Unknown field: temperature. It must be removed.",
            ["temperature"],
            ("temperature", FIELD),
        ),
        ("temperature is not supported", ["temperature"], ("temperature", FIELD)),
        (
            "Unsupported value: 'temperature' does not support 0 with this model.",
            ["temperature"],
            ("temperature", VALUE),
        ),
        ("`max_tokens` (0) must be greater than 0", ["max_tokens"], ("max_tokens", VALUE)),
        ("pre_temperature_x must be 1", ["temperature"], None),
    ],
)
def test_what_is_refused_is_a_field_or_its_value(
    message: str, names: list[str], found: tuple[str, bool] | None
) -> None:
    assert find_refused(message, names) == found


def test_the_errors_of_a_validation_are_shown_once_each_by_their_place() -> None:
    assert shorten(VLLM_FORM) == (
        "HTTP 400: response_format.type: Input should be 'text', 'json_object' or 'json_schema';"
        " response_format.type: Input should be 'structural_tag'"
    )
    assert shorten(f"{SEED[:-1]}, {{'type': 'int_type', 'loc': ('body', 'n'), 'msg': 'Inp") == (
        "seed: Input should be a valid integer"
    )
    assert shorten("[{'type': 'missing', 'loc': ('body', 'n'), 'msg': 'Field required'}]") == (
        "n: Field required"
    )
    assert shorten(OLD) == "guided_json: Extra inputs are not permitted"
    assert shorten(CUT) == CUT
