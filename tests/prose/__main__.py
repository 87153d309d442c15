"""Print how the text of checkouts reads, side by side: `python -m tests.prose [ROOT ...]`."""

import argparse
from pathlib import Path

from tests.prose import count
from tests.prose.count import LISTED


def main():
    """Print the counts of each checkout, then the worst files of the last one."""
    parser = argparse.ArgumentParser(prog="python -m tests.prose", description=__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()], metavar="ROOT")
    parser.add_argument("--worst", type=int, default=10, metavar="N", help="files to print")
    parser.add_argument(
        "--below", metavar="PATH", help="print every finding below a path, and nothing else"
    )
    parser.add_argument("--draw", type=int, metavar="N", help="print N files drawn by --seed")
    parser.add_argument(
        "--draw-messages", type=int, metavar="N", help="print N messages drawn by --seed"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phrases", action="store_true", help="print the list, and nothing else")
    given = parser.parse_args()
    root = given.roots[-1].resolve()
    if given.phrases:
        for phrase, instead in LISTED.items():
            print(f"{phrase:40} {instead}")
    elif given.draw:
        print("\n".join(count.draw_files(root, given.draw, given.seed)))
    elif given.draw_messages:
        print("\n".join(count.draw_messages(root, given.draw_messages, given.seed)))
    elif given.below:
        _print_findings(root, given.below)
    else:
        _print_figures([root.resolve() for root in given.roots])
        print(f"\nworst files of {root.name}:")
        print("\n".join(count.worst_files(root, given.worst)))


def _print_figures(roots):
    columns = [count.figures(root) for root in roots]
    width = max(map(len, columns[0]))
    for name in columns[0]:
        print(f"{name:{width}}  " + "  ".join(f"{column[name]:>20}" for column in columns))


def _print_findings(root, below):
    folder = root / below
    for file in count.python_files(root, count.PACKAGES + count.OTHERS):
        if file.is_relative_to(folder):
            for prose in count.docstrings(file):
                if count.opens_with_question(prose.text):
                    print(
                        f"{file.relative_to(root)}:{prose.line} opens with {prose.text.split()[0]}"
                    )
            for kind in (count.docstrings, count.comments, count.messages):
                for prose, phrase in count.listed(kind(file)):
                    print(f"{file.relative_to(root)}:{prose.line} {phrase}")
    for prose, phrase in count.listed(count.find_pages(root)):
        if prose.file.is_relative_to(folder):
            print(f"{prose.file.relative_to(root)}:{prose.line} {phrase}")


main()
