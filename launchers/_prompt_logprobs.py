"""Log-probabilities of prompts as simulated servers give them: every token of a prompt has the same one.

A token is a word with the white space before it, the last one with what follows it; the first has no log-probability.
A token that is less than even is not the likeliest one in its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from launchers._openai_server import Ask, Generated, encode

Form = Literal["none", "echo", "prompt_logprobs"]
"""What a server can: nothing, as trtllm-serve, which echoes the text alone; `echo` with `logprobs`; vLLM's field, and
`echo` ignored."""
UNKNOWN = -1.0
"""Log-probability of the tokens of prompts that the answer file has no number for."""

OTHER = "~"
"""The likeliest token where it is another one."""

_TOKEN = re.compile(r"\s*\S+(?:\s+\Z)?")


def told(ask: Ask, form: Form) -> bool:
    """Whether this request gets log-probabilities of its prompt."""
    if form == "prompt_logprobs":
        return ask.prompt_logprobs
    return form != "none" and ask.echo and ask.logprobs and not ask.chat


def body(ask: Ask, number: int, generated: Sequence[Generated], form: Form) -> bytes:
    """The whole answer, as JSON. The log-probability is the number that the generated text is."""
    choices = []
    for index, (prompt, one) in enumerate(zip(ask.prompts, generated, strict=True)):
        text = str(prompt)
        tokens = _TOKEN.findall(text)[-(ask.truncate or 0) :]
        values: list[float | None] = [None, *[_number(one.text)] * (len(tokens) - 1)]
        said: dict[str, object] = {"text": one.text, "logprobs": None}
        if form == "prompt_logprobs":
            entries = [
                None if value is None else {str(i): {"logprob": value, "rank": _rank(value), "decoded_token": token}}
                for i, (token, value) in enumerate(zip(tokens, values, strict=True))
            ]
            said["prompt_logprobs"] = entries
        else:
            shown, known = [*tokens, one.text or ""], [*values, UNKNOWN]
            offsets = list(accumulate(map(len, shown[:-1]), initial=0))
            said["text"] = "".join(shown)
            tops = [
                None if value is None else {token if _rank(value) == 1 else OTHER: max(value, _rest(value))}
                for token, value in zip(shown, known, strict=True)
            ]
            said["logprobs"] = {"tokens": shown, "token_logprobs": known, "text_offset": offsets, "top_logprobs": tops}
        choices.append({"index": index, **said, "finish_reason": "length", "stop_reason": None})
    usage = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": len(choices)}
    head = {"id": f"cmpl-{number:032x}", "object": "text_completion", "created": 0, "model": ask.model}
    return encode({**head, "choices": choices, "usage": usage})


def _rank(value: float) -> int:
    """Of a token with that log-probability among those in its place: the first, unless another one is likelier."""
    return 1 if value >= _rest(value) else 2


def _rest(value: float) -> float:
    """The log-probability of all others together."""
    return math.log(-math.expm1(value)) if value < 0 else -math.inf


def _number(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return UNKNOWN
