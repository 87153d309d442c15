"""Store the data of a page in packed columns: texts, prompts, answers, media.

A script counts a text in UTF-16 units, so that every place and length is counted that way here.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os.path import relpath
from pathlib import Path

import msgspec

from serve_eval.protocol.conversation import TURN
from serve_eval.report.samples.details import describe_attempts, describe_failure
from serve_eval.report.samples.samples import RIGHT, WORDS, ShownSample
from serve_eval.schema import MediaFile, MediaPart, Message, Prompt, PromptLogprobs, Response
from serve_eval.schema.media import IMAGES, media_kind, media_url, recognise_media
from serve_eval.storage.prompts import PrefixHead, find_media, list_media, read_media

LEAST_SHARED = 64
"""Characters that two prompts must share before the second one leaves them out."""
PARAGRAPH = "\n\n"
NO_TEXT = -1
"""Code of a missing text."""


class TextColumn:
    """A column of texts: each different text once, and a code per row.

    Rows are numbered from 0; those between two that were added have no text. Texts longer than
    `most` characters lose their middle; `shortened` counts them.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self.shortened = most, 0
        self._places: dict[str, int] = {}
        self._codes: dict[int, int] = {}

    def add(self, row: int, text: str) -> None:
        """Add the text of a row."""
        if self._most is not None and len(text) > self._most:
            text = shorten(text, self._most)
            self.shortened += 1
        places = self._places
        self._codes[row] = places.setdefault(text, len(places))

    @property
    def different(self) -> int:
        """Number of different texts."""
        return len(self._places)

    def to_json(self, rows: int) -> dict[str, object] | None:
        """Return the column with `rows` rows for a script, or None if no row has a text."""
        if not self._places:
            return None
        codes = [NO_TEXT] * rows
        for row, code in self._codes.items():
            codes[row] = code
        return {"values": list(self._places), "codes": codes}


class PromptColumn:
    """The prompts of the rows as paragraphs, each different paragraph once.

    A beginning that a prompt shares with an earlier one is cut off, too, within a paragraph.
    `turns` has the role and the length of each turn of a chat; a prompt that is a text has none.
    `cut` are the rows whose prompts lost their middle.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.cut: list[int] = []
        self._head = PrefixHead(LEAST_SHARED)
        self._places: dict[str, int] = {}
        self._rows: list[list[int] | None] = []
        self._turns: list[list[list[object]] | None] = []

    def add(self, prompt: Prompt | None) -> None:
        """Add the prompt of the next row; None if it is not known."""
        if prompt is None:
            self._rows.append(None)
            self._turns.append(None)
            return
        texts = [prompt] if isinstance(prompt, str) else _say(prompt)
        kept = [shorten(text, self._most) for text in texts]
        if any(a is not b for a, b in zip(kept, texts, strict=True)):
            self.cut.append(len(self._rows))
        places = self._places
        self._rows.append([places.setdefault(p, len(places)) for p in self._split("".join(kept))])
        self._turns.append(
            None
            if isinstance(prompt, str)
            else [[o.role, count_units(t)] for o, t in zip(prompt, kept, strict=True)]
        )

    def _split(self, whole: str) -> list[str]:
        """Return the paragraphs of a prompt, each with its end."""
        shared = self._head.count_shared(whole)
        self._head.take(whole, shared)
        if shared - max(0, whole.rfind(PARAGRAPH, 0, shared)) < LEAST_SHARED:
            shared = 0  # a paragraph ends there, or close to there
        return [one for part in (whole[:shared], whole[shared:]) for one in _cut(part) if one]

    def to_json(self) -> dict[str, object]:
        """Return the column for a script."""
        return {"parts": list(self._places), "rows": self._rows, "turns": self._turns}


def _cut(text: str) -> list[str]:
    """Return the paragraphs of a text, each with its end."""
    *before, last = text.split(PARAGRAPH)
    return [*(one + PARAGRAPH for one in before), last]


def _write_text(sample: ShownSample, response: Response) -> str:
    """Return the text of an answer; of a conversation, those of all turns."""
    if not sample.exchanges:
        return response.text
    turns = range(sample.exchanges[-1].turn + 1)
    return "\n\n".join(f"{TURN.format(turn + 1)}: {sample.say_turn(turn)}" for turn in turns)


def _say(prompt: Sequence[Message]) -> list[str]:
    """Return the text of each turn, with what is kept of its media."""
    return ["\n".join([turn.text, *map(media_url, turn.media)]) for turn in prompt]


def count_units(text: str) -> int:
    """Return the length of a text in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def shorten(text: str, most: int | None) -> str:
    """Return a text of at most about `most` characters, without its middle."""
    if most is None or len(text) <= most:
        return text
    half = most // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[… {left_out:,} characters left out …]\n{text[-half:]}"


def round_off(value: float | None, digits: int) -> float | None:
    """Return a number with a few decimals; None if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


LOWEST = 12
"""Tokens of a prompt that are listed, the least likely first."""
_TEXTS = ("outcome", "extracted", "text", "reasoning", "refusal", "calls", "finish", "failure")
_NUMBERS = ("start", "latency", "ttft", "tpot", "value")


class AnswerColumns:
    """The answers of all rows, in order. Texts have at most `most` characters."""

    def __init__(self, labels: Sequence[str], most: int | None) -> None:
        self._labels = list(labels)
        self._rows: list[int] = []
        self._arms: list[int] = []
        self._cut: list[int] = []
        self._tokens: list[tuple[int, int, int | None] | None] = []
        self._texts = {name: TextColumn(most) for name in (*_TEXTS, "worker", "mode")}
        self._numbers: dict[str, dict[int, float | None]] = {name: {} for name in _NUMBERS}
        self._parts: dict[int, dict[str, float]] = {}
        self._attempts: dict[int, list[str]] = {}
        self._choices: dict[int, list[list[object]]] = {}
        self._unlikely: dict[int, list[list[object]]] = {}

    @property
    def shortened(self) -> int:
        """Number of texts without their middle."""
        return sum(column.shortened for column in self._texts.values())

    def add(self, row: int, label: str, sample: ShownSample) -> None:
        """Add an answer to a row."""
        place = len(self._rows)
        self._rows.append(row)
        self._arms.append(self._labels.index(label))
        self._cut.append(int(sample.cut_off))
        self._add_texts(place, sample)
        self._add_numbers(place, sample)
        if sample.parts:
            self._parts[place] = dict(sample.parts)
        if len(sample.attempts) > 1 or sample.failure is not None:
            self._attempts[place] = list(describe_attempts(sample))
        if (response := sample.response) is not None:
            self._add_logprobs(place, sample, response)

    def _add_texts(self, place: int, sample: ShownSample) -> None:
        columns, response, servers = self._texts, sample.response, sample.servers
        columns["outcome"].add(place, sample.outcome)
        told = [("extracted", sample.extracted), ("mode", sample.mode)]
        if sample.failure is not None:
            told.append(("failure", describe_failure(sample.failure)))
        if servers is not None:
            names = dict.fromkeys((servers.context, servers.generation))
            told.append(("worker", " → ".join(name for name in names if name) or None))
        if response is not None:
            columns["text"].add(place, _write_text(sample, response))
            told += (
                ("reasoning", response.reasoning or None),
                ("refusal", response.refusal or None),
                ("finish", response.finish_reason),
            )
            if response.tool_calls:
                calls = "\n".join(f"{one.name}({one.arguments})" for one in response.tool_calls)
                told.append(("calls", calls or None))
        for name, text in told:
            if text is not None:
                columns[name].add(place, text)

    def _add_numbers(self, place: int, sample: ShownSample) -> None:
        response, attempts, columns = sample.response, sample.attempts, self._numbers
        if attempts and attempts[0].start_s:
            columns["start"][place] = round_off(attempts[0].start_s, 3)
        if sample.value is not None:
            columns["value"][place] = round_off(sample.value, 6)
        if response is None:
            self._tokens.append(None)
            return
        usage = response.usage
        self._tokens.append((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens))
        if response.latency_s:
            columns["latency"][place] = round_off(response.latency_s, 4)
        if response.ttft_s is not None:
            columns["ttft"][place] = round_off(response.ttft_s, 4)
        if response.tpot_s is not None:
            columns["tpot"][place] = round_off(response.tpot_s, 5)

    def _add_logprobs(self, place: int, sample: ShownSample, response: Response) -> None:
        if response.choice_logprobs is not None:
            greedy = response.choice_greedy or (None,) * len(response.choice_logprobs)
            self._choices[place] = [
                [round_off(sum(values), 4), is_greedy]
                for values, is_greedy in zip(response.choice_logprobs, greedy, strict=True)
            ]
        if response.prompt_logprobs is not None and not sample.prompt_hidden:
            prompt = sample.prompt if isinstance(sample.prompt, str) else ""
            self._unlikely[place] = list(_list_unlikely(response.prompt_logprobs, prompt))

    def to_json(self) -> dict[str, object]:
        """Return the columns for a script."""
        return {
            "row": self._rows,
            "arm": self._arms,
            "cut": self._cut,
            "tokens": self._tokens,
            **{name: column.to_json(len(self._rows)) for name, column in self._texts.items()},
            **{name: self._fill(column) for name, column in self._numbers.items()},
            "parts": self._parts,
            "attempts": self._attempts,
            "choices": self._choices,
            "unlikely": self._unlikely,
            "words": [RIGHT, *(word for word in WORDS.values() if word != RIGHT)],
        }

    def _fill(self, column: Mapping[int, float | None]) -> Sequence[float | None] | None:
        """Return a number or None for each answer; None if no answer has a number."""
        if all(one is None for one in column.values()):
            return None
        return [column.get(place) for place in range(len(self._rows))]


def _list_unlikely(told: PromptLogprobs, prompt: str) -> Iterator[list[object]]:
    """Yield the least likely tokens of a prompt: text, log-probability and number."""
    lowest = sorted(range(len(told.values)), key=told.values.__getitem__)[:LOWEST]
    for i in lowest:
        text = "" if told.tokens is None else told.tokens[i]
        if told.offsets is not None:
            ends = (*told.offsets, len(prompt))
            text = prompt[ends[i] : ends[i + 1]]
        yield [text, round_off(told.values[i], 3), i + told.skipped]


MOST_IMAGES = 2_000_000
"""Bytes of the images that a page holds; it links the others."""


class PageMedia:
    """The media of the rows of a page in `folder` (None: the page links no files).

    Images are held once for all rows, by their checksum.
    """

    def __init__(self, folder: Path | None, most_images: int = MOST_IMAGES) -> None:
        self._folder, self._left = folder, most_images
        self._images: dict[str, str] = {}
        self._rows: dict[int, list[list[str]]] = {}

    def add(self, place: int, prompt: Prompt | None, runs: Iterable[Path]) -> None:
        """Add the media of a row, which one of the run folders keeps, or none."""
        runs = list(runs)
        found = [self._show(part, runs) for part in list_media(prompt)]
        if found:
            self._rows[place] = found

    def to_json(self) -> dict[str, object]:
        """Return the data for a script: [what it is, key of its image, link] of each medium."""
        return {"rows": self._rows, "images": self._images}

    def _show(self, part: MediaPart, runs: list[Path]) -> list[str]:
        kind = media_kind(part)
        if not isinstance(part, MediaFile):
            return [f"{kind}, elsewhere", "", ""]
        what = f"{kind}: {part.media_type}, {part.size:,} bytes, sha256 {part.sha256[:12]}"
        path = next((path for run in runs if (path := find_media(run, part)) is not None), None)
        if path is None:
            return [f"{what}, not kept in the run folder", "", ""]
        key = self._hold(part, path) if part.media_type in IMAGES else ""
        return [what, key, self._link(path)]

    def _hold(self, part: MediaFile, path: Path) -> str:
        """Return the key of an image that the page holds, or an empty text if it has no room."""
        if part.sha256 not in self._images:
            content = read_media(path)
            if content is None or len(content) > self._left:
                return ""
            if recognise_media(content) != part.media_type:
                return ""
            self._left -= len(content)
            data = base64.b64encode(content).decode()
            self._images[part.sha256] = f"data:{part.media_type};base64,{data}"
        return part.sha256

    def _link(self, path: Path) -> str:
        """Return the place of a file from the page, or an empty text if it is not below it."""
        link = "" if self._folder is None else relpath(path, self._folder)
        return "" if link.startswith("..") else link


LEVEL = 4


def pack(value: object) -> str:
    """Return a value for the page; a text was packed already."""
    return value if isinstance(value, str) else encode(compress(to_json(value)))


def to_json(value: object) -> bytes:
    """Return JSON. Halves of surrogate pairs are escaped, which JavaScript reads."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def compress(data: bytes) -> bytes:
    """Return compressed data, the same for the same data."""
    return gzip.compress(data, LEVEL, mtime=0)


def encode(data: bytes) -> str:
    """Return compressed data as text that no HTML ends."""
    return base64.b64encode(data).decode()
