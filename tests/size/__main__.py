"""Check the tokens of each package against the budget; with --update, make them the budget."""

import sys

from tests.size import (
    count_packages,
    list_excesses,
    print_packages,
    read_budget,
    write_budget,
)

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
