"""Numbers out of worked solutions, by the two filters of lm-evaluation-harness's gsm8k task (version 3).

`strict-match` takes the first number after `####`; `flexible-extract` the last number of any kind. Both answers and the
target then lose commas, dollar signs, everything up to the last `#### ` and a final full stop, and are compared with
the case ignored.
"""

from __future__ import annotations

import re
from collections import deque

STRICT = "strict-match"
FLEXIBLE = "flexible-extract"

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_IGNORED = tuple(re.compile(pattern) for pattern in (r",", r"\$", r"(?s).*#### ", r"\.$"))


def extract_strict(text: str) -> str | None:
    """The number after the first `#### ` that a number follows; None when there is none."""
    match = _STRICT.search(text)
    return match.group(1).strip() if match else None


def extract_flexible(text: str) -> str | None:
    """The last number of the text, in any form; None when there is none."""
    last = next(iter(deque(_FLEXIBLE.finditer(text), maxlen=1)), None)
    return (last.group(1) or last.group(2)).strip() if last else None


def normalise(text: str) -> str:
    """The form in which an extracted number and a target are compared."""
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()


EXTRACTORS = {STRICT: extract_strict, FLEXIBLE: extract_flexible}
