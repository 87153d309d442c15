"""Test how the cause of a cut follows from the report of a server."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from serve_eval.schema import Cut, Outcome, Response, SamplingParams, Usage, find_cut

LIMIT = 100


def _answer(finish: str | None, tokens: int = 0, **more: Any) -> Response:
    thoughts = more.pop("thoughts", UNSET)
    usage = Usage(completion_tokens=tokens, reasoning_tokens=thoughts)
    return Response(text=more.pop("text", "x"), finish_reason=finish, usage=usage, **more)


@pytest.mark.parametrize(
    ("response", "outcome", "cut"),
    [
        (_answer("stop", 20), Outcome.CORRECT, None),
        (_answer("stop", 20), Outcome.UNPARSED, None),
        (_answer("length", 100), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 100), Outcome.CORRECT, Cut.MAX_TOKENS),
        (_answer("length", 99), Outcome.WRONG, Cut.WINDOW),
        (_answer("length", 0), Outcome.WRONG, Cut.MAX_TOKENS),
        # Thoughts within the count, apart from it, and both together below the limit.
        (_answer("length", 100, thoughts=90), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 40, thoughts=60), Outcome.WRONG, Cut.MAX_TOKENS),
        (_answer("length", 40, thoughts=30), Outcome.WRONG, Cut.WINDOW),
        # The server's own word for its window.
        (_answer("length", 100, server_finish="model_length"), Outcome.WRONG, Cut.WINDOW),
        (
            _answer("length", 0, server_finish="Context_Window_Exceeded"),
            Outcome.WRONG,
            Cut.WINDOW,
        ),
        (_answer("length", 100, server_finish="max_output_tokens"), Outcome.WRONG, Cut.MAX_TOKENS),
        # A stop string ends every answer of some prompts: it cut those without a result.
        (_answer("stop", 20, stop_reason="Q:"), Outcome.WRONG, None),
        (_answer("stop", 20, stop_reason="Q:"), Outcome.UNPARSED, Cut.STOP_STRING),
        (_answer("stop", 0, stop_reason="Q:", text=""), Outcome.EMPTY, Cut.STOP_STRING),
        (_answer("stop", 20, text="", reasoning="so"), Outcome.REASONING_ONLY, Cut.STOP_STRING),
        (_answer("repetition", 20), Outcome.UNPARSED, None),
        (_answer("stop", 20, stop_reason="repetition_detected"), Outcome.UNPARSED, None),
    ],
)
def test_the_cause_of_a_cut(response: Response, outcome: Outcome, cut: Cut | None) -> None:
    asked = SamplingParams(max_tokens=LIMIT, stop=("Q:",))
    assert find_cut(response, outcome, asked) is cut


def test_a_token_or_two_are_cut_by_design() -> None:
    asked = SamplingParams(max_tokens=2)
    assert find_cut(_answer("length", 2), Outcome.WRONG, asked) is None


def test_thoughts_that_end_without_stop_strings_were_not_cut_by_one() -> None:
    answer = _answer("stop", 20, text="", reasoning="so")
    assert find_cut(answer, Outcome.REASONING_ONLY, SamplingParams(max_tokens=LIMIT)) is None
