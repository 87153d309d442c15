"""Fixed work, by which bench/gate.py divides its figures: it must never change with the product.

`python bench/yardstick.py loop` does what an interpreter spends its time on: calls, integers, texts
and dictionaries. `python bench/yardstick.py records N` keeps N records: a peak of memory.
"""

from __future__ import annotations

import sys

TURNS = 400_000


def _mix(number: int, seen: dict[str, int]) -> int:
    key = f"{number % 1009:04d}"
    seen[key] = seen.get(key, 0) + number
    return (number * 31 + len(key)) % 65521


def loop() -> int:
    """Do the fixed work of TURNS turns."""
    seen: dict[str, int] = {}
    number = 1
    for turn in range(TURNS):
        number = _mix(number + turn, seen)
    return number


def records(count: int) -> int:
    """Keep `count` records of about 200 bytes."""
    kept = [(turn, str(turn), bytes(64)) for turn in range(count)]
    return len(kept)


if __name__ == "__main__":
    loop() if sys.argv[1] == "loop" else records(int(sys.argv[2]))
