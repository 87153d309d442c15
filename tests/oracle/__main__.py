"""Run the comparisons of this folder: `python -m tests.oracle [PART ...]` (default: all).

A part is a function `compare`, or `compare_` and its name, of a module. It returns one `Compared`
for each kind of figure.
The command exits with 1 if a figure differs.
"""

import importlib
import sys
import time

from tests.oracle.part import Skipped

PARTS = (
    "biochatter",
    "longbench",
    "json_schemas",
    "rouge",
    "speech",
    "humaneval",
    "livecodebench",
    "lm_eval_tasks",
    "gsm8k",
    "mmlu",
    "mmmu",
    "aime",
    "gpqa",
    "instructions",
    "bfcl",
    "repeats",
)
"""Parts in the order in which they run."""
WITH_OTHERS = {
    **dict.fromkeys(("gpqa", "mmlu", "mmmu"), "aime"),
    "instructions": "bfcl",
    "livecodebench": "humaneval",
    "rouge": "speech",
}
"""Parts that stand in the module of another."""
_SHOWN = 5


def main(names):
    """Print one line for each comparison, and below it the first differences."""
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        print(f"no part {', '.join(unknown)}: there are {', '.join(PARTS)}")
        return 2
    chosen = names or list(PARTS)
    different = left_out = 0
    for name in chosen:
        started = time.monotonic()
        try:
            results = _find(name)()
        except Skipped as skipped:
            print(f"{name}: skipped: {skipped}", flush=True)
            left_out += 1
            continue
        print(f"{name} ({time.monotonic() - started:.0f} s)")
        for one in results:
            different += len(one.differences)
            print(f"  {one.what}: {one.count} compared, {len(one.differences) or 'none'} different")
            for line in (*one.differences[:_SHOWN], *one.notes):
                print(f"    {line}")
        sys.stdout.flush()
    skips = f"; {left_out} of {len(chosen)} parts skipped" if left_out else ""
    print(f"{different or 'no'} difference{'' if different == 1 else 's'}{skips}")
    return 1 if different else 0


def _find(name):
    """Return the function of a part."""
    module = importlib.import_module(f"tests.oracle.{WITH_OTHERS.get(name, name)}")
    return getattr(module, f"compare_{name}" if name in WITH_OTHERS else "compare")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
