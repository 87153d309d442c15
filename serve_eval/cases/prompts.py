"""The turns that are sent for an expanded case: texts with their ${names} filled in, images as data
URLs.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import ImagePart, ImageUrl, Message, TextPart

_NAME = re.compile(r"\$(?:\$(?=\{)|\{([^{}]*)\})")
_STEP = re.compile(r"\.([^.\[\]]+)|\[([^.\[\]]+)\]")
_KINDS = ((b"\x89PNG", "png"), (b"\xff\xd8\xff", "jpeg"), (b"GIF8", "gif"), (b"BM", "bmp"))
DEEPEST = 8
"""Values within values that are filled in: more are probably a circle."""
MOST_FILLED = 1 << 23
"""Characters that one text may be filled in with: more than any context holds."""


def fill(text: str, names: Mapping[str, Any]) -> str:
    """The text with each ${name} replaced by that value, which is filled in itself; `$${` stands
    for `${`.

    A name may have a path: `${schemas.gene}`, or `${schemas[kind]}` for the entry that the value of
    `kind` names. What is no text is written as JSON. Raises PlanError for an unknown name, for
    values that go round in a circle, and for a text that gets longer than MOST_FILLED.
    """
    return _Filling(names).text(text, 0)


class _Filling:
    """Fills in one text: a few values that name each other several times may stand for
    gigabytes.
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names, self._room = names, MOST_FILLED

    def text(self, text: str, depth: int) -> str:
        if depth > DEEPEST:
            raise PlanError(f"{text[:60]!r} is filled in again and again: a circle of names")
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
            raise PlanError(
                f"becomes longer than {MOST_FILLED} characters once its ${{names}} are filled in"
            )
        return text


def _look_up(path: str, names: Mapping[str, Any]) -> Any:
    name = re.match(r"[^.\[\]]*", path)[0]  # type: ignore[index]  # it matches the empty text
    if name not in names:
        raise PlanError(
            f"${{{path}}}: nothing is called {name!r}.{nearest(name, names)} Write $${{ for a plain"
            " ${."
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
            raise PlanError(f"${{{path}}}: there is no {key!r}.{nearest(str(key), known)}")
        found, end = found[key], step.end()
    return found


def turns(
    values: Mapping[str, Any], resources: Mapping[str, Any], folder: Path | None
) -> tuple[Message, ...]:
    """The turns of a case out of its input: the system messages, the turns of `messages`, the
    prompt.

    `folder` is where images lie (None: nowhere). Raises PlanError for a name, an image or a turn
    that is wrong.
    """
    names = {**resources, **values}
    system = values.get("system_messages") or []
    system = system if isinstance(system, list) else [system]
    told = [
        Message(role="system", content=fill(_text("system_messages", text), names))
        for text in system
    ]
    for turn in values.get("messages") or []:
        told.append(
            _turn(turn["role"], fill(turn["content"], names), turn.get("images") or [], folder)
        )
    if values.get("prompt") is not None:
        told.append(
            _turn(
                "user",
                fill(_text("prompt", values["prompt"]), names),
                values.get("images") or [],
                folder,
            )
        )
    elif values.get("images"):
        raise PlanError("images: go with the prompt; a turn of `messages` has images of its own")
    if not told or told[-1].role != "user":
        raise PlanError(
            "there is nothing to answer: give a prompt, or messages that end with the user's turn"
        )
    return tuple(told)


def _text(key: str, value: Any) -> str:
    """A text as the variants of an axis may have it. Raises PlanError for what is none."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise PlanError(f"{key}: expected a text, got {json.dumps(value)[:60]}")


def _turn(role: str, text: str, images: Sequence[str], folder: Path | None) -> Message:
    if not images:
        return Message(role=role, content=text)
    return Message(
        role=role, content=(*(_image(name, folder) for name in images), TextPart(text=text))
    )


def _image(name: str, folder: Path | None) -> ImagePart:
    if folder is None:
        raise PlanError(f"{name}: an encrypted file has no images beside it")
    if "\0" in name:
        raise PlanError(f"{name!r} is no file name")
    if not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise PlanError(f"{name}: images lie beside the file or below, in {folder}")
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise PlanError(f"{folder / name}: cannot be read: {error.strerror or error}") from error
    kind = next((kind for start, kind in _KINDS if content.startswith(start)), None)
    if kind is None and content[8:12] == b"WEBP":
        kind = "webp"
    if kind is None:
        raise PlanError(f"{folder / name}: neither PNG, JPEG, GIF, BMP nor WebP")
    return ImagePart(
        image_url=ImageUrl(url=f"data:image/{kind};base64,{base64.b64encode(content).decode()}")
    )
