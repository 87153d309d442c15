"""Describe the tokens of one prompt as one side reads them, and what audits say about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from serve_eval.evidence.prompt_audit.causes import PromptCause
from serve_eval.schema import Prompt

_SHOWN = 30
"""Most characters of a prompt in its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptReading:
    """The tokens of a prompt on one side: a server, or the files of a model.

    `side` names it in sentences, and `source` the way by which the ids were read. `ids` is None if
    the side offers no such way; `count` is the number of tokens that answers count. `pieces` are
    the texts of the ids. `bos` is the id of the first token that the model's files name. `dated`
    says if the chat template renders another text on another day (None: not known). `problem` says
    why there is neither an id nor a count.
    """

    side: str
    ids: tuple[int, ...] | None = None
    count: int | None = None
    pieces: tuple[str, ...] | None = None
    source: str = ""
    bos: int | None = None
    dated: bool | None = None
    problem: str = ""

    @property
    def text(self) -> str | None:
        """The decoded prompt, if the texts of its tokens are known."""
        return None if self.pieces is None else "".join(self.pieces)

    @property
    def length(self) -> int | None:
        """The number of tokens that answers count, else that of the ids."""
        if self.count is not None or self.ids is None:
            return self.count
        return len(self.ids)

    @property
    def agrees(self) -> bool:
        """True unless the ids are more or fewer than answers count."""
        return self.ids is None or self.count in (None, len(self.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFinding:
    """A finding about one prompt: the cause, and a sentence with its figures.

    `same` is True if both sides read the same tokens, False if they do not, and None if that is not
    known, because ids are missing or a request failed.
    """

    prompt: str
    cause: PromptCause
    told: str
    same: bool | None

    @property
    def advice(self) -> str:
        """The action that the cause calls for."""
        return self.cause.advice


class NamedCause(NamedTuple):
    """A cause with the sentence that has its figures."""

    cause: PromptCause
    told: str


class PromptSide(Protocol):
    """A side of an audit."""

    async def read(self, prompt: Prompt) -> PromptReading:
        """Return the tokens of a prompt."""
        ...


def shorten_prompt(prompt: Prompt) -> str:
    """Return a name for a prompt: its kind and the beginning of its text."""
    if isinstance(prompt, str):
        return f"text {prompt[:_SHOWN]!r}"
    turns = f" of {len(prompt)} turns" if len(prompt) > 1 else ""
    return f"chat{turns} {prompt[-1].text[:_SHOWN]!r}"
