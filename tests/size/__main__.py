"""Count the code by package, and hold it to the budget of budget.toml.

A token is what Python's `tokenize` yields, without comments, line breaks (NL, NEWLINE), indentation
(INDENT, DEDENT) and the marks of a file's beginning and end. A string is one token, however long it
is: words cost nothing. The command is `make size`; UPDATE=1 writes the budget.
"""

import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET = Path(__file__).with_name("budget.toml")
PARTS = ("serve_eval", "launchers", "bench", "tests")
TOLERATED = 0.02
"""Share by which a package may exceed its budget: a mended fault is no growth."""
_NOT_COUNTED = frozenset(
    (
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    )
)


def count_tokens(file):
    """Return the number of tokens of a file of Python."""
    with file.open("rb") as opened:
        return sum(one.type not in _NOT_COUNTED for one in tokenize.tokenize(opened.readline))


def count_packages(root=ROOT):
    """Return the tokens of each package: `serve_eval/client`, `launchers`, `tests/cli`.

    Files directly in `serve_eval` or `tests` are a package of that name.
    """
    found = Counter[str]()
    for part in PARTS:
        for file in (root / part).rglob("*.py"):
            found[_name_package(file.relative_to(root))] += count_tokens(file)
    return dict(sorted(found.items()))


def _name_package(file):
    deep = file.parts[0] in ("serve_eval", "tests") and len(file.parts) > 2
    return "/".join(file.parts[: 2 if deep else 1])


def read_budget():
    """Return the tokens that each package may have."""
    return tomllib.loads(BUDGET.read_text())["tokens"]


def write_budget(found):
    """Make the packages of today the budget."""
    rows = "".join(f'"{name}" = {tokens}\n' for name, tokens in found.items())
    BUDGET.write_text(
        f"# Tokens by package; make size UPDATE=1 writes this file.\n[tokens]\n{rows}"
    )


def list_excesses(found, budget):
    """Return a line for each package that exceeds its budget or has none."""
    lines = []
    for name, tokens in found.items():
        allowed = budget.get(name, 0)
        if tokens > allowed * (1 + TOLERATED):
            more = (
                f"{tokens / allowed - 1:.1%} more than its budget of {allowed:,}" if allowed else ""
            )
            lines.append(f"{name}: {tokens:,} tokens, {more or 'without a budget'}")
    return [*lines, *(f"{name}: no such package" for name in budget if name not in found)]


def print_packages(found, budget):
    """Print the tokens of each package beside its budget, and the sums."""
    for name, tokens in found.items():
        print(f"{name:32} {tokens:9,} {tokens - budget.get(name, 0):+9,}")
    for part in PARTS:
        tokens = sum(n for name, n in found.items() if name.split("/")[0] == part)
        print(f"{'all of ' + part:32} {tokens:9,}")


ADVICE = (
    "Make it smaller elsewhere; or run `make size UPDATE=1`, and say in the commit what the growth"
    " is worth."
)


def main():
    found = count_packages()
    if "--update" in sys.argv[1:]:
        write_budget(found)
    budget = read_budget()
    if "--quiet" not in sys.argv[1:]:
        print_packages(found, budget)
    return check(found, budget)


def check(found, budget):
    """Print what exceeds the budget, and return the exit code."""
    excesses = list_excesses(found, budget)
    if excesses:
        print(*excesses, ADVICE, sep="\n", file=sys.stderr)
    return int(bool(excesses))


if __name__ == "__main__":
    sys.exit(main())
