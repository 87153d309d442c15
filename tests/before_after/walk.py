"""Count the files and calls that one further sample passes, and the files that a plan passes.

Two runs of different lengths are profiled, and the difference is divided by the number of samples
between them. A call is a Python frame that begins or resumes: generators and coroutines count at
each step. Imports do not count.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

from tests.before_after.checkout import NO_REFERENCE, Checkout, serve

FEW, MANY = 20, 60
LEAST_CALLS = 0.5
"""Calls for each further sample from which a function stands on the road."""
_PROFILER = """
import collections, json, sys, threading
root, kept, *given = sys.argv[1:]
ours = root + "/serve_eval/", root + "/launchers/"
counts, phase, imports = collections.Counter(), ["verdict"], collections.Counter()

def see(frame, event, told):
    code, thread = frame.f_code, threading.get_ident()
    if code.co_name == "<module>":
        imports[thread] += {"call": 1, "return": -1}.get(event, 0)
    elif event == "return" and code.co_name == "report_on":
        phase[0] = "report"
    elif event == "call" and not imports[thread] and code.co_filename.startswith(ours):
        counts[f"{phase[0]} {code.co_filename[len(root) + 1:]} {code.co_qualname}"] += 1

from serve_eval.cli import main
sys.argv = ["serve-eval", *given]
threading.setprofile(see)
sys.setprofile(see)
try:
    main()
except SystemExit as end:
    code = end.code
finally:
    sys.setprofile(None)
    with open(kept, "w") as file:
        json.dump(counts, file)
sys.exit(code)
"""


def print_walks(roots, *, calls):
    """Print the walks of a sample and of a plan through each checkout; `calls` by function."""
    with tempfile.TemporaryDirectory(prefix="walk-") as name, serve(roots[0]) as url:
        for number, root in enumerate(roots):
            scratch = Path(name) / str(number)
            scratch.mkdir()
            _print_walk(Checkout(root=root, cwd=scratch, scratch=scratch), url, calls)
    return 0


def _print_walk(checkout, url, calls):
    checkout.check()
    few, many = (_profile(checkout, url, count) for count in (FEW, MANY))
    further = {name: (many[name] - few[name]) / (MANY - FEW) for name in many}
    print(checkout.root)
    for phase, title in (("verdict", "to its verdict"), ("report", "then, to the report")):
        found = defaultdict(dict)
        for name, times in further.items():
            if times >= LEAST_CALLS and name.startswith(phase):
                _, file, function = name.split(" ", 2)
                found[file][function] = times
        total = sum(sum(one.values()) for one in found.values())
        print(f"  a sample, {title}: {len(found)} files, {total:.0f} calls")
        for file, functions in sorted(found.items(), key=lambda one: -sum(one[1].values())):
            if calls:
                print(f"    {sum(functions.values()):5.1f} {file}")
                for function, times in functions.items():
                    print(f"          {times:5.1f} {function}")
    files = {name.split(" ")[1] for name in _profile(checkout, url, 1, "--dry-run")}
    print(f"  a plan, to the end of a dry run: {len(files)} files")
    if calls:
        print(*(f"          {file}" for file in sorted(files)), sep="\n")


def _profile(checkout, url, count, *more):
    kept = checkout.scratch / f"{count}.json"
    flags = ["--base-url", url, "--model", "m", "--tasks", "word_problems", "--no-reference"]
    flags += [
        "--limit",
        str(count),
        "--concurrency",
        "1",
        "--max-tokens",
        "256",
        "-o",
        f"run_{count}",
        *more,
    ]
    ended = checkout.python("-c", _PROFILER, str(checkout.root), str(kept), "run", *flags)
    if ended.code not in (0, NO_REFERENCE):
        raise SystemExit(f"{checkout.root}: exit code {ended.code}: {ended.last_words}")
    return Counter(json.loads(kept.read_bytes()))
