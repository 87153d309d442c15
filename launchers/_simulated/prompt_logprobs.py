"""Log-probabilities of prompts from a simulated endpoint: all tokens of a prompt have the same one.

A token is a word with the white space before it, the last one also with what follows it. The mark
at the beginning of a text is a token too. The first token has no log-probability. A token with a
probability below 1/2 is not the likeliest one in its place.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from serve_eval.launchers._http.answers import Generated, ToldAnswer
from serve_eval.launchers._http.requests import Ask

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
