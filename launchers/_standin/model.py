"""Answer as a model would, by token ids and sampling fields alone.

A token is a piece of a word with the white space before it, at most 7 bytes of UTF-8. Its id is the
number that those bytes spell after a leading 1. So every process has the same vocabulary without a
file, and ids can be turned back into the prompt, which is looked up in an answer file as in the
simulated endpoint.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from serve_eval.launchers._simulated.answers import generate_call
from serve_eval.launchers._standin.fields import ChatCompletionRequest, Request
from serve_eval.schema import Message, Prompt
from serve_eval.schema.media import prompt_sha256, uniform, without_answers

BOS, EOS, TURN, SAYS, TURN_END = 1, 2, 3, 4, 5
"""Special tokens: start and end of a text; start of a message, role separator, end of a message."""

TOOLS_ROLE = "tools"
"""Role of the turn with the callable tools, which a chat template writes before the messages."""

PIECE_BYTES = 7
_FIRST_PIECE = 1 << 8
_LAST_PIECE = 2 << (8 * PIECE_BYTES)
_WORD = re.compile(r"\s*\S+|\s+")
_WORDS = (
    "red",
    "green",
    "blue",
    "seven",
    "river",
    "stone",
    "north",
    "apple",
    "glass",
    "paper",
    "quiet",
    "early",
)


def encode(text: str) -> list[int]:
    """Return the token ids of a text, without special ones."""
    ids = []
    for word in _WORD.findall(text):
        raw = word.encode("utf-8", "surrogatepass")
        for start in range(0, len(raw), PIECE_BYTES):
            ids.append(int.from_bytes(b"\x01" + raw[start : start + PIECE_BYTES]))
    return ids


def decode(ids: Iterable[int], *, special: bool = False) -> str:
    """Return the text of token ids.

    Ids without a text are written as <id>; special ones only if `special`.
    """
    return b"".join(_bytes(token, special) for token in ids).decode("utf-8", "replace")


@lru_cache(maxsize=65536)
def _bytes(token: int, special: bool) -> bytes:
    if _FIRST_PIECE <= token < _LAST_PIECE:
        raw = token.to_bytes(PIECE_BYTES + 1).lstrip(b"\x00")
        if raw[0] == 1 and len(raw) > 1:
            return raw[1:]
    if token in (BOS, EOS) and not special:
        return b""
    return f"<{token}>".encode()


def encode_messages(
    messages: Sequence[tuple[str, str]], *, generation_prompt: bool = True
) -> list[int]:
    """Return the ids of a chat in the order of a chat template."""
    ids = [BOS]
    for role, content in messages:
        ids += [TURN, *encode(role), SAYS, *encode(content), TURN_END]
    return [*ids, TURN, *encode("assistant"), SAYS] if generation_prompt else ids


def prompt_of(ids: Sequence[int]) -> Prompt:
    """Return the text or the messages that token ids stand for."""
    ids = ids[1:] if ids[:1] == [BOS] else ids
    if TURN not in ids:
        return decode(ids)
    turns: list[list[int]] = []
    for token in ids:
        if token == TURN:
            turns.append([])
        elif turns:
            turns[-1].append(token)
    return tuple(
        message for message in map(_message, turns) if message and message.role != TOOLS_ROLE
    )


def tools_of(ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return the tools that a prompt offers."""
    for start in (i for i, token in enumerate(ids) if token == TURN):
        end = next((i for i in range(start, len(ids)) if ids[i] == TURN_END), start)
        message = _message(ids[start + 1 : end + 1])
        if message and message.role == TOOLS_ROLE:
            tools: list[dict[str, Any]] = json.loads(message.text)
            return tools
    return []


def _message(turn: Sequence[int]) -> Message | None:
    if SAYS not in turn or turn[-1] != TURN_END:
        return None
    at = turn.index(SAYS)
    return Message(role=decode(turn[:at]), content=decode(turn[at + 1 : -1]))


def find_answer(ids: Sequence[int]) -> int:
    """Return the place of the first earlier answer in a prompt; 0 if it has none."""
    opened = [TURN, *encode("assistant"), SAYS]
    ends = range(len(opened), len(ids))
    return next((end for end in ends if list(ids[end - len(opened) : end]) == opened), 0)


class SeenPrompts:
    """The prompts of a worker, by salt: each token is kept with all that comes before it."""

    def __init__(self) -> None:
        self._known: dict[str, set[int]] = {}

    def take(self, ids: Sequence[int], salt: str) -> int:
        """Return how many tokens of a prompt are known, all but one at most, and keep the rest."""
        known, at, cached, unbroken = self._known.setdefault(salt, set()), 0, 0, True
        for token in ids:
            at = hash((at, token))
            unbroken = unbroken and at in known
            cached += unbroken
            known.add(at)
        return min(cached, len(ids) - 1)


class _Entry(msgspec.Struct):
    """A line of an answer file of the simulated endpoint."""

    sha256: str
    right: str
    wrong: str
    probability: float


class MadeUpModel:
    """Answers of one server.

    `seed`, `run` and `varied` choose among right and wrong answers as in the simulated endpoint;
    with `varied`, a repeated prompt is decided again. With `skilled`, prompts known to
    `serve_eval.launchers._standin.model` are answered. `defaults` are the sampling fields of
    requests that lack them.
    """

    def __init__(
        self,
        answers: Path | None = None,
        *,
        seed: int = 0,
        run: int | str = 0,
        skilled: bool = False,
        varied: bool = False,
        defaults: Mapping[str, float] | None = None,
    ) -> None:
        self.defaults: Mapping[str, float] = defaults or {}
        self._seed, self._run, self._skilled, self._varied = seed, run, skilled, varied
        self._asked: Counter[str] = Counter()
        lines = answers.read_bytes() if answers else b""
        self._entries = {
            entry.sha256: entry for entry in msgspec.json.Decoder(_Entry).decode_lines(lines)
        }

    def answer(
        self,
        ids: Sequence[int],
        *,
        index: int = 0,
        wrong: bool = False,
        sampled: int | None = None,
        marks: str = "",
    ) -> list[int]:
        """Return the ids of the whole answer, with EOS at the end.

        `index` counts several answers to a prompt. `wrong` gives the answer of a broken server.
        `sampled` is the seed of an answer that is not greedy, if neither file nor skill decides it.
        Neither do `marks`, sampling values that are not neutral.
        An unknown prompt that offers tools is answered with a call of the first.
        """
        prompt = prompt_of(ids)
        key = prompt_sha256(prompt)
        entry = self._entries.get(key)
        if entry is None and not isinstance(prompt, str):
            entry = self._entries.get(prompt_sha256(without_answers(prompt)))
        if entry is not None:
            drawn = f"{self._seed}:{self._run}:{key}" + (f":{index}" if index else "")
            if self._varied and (again := self._asked[key]):
                drawn += f":again {again}"
            self._asked[key] += 1
            right = not wrong and uniform(drawn) < entry.probability
            return [*encode(entry.right if right else entry.wrong), EOS]
        if not wrong and (tools := tools_of(ids)):
            return [*encode(generate_call(tools)), EOS]
        if self._skilled and not wrong and (told := answer(prompt)) is not None:
            return [*encode(told), EOS]
        drawn = ("" if sampled is None else f":{sampled}") + marks
        digest = hashlib.sha256(
            f"{list(ids)}:{index}:{'wrong' if wrong else ''}{drawn}".encode()
        ).digest()
        return [*encode("".join(" " + _WORDS[byte % len(_WORDS)] for byte in digest[:12])), EOS]


_MOST_COUNTED = 2000
_KEY = re.compile(r"The pass key is (\d+)")


def _count(begin: str, end: str) -> str:
    return ", ".join(map(str, range(int(begin), min(int(end), _MOST_COUNTED) + 1)))


_KINDS: Mapping[str, Callable[..., str]] = {
    r"What is (\d+) \+ (\d+)\?": lambda a, b: str(int(a) + int(b)),
    r"Repeat exactly: (.+)": str,
    r"Count from (\d+) to (\d+)": _count,
}


def answer(prompt: Prompt) -> str | None:
    """Return an instructed model's answer to the last question of a prompt.

    Returns None for a question of another kind.
    """
    text = prompt if isinstance(prompt, str) else prompt[-1].text
    if "What is the pass key?" in text and (key := _KEY.search(text)):
        return f" {key[1]}"
    found = [(match, say) for kind, say in _KINDS.items() for match in re.finditer(kind, text)]
    if not found:
        return None
    match, say = max(found, key=lambda one: one[0].start())
    return f" {say(*match.groups())}"


_NEUTRAL: Mapping[str, float] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_LEAST_P = 0.01


class Shaped(NamedTuple):
    """The seed of an answer (None: it is greedy), and the values that are not neutral."""

    seed: int | None
    marks: str


def shape(request: Request, defaults: Mapping[str, float]) -> Shaped:
    """Return what of a request chooses an answer; a field that it lacks has the default.

    Without a temperature it is 1. Penalties change greedy answers too. A distribution with one
    token left is greedy.
    """
    told = {
        name: value
        for name in _NEUTRAL
        if name in request.model_fields_set and (value := getattr(request, name)) is not None
    }
    found = {**defaults, **told}
    one_left = (
        found.get("top_k") == 1
        or found.get("top_p", 1.0) < _LEAST_P
        or found.get("min_p", 0.0) >= 1.0
    )
    greedy = found.get("temperature", 1.0) == 0 or one_left
    names = _PENALTIES if greedy else _NEUTRAL
    marks = [f"{name}={found[name]:g}" for name in names if found.get(name) not in _plain(name)]
    return Shaped(None if greedy else request.seed or 0, ",".join(marks))


def _plain(name: str) -> tuple[float | None, ...]:
    return None, _NEUTRAL[name]


def read_defaults(model: str, generation_config: object, told: str | None) -> dict[str, float]:
    """Return the sampling defaults of a server.

    They come from a model's generation_config.json if the server was started with
    --generation-config auto, or from a JSON object `told`. Raises ValueError for another text.
    """
    if told:
        given = json.loads(told)
    else:
        file = Path(model) / "generation_config.json"
        if generation_config != "auto" or not file.is_file():
            return {}
        given = json.loads(file.read_text())
    return {name: float(given[name]) for name in _NEUTRAL if given.get(name) is not None}


Thinks = Literal["never", "as_asked", "always"]
"""The thinking of a server: it has none, heeds the fields of a request, or ignores them."""
WORDS = {"none": 0, "no_think": 0, "low": 8, "medium": 32, "high": 128, "xhigh": 256, "max": 256}
"""Words of thought by effort."""
USUAL = "medium"


def think(request: Request, thinks: Thinks) -> list[int]:
    """Return the token ids of the thoughts before an answer, with their tags; none if there are."""
    if thinks == "never" or not isinstance(request, ChatCompletionRequest):
        return []
    count = WORDS[USUAL] if thinks == "always" else _count_words(request)
    return encode(f"<think>{' so' * count} </think>\n") if count else []


def _count_words(request: ChatCompletionRequest) -> int:
    variables = request.chat_template_kwargs or {}
    if not variables.get("enable_thinking", variables.get("thinking", True)):
        return 0
    if (budget := variables.get("thinking_budget", -1)) >= 0:
        return int(budget)
    given = request.reasoning_effort if "reasoning_effort" in request.model_fields_set else None
    return WORDS.get(variables.get("reasoning_effort") or given or USUAL, WORDS[USUAL])
