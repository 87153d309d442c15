"""Count what the commands say against sound pairs of real vLLM servers, which should be nothing.

`python -m tests.vllm.pair_trials FILE` adds a line to FILE after each command and prints a table of
all. It goes on where FILE ends; `--commands N` is how many there shall be, and `--minutes M` begins
none later than that.

A deployment of one context and one generation server is compared with an aggregated one, three
times with other prompts, forms and loads, and then its servers are asked separately. All are as
sound as each other, so that a line that accuses B, its servers or their transfer, or that speaks of
other clients, comes from chance or from the commands themselves. Some come back late: vLLM expires
a hand-over that nobody fetched half a minute after it, and says so to the next command.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec

from tests.stats.calibrate_siblings import interval
from tests.vllm.deployments import Deployments
from tests.vllm.fault_table import commands
from tests.vllm.fault_table.commands import PAIR, Stage, System

COMMANDS = 100
COMPARE, ATTRIBUTE = "compare", "attribute"
ROUND = (COMPARE, COMPARE, COMPARE, ATTRIBUTE)
ACCUSATIONS = {
    "the transfer failed": r"failed in part|expired requests|notifications after expiry",
    "other clients": r"include other clients|other servers answered too",
    "B is slower": r"\bslower: |\buneven: |more than 2 times as long",
    "B fails or flips more": r"more_failures|more_flips|unsteady|unlike servers",
    "a server is accused": r"wrong, the others|not in the servers as they answer|took over no KV",
    "the path is not proven": r"path not proven|no KV moved|had 0 of the",
}
"""The lines that say something against a side or a server, or of clients that were not there."""
INTERRUPTED = 130
"""The exit code of a command that was told to end."""
WARNING = re.compile(r"^ *warning:? +(.*)$", re.MULTILINE)


class Tried(msgspec.Struct, frozen=True):
    """One command: its exit code, the lines that accuse, each with its kind, and all warnings."""

    command: str
    number: int
    code: int
    said: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    seconds: float

    @property
    def failed(self):
        """True if it ended with a verdict against B, or with servers that it accuses."""
        return self.code == 1


def find_accusations(text):
    """Return the accusing lines of an output, each with its kind.

    A line that begins with busy_cores says that it is no evidence against a server.
    """
    return tuple(
        (kind, line.strip())
        for line in text.splitlines()
        for kind, pattern in ACCUSATIONS.items()
        if re.search(pattern, line) and "busy_cores: " not in line
    )


def choose(stage, number):
    """Return the pair as a trial asks it, with other prompts, another form or another load."""
    rng = random.Random(f"pairs:{number}")
    context, decode = stage.pair()
    return System(
        a=stage.sound,
        b=stage.running[PAIR].base_url,
        servers={"context_0": context, "generation_0": decode},
        prompts=rng.choice((20, 40, 80)),
        shots=rng.choice((0, 0, 2)),
        in_flight=rng.choice((1, 8, 16, 64)),
    )


def try_one(stage, number, top):
    """Run the command of a trial. `attribute` asks the servers of the comparison before it."""
    kind = ROUND[number % len(ROUND)]
    began = time.monotonic()
    if kind == ATTRIBUTE:
        told = commands.attribute(choose(stage, number - 1), number, _folder(top, number - 1))
    else:
        system, folder = choose(stage, number), _folder(top, number)
        folder.mkdir()
        told = commands.compare(_with_few_at_load_one(system), number, folder)
    return Tried(
        command=kind,
        number=number,
        code=told.code,
        said=find_accusations(told.text),
        warnings=tuple(WARNING.findall(told.text)),
        seconds=time.monotonic() - began,
    )


def _with_few_at_load_one(system):
    """Ask few prompts one at a time, which takes long."""
    return replace(system, prompts=20) if system.in_flight == 1 else system


def _folder(top, number):
    return top / str(number)


def run(file, wanted, until_s):
    """Run the trials that the file lacks."""
    with tempfile.TemporaryDirectory() as text:
        top = Path(text)
        running = Deployments(top)
        try:
            stage = Stage(running, top)
            for number in _left(read(file), wanted):
                if time.monotonic() > until_s:
                    return
                if (tried := try_one(stage, number, top)).code == INTERRUPTED:
                    return
                with file.open("ab") as kept:
                    kept.write(msgspec.json.encode(tried) + b"\n")
        finally:
            running.close()


def _left(found, wanted):
    """Yield the numbers of the trials that are left, from the beginning of a round."""
    done = 1 + max((one.number for one in found), default=-1)
    first = -(-done // len(ROUND)) * len(ROUND)
    yield from range(first, first + wanted - len(found))


def read(file):
    """Return the trials of a file."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Tried) for line in lines]


def print_table(found):
    """Print the commands that accused, by kind, with the exact interval of 95 %."""
    print("what was said | of compare | of attribute | of all | 95 % interval")
    by_kind = {
        kind: Counter(one.command for one in found if any(kind == said for said, _ in one.said))
        for kind in ACCUSATIONS
    }
    rows = {
        **by_kind,
        "a verdict FAIL": Counter(one.command for one in found if one.failed),
        "any of these": Counter(one.command for one in found if one.failed or one.said),
    }
    tried = Counter(one.command for one in found)
    for name, counts in rows.items():
        low, high = interval(counts.total(), len(found))
        each = " | ".join(f"{counts[one]} of {tried[one]}" for one in (COMPARE, ATTRIBUTE))
        print(
            f"{name} | {each} | {counts.total()} of {len(found)} |"
            f" {100 * low:.1f} to {100 * high:.1f} %"
        )
    for one in found:
        for kind, line in one.said:
            print(f"{one.number} {one.command} | {kind} | {line}")


def main():
    """Run the trials and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    parser.add_argument("--commands", type=int, default=COMMANDS)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args()
    run(given.file, given.commands, time.monotonic() + 60 * given.minutes)
    if found := read(given.file):
        print_table(found)


if __name__ == "__main__":
    main()
