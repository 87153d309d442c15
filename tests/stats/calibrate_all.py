"""Run every simulation of `make calibrate` and print its tables; `write` puts them into the docs.

A table is between the lines `<!-- calibrate NAME -->` and `<!-- end -->` of a page. NAME follows
`calibrate_` in the name of the module that prints it.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time
from importlib import import_module
from pathlib import Path

MODULES = (
    "main",
    "paired",
    "repeats",
    "sums",
    "groups",
    "early",
    "early_groups",
    "onset",
    "shards",
    "drift",
    "watch",
    "workers",
    "sticky",
    "repeated",
    "loaded",
    "flips",
    "batches",
    "repaired",
    "rules",
    "siblings",
)
DOCS = Path(__file__).resolve().parents[2] / "docs"


def module_name(name: str) -> str:
    """Return the name of the module that prints the tables of a name."""
    return "tests.stats.calibrate" + ("" if name == "main" else f"_{name}")


def printed(name: str) -> str:
    """Return the tables that a module prints, without the line with the duration."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        import_module(module_name(name)).main()
    lines = out.getvalue().strip().splitlines()
    return "\n".join(line for line in lines if not line.endswith(" cores")).strip()


def place(page: str, name: str) -> tuple[int, int] | None:
    """Return the place of the tables of a name in a page, None if they have none."""
    begin = f"<!-- calibrate {name} -->\n"
    start = page.find(begin)
    if start < 0:
        return None
    return start + len(begin), page.index("<!-- end -->", start)


def write(name: str, text: str) -> Path:
    """Put the tables into the one page that has a place for them.

    Raises LookupError if no page has one.
    """
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text()
        if (found := place(page, name)) is not None:
            path.write_text(f"{page[: found[0]]}\n{text}\n\n{page[found[1] :]}")
            return path
    raise LookupError(f"no page has <!-- calibrate {name} -->")


def main(arguments: list[str]) -> None:
    names = [name for name in arguments if name != "write"] or MODULES
    for name in names:
        began = time.monotonic()
        text = printed(name)
        print(f"## {name}\n\n{text}\n\n{time.monotonic() - began:.0f} s\n", flush=True)
        if "write" in arguments:
            print(f"written to docs/{write(name, text).name}\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
