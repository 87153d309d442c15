"""Build the turns of an expanded case or a conversation: fill in ${names}, add media.

The `turns` of a conversation are texts, or mappings with `say`, `expect`, `scorer` and `results`.
The server's own answers stand between them. Calls of tools get the scripted `results`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.errors import DatasetError, PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.registry import nearest
from serve_eval.protocol.conversation import SEPARATOR, TURN, change_prompt, list_turns
from serve_eval.schema import (
    Conversation,
    MediaPart,
    Message,
    Outcome,
    Question,
    Response,
    Sample,
    Score,
    Scorer,
    Spec,
    TextPart,
    UserTurn,
    name_empty,
)

_NAME = re.compile(r"\$(?:\$(?=\{)|\{([^{}]*)\})")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^.\[\]]+)\]")
DEEPEST = 8
"""Largest depth of values within values: more is probably a circle."""
MOST_FILLED = 1 << 23
"""Largest number of characters of one filled-in text: more than any context holds."""


def fill(text: str, names: Mapping[str, Any]) -> str:
    """Return the text with each ${name} replaced by its value, which is filled in as well.

    `$${` is a plain `${`. A name may have a path: `${schemas.gene}`, or `${schemas[kind]}` for the
    entry that the value of `kind` names. A value that is not a text is written as JSON. Raises
    PlanError for an unknown name, for circular values, and for a text longer than MOST_FILLED.
    """
    return _Filling(names).text(text, 0)


class _Filling:
    """Fills in one text, with a limit: a few values that name each other may produce gigabytes."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names, self._room = names, MOST_FILLED

    def text(self, text: str, depth: int) -> str:
        if depth > DEEPEST:
            raise PlanError(f"{text[:60]!r} is filled in endlessly: its names form a circle")
        self._take(text)
        return _NAME.sub(lambda match: self._value(match, depth), text)

    def _value(self, match: re.Match[str], depth: int) -> str:
        if match[1] is None:
            return "$"
        found = _look_up(match[1].strip(), self._names)
        if isinstance(found, str):
            return self.text(found, depth + 1)
        return self._take(json.dumps(found, indent=2, ensure_ascii=False))

    def _take(self, text: str) -> str:
        self._room -= len(text)
        if self._room < 0:
            raise PlanError(f"exceeds {MOST_FILLED} characters after its ${{names}} are filled in")
        return text


def _look_up(path: str, names: Mapping[str, Any]) -> Any:
    name = re.match(r"[^.\[\]]*", path)[0]  # type: ignore[index]  # it matches the empty text
    if name not in names:
        raise PlanError(
            f"${{{path}}}: unknown name {name!r}.{nearest(name, names)} Write $${{ for a plain ${{."
        )
    found, end = names[name], len(name)
    while end < len(path):
        step = _STEP.match(path, end)
        if step is None:
            raise PlanError(
                f"${{{path}}}: expected a name such as ${{schemas.gene}} or ${{schemas[kind]}}"
            )
        key = step[1] if step[1] is not None else names.get(step[2])
        if not isinstance(found, Mapping) or key not in found:
            known = [str(one) for one in found] if isinstance(found, Mapping) else []
            raise PlanError(f"${{{path}}}: unknown key {key!r}.{nearest(str(key), known)}")
        found, end = found[key], step.end()
    return found


def turns(
    values: Mapping[str, Any], resources: Mapping[str, Any], folder: Path | None
) -> tuple[Message, ...]:
    """Return the turns of a case's input: system messages, turns of `messages`, the prompt.

    `folder` contains the media (None: there are none). Raises PlanError for an invalid name, medium
    or turn.
    """
    names = {**resources, **values}
    system = values.get("system_messages") or []
    system = system if isinstance(system, list) else [system]
    said = values.get("turns")
    if said is not None:
        first = said[0]["say"] if isinstance(said[0], Mapping) else said[0]
        values = {**values, "prompt": first}
    told = [
        Message(role="system", content=fill(_text("system_messages", text), names))
        for text in system
    ]
    for turn in values.get("messages") or []:
        told.append(_turn(turn["role"], fill(turn["content"], names), turn, folder))
    if values.get("prompt") is not None:
        told.append(_turn("user", fill(_text("prompt", values["prompt"]), names), values, folder))
    elif key := next((key for key in _MAKERS if values.get(key)), None):
        raise PlanError(f"{key}: need a prompt; a turn of `messages` has its own {key}")
    if not told or told[-1].role != "user":
        raise PlanError("no question: give a prompt, or messages that end with the user's turn")
    return tuple(told)


def _text(key: str, value: Any) -> str:
    """Return a value as text. Raises PlanError if it is neither a text nor a number."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise PlanError(f"{key}: expected a text, got {json.dumps(value)[:60]}")


def _turn(role: str, text: str, given: Mapping[str, Any], folder: Path | None) -> Message:
    """Return a turn with the media that `given` names before its text."""
    named = [(key, name) for key in _MAKERS for name in given.get(key) or ()]
    if not named:
        return Message(role=role, content=text)
    parts = [_medium(key, name, folder) for key, name in named]
    return Message(role=role, content=(*parts, TextPart(text=text)))


def _medium(key: str, name: str, folder: Path | None) -> MediaPart:
    if folder is None:
        raise PlanError(f"{name}: cases in an encrypted file cannot have {key}")
    if "\0" in name:
        raise PlanError(f"{name!r} is not a file name")
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise PlanError(f"{name}: {key} must be in {folder} or below")
    try:
        return _MAKERS[key](folder / name)
    except OSError as error:
        raise PlanError(f"{folder / name}: cannot be read: {error.strerror or error}") from error
    except DatasetError as error:
        raise PlanError(str(error)) from error


def _make_image(path: Path) -> MediaPart:
    return image_part(path.read_bytes(), str(path))


_MAKERS: Mapping[str, Callable[[Path], MediaPart]] = {
    "images": _make_image,
    "audio": audio_part,
    "video": video_part,
}
"""Functions that make a part from a file, by the key of the file, in the order of sending."""


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
