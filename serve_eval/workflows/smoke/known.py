"""Judge the rows of a smoke test by the failures that are known of its deployment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec

from serve_eval import __version__
from serve_eval.checks.row import CheckOutcome, CheckRow
from serve_eval.checks.run import choose_checks
from serve_eval.checks.session import CheckSession
from serve_eval.client import questions
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.registry import nearest
from serve_eval.stats.no_worse import no_worse
from serve_eval.whole_file import write_named_file

LEVEL_OF_FALL = 0.01
"""Probability with which a known check of an unchanged deployment is red for its count."""

_HTTP = re.compile(r"\s*HTTP (\d+)")
_VARIABLE = re.compile(r"\d+(?:\.\d+)?")
_QUOTED = re.compile(r"['\"{\[:].*", re.DOTALL)
_UNTESTED = re.compile(
    r"not reproducible|cannot be tested|the answer was cut|cut within|the JSON did not end|answers"
    r" vary|no answer was long enough|the answer has no word|\d+ of \d+ right|the context length is"
    r" not known|\S+ (?:is|are) not answered|no stream was complete|no media are taken"
)
"""Beginnings of rows that are UNSUPPORTED because the check could not decide."""


@freeze
class KnownFailures:
    """The content of a file of known failures, and its name for messages."""

    file: str
    checks: KnownChecks


@freeze
class Deployment:
    """The model and the kind of server that were checked.

    `listed` is set if the endpoint listed its models, so that a missing kind is known to be so.
    """

    model: str
    server: str | None
    listed: bool


@freeze
class KnownComparison:
    """A comparison of a smoke test with a file of known failures.

    `other` says why nothing in the file counts ("" if it counts). `mended` failed and no longer
    do. `missing` are checks of the file that did not run, `unlisted` those that it does not name.
    `unsupported` were so before.
    """

    file: str
    other: str = ""
    mended: Sequence[str] = ()
    missing: Sequence[str] = ()
    unlisted: Sequence[str] = ()
    unsupported: Sequence[str] = ()

    def list_warnings(self) -> Iterator[str]:
        """Yield why the file, or a part of it, does not count, and what to do, in sentences."""
        if self.other:
            yield (
                f"{self.file} {self.other}: nothing in it counts. Write one for this deployment"
                " with --write-known"
            )
            return
        every = [check.name for check in choose_checks("full")]
        for name in self.missing:
            why = "" if name in every else f"; there is no such check.{nearest(name, every)}"
            yield f"not checked: {name}, which {self.file} names{why}"
        if self.unlisted:
            yield (
                f"not in {self.file}: {', '.join(self.unlisted)}; write the file again with"
                f" --write-known {self.file}"
            )


def identify(session: CheckSession) -> Deployment:
    """Return the deployment, as far as the checks have found it."""
    found = session.known.models
    server = session.known.server or (
        None if found is None else questions.find_server(found.content)
    )
    if session.known.rehearsal:
        server = f"the stand-in for {server}"
    return Deployment(model=session.model or "", server=server, listed=bool(session.known.listed))


def find_other(known: KnownChecks, here: Deployment) -> str:
    """Return why a file is of another deployment, or "" if it is of this one."""
    differs = known.server != here.server and (here.listed or here.server is not None)
    if known.model == here.model and not differs:
        return ""
    return (
        f"was written for {_describe(known.model, known.server)}, and this is"
        f" {_describe(here.model, here.server)}"
    )


def _describe(model: str, server: str | None) -> str:
    return f"model {model} on {server or 'a server of unknown kind'}"


def judge_row(row: CheckRow, known: KnownChecks) -> CheckRow:
    """Return a row as KNOWN if it fails as before, and as FAIL if it lost what it had."""
    if row.outcome is CheckOutcome.FAIL and row.name in known.fails:
        before = known.fails[row.name]
        if name_failure(row.told) == name_failure(before):
            if fall := find_fall(row, known):
                return replace(row, told=f"{row.told} ({fall})")
            return replace(row, outcome=CheckOutcome.KNOWN)
        return replace(row, told=f"{row.told} (another failure than the known one: {before})")
    if (
        row.outcome is CheckOutcome.UNSUPPORTED
        and row.name in known.passes
        and not _UNTESTED.match(row.told)
    ):
        return replace(row, outcome=CheckOutcome.FAIL, told=f"no longer supported: {row.told}")
    return row


def find_fall(row: CheckRow, known: KnownChecks) -> str:
    """Return that clearly fewer answers are right than the file says, or "" (Fisher 1934)."""
    now, before = read_count(row.told), known.counts.get(row.name)
    before = before or read_count(known.fails.get(row.name, ""))
    if now is None or before is None or not 0 <= before[0] <= before[1]:
        return ""
    wrong, wrong_before = now[1] - now[0], before[1] - before[0]
    p = no_worse([(now[1], wrong, before[1], wrong_before)])
    if p > LEVEL_OF_FALL:
        return ""
    return f"clearly fewer than the known {before[0]} of {before[1]}: p = {p:.1g}"


def name_failure(told: str) -> str:
    """Return the part of a failure's description that is the same every night.

    That is the status of a response, else the words up to the first quotation, without numbers.
    """
    text = told.removeprefix("required: ").removeprefix("no longer supported: ")
    text = text.removeprefix("refused: ")
    if status := _HTTP.match(text):
        return f"HTTP {status[1]}"
    return _VARIABLE.sub("#", _QUOTED.sub("", text)).strip()


def compare_known(
    rows: Sequence[CheckRow], known: KnownChecks, file: str, here: Deployment, *, stopped: bool
) -> KnownComparison:
    """Return what the rows of a smoke test say about the file.

    A stopped one misses no check. One that found no model does not tell of which deployment it is.
    """
    if stopped and not here.model:
        return KnownComparison(file=file)
    other = find_other(known, here)
    if other:
        return KnownComparison(file=file, other=other)
    ran: Collection[str] = {row.name for row in rows}
    failing = (CheckOutcome.FAIL, CheckOutcome.KNOWN)
    return KnownComparison(
        file=file,
        mended=[r.name for r in rows if r.name in known.fails and r.outcome not in failing],
        missing=[] if stopped else sorted(known.names - set(ran)),
        unlisted=[row.name for row in rows if row.name not in known.names],
        unsupported=[
            row.name
            for row in rows
            if row.outcome is CheckOutcome.UNSUPPORTED and row.name in known.unsupported
        ],
    )


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
