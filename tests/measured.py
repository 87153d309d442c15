"""List the files of docs/measured/, or run the command that prints the tables of one.

`make docs-measured` lists them, and with `ARGS=NAME` runs the commands of a file's header.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.root import ROOT

MEASURED = ROOT / "docs/measured"
HEAD = "| command | commit | machine | date |"
BY_HAND = "by hand"
_LINK = re.compile(r"\]\(\.\./([\w-]+\.md)[^)]*\)")


@dataclass(frozen=True, slots=True)
class Origin:
    """A row of a header: the command that prints the tables, and where it last did."""

    command: str
    commit: str
    machine: str
    date: str

    @property
    def by_hand(self):
        return self.command.startswith(BY_HAND)


def find_page(text):
    """Return the page that has the claim of a file, None if the file links none."""
    claim = text.partition("\nClaim: ")[2].partition(f"\n{HEAD}\n")[0]
    found = _LINK.search(claim)
    return found[1] if found else None


def find_origins(text):
    """Return the rows of the header of a file."""
    rows = text.partition(f"\n{HEAD}\n")[2].partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return [Origin(row[0].strip("`"), *row[1:]) for row in cells]


def stamp(text, command=None):
    """Return a file whose header says that a command, or each, ran here today."""
    done = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, cwd=ROOT
    )
    commit, date = done.stdout.strip(), datetime.now(UTC).date()
    for origin in find_origins(text):
        if command in (None, origin.command) and not origin.by_hand:
            old = f"| `{origin.command}` | {origin.commit} | {origin.machine} | {origin.date} |"
            new = f"| `{origin.command}` | {commit} | {os.cpu_count()} cores | {date} |"
            text = text.replace(old, new)
    return text


def split_command(command):
    """Return the variables that a command sets, and its words."""
    words = shlex.split(command)
    count = next(n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
    return dict(word.split("=", 1) for word in words[:count]), words[count:]


def run(path):
    """Run the commands of a file and return the worst exit code."""
    code, before = 0, path.read_text()
    for origin in find_origins(before):
        if origin.by_hand:
            print(f"{path.name}: {origin.command}; no command prints it")
            continue
        variables, words = split_command(origin.command)
        if words[0] == "python":
            words[0] = sys.executable
        outer = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}
        kept = {name: value for name, value in os.environ.items() if name not in outer}
        code = max(code, subprocess.run(words, cwd=ROOT, env=kept | variables).returncode)
    if path.read_text() != before:
        print(f"written: {path.relative_to(ROOT)}")
    return code


def list_files():
    """Return one line for each row of each header."""
    lines = [("file", "page", "commit", "date", "command")]
    for path in sorted(MEASURED.glob("*.md")):
        text = path.read_text()
        for one in find_origins(text):
            lines.append(
                (path.stem, find_page(text) or "-", one.commit, one.date, one.command),
            )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def main(arguments):
    if not arguments:
        print(list_files())
        return 0
    files = [MEASURED / f"{name.removesuffix('.md')}.md" for name in arguments]
    for path in files:
        if not path.exists():
            print(f"no file docs/measured/{path.name}; make docs-measured lists them")
            return 2
    return max(map(run, files))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
