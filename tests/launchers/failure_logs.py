"""Logs of servers that failed to start, of four engines, and of sound starts.

`python -m tests.launchers.failure_logs` prints how many are named, also of the fifth that was drawn
before the patterns were written, and the confusion table of those that are not.
"""

from __future__ import annotations

import random
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from serve_eval.launchers._logs.causes import read_causes
from serve_eval.launchers._logs.last_error import explain

FOLDER = Path(__file__).with_name("logs")
COLLECTED = ("trtllm", "vllm", "llama_cpp")
SEED = 54


class FailureLog(NamedTuple):
    """A log; `cause` is the name of a row, None if no row has it, and `line` the first error."""

    name: str
    engine: str
    log: str
    cause: str | None = None
    line: str = ""


@cache
def collected():
    """Return the logs from which a fifth was drawn."""
    return tuple(one for engine in COLLECTED for one in _read(engine, engine))


@cache
def of_sglang():
    """Return the logs of SGLang, which came later than the draw."""
    return tuple(_read("sglang", "sglang"))


@cache
def every():
    """Return all logs of failures."""
    return (*collected(), *of_sglang(), *_read("more", ""))


@cache
def sound():
    """Return the logs of servers that started well."""
    return tuple(_read("sound", ""))


@cache
def held_out():
    """Return the names of the fifth that was not used to write the patterns."""
    names = sorted(one.name for one in collected())
    return frozenset(random.Random(SEED).sample(names, round(len(names) / 5)))


@cache
def told():
    """Return the causes by the names of their rows."""
    return {None: None, **{one.name: one.told for one in read_causes()}}


def name_cause(one, engine):
    """Return the cause that is named for a log."""
    found = explain(one.log, engine)
    return None if found is None or found.cause is None else found.cause.told


def _read(file, engine):
    for row in yaml.safe_load((FOLDER / f"{file}.yaml").read_text()):
        yield FailureLog(
            row["name"],
            row.get("engine", engine),
            row["log"],
            row.get("cause"),
            row.get("line", ""),
        )


if __name__ == "__main__":
    groups = {
        "drawn before the patterns": [one for one in collected() if one.name in held_out()],
        "others": [one for one in collected() if one.name not in held_out()],
        "SGLang, and one for each further row": [one for one in every() if one not in collected()],
    }
    missed = 0
    for group, logs in groups.items():
        wrong = [one for one in logs if name_cause(one, one.engine) != told()[one.cause]]
        missed += len(wrong)
        print(f"{group}: {len(logs) - len(wrong)} of {len(logs)}")
        for one in wrong:
            print(f"  {one.name}: {told()[one.cause]} <- {name_cause(one, one.engine)}")
    false = [one for one in sound() if name_cause(one, one.engine) is not None]
    print(f"sound starts without a cause: {len(sound()) - len(false)} of {len(sound())}")
    sys.exit(bool(missed or false))
