"""Read prompts with the files of a model: its tokenizer.json and its chat template."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from serve_eval.errors import PlanError, install_hint
from serve_eval.evidence.prompt_audit.reading import PromptReading, decode_piece
from serve_eval.protocol import chat_template, special_tokens
from serve_eval.protocol.templating import Render
from serve_eval.schema import Prompt

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
        bos = special_tokens.read(folder).get("bos_token")
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
