"""Change the core in small ways, one at a time, and print the changes that no test notices.

The command is `make mutants`. An interrupted run resumes; the outcome of a mutant is valid as long
as neither the code nor the tests change. Exits with 1 if more survive than allowed.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants import drawing
from tests.mutants.drawing import (
    CONCERNING,
    PACKAGES,
    copy_checkout,
    diff,
    drawn,
    list_files,
    mutants_of,
    tried,
)
from tests.mutants.worker import isolated

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "outputs" / "mutants"
MOST = 25
"""Number of 500 mutants that may survive."""
NONE_OF = ("stats", "verdicts", "storage", "trust")
"""Packages of which no mutant may survive."""
BOUND_S = 45.0
"""Limit in seconds for the earlier durations of a mutant's tests together; the quickest are taken.
"""
ALIVE = ("survived", "undecided")
"""Outcomes of a mutant that no test has noticed."""
NEEDS_ISOLATION = ("launchers/_process",)
"""Packages that end processes by their ids; a mutant of them could end others."""


class Workers:
    """One copy of the working tree per worker, each with the process that runs tests in it."""

    def __init__(self, folder, count, isolate):
        self._free = []
        self._lock = threading.Semaphore(count)
        for number in range(count):
            self._free.append(_worker(folder / f"worker{number}", isolate))

    def done(self, job):
        """Return the outcome of a job, whose files and paths are below the copy."""
        with self._lock:
            copy, process = self._free.pop()
            try:
                files = {str(copy / path): code for path, code in job["files"].items()}
                log = str(copy.parent / "log.txt")
                assert process.stdout is not None
                process.stdin.write(json.dumps({**job, "files": files, "log": log}) + "\n")
                process.stdin.flush()
                if not (line := process.stdout.readline()):
                    raise SystemExit(f"a worker ended with {process.wait()}")
                return dict(json.loads(line))
            finally:
                self._free.append((copy, process))

    def close(self):
        """End the workers."""
        for _, process in self._free:
            process.stdin.close()
            process.wait(30)


def _worker(folder, isolate):
    copy = folder / "checkout"
    copy_checkout(ROOT, copy)
    shared = folder / "shared"
    if (ROOT.parent / "shared").is_dir() and not shared.exists():
        shared.symlink_to(ROOT.parent / "shared")
    (folder / "home").mkdir(exist_ok=True)
    (folder / "tmp").mkdir(exist_ok=True)
    alone = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(copy)}
    one_thread = {
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [sys.executable, "-m", "tests.mutants.worker"]
    process = subprocess.Popen(
        (isolated(command) if isolate else None) or command,
        cwd=copy,
        env={**os.environ, **alone, **one_thread},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return copy, process


def _tree():
    """Return a hash of everything that a mutant's outcome depends on."""
    said = hashlib.sha256()
    for name in sorted(list_files(ROOT)):
        if (ROOT / name).is_file() and not name.startswith(("docs/", "bench/", "tests/mutants/")):
            said.update(name.encode() + b"\0" + (ROOT / name).read_bytes() + b"\0")
    return said.hexdigest()[:16]


class Lines:
    """The lines that each test ran, and the durations of the tests."""

    def __init__(self, entries):
        self._tests = {}
        self._seconds = {}
        for entry in entries:
            if "test" in entry:
                self._seconds[entry["test"]] = entry["seconds"]
            else:
                self._tests.setdefault((entry["path"], entry["line"]), set()).update(entry["tests"])

    def concerning(self, mutant):
        """Return the tests that run the changed statement, then those that run its function.

        The quickest come first. A tracer misses some lines behind an await.
        """
        own = f"test_{Path(mutant.path).stem.strip('_')}"
        ordered = {}
        for first, last in (mutant.lines, mutant.around):
            found = {
                t
                for line in range(first, last + 1)
                for t in self._tests.get((mutant.path, line), ())
            }
            ordered |= dict.fromkeys(
                sorted(found, key=lambda test: (self._seconds.get(test, 0.0), test))
            )
        chosen, left = [], BOUND_S
        for test in ordered:
            left -= self._seconds.get(test, 0.0)
            if not chosen or left > 0:
                chosen.append(test)
        return sorted(
            chosen, key=lambda test: own not in test
        )  # the module's own tests notice most, and earliest

    def seconds(self, tests):
        """Return their total duration."""
        return sum(self._seconds.get(test, 0.0) for test in tests)


def _traced(folder, packages, workers):
    """Run the tests of the packages once, file by file, and record the lines that each runs."""
    paths = dict.fromkeys(path for package in packages for path in CONCERNING[package])
    found = dict.fromkeys(
        file.relative_to(ROOT).as_posix()
        for path in paths
        for file in (
            sorted((ROOT / path).rglob("test_*.py")) if (ROOT / path).is_dir() else [ROOT / path]
        )
        if file.is_file()
    )
    folder.mkdir(parents=True, exist_ok=True)
    started, done = time.monotonic(), 0

    def one(name):
        nonlocal done
        out = folder / (name.replace("/", "-") + ".jsonl")
        if not out.exists():
            partial = out.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            job = {
                "files": {},
                "tests": {},
                "paths": [name],
                "limit_s": 900.0,
                "trace": str(partial),
            }
            outcome = workers.done(job)
            if outcome["status"] not in (0, 1, 5):
                raise SystemExit(f"{name} cannot be run: {outcome['status']}\n{outcome['output']}")
            if outcome["status"] == 1:
                _say(
                    f"without any change {name} ends with {outcome['status']}:\n{outcome['output']}"
                )
            if partial.exists():
                partial.replace(out)
            else:
                out.touch()
        done += 1
        if done % 10 == 0:
            _say(f"lines of {done} of {len(found)} test files, {time.monotonic() - started:.0f} s")
        return out

    with ThreadPoolExecutor(16) as pool:
        outs = list(pool.map(one, found))
    return Lines(json.loads(line) for out in outs for line in out.read_text().splitlines())


def _say(text):
    print(text, flush=True)


def main(arguments=None):
    """Draw the mutants, run the tests of each, and print the score and the survivors."""
    parser = argparse.ArgumentParser(prog="make mutants ARGS=...", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="mutants to draw (default 500)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument(
        "--package",
        action="append",
        choices=list(PACKAGES),
        help="try those of the draw that are of these packages",
    )
    parser.add_argument(
        "--survivors", action="store_true", help="try again only what survived an earlier run"
    )
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="of the copies and results (outputs/mutants)"
    )
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    packages = options.package or list(PACKAGES)
    folder.mkdir(parents=True, exist_ok=True)

    isolate = isolated(["true"]) is not None
    if not isolate:
        _say(
            f"no namespaces here (unshare): {', '.join(NEEDS_ISOLATION)} is left out, whose mutants"
            " may end any process"
        )
        packages = [package for package in packages if package not in NEEDS_ISOLATION]

    every = drawn(mutants_of(ROOT, PACKAGES), options.count, options.seed)
    mutants = [one for one in every if one.package in packages]
    file = folder / "results.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    tree = _tree()
    results = {
        one["name"]: one
        for one in known
        if (options.survivors or one["tree"] == tree) and one["outcome"] != "undecided"
    }
    explained = drawing.listed()
    diffs = {
        one.name: diff((ROOT / one.path).read_text(encoding="utf-8"), one.make()) for one in mutants
    }
    for one in mutants:
        if reason := explained.get((one.path, *diffs[one.name])):
            results[one.name] = {"name": one.name, "outcome": "equivalent", "reason": reason}
    waiting = [
        one
        for one in mutants
        if one.name not in results or (options.survivors and _again(results[one.name], tree))
    ]
    _say(
        f"{len(mutants)} mutants, {len(waiting)} to try, {options.jobs} at a time; results in"
        f" {file.parent}"
    )
    if waiting:
        workers = Workers(folder, options.jobs, isolate)
        try:
            lines = _traced(
                folder / f"lines-{tree}",
                list(dict.fromkeys(one.package for one in waiting)),
                workers,
            )
            with file.open("a", buffering=1) as out:
                _try_all(waiting, lines, workers, options.jobs, tree, results, out)
        finally:
            workers.close()
    return _score(mutants, results, diffs)


def _again(result, tree):
    return result["outcome"] in ALIVE and result["tree"] != tree


def _try_all(
    waiting,
    lines,
    workers,
    jobs,
    tree,
    results,
    out,
):
    started = time.monotonic()

    def one(mutant):
        tests = lines.concerning(mutant)
        outcome = {"outcome": "survived", "status": 0, "seconds": 0.0, "output": ""}
        if tests:
            durations = {test: lines.seconds([test]) for test in tests}
            outcome = tried(workers.done, {mutant.path: mutant.make()}, durations)
        if outcome["status"] == 5:
            _say(f"{mutant.path}: its tests were not found: {outcome['output']}")
        results[mutant.name] = said = {
            "name": mutant.name,
            "tree": tree,
            "outcome": outcome["outcome"],
            "tests": len(tests),
            "seconds": round(outcome["seconds"], 2),
            "path": mutant.path,
            "line": mutant.lines[0],
            "by": next(
                (x for x in outcome["output"].splitlines() if x.startswith(("FAILED", "ERROR"))), ""
            )[:200],
        }
        out.write(json.dumps(said) + "\n")
        if len(results) % 20 == 0:
            alive = sum(one["outcome"] in ALIVE for one in results.values())
            _say(f"{len(results)} known, {alive} survived, {time.monotonic() - started:.0f} s")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, waiting))


def _score(mutants, results, diffs):
    survivors = [one for one in mutants if results[one.name]["outcome"] in ALIVE]
    for one in survivors:
        told = results[one.name]
        _say(
            f"\n{one.path}:{one.lines[0]} {told['outcome']}: {told['tests']} tests"
            f" ({told['seconds']} s)"
        )
        _say("\n".join(diffs[one.name]))
    _say(
        f"\n{'package':20} {'mutants':>8} {'killed':>7} {'timeout':>8} {'equivalent':>11}"
        f" {'survived':>9}"
    )
    for package in [*PACKAGES, "all"]:
        group = [one for one in mutants if package in (one.package, "all")]
        if not group:
            continue
        ends = [results[one.name]["outcome"] for one in group]
        counts = [ends.count(kind) for kind in ("killed", "timeout", "equivalent")]
        alive = sum(end in ALIVE for end in ends)
        _say(f"{package:20} {len(group):8} {counts[0]:7} {counts[1]:8} {counts[2]:11} {alive:9}")
    strict = [one for one in survivors if one.package in NONE_OF]
    return int(bool(strict) or len(survivors) * 500 > MOST * len(mutants))


if __name__ == "__main__":
    sys.exit(main())
