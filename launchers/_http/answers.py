"""Format answers: whole, as server-sent events, and with log-probabilities in all their forms.

Forms follow trtllm-serve. Log-probabilities follow OpenAI for chat and for the older endpoint, and
for prompts also vLLM.

A token is a word with the white space before it, the last one also with what follows it. The mark
at the beginning of a text is a token too. The first token has no log-probability. A token with a
probability below 1/2 is not the likeliest one in its place.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple

from serve_eval.frozen import freeze
from serve_eval.launchers._http.requests import Ask, encode


class ToldAnswer(NamedTuple):
    """A token with its log-probability, its rank and the likeliest ones at its place.

    The log-probability is None if nothing precedes the token. `text` is what it adds to the text:
    nothing if a character needs more tokens. `raw` are its bytes.
    """

    text: str
    raw: bytes
    logprob: float | None
    id: int = 0
    rank: int = 1
    top: tuple[ToldAnswer, ...] = ()


class Call(NamedTuple):
    """A tool call, with its arguments as JSON."""

    name: str
    arguments: str


class Generated(NamedTuple):
    """The answer to one prompt.

    With `echo` the `prompt_text` comes before it. `tokens` and `prompt` are set if
    log-probabilities are reported.
    """

    text: str | None
    finish_reason: str | None
    stop_reason: str | None = None
    tokens_per_step: float | None = None
    prompt_text: str = ""
    tokens: Sequence[ToldAnswer] | None = None
    prompt: Sequence[ToldAnswer] | None = None
    calls: Sequence[Call] = ()


class TokenUsage(NamedTuple):
    """Token counts of a whole request; `cached_tokens` is None for a server without a cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None

    def body(self) -> dict[str, object]:
        told: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.cached_tokens is not None:
            told["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return told


def answer_body(ask: Ask, number: int, generated: Sequence[Generated], usage: TokenUsage) -> bytes:
    """Return a whole answer as JSON; `number` makes its id."""
    choices: list[dict[str, object]] = []
    more: dict[str, object] = {}
    for index, one in enumerate(generated):
        told = (*(one.prompt or ()), *(one.tokens or ())) if ask.echo else one.tokens or ()
        logprobs = _logprobs(ask, told, 0) if told and ask.logprobs is not None else None
        text = one.text
        if ask.echo and text is not None:
            text = one.prompt_text + text
        said: dict[str, object] = {"text": text, "token_ids": None, "context_logits": None}
        if ask.chat:
            calls = [_build_call(number, place, call) for place, call in enumerate(one.calls)]
            said = {
                "message": {
                    "role": "assistant",
                    "content": text,
                    "reasoning_content": None,
                    "tool_calls": calls,
                }
            }
        if ask.prompt_logprobs is not None and one.prompt is not None:
            (more if ask.chat else said)["prompt_logprobs"] = [_vllm(token) for token in one.prompt]
        ending: dict[str, object] = {
            "finish_reason": one.finish_reason,
            "stop_reason": one.stop_reason,
        }
        if one.tokens_per_step is not None:
            ending["avg_decoded_tokens_per_iter"] = one.tokens_per_step
        choices.append(
            {"index": index, **said, "logprobs": logprobs, **ending, "disaggregated_params": None}
        )
    head = _head(ask, number, chunk=False)
    return encode(
        {**head, "choices": choices, "usage": usage.body(), "prompt_token_ids": None, **more}
    )


class Events:
    """An answer as server-sent events, with choices in any order."""

    def __init__(self, ask: Ask, number: int) -> None:
        self._ask, self._number, self._head = ask, number, _head(ask, number, chunk=True)
        self._offsets: dict[int, int] = {}

    def begin_choice(self, index: int, one: Generated) -> Iterable[bytes]:
        """Return the events before a choice's text: the role in a chat, else the echoed prompt."""
        if self._ask.chat:
            # trtllm-serve writes a blank before the end of this event.
            yield self._event(index, {"role": "assistant"})[:-2] + b" \n\n"
        elif self._ask.echo:
            yield self.piece(index, one.prompt_text, one.prompt or ())

    def piece(self, index: int, text: str, tokens: Sequence[ToldAnswer] = ()) -> bytes:
        """Return a piece of the text."""
        offset = self._offsets.get(index, 0)
        self._offsets[index] = offset + len(text)
        logprobs = (
            _logprobs(self._ask, tokens, offset)
            if tokens and self._ask.logprobs is not None
            else None
        )
        return self._event(index, {"content": text} if self._ask.chat else text, logprobs)

    def call(self, index: int, place: int, call: Call, pieces: Iterable[str]) -> Iterable[bytes]:
        """Return a tool call: its name, and its arguments in pieces."""
        begun = {"index": place, **_build_call(self._number, place, call._replace(arguments=""))}
        yield self._event(index, {"tool_calls": [begun]})
        for piece in pieces:
            yield self._event(
                index, {"tool_calls": [{"index": place, "function": {"arguments": piece}}]}
            )

    def end(self, index: int, one: Generated) -> bytes:
        """Return the end of a choice."""
        return self._event(index, {} if self._ask.chat else "", None, one)

    def finish(self, usage: TokenUsage) -> Iterable[bytes]:
        """Return the end of the stream."""
        if self._ask.include_usage:
            yield b"data: " + encode({**self._head, "choices": [], "usage": usage.body()}) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _event(
        self,
        index: int,
        said: str | Mapping[str, object],
        logprobs: object = None,
        end: Generated | None = None,
    ) -> bytes:
        choice: dict[str, object] = {
            "index": index,
            "delta" if self._ask.chat else "text": said,
            "logprobs": logprobs,
        }
        choice |= {
            "finish_reason": end and end.finish_reason,
            "stop_reason": end and end.stop_reason,
        }
        if end is not None and end.tokens_per_step is not None:
            choice["avg_decoded_tokens_per_iter"] = end.tokens_per_step
        return b"data: " + encode({**self._head, "choices": [choice], "usage": None}) + b"\n\n"


def _build_call(number: int, place: int, call: Call) -> dict[str, object]:
    return {"id": f"call-{number}-{place}", "type": "function", "function": call._asdict()}


def _head(ask: Ask, number: int, *, chunk: bool) -> dict[str, object]:
    kind = (
        "text_completion"
        if not ask.chat
        else "chat.completion.chunk"
        if chunk
        else "chat.completion"
    )
    prefix = "chatcmpl" if ask.chat else "cmpl"
    return {
        "id": f"{prefix}-{number:032x}",
        "object": kind,
        "created": int(time.time()),
        "model": ask.model,
    }


def _logprobs(ask: Ask, tokens: Sequence[ToldAnswer], offset: int) -> dict[str, object]:
    """Return log-probabilities of generated tokens.

    The tokens begin `offset` characters after the beginning of the text.
    """
    if ask.chat:
        return {
            "content": [
                {**_by_chat(token), "top_logprobs": list(map(_by_chat, token.top))}
                for token in tokens
            ]
        }
    top = [
        {one.text: one.logprob for one in (*token.top, token)} if token.top else None
        for token in tokens
    ]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "text_offset": list(accumulate((len(token.text) for token in tokens[:-1]), initial=offset)),
        "top_logprobs": top if any(top) else None,
    }


def _by_chat(token: ToldAnswer) -> dict[str, object]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.raw)}


def _vllm(token: ToldAnswer) -> dict[str, object] | None:
    """Return an entry of `prompt_logprobs`: the token of the prompt first, then likelier ones."""
    if token.logprob is None:
        return None
    each = {one.id: one for one in (token, *token.top)}
    return {
        str(one.id): {"logprob": one.logprob, "rank": one.rank, "decoded_token": one.text}
        for one in each.values()
    }


Form = Literal["none", "echo", "prompt_logprobs"]
"""Support of a server: none, as trtllm-serve, which echoes only the text; `echo` with `logprobs`;
vLLM's field, with `echo` ignored."""
Telling = Literal["none", "vllm", "llama_cpp"]
"""Server to imitate in reporting the token at the beginning of a text; none reports nothing."""
UNKNOWN = -1.0
"""Log-probability of the tokens of prompts for which the answer file has no number."""
OTHER = "~"
"""The likeliest token if it is a different one."""

_TOKEN = re.compile(r"\s*\S+(?:\s+\Z)?")


def gives_logprobs(ask: Ask, form: Form) -> bool:
    """Return True if this request gets log-probabilities of its prompt."""
    if form == "prompt_logprobs":
        return ask.prompt_logprobs is not None
    return form != "none" and ask.echo and ask.logprobs is not None


@freeze
class Beginning:
    """The token at the beginning of a text.

    `mark` is its text. `puts` means that the server puts it before each prompt itself.
    """

    mark: str = ""
    puts: bool = False

    def rest(self, prompt: str) -> tuple[list[str], str]:
        """Return the marks before a prompt, and the prompt without its own mark."""
        own = bool(self.mark) and prompt.startswith(self.mark)
        return [self.mark] * (self.puts + own), prompt.removeprefix(self.mark) if own else prompt


def with_prompt(
    generated: Generated, truncate: int | None, form: Form, beginning: Beginning
) -> Generated:
    """Return the answer with the tokens of its prompt.

    Their log-probability is the number in the answer's text. With `echo`, each place also has its
    likeliest token.
    """
    marks, rest = beginning.rest(generated.prompt_text)
    texts = [*marks, *_TOKEN.findall(rest)][-(truncate or 0) :]
    value = _number(generated.text)
    tokens = [_token(i, text, None if i == 0 else value, form) for i, text in enumerate(texts)]
    said = generated.text or ""
    return Generated(
        text=said,
        finish_reason="length",
        prompt_text="".join(texts[beginning.puts :]),
        tokens=[_token(len(texts), said, UNKNOWN, form)],
        prompt=tokens,
    )


def _token(number: int, text: str, logprob: float | None, form: Form) -> ToldAnswer:
    token = ToldAnswer(text=text, raw=text.encode(), logprob=logprob, id=number)
    if logprob is None:
        return token
    rest = math.log(-math.expm1(logprob)) if logprob < 0 else -math.inf  # of all others together
    likeliest = (
        token
        if logprob >= rest
        else ToldAnswer(text=OTHER, raw=OTHER.encode(), logprob=rest, id=-1)
    )
    return token._replace(
        rank=1 if likeliest is token else 2, top=(likeliest,) if form == "echo" else ()
    )


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return UNKNOWN
