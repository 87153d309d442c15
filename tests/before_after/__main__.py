"""Compare two checkouts of this repository.

The command is `python -m tests.before_after results|folders|speed|house|walk BEFORE AFTER`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.before_after.checkout import Checkout, common, print_speed, simulated
from tests.before_after.data import plan, write_all
from tests.before_after.difference import Renamed, compare, leaves, neutral, read
from tests.before_after.house import print_house
from tests.before_after.runs import RUNS
from tests.before_after.walk import print_walks

SHOWN = 40
"""Number of differences of a run that are printed."""
UNKNOWN_COMMAND = 2
_URL = re.compile(r"http://127\.0\.0\.1:\d+/v1")
_UNKNOWN = ("No such command", "No such option", "there is no command", "there is no option")


def compare_results(before, after, only=(), renamed=()):
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


def _side(root, scratch):
    scratch.mkdir()
    side = Checkout(root=root, cwd=scratch, scratch=scratch)
    side.check()
    return side


def _give(run, side):
    """Return the results of a run.

    These are the leaves of its files by file, and of the output of its commands by number.
    """
    here = side.scratch / run.name
    here.mkdir()
    write_all(here)
    run.prepare(here)
    inside = Checkout(root=side.root, cwd=here, scratch=side.scratch, more=side.more)
    places = (str(here), str(side.scratch), str(side.root))
    found = dict(_commands(run, inside, places))
    for folder in run.folders:
        inner = read(here / folder, places, ordered=run.ordered)
        found |= {f"{folder}/{name}": one for name, one in inner.items()}
    for name in run.files:
        found[name] = dict(leaves(neutral((here / name).read_text("utf-8"), places).splitlines()))
    return found


def _commands(run, inside, places):
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


def _one(step, inside, held):
    ended = inside.serve_eval(*(part.replace("{held}", held) for part in step.arguments))
    if (
        step.otherwise
        and ended.code == UNKNOWN_COMMAND
        and any(words in ended.err for words in _UNKNOWN)
    ):
        return inside.serve_eval(*step.otherwise)
    return ended


def _said(ended, places):
    """Return the output of a command: the leaves of an object, or its lines."""
    text = neutral(ended.out, places)
    if text.startswith(("{", "[")):
        return {f"/out{path}": leaf for path, leaf in leaves(json.loads(text))}
    return {f"/out/{number}": line for number, line in enumerate(text.splitlines(), start=1)}


def _print(run, found, codes):
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


REFUSED = 2
SHOWN_FOLDERS = 10
SAMPLES = 200
_TRACES = ("Traceback", "unexpected ")
_AGES = re.compile(r"\b\d{4}-\d\d-\d\dT[\d:.+]+")


@dataclass(frozen=True, slots=True)
class Old:
    """An action on old folders: its command, and the folder or file that it leaves."""

    what: str
    arguments: Sequence[str]
    left: str = ""


STEPS = (
    Old("resume an interrupted run", ("run", "--resume", "cut"), "cut"),
    Old("resume a finished run", ("run", "--resume", "fine"), "fine"),
    Old("judge", ("judge", "fine", "--json")),
    Old(
        "verdict by another rule",
        ("judge", "fine", "--verdict", "paired", "--references-dir", "refs", "--json"),
    ),
    Old("rescore", ("judge", "--rescore", "fine", "--json")),
    Old(
        "rescore with another option",
        ("judge", "--rescore", "fine", "--set", "gsm8k.filter=strict-match", "-o", "scored"),
        "scored",
    ),
    Old("compare two old folders", ("compare", "fine", "other", "--json", "-o", "compared")),
    Old("go on with an old comparison", ("compare", "fine", "other", "--json", "-o", "twins")),
    Old("export", ("runs", "export", "fine", "-o", "theirs"), "theirs"),
    Old("diagnose", ("diagnose", "other", "--json")),
    Old(
        "references register", ("references", "register", "fine", "--references-dir", "new"), "new"
    ),
    Old("resume an interrupted suite", ("run", "--resume", "nightly"), "nightly"),
    Old("resume a finished suite", ("run", "--resume", "nightly", "--json")),
    Old("trend", ("runs", "trend", ".", "--json")),
)


def check_folders(before, after, renamed=()):
    """Print a line for each step.

    Returns 1 if a step neither works as before nor is refused with a clear message.
    """
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="before-after-") as name:
        scratch, here = Path(name), Path(name) / "folders"
        here.mkdir()
        old = Checkout(root=before, cwd=here, scratch=scratch)
        new = Checkout(root=after, cwd=here, scratch=scratch)
        for side in (old, new):
            side.check()
        _make(old, here)
        kept = scratch / "kept"
        here.rename(kept)
        places = (str(here), str(before), str(after), str(scratch))
        told = []
        for side in (
            old,
            new,
        ):  # at the same path, since plans hold paths and signatures cover the folder
            shutil.copytree(kept, here)
            told.append([_do(step, side, places) for step in STEPS])
            shutil.rmtree(here)
        for step, (code, one, _), (now, two, ended) in zip(STEPS, *told, strict=True):
            found = compare(one, two, renamed)
            clear = now == REFUSED and not any(word in ended.err for word in _TRACES)
            if code == now and not found.differences:
                said = f"as before: exit code {now}, {found.fields} fields"
            elif clear and code != REFUSED:
                said = f"refused: {ended.err.strip()[:200]}"
            else:
                wrong += 1
                said = (
                    f"DIFFERS: exit code {code} -> {now}, {len(found.differences)} of"
                    f" {found.fields} fields"
                )
            print(f"{step.what:30} {said}")
            if said.startswith("DIFFERS"):
                print("".join(f"    {one}\n" for one in found.differences[:SHOWN_FOLDERS]), end="")
    print(f"{wrong} of {len(STEPS)} steps differ")
    return 1 if wrong else 0


def _make(old, here):
    """Write the old folders.

    These are two finished runs, references, a comparison, and an interrupted run and suite.
    """
    write_all(here)
    tasks = [{"gsm8k": {"num_samples": SAMPLES}}, {"word_problems": {"num_samples": 60}}]
    for name, run, damage in (("fine", 0, 0.0), ("other", 1, 0.2)):
        served = simulated(accuracy=0.8, flip_rate=0.05, run=run, damage=damage)
        plan(here / f"{name}.yaml", tasks=tasks, launcher=served, **common(8, order_seed=7))
        _sound(old.serve_eval("run", f"{name}.yaml", "--no-reference", "-o", name), name)
    _sound(old.serve_eval("references", "register", "fine", "--references-dir", "refs"), "refs")
    _sound(old.serve_eval("compare", "fine", "other", "-o", "twins"), "twins")
    slow = simulated(accuracy=0.8, flip_rate=0.05, run=3, latency_s=0.05)
    plan(here / "cut.yaml", tasks=tasks, launcher=slow, **common(4, order_seed=7))
    _cut(old, ("run", "cut.yaml", "--no-reference", "-o", "cut"), here / "cut/samples/gsm8k.jsonl")
    quick = {"name": "quick", "launcher": simulated(accuracy=0.8, run=4)}
    shared = {"model": "m", "dataset_root": "data", "references_dir": "refs", "tasks": tasks}
    limits = {"concurrency": 4, "order_seed": 7}
    plan(
        here / "nightly.yaml",
        defaults={**shared, "limits": limits},
        plans=[quick, {"name": "slow", "launcher": slow}],
    )
    _cut(
        old,
        ("run", "nightly.yaml", "-o", "nightly"),
        here / "nightly/runs/slow/samples/gsm8k.jsonl",
    )


def _sound(ended, what):
    if ended.code not in (0, 1, 3):
        raise SystemExit(f"{what} could not be made: exit code {ended.code}: {ended.last_words}")


def _cut(old, arguments, journal):
    """Interrupt a command when a quarter of the samples is answered."""
    some = lambda: _records(journal) >= SAMPLES // 4  # noqa: E731
    ended = old.interrupt(arguments, some)
    if ended.code != 130 or not SAMPLES // 4 <= _records(journal) < SAMPLES:
        raise SystemExit(
            f"not cut in the middle: exit code {ended.code}, {_records(journal)} answers:"
            f" {ended.last_words}"
        )
    print(
        f"{arguments[0]} interrupted after {_records(journal)} of {SAMPLES} answers of the first"
        " task"
    )


def _records(journal):
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def _do(step, side, places):
    """Return the exit code, the printed object and the leaves of what was left."""
    ended = side.serve_eval(*step.arguments)
    found = {}
    if "--json" in step.arguments and ended.out.startswith("{"):
        found["output"] = dict(leaves(json.loads(_AGES.sub("<time>", neutral(ended.out, places)))))
    if step.left:
        found |= read(side.cwd / step.left, places, ordered=False)
    return ended.code, found, ended


def main():
    """Run one of the comparisons and return the exit code: 1 if something differs or fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.before_after", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    results = commands.add_parser(
        "results", help="twelve deterministic runs leave the same results"
    )
    _two(results)
    results.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="one of the runs; repeatable"
    )
    renamed = "a meant change of a key or of a whole value; repeatable"
    results.add_argument(
        "--renamed",
        action="append",
        default=[],
        type=Renamed.parse,
        metavar="OLD=NEW",
        help=renamed,
    )
    folders = commands.add_parser(
        "folders", help="folders of the first checkout are read by the second"
    )
    _two(folders)
    folders.add_argument(
        "--renamed",
        action="append",
        default=[],
        type=Renamed.parse,
        metavar="OLD=NEW",
        help=renamed,
    )
    speed = commands.add_parser("speed", help="one table of medians and their ratios")
    _two(speed)
    speed.add_argument("--rounds", type=int, default=7)
    speed.add_argument(
        "--samples", type=int, default=100_000, help="of the run whose peak memory is measured"
    )
    house = commands.add_parser("house", help="figures of the code, side by side")
    walk = commands.add_parser("walk", help="files and calls that a sample and a plan pass")
    walk.add_argument("--calls", action="store_true", help="list them by file and function")
    for one in (house, walk):
        one.add_argument("checkouts", type=_checkout, nargs="+", metavar="CHECKOUT")
    given = parser.parse_args()
    match given.command:
        case "results":
            return compare_results(given.before, given.after, given.only, given.renamed)
        case "folders":
            return check_folders(given.before, given.after, given.renamed)
        case "speed":
            return print_speed(
                given.before, given.after, rounds=given.rounds, samples=given.samples
            )
        case "house":
            return print_house(given.checkouts)
        case "walk":
            return print_walks(given.checkouts, calls=given.calls)
    raise AssertionError(given.command)


def _two(parser):
    parser.add_argument("before", type=_checkout, metavar="BEFORE")
    parser.add_argument("after", type=_checkout, metavar="AFTER")


def _checkout(text):
    root = Path(text).resolve()
    if not (root / "serve_eval").is_dir():
        raise argparse.ArgumentTypeError(f"{root} is no checkout: it has no folder serve_eval")
    return root


if __name__ == "__main__":
    sys.exit(main())
