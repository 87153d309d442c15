"""Score an answer of a model to a question of BFCL, and write right and wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from serve_eval.schema import Outcome, Response, Sample, Score
from serve_eval.scorers.tool_call import as_text
from serve_eval.tasks._bfcl.categories import CORRECT, WEIGHT, weight_of
from serve_eval.tasks._bfcl.checking import CallError, MadeCall, check_calls
from serve_eval.tasks._bfcl.expected import Expectation, fill, read_expectation
from serve_eval.tasks._bfcl.reading import UnreadableError, read_served, read_text

Mode = Literal["fc", "prompt"]


def score_calls(sample: Sample, response: Response, mode: Mode) -> Score:
    """Score 1 if the calls are those that the sample expects, else 0 with what is wrong."""
    wanted = read_expectation(sample)
    answer = _show(response)
    try:
        made = read_served(response) if mode == "fc" else read_text(response.text)
        error = _judge(wanted, made)
    except UnreadableError:
        error = None if wanted.wanted == "no call" else CallError.UNREADABLE
    weight, value = weight_of(sample), float(error is None)
    return Score(
        value=value,
        outcome=_OUTCOMES.get(error, Outcome.WRONG),
        answer=answer,
        parts={CORRECT: weight * value, WEIGHT: weight},
        mode=None if error is None else error.value,
    )


_OUTCOMES: Mapping[CallError | None, Outcome] = {
    None: Outcome.CORRECT,
    CallError.UNREADABLE: Outcome.UNPARSED,
}


def _judge(wanted: Expectation, made: Sequence[MadeCall]) -> CallError | None:
    if wanted.wanted == "calls":
        return check_calls(wanted.calls, made)
    if wanted.wanted == "any call":
        return None if made else CallError.NONE
    return CallError.NEEDLESS if made else None


def _show(response: Response) -> str:
    calls = [{"name": call.name, "arguments": call.arguments} for call in response.tool_calls]
    return json.dumps(calls, ensure_ascii=False) if calls else response.text


def answer_rightly(sample: Sample, mode: Mode) -> tuple[str, str]:
    """Return a right answer and a wrong one, as texts that the simulated endpoint returns."""
    wanted = read_expectation(sample)
    calls = [(call.name, fill(call)) for call in wanted.calls] or [("any_function", {})]
    if mode == "fc":
        called = as_text([{"name": name, "arguments": filled} for name, filled in calls])
    else:
        called = f"[{', '.join(_write(name, filled) for name, filled in calls)}]"
    declined = "None of the functions can be used."
    return (declined, called) if wanted.wanted == "no call" else (called, declined)


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def name_failure(sample: Sample, response: Response, score: Score) -> str:
    """Return what is wrong with the calls of an answer."""
    return score.mode or score.outcome.value
