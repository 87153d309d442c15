"""Test the contract of every named scorer.

A new file in serve_eval/scorers is covered once docs/scorers.md has a row for it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from serve_eval.launchers._http.answers import Generated
from serve_eval.launchers._http.requests import understand
from serve_eval.launchers._simulated import guided
from serve_eval.plugins import registry
from serve_eval.protocol.fingerprint import canonical
from serve_eval.schema import (
    ExecutionResult,
    ExitReason,
    Judgement,
    Need,
    Outcome,
    Response,
    Sample,
    Score,
    Scorer,
    ToolCall,
)
from tests.scorers.offered import REFUSED, TAKEN, Tried, list_accepted

NAMES = registry.names(registry.SCORERS)
ACCEPTED = {name: found for name in NAMES if (found := list_accepted(name))}
"""The forms that each scorer accepts; `test_every_scorer_is_tried` names the missing scorers."""
NONSENSE: list[Any] = [
    None,
    {},
    [],
    "",
    {"anser": "Paris"},
    {"answer": None},
    {"answer": []},
    [None],
]
CASES = [
    pytest.param(name, one, id=f"{name}-{i}")
    for name, found in ACCEPTED.items()
    for i, one in enumerate(found)
]


def made(name: str, options: dict[str, Any]) -> Scorer:
    make = registry.load(registry.SCORERS, name)
    scorer: Scorer = make(**registry.check_options(make, options, name))
    return scorer


def scored(
    scorer: Scorer, expected: Any, text: str, ended: ExitReason = ExitReason.RAISED
) -> Score:
    """Return the score of an answer, with a result if something in it is to be run."""
    response = Response(text=text, finish_reason="stop")
    if Need.TOOLS in scorer.requires:
        response = called(response)
    if scorer.program is not None and scorer.program(expected, response) is not None:
        response = msgspec.structs.replace(response, ran=ExecutionResult(ended=ended, exit=None))
    if scorer.questions is not None and response.text.strip():
        response = judged(scorer, expected, response)
    return scorer.score(expected, response)


def judged(scorer: Scorer, expected: Any, response: Response) -> Response:
    """Add the verdicts of judges that agree with the scorer's own right answer."""
    assert scorer.questions is not None
    said = f"Verdict: {'yes' if response.text == scorer.answers(expected)[0] else 'no'}"
    asked = scorer.questions(Sample(id="1", prompt="?", target=""), expected, response)
    judgements = (
        Judgement(judge=q.judge.name, metric=q.metric, round=q.round, value=q.read(said))
        for q in asked
    )
    return msgspec.structs.replace(response, judgements=tuple(judgements))


def called(response: Response) -> Response:
    """Return the simulated endpoint's response for a text that stands for calls."""
    [tool] = [{"type": "function", "function": {"name": "any"}}]
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "?"}],
        "tools": [tool],
        "max_tokens": 1000,
    }
    ask = understand(msgspec.json.encode(body), chat=True, models=None)
    told = guided.split_calls(Generated(response.text, "stop"), ask)
    calls = tuple(ToolCall(call.name, call.arguments) for call in told.calls)
    return Response(text=told.text or "", finish_reason=told.finish_reason, tool_calls=calls)


def test_every_scorer_is_tried() -> None:
    missing = sorted(set(NAMES) - ACCEPTED.keys())
    assert missing == [], "add a row for each to the table of docs/scorers.md"
    gone = sorted((TAKEN.keys() | REFUSED.keys()) - set(NAMES))
    assert gone == [], "tests/scorers/offered.py names scorers that do not exist"


@pytest.mark.parametrize(("name", "tried"), CASES)
def test_the_right_answer_has_full_marks_and_the_wrong_one_nothing(name: str, tried: Tried) -> None:
    scorer = made(name, tried.options)
    assert list(scorer.problems(tried.expected)) == []
    right, wrong = scorer.answers(tried.expected)
    gold, other = (
        scored(scorer, tried.expected, right, ExitReason.PASSED),
        scored(scorer, tried.expected, wrong),
    )
    assert (gold.value, gold.outcome) == (1.0, Outcome.CORRECT)
    assert (other.value, other.outcome in (Outcome.WRONG, Outcome.UNPARSED)) == (0.0, True)
    assert right.strip()
    assert wrong.strip()


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("expected", NONSENSE, ids=repr)
def test_nonsense_is_refused_with_what_to_write(name: str, expected: Any) -> None:
    told = made(name, ACCEPTED[name][0].options).problems(expected)
    assert told
    assert all(line.startswith("expected") and len(line) > 20 for line in told)


@pytest.mark.parametrize(
    ("name", "tried"),
    [pytest.param(n, t, id=f"{n}-{i}") for n in NAMES for i, t in enumerate(REFUSED.get(n, []))],
)
def test_what_is_nearly_right_is_refused_too(name: str, tried: Tried) -> None:
    assert made(name, tried.options).problems(tried.expected)


@pytest.mark.parametrize(("name", "tried"), CASES)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_text_has_a_score_between_0_and_1(name: str, tried: Tried, data: st.DataObject) -> None:
    scorer = made(name, tried.options)
    right, wrong = scorer.answers(tried.expected)
    pieces = st.one_of(
        st.text(),
        st.sampled_from([right, wrong, right[: len(right) // 2], "answer is ", "{", "\n", "1e999"]),
    )
    text = "".join(data.draw(st.lists(pieces, max_size=5)))
    score = scored(scorer, tried.expected, text)
    assert 0.0 <= score.value <= 1.0
    assert (score.outcome is Outcome.CORRECT) == (score.value == 1.0)
    assert (score.outcome is Outcome.PARTIAL) == (0.0 < score.value < 1.0)
    assert (score.answer is None) == (score.outcome is Outcome.UNPARSED)
    assert all(0.0 <= part <= 1.0 for part in score.parts.values())
    assert scored(scorer, tried.expected, text) == score


@pytest.mark.parametrize("name", ACCEPTED)
@settings(max_examples=30, deadline=None)
@given(
    expected=st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["answer", "words_in_response", "schema", "name"]),
                inner,
                max_size=3,
            )
        ),
        max_leaves=6,
    )
)
def test_what_is_not_refused_can_be_scored(name: str, expected: Any) -> None:
    scorer = made(name, ACCEPTED[name][0].options)
    if scorer.problems(expected):
        return
    assert 0.0 <= scored(scorer, expected, "The answer is 42, so yes.").value <= 1.0


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_scorer_says_what_it_is(name: str) -> None:
    assert 20 < len(registry.summary(registry.SCORERS, name)) <= 140
    options = registry.options_of(registry.function(registry.SCORERS, name))
    assert canonical({option: parameter.default for option, parameter in options.items()})
    assert made(name, ACCEPTED[name][0].options).version >= 1
