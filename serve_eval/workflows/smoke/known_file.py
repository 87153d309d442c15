"""Read and write a file of known failures: how a deployment did when its user accepted it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from serve_eval import __version__
from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.errors import PlanError
from serve_eval.whole_file import write_named_file

VERSION = 1
"""The version of the file that this serve-eval writes, and the newest that it reads."""
AGAIN = "Write a new one with: serve-eval smoke URL --write-known FILE"


class KnownChecks(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of an earlier smoke test of one deployment.

    `server` is the kind of server, None if it does not say. `fails` has what each failed check
    told, by its name. `counts` has the right answers of checks that count them, and the questions.
    """

    smoke_version: Annotated[int, msgspec.Meta(ge=1)]
    model: str
    server: str | None
    fails: Mapping[str, str]
    unsupported: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    counts: Mapping[str, tuple[int, int]] = {}
    serve_eval: str = ""
    written: str = ""

    @property
    def names(self) -> set[str]:
        """All checks that the file names."""
        return {*self.fails, *self.unsupported, *self.passes}


class _Versioned(msgspec.Struct):
    smoke_version: int


def read_known(file: Path) -> KnownChecks:
    """Return what a file says. Raises PlanError, with what to do, for one that cannot be used."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise PlanError(
            f"--known: there is no file {file}",
            hint=f"Write it first: serve-eval smoke URL --write-known {file}",
        ) from error
    except OSError as error:
        raise PlanError(
            f"--known: {file} cannot be read: {error.strerror}", hint=f"Name a file. {AGAIN}"
        ) from error
    try:
        version = msgspec.json.decode(data, type=_Versioned).smoke_version
        if version > VERSION:
            raise PlanError(
                f"--known: {file} was written by a newer serve-eval (version {version})",
                hint=f"Install that version. {AGAIN}",
            )
        return msgspec.json.decode(data, type=KnownChecks)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise PlanError(
            f"--known: {file} is damaged, or no file of known failures: {error}",
            hint=f"Restore it. {AGAIN}",
        ) from error


def write_known(file: Path, rows: list[CheckRow], *, model: str, server: str | None) -> None:
    """Write the rows of a smoke test. Raises OSError."""
    known = KnownChecks(
        smoke_version=VERSION,
        model=model,
        server=server,
        fails={row.name: row.told for row in rows if row.outcome in _FAILING},
        unsupported=_names(rows, CheckOutcome.UNSUPPORTED),
        passes=_names(rows, CheckOutcome.PASS),
        counts={row.name: found for row in rows if (found := read_count(row.told))},
        serve_eval=__version__,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    write_named_file(file, msgspec.json.format(msgspec.json.encode(known), indent=2) + b"\n")


def read_count(told: str) -> tuple[int, int] | None:
    """Return the right answers and the questions that the text of a row begins with, if any."""
    found = _COUNT.match(told)
    return None if found is None else (int(found[1]), int(found[2]))


_COUNT = re.compile(r"(\d+) of (\d+) right")
_FAILING = (CheckOutcome.FAIL, CheckOutcome.KNOWN)


def _names(rows: list[CheckRow], outcome: CheckOutcome) -> tuple[str, ...]:
    return tuple(row.name for row in rows if row.outcome is outcome)
