"""Requests and checks that are the same for every measured client.

Only the client may differ.
"""

from __future__ import annotations

from answers import CHUNKS

MODEL = "m"
MAX_TOKENS = 256
STOP = ("Question:", "</s>", "<|im_end|>")
EXTRA = {"truncate_prompt_tokens": 4096}
_SHOT = (
    "Question: A shelf holds 12 books, and 7 more are put on it. How many books are there?\nAnswer:"
    " 12 + 7 = 19.\n\n"
)
_SHOTS = (_SHOT * 50)[:4350]
_PIECE = " word"


def prompt(i: int) -> str:
    """Return the prompt of request `i`, of about 4.35 KB."""
    return f"[[ID]]{i} {_SHOTS}"


def fields(i: int) -> dict[str, object]:
    """Return the body of request `i` as in serve-eval's GSM8K.

    It is for clients that write it themselves.
    """
    sampling = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "top_p": 1.0, "stop": STOP}
    return {"model": MODEL, "prompt": prompt(i), **sampling, **EXTRA}


def is_answer_to(i: int, text: str) -> bool:
    """Return True if a text is the whole answer to request `i`."""
    return text.startswith(f"[[ID]]{i} ") and text.endswith("#### 42")


def is_stream_to(i: int, text: str) -> bool:
    """Return True if a text joined from a stream is the whole answer to request `i`."""
    return text.startswith(f"[[ID]]{i} ") and text.count(_PIECE) == CHUNKS - 1
