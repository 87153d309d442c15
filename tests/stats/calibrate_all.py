"""Run every simulation of `make calibrate` and print its tables; `write` puts them into the docs.

A table is between the lines `<!-- calibrate NAME -->` and `<!-- end -->` of a file of
docs/measured/. NAME follows `calibrate_` in the name of the module that prints it, or `main_` in
the name of its function.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from importlib import import_module

from tests.measured import MEASURED, find_origins, stamp

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
    "requests",
    "rules",
    "siblings",
)
TOGETHER = {
    **dict.fromkeys(("loaded", "repeated", "sticky"), "workers"),
    "batches": "flips",
    "early_groups": "groups",
    "repaired": "rules",
    "shards": "onset",
}
"""Names whose tables another module prints."""


def find_printer(name):
    """Return the function that prints the tables of a name."""
    place = TOGETHER.get(name, name)
    module = import_module("tests.stats.calibrate" + ("" if place == "main" else f"_{place}"))
    return getattr(module, "main" if place == name else f"main_{name}")


def printed(name):
    """Return the tables that a module prints, without the line with the duration."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        find_printer(name)()
    lines = out.getvalue().strip().splitlines()
    return "\n".join(line for line in lines if not line.endswith(" cores")).strip()


def place(page, name):
    """Return the place of the tables of a name in a file, None if they have none."""
    begin = f"<!-- calibrate {name} -->\n"
    start = page.find(begin)
    if start < 0:
        return None
    return start + len(begin), page.index("<!-- end -->", start)


def write(name, text):
    """Put the tables into the one file that has a place for them.

    Raises LookupError if no file has one.
    """
    for path in sorted(MEASURED.glob("*.md")):
        page = path.read_text()
        if (found := place(page, name)) is not None:
            path.write_text(f"{page[: found[0]]}\n{text}\n\n{page[found[1] :]}")
            return path
    raise LookupError(f"no file of docs/measured has <!-- calibrate {name} -->")


def write_origins(names):
    """Write the commit and the day of now into the header rows of which every table was written."""
    for path in sorted(MEASURED.glob("*.md")):
        text = path.read_text()
        for origin in find_origins(text):
            words = re.findall(r"\w+", origin.command.partition("make calibrate ARGS=")[2])
            tables = set(words) - {"write"}
            if tables and tables.issubset(names):
                path.write_text(text := stamp(text, origin.command))


def main(arguments):
    names = [name for name in arguments if name != "write"] or MODULES
    for name in names:
        began = time.monotonic()
        text = printed(name)
        print(f"## {name}\n\n{text}\n\n{time.monotonic() - began:.0f} s\n", flush=True)
        if "write" in arguments:
            print(f"written to docs/measured/{write(name, text).name}\n", flush=True)
    if "write" in arguments:
        write_origins(names)


if __name__ == "__main__":
    main(sys.argv[1:])
