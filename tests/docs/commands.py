"""Find the commands in the pages, and have the command line read them without running them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from serve_eval.cli import app
from serve_eval.cli._commands import CommandEntry, find_entry

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\s*(?:- )?(?:run: )?(?:\$ )?(?:\w+=\S+ )*)(serve-eval(?: .+)?)$")
_SYNOPSIS = re.compile(r"^serve-eval [\w ]+:(?: |$)| \[--")
"""The heading of an output, or a line with options in brackets."""
_ENDS = ("|", ">", "2>", "<", "&&", "||", "&", ";")
ROOT_OPTIONS = {"--version", "--help", "-h", "--install-completion", "--show-completion"}


class PageCommand(NamedTuple):
    """A command of a page, in words."""

    page: str
    words: list[str]


def list_commands(page: Path) -> Iterator[PageCommand]:
    """Yield the commands in the blocks of a page."""
    for block in _FENCE.findall(page.read_text()):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            found = _COMMAND.match(line.rstrip())
            if found is not None and not _SYNOPSIS.search(found[1]):
                yield PageCommand(page.name, _split(found[1]))


def _split(line: str) -> list[str]:
    words = shlex.split(re.split(r" {2,}", line)[0], comments=True)[1:]
    ends = [place for place, word in enumerate(words) if word in _ENDS]
    return words[: min(ends, default=len(words))]


def read_command(words: list[str]) -> None:
    """Read a command as `serve-eval` does, without calling it. Raises click's UsageError."""
    if not words or words[0] in ROOT_OPTIONS:
        return
    settings = app.app.info.context_settings
    ends = (n for n in range(1, len(words) + 1) if isinstance(find_entry(words[:n]), CommandEntry))
    count = next(ends, 0)
    if not count and set(words) & ROOT_OPTIONS:
        return
    command: Any = app.make_command(*words[:count])
    path, rest = " ".join(("serve-eval", *words[:count])), words[count:]
    if not {"--help", "-h", "--help-all"} & set(rest):
        command.make_context(path, list(rest), **settings)
