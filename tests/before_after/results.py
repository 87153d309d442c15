"""Run the commands of the twelve runs with two checkouts, and compare the results."""

from __future__ import annotations

import importlib.util
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.before_after.checkout import Checkout, Ended
from tests.before_after.data import write_all
from tests.before_after.difference import Compared, Leaves, Renamed, compare, leaves, neutral, read
from tests.before_after.runs import RUNS
from tests.before_after.script import Run, Step

SHOWN = 40
"""Number of differences of a run that are printed."""
UNKNOWN_COMMAND = 2
_URL = re.compile(r"http://127\.0\.0\.1:\d+/v1")
_UNKNOWN = ("No such command", "No such option", "there is no command", "there is no option")


def compare_results(
    before: Path, after: Path, only: Sequence[str] = (), renamed: Sequence[Renamed] = ()
) -> int:
    """Print the comparisons and differences of each run, and return the exit code."""
    if unknown := set(only) - {run.name for run in RUNS}:
        raise SystemExit(
            f"no run is called {', '.join(sorted(unknown))}: {', '.join(run.name for run in RUNS)}"
        )
    differ = skipped = 0
    with tempfile.TemporaryDirectory(prefix="before-after-") as name:
        sides = [
            _side(root, Path(name) / side) for side, root in (("before", before), ("after", after))
        ]
        for run in RUNS:
            if only and run.name not in only:
                continue
            if run.needs and importlib.util.find_spec(run.needs) is None:
                print(f"{run.name:12} SKIPPED: {run.needs} is not importable", flush=True)
                skipped += 1
                continue
            with ThreadPoolExecutor(2) as pool:
                one, two = pool.map(lambda side, run=run: _give(run, side), sides)
            found = compare(one, two, renamed)
            _print(run, found, [leaf["/code"] for leaf in two.values() if "/code" in leaf])
            differ += bool(found.differences)
    print(f"{differ} runs differ, {skipped} skipped")
    return 1 if differ else 0


def _side(root: Path, scratch: Path) -> Checkout:
    scratch.mkdir()
    side = Checkout(root=root, cwd=scratch, scratch=scratch)
    side.check()
    return side


def _give(run: Run, side: Checkout) -> dict[str, Leaves]:
    """Return the results of a run.

    These are the leaves of its files by file, and of the output of its commands by number.
    """
    here = side.scratch / run.name
    here.mkdir()
    write_all(here)
    run.prepare(here)
    inside = Checkout(root=side.root, cwd=here, scratch=side.scratch, more=side.more)
    places = (str(here), str(side.scratch), str(side.root))
    found: dict[str, Leaves] = dict(_commands(run, inside, places))
    for folder in run.folders:
        inner = read(here / folder, places, ordered=run.ordered)
        found |= {f"{folder}/{name}": one for name, one in inner.items()}
    for name in run.files:
        found[name] = dict(leaves(neutral((here / name).read_text("utf-8"), places).splitlines()))
    return found


def _commands(run: Run, inside: Checkout, places: Sequence[str]) -> Iterator[tuple[str, Leaves]]:
    held = ""
    try:
        for number, step in enumerate(run.steps, start=1):
            ended = _one(step, inside, held)
            if url := _URL.search(ended.out):
                held = url.group()
            said = {"/code": ended.code, **(_said(ended, places) if step.shown else {})}
            if ended.code in (2, 4) or ended.code < 0:
                said["/error"] = neutral(ended.last_words, places)
            yield f"command {number}: {' '.join(step.arguments)}", said
    finally:
        if run.last is not None:
            _one(run.last, inside, held)


def _one(step: Step, inside: Checkout, held: str) -> Ended:
    ended = inside.serve_eval(*(part.replace("{held}", held) for part in step.arguments))
    if (
        step.otherwise
        and ended.code == UNKNOWN_COMMAND
        and any(words in ended.err for words in _UNKNOWN)
    ):
        return inside.serve_eval(*step.otherwise)
    return ended


def _said(ended: Ended, places: Sequence[str]) -> dict[str, object]:
    """Return the output of a command: the leaves of an object, or its lines."""
    text = neutral(ended.out, places)
    if text.startswith(("{", "[")):
        return {f"/out{path}": leaf for path, leaf in leaves(json.loads(text))}
    return {f"/out/{number}": line for number, line in enumerate(text.splitlines(), start=1)}


def _print(run: Run, found: Compared, codes: Sequence[object]) -> None:
    what = f"{found.files:4} files, {found.fields:6} fields, {found.masked:6} masked"
    print(
        f"{run.name:12} {what}: {len(found.differences)} differences; exit codes"
        f" {' '.join(map(str, codes))}",
        flush=True,
    )
    for difference in found.differences[:SHOWN]:
        print(f"    {difference}")
    if len(found.differences) > SHOWN:
        print(f"    and {len(found.differences) - SHOWN} more")
