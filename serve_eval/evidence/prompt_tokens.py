"""Describe the tokens of a prompt, as the files of a model or a server read them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from serve_eval.errors import PlanError, install_hint
from serve_eval.frozen import freeze
from serve_eval.protocol import chat_template
from serve_eval.protocol.chat_template import Render
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

    meaning: str
    """A sentence about the cause."""
    advice: str
    """The action that it calls for; "" if none is needed."""

    def __new__(cls, name: str, meaning: str, advice: str = "") -> PromptCause:
        """Make a member that is the text `name`."""
        made = str.__new__(cls, name)
        made._value_, made.meaning, made.advice = name, meaning, advice
        return made

    SAME = (
        "same",
        "Both sides read the same tokens.",
    )
    SAME_COUNT = (
        "same_count",
        "Both sides count the same number of tokens; their ids are not available.",
        "Serve a route that gives ids: /tokenize, return_token_ids or /render.",
    )
    COUNT_DIFFERS = (
        "count_differs",
        "The sides count different numbers of tokens; their ids are not available.",
        "One token more or less is often the first one; more are another template.",
    )
    BOS_MISSING = (
        "bos_missing",
        "The endpoint lacks the first token that the other side has.",
        "Serve the tokenizer files of the model, and leave add_special_tokens at its default.",
    )
    BOS_ADDED = (
        "bos_added",
        "The endpoint begins with a first token that the other side lacks.",
        "Serve the tokenizer files of the model: its settings decide about the first token.",
    )
    BOS_DOUBLED = (
        "bos_doubled",
        "A side has the first token of the model twice.",
        "Let either the chat template or the tokenizer add it: add_special_tokens false for chats.",
    )
    SYSTEM_ADDED = (
        "system_added",
        "A side adds a system message that the request does not have.",
        "Send a system message, or serve the chat template of the model.",
    )
    SYSTEM_MISSING = (
        "system_missing",
        "A side drops a system message.",
        "Serve the chat template of the model; some templates take no system message.",
    )
    SYSTEM_CHANGED = (
        "system_changed",
        "The sides have different system messages.",
        "Serve the same chat template on both sides, or send the system message.",
    )
    SPACES_STRIPPED = (
        "spaces_stripped",
        "A side strips white space at the ends of a message.",
        "Compare the chat templates: one of them trims its messages.",
    )
    DATE = (
        "date",
        "The chat template writes a date, so that prompts change from day to day.",
        "Fix the date: template_date here, and a variable of the template on the server.",
    )
    SPECIAL_AS_TEXT = (
        "special_as_text",
        "A side reads a special token as plain text.",
        "Serve the tokenizer files of the model: its added tokens are missing.",
    )
    OTHER_TEMPLATE = (
        "other_template",
        "The sides render messages by different chat templates.",
        "Serve the chat template of the model: --chat-template, or the files of its folder.",
    )
    OTHER_TOKENIZER = (
        "other_tokenizer",
        "The sides read the same text as other tokens.",
        "Serve the tokenizer of the model, in the same revision.",
    )
    FIRST_DIFFERENCE = (
        "first_difference",
        "The sides read different tokens, and no known cause fits.",
        "Compare the tokenizer files and the chat templates of both sides.",
    )
    ROUTES_DISAGREE = (
        "routes_disagree",
        "A server gives other tokens than its answers count.",
        "Do not rely on the ids of that route: compare the counts of answers.",
    )
    NOT_READ = (
        "not_read",
        "A side could not be read, so nothing was compared.",
        "Check the request with serve-eval smoke, then repeat the audit.",
    )


_SHOWN = 30
"""Most characters of a prompt in its name."""


@freeze
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


@freeze
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


TOKENIZER_FILE = "tokenizer.json"
EXTRA = "tokenizer"
"""The optional extra with the package that reads TOKENIZER_FILE."""
_ANOTHER_DAY = timedelta(days=400)
"""Time to a date of another year and month, on another day of the week."""
_DATED = "strftime_now"
"""The only function by which a template can show a date of its own."""


class TokenizerReader(Protocol):
    """A tokenizer that was read from a file."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the ids of a text."""
        ...

    def piece(self, token: int) -> str | None:
        """Return a token as the vocabulary writes it, or None if there is no such id."""
        ...

    def find(self, piece: str) -> int | None:
        """Return the id of a token."""
        ...


class LocalTokenizer:
    """A side of an audit: the files of a model.

    Texts get the special tokens of the tokenizer, chats those of the template, as servers do. The
    template shows `today`, and `rendering` runs it. A folder without a template reads texts only.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: TokenizerReader,
        *,
        today: date,
        rendering: Callable[..., Render] = chat_template.Rendering,
    ) -> None:
        self._tokenizer, self.side, self.today = tokenizer, f"the folder {folder}", today
        bos = chat_template.read_special_tokens(folder).get("bos_token")
        self._bos = None if bos is None else tokenizer.find(bos)
        self._renderings: list[Render] = []
        self._no_template = ""
        try:
            template = chat_template.read(folder)
            days = [today, today + _ANOTHER_DAY] if _DATED in template.text else [today]
            self._renderings = [rendering(template, variables={}, today=day) for day in days]
        except PlanError as error:
            self._no_template = str(error)

    async def read(self, prompt: Prompt) -> PromptReading:
        """Return the tokens of a prompt. A template that fails is the reading's problem."""
        return await asyncio.to_thread(self.read_now, prompt)

    def read_now(self, prompt: Prompt) -> PromptReading:
        """Return the tokens of a prompt, as `read` does, in this thread."""
        if isinstance(prompt, str):
            ids = self._tokenizer.encode(prompt, add_special_tokens=True)
            return self._reading(ids, dated=False)
        if not self._renderings:
            return PromptReading(side=self.side, problem=self._no_template)
        try:
            texts = [render(prompt) for render in self._renderings]
        except PlanError as error:
            return PromptReading(side=self.side, problem=str(error))
        ids = self._tokenizer.encode(texts[0], add_special_tokens=False)
        return self._reading(ids, dated=len(set(texts)) > 1)

    def count(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt. Raises PlanError for a template that fails."""
        if isinstance(prompt, str):
            return len(self._tokenizer.encode(prompt, add_special_tokens=True))
        if not self._renderings:
            raise PlanError(self._no_template)
        return len(self._tokenizer.encode(self._renderings[0](prompt), add_special_tokens=False))

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without special ones at its beginning."""
        return len(self._tokenizer.encode(text, add_special_tokens=False)) if text else 0

    def _reading(self, ids: Sequence[int], *, dated: bool) -> PromptReading:
        return PromptReading(
            side=self.side,
            ids=tuple(ids),
            pieces=self.pieces(ids),
            source=TOKENIZER_FILE,
            bos=self._bos,
            dated=dated,
            problem="" if ids else "the prompt has no tokens",
        )

    def pieces(self, ids: Sequence[int]) -> tuple[str, ...] | None:
        """Return the texts of ids, or None if one is outside the vocabulary."""
        written = [self._tokenizer.piece(token) for token in ids]
        if any(one is None for one in written):
            return None
        return tuple(decode_piece(one) for one in written if one is not None)

    def close(self) -> None:
        """End the processes that render the template."""
        for rendering in self._renderings:
            if isinstance(rendering, chat_template.Rendering):
                rendering.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_local(folder: Path, *, today: date | None = None) -> LocalTokenizer:
    """Return the side of a model's folder, with the date of today (UTC) unless another is given.

    Raises PlanError if a file is missing or cannot be read, and without the package `tokenizers`.
    """
    file = folder.expanduser() / TOKENIZER_FILE
    if not file.exists():
        raise PlanError(f"{folder} has no {TOKENIZER_FILE}", hint="Name the folder of a tokenizer.")
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise PlanError(
            f"reading {TOKENIZER_FILE} needs the package tokenizers", hint=install_hint(EXTRA)
        ) from error
    try:
        read = Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises plain Exception
        raise PlanError(f"{file}: cannot be read: {error}") from error
    day = datetime.now(UTC).date() if today is None else today
    return LocalTokenizer(folder.expanduser(), _HuggingFaceTokenizer(read), today=day)


class _HuggingFaceTokenizer:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def piece(self, token: int) -> str | None:
        found: str | None = self._tokenizer.id_to_token(token)
        return found

    def find(self, piece: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(piece)
        return found
