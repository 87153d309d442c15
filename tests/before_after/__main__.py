"""Compare two checkouts of this repository.

The command is `python -m tests.before_after results|folders|speed|house BEFORE AFTER`.
"""

import argparse
import sys
from pathlib import Path

from tests.before_after.checkout import print_speed
from tests.before_after.difference import Renamed
from tests.before_after.house import print_house
from tests.before_after.results import check_folders, compare_results


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
    house.add_argument("checkouts", type=_checkout, nargs="+", metavar="CHECKOUT")
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
