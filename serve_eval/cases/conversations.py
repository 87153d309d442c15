"""Read the turns of a case that is a conversation, and what its answers are scored by.

`turns` are texts, or mappings with `say`, `expect`, `scorer` and `results`. The server's own
answers stand between them. Calls of tools get the scripted `results`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.protocol.conversation import SEPARATOR, TURN, change_prompt, list_turns
from serve_eval.schema import (
    Conversation,
    Message,
    Outcome,
    Question,
    Response,
    Sample,
    Score,
    Scorer,
    Spec,
    UserTurn,
    name_empty,
)

EACH, LAST = "each", "last"
_LOST = (Outcome.WRONG, Outcome.UNPARSED)


@freeze
class ExpectedTurn:
    """A turn, counted from 0, with the expectation and the scorer of its answer."""

    turn: int
    expected: object
    scorer: Spec


def read_turns(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the turns of the user as mappings; that of `prompt` if there are no others.

    Empty: the case is no conversation. Raises PlanError for a prompt and `turns` together.
    """
    said = values.get("turns")
    if said is None:
        return [{}] if values.get("results") else []
    if values.get("prompt") is not None:
        raise PlanError("turns: leave the prompt out, which is the first of the turns")
    return [dict(one) if isinstance(one, Mapping) else {"say": one} for one in said]


def make_conversation(
    values: Mapping[str, Any], said: Sequence[Mapping[str, Any]], fill: Callable[[str], str]
) -> Conversation:
    """Return the later turns of a case with the results of its tools. Raises PlanError."""
    results = _write_results(values.get("results"), fill)
    first, *later = said
    rounds = {} if "tool_rounds" not in values else {"rounds": values["tool_rounds"]}
    return Conversation(
        turns=tuple(
            UserTurn(
                message=Message(role="user", content=fill(str(one["say"]))),
                results=_write_results(one.get("results"), fill),
            )
            for one in later
        ),
        results={**results, **_write_results(first.get("results"), fill)},
        **rounds,
    )


def _write_results(given: Any, fill: Callable[[str], str]) -> dict[str, str]:
    """Return results as texts; one that is no text is written as JSON."""
    return {
        name: fill(one) if isinstance(one, str) else json.dumps(one, ensure_ascii=False)
        for name, one in (given or {}).items()
    }


def choose_expected(
    said: Sequence[Mapping[str, Any]],
    expected: object,
    score: str | None,
    choose: Callable[[object, Any], Spec],
) -> tuple[object, tuple[ExpectedTurn, ...]]:
    """Return what a case expects, and the turns that are scored (none: the answer of the last).

    `choose` returns the scorer for an expectation, of which a turn may name its own. Raises
    PlanError for contradictory expectations.
    """
    given = [one.get("expect") for one in said]
    if given[-1] is not None and expected is not None:
        raise PlanError("expected: the last turn has `expect` already; leave one of them out")
    last = expected if given[-1] is None else given[-1]
    score = score or (EACH if any(one is not None for one in given) else LAST)
    if score == LAST:
        return last, ()
    turns = tuple(
        ExpectedTurn(turn=i, expected=one, scorer=choose(one, said[i].get("scorer")))
        for i, one in enumerate([*given[:-1], last])
        if one is not None
    )
    if not turns:
        raise PlanError("score: each needs turns with `expect`")
    return [one.expected for one in turns], turns


def score_each(
    turns: Sequence[ExpectedTurn],
    response: Response,
    find: Callable[[Spec], Scorer],
    name_mode: Callable[[object, Response, Score], str],
) -> Score:
    """Return the score of a conversation: the mean of those of its turns, which are its parts.

    The turns of a conversation share a history, so they are right or wrong together. As one
    sample, a conversation counts once in every test and interval.
    """
    answers = list_turns(response.exchanges or ())
    scores, modes = [], []
    for one in turns:
        answer = _add_judgements(answers.get(one.turn, response), response, one.turn)
        score = _tell_empty(find(one.scorer).score(one.expected, answer), answer)
        scores.append(score)
        if score.outcome is not Outcome.CORRECT:
            modes.append(f"turn {one.turn + 1}: {name_mode(one.expected, answer, score)}")
    value = sum(score.value for score in scores) / len(scores)
    outcomes = [score.outcome for score in scores]
    bad = next((one for one in outcomes if one is not Outcome.CORRECT), Outcome.CORRECT)
    return Score(
        value=value,
        outcome=Outcome.PARTIAL if 0.0 < value < 1.0 else bad,
        answer=SEPARATOR.join(one.answer or "-" for one in scores),
        parts={name_turn(one.turn): score.value for one, score in zip(turns, scores, strict=True)},
        mode=modes[0] if modes else None,
    )


_JUDGED = "turn{}:{}"
"""The metric of a judge at a turn, which counts from 1."""


def ask_each(
    turns: Sequence[ExpectedTurn],
    sample: Sample,
    response: Response,
    find: Callable[[Spec], Scorer],
) -> Iterator[Question]:
    """Yield the questions to judges about the turns of a conversation that they score."""
    done = response.exchanges or ()
    answers = list_turns(done)
    for one in turns:
        scorer, answer = find(one.scorer), answers.get(one.turn, response)
        if scorer.questions is None or not (answer.text.strip() or answer.tool_calls):
            continue
        before = [exchange for exchange in done if exchange.turn <= one.turn]
        asked = change_prompt(sample, before[:-1])
        for question in scorer.questions(asked, one.expected, answer):
            metric = _JUDGED.format(one.turn + 1, question.metric)
            yield msgspec.structs.replace(question, metric=metric)


def _add_judgements(answer: Response, whole: Response, turn: int) -> Response:
    """Return the answer to a turn with its judgements."""
    if not whole.judgements:
        return answer
    start = _JUDGED.format(turn + 1, "")
    said = tuple(
        msgspec.structs.replace(one, metric=one.metric.removeprefix(start))
        for one in whole.judgements
        if one.metric.startswith(start)
    )
    return msgspec.structs.replace(answer, judgements=said)


def name_turn(turn: int) -> str:
    """Return the name of a turn in tables, which count from 1."""
    return TURN.format(turn + 1)


def _tell_empty(score: Score, answer: Response) -> Score:
    """Return the score with the reason why there is nothing to read, if an answer has no text."""
    if answer.text.strip() or answer.tool_calls or score.outcome not in _LOST:
        return score
    return Score(value=score.value, outcome=name_empty(answer))
