"""Build the turns of an expanded case: fill in ${names}, and add the media that it names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from serve_eval.datasets.media import audio_part, image_part, video_part
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import MediaPart, Message, TextPart

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
