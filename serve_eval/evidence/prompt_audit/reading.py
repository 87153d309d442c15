"""Describe the tokens of a prompt as one side reads them, with causes of differences."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from serve_eval.schema import Prompt

_MARK = re.compile(r"<[^<>\s]{1,60}>|\[/?[A-Z_]{2,40}\]")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_READABLE = str.maketrans({"Ġ": " ", "▁": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"})
"""Space, line ends and tab as byte-level tokenizers and SentencePiece write them."""


def decode_piece(written: str) -> str:
    """Return the text of a token as its vocabulary writes it, such as Ġthe for " the".

    Characters outside ASCII stay as a byte-level vocabulary writes them: two sides that are read
    like this can be compared, but such a text cannot be searched for the prompt.
    """
    if byte := _BYTE.fullmatch(written):
        return bytes([int(byte[1], 16)]).decode(errors="replace")
    return written if looks_special(written) else written.translate(_READABLE)


def looks_special(piece: str) -> bool:
    """Return True if a token's text is a mark of a template, such as <|im_start|> or [INST]."""
    return _MARK.fullmatch(piece) is not None


class PromptCause(StrEnum):
    """The cause of a difference between the tokens of a prompt on two sides."""

    SAME = "same"
    SAME_COUNT = "same_count"
    COUNT_DIFFERS = "count_differs"
    BOS_MISSING = "bos_missing"
    BOS_ADDED = "bos_added"
    BOS_DOUBLED = "bos_doubled"
    SYSTEM_ADDED = "system_added"
    SYSTEM_MISSING = "system_missing"
    SYSTEM_CHANGED = "system_changed"
    SPACES_STRIPPED = "spaces_stripped"
    DATE = "date"
    SPECIAL_AS_TEXT = "special_as_text"
    OTHER_TEMPLATE = "other_template"
    OTHER_TOKENIZER = "other_tokenizer"
    FIRST_DIFFERENCE = "first_difference"
    ROUTES_DISAGREE = "routes_disagree"
    NOT_READ = "not_read"

    @property
    def meaning(self) -> str:
        """A sentence about the cause."""
        return _TEXTS[self].meaning

    @property
    def advice(self) -> str:
        """The action that it calls for; "" if none is needed."""
        return _TEXTS[self].advice


class _CauseText(NamedTuple):
    meaning: str
    advice: str = ""


_TEXTS = {
    PromptCause.SAME: _CauseText("Both sides read the same tokens."),
    PromptCause.SAME_COUNT: _CauseText(
        "Both sides count the same number of tokens; their ids are not available.",
        "Serve a route that gives ids: /tokenize, return_token_ids or /render.",
    ),
    PromptCause.COUNT_DIFFERS: _CauseText(
        "The sides count different numbers of tokens; their ids are not available.",
        "One token more or less is often the first one; more are another template.",
    ),
    PromptCause.BOS_MISSING: _CauseText(
        "The endpoint lacks the first token that the other side has.",
        "Serve the tokenizer files of the model, and leave add_special_tokens at its default.",
    ),
    PromptCause.BOS_ADDED: _CauseText(
        "The endpoint begins with a first token that the other side lacks.",
        "Serve the tokenizer files of the model: its settings decide about the first token.",
    ),
    PromptCause.BOS_DOUBLED: _CauseText(
        "A side has the first token of the model twice.",
        "Let either the chat template or the tokenizer add it: add_special_tokens false for chats.",
    ),
    PromptCause.SYSTEM_ADDED: _CauseText(
        "A side adds a system message that the request does not have.",
        "Send a system message, or serve the chat template of the model.",
    ),
    PromptCause.SYSTEM_MISSING: _CauseText(
        "A side drops a system message.",
        "Serve the chat template of the model; some templates take no system message.",
    ),
    PromptCause.SYSTEM_CHANGED: _CauseText(
        "The sides have different system messages.",
        "Serve the same chat template on both sides, or send the system message.",
    ),
    PromptCause.SPACES_STRIPPED: _CauseText(
        "A side strips white space at the ends of a message.",
        "Compare the chat templates: one of them trims its messages.",
    ),
    PromptCause.DATE: _CauseText(
        "The chat template writes a date, so that prompts change from day to day.",
        "Fix the date: template_date here, and a variable of the template on the server.",
    ),
    PromptCause.SPECIAL_AS_TEXT: _CauseText(
        "A side reads a special token as plain text.",
        "Serve the tokenizer files of the model: its added tokens are missing.",
    ),
    PromptCause.OTHER_TEMPLATE: _CauseText(
        "The sides render messages by different chat templates.",
        "Serve the chat template of the model: --chat-template, or the files of its folder.",
    ),
    PromptCause.OTHER_TOKENIZER: _CauseText(
        "The sides read the same text as other tokens.",
        "Serve the tokenizer of the model, in the same revision.",
    ),
    PromptCause.FIRST_DIFFERENCE: _CauseText(
        "The sides read different tokens, and no known cause fits.",
        "Compare the tokenizer files and the chat templates of both sides.",
    ),
    PromptCause.ROUTES_DISAGREE: _CauseText(
        "A server gives other tokens than its answers count.",
        "Do not rely on the ids of that route: compare the counts of answers.",
    ),
    PromptCause.NOT_READ: _CauseText(
        "A side could not be read, so nothing was compared.",
        "Check the request with serve-eval smoke, then repeat the audit.",
    ),
}


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
