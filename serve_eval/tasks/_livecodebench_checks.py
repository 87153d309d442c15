"""Compare the outputs of a solution with those of the tests, as LiveCodeBench does: the checks.

The text of this file is the beginning of the checks of each program in the sandbox, so it imports
nothing of serve_eval. Its last line calls `judge`. Tests are decoded here, in the sandbox: they are
base64 of zlib of a pickle, and a pickle is a program. So nothing is unpickled: `read_pickled_text`
reads the only thing that such a pickle may be, one text.

Source of the behaviour: LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py and
benchmarks/code_generation.py (MIT).
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import zlib
from decimal import Decimal

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MOST_BYTES = 1 << 30
"""Bytes of unpacked tests at most."""
FRAME, FRAME_BYTES = b"\x95", 8
TEXTS = {b"\x8c": 1, b"X": 4, b"\x8d": 8}
"""Opcodes of a text, with the bytes of its length."""
MEMOS = {b"\x94": 0, b"q": 1, b"r": 4}
"""Opcodes that keep the text for later, with the bytes of their argument."""


def read_pickled_text(content: bytes) -> str:
    """Return the text that a pickle consists of, without running it.

    Raises ValueError for a pickle of anything else. Source: CPython's pickletools, protocol 2 to 5.
    """
    at, said = 0, None

    def take(count: int) -> bytes:
        nonlocal at
        piece = content[at : at + count]
        if len(piece) != count:
            raise ValueError("the pickle ends too early")
        at += count
        return piece

    if take(1) != b"\x80" or not 2 <= take(1)[0] <= 5:
        raise ValueError("not a pickle of protocol 2 to 5")
    while (code := take(1)) != b".":
        if code == FRAME:
            take(FRAME_BYTES)
        elif code in TEXTS and said is None:
            said = take(int.from_bytes(take(TEXTS[code]), "little"))
        elif code in MEMOS and said is not None:
            take(MEMOS[code])
        else:
            raise ValueError(f"the pickle is not one text: it has the opcode {code!r}")
    if said is None or at != len(content):
        raise ValueError("the pickle is not one text")
    return said.decode("utf-8", "surrogatepass")


def read_tests(row: dict[str, Any]) -> list[dict[str, str]]:
    """Return the public and the private tests of a row, each with `input` and `output`.

    Raises ValueError for tests in another form, or of more than a gigabyte.
    """
    private = row["private_test_cases"]
    try:
        hidden = json.loads(private)
    except ValueError:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(base64.b64decode(private), MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("the private tests are too large, or incomplete") from None
        hidden = json.loads(read_pickled_text(unpacked))
    tests: list[dict[str, str]] = [*json.loads(row["public_test_cases"]), *hidden]
    return tests


def name_function(row: dict[str, Any]) -> str | None:
    """Return the function that tests call; None for standard input."""
    found: str | None = json.loads(row["metadata"]).get("func_name")
    return found


def is_same_output(said: str, expected: str) -> bool:
    """Return True if two texts are equal line by line, without white space at the ends.

    Lines that differ may have the same numbers.
    """
    lines, wanted = _split(said), _split(expected)
    return len(lines) == len(wanted) and all(map(_is_same_line, lines, wanted))


def _split(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _is_same_line(said: str, expected: str) -> bool:
    if said == expected:
        return True
    try:
        numbers, wanted = ([Decimal(word) for word in line.split()] for line in (said, expected))
    except Exception:
        return False
    return numbers == wanted


def judge(given: bytes, run_test: Callable[[str], Any], limit_s: int) -> None:
    """Run the tests of a row up to the first that fails. Raises AssertionError there.

    All together may take a second more each, and five more.
    """
    row = json.loads(given)
    tests, calls = read_tests(row), name_function(row) is not None
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm((limit_s + 1) * len(tests) + 5)
    for number, test in enumerate(tests, 1):
        said = run_test(test["input"])
        expected = test["output"]
        right = said == json.loads(expected) if calls else is_same_output(said, expected)
        if not right:
            raise AssertionError(f"wrong answer in test {number} of {len(tests)}")
    signal.alarm(0)


def _ring(*told: object) -> None:
    """End both sides: the program may be in an endless loop, which no exception here would end."""
    sys.stderr.write("all tests together took too long\n")
    sys.stderr.flush()
    os._exit(1)
