"""Record which kept connections matched responses to requests, and withdraw doubtful responses.

steps.jsonl of a run folder has a line for each proof that the responses of a connection were in
step, and a line for each connection that was out of step. Other responses count as long as no
connection to the endpoint was out of step in any session.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from serve_eval.errors import JournalError
from serve_eval.evaluation.storage.file_names import PROOFS_FILE, judges_proofs_file
from serve_eval.evaluation.storage.journal import (
    FULL_DISK,
    NO_ROOM_HINT,
    Journal,
    Record,
    withdrawals,
)
from serve_eval.schema import Response

SESSION_CHARACTERS = 24
"""Number of characters at the start of a request id that name its session."""

Key = tuple[str, int]
"""A session and the number of one of its connections."""


class ConnectionStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding about a connection.

    Its first `turns` responses were in step, or `out` says why it was out of step.
    """

    session: str
    connection: int
    turns: int = 0
    out: str | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ConnectionStep).decode


class Proofs:
    """The findings about connections, kept in a file that may not exist yet (None: in memory only).

    Skips lines that cannot be read. At worst, a sample without a proof is asked again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._torn = path, path is not None and _is_torn(path)
        self._turns: dict[Key, int] = {}
        self._out: dict[Key, str] = {}
        for line in () if path is None or not path.exists() else path.read_bytes().splitlines():
            try:
                self._take(_decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue

    @property
    def out(self) -> int:
        """Number of connections out of step."""
        return len(self._out)

    def note(self, step: ConnectionStep) -> None:
        """Record a finding. Raises JournalError if it cannot be written."""
        self._take(step)
        if self._path is None:
            return
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, b"\n" * self._torn + _encode(step) + b"\n")
                self._torn = False
                if step.out is not None:
                    os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            hint = NO_ROOM_HINT if error.errno in FULL_DISK else ""
            raise JournalError(
                f"{self._path}: cannot write: {error.strerror}", hint=hint
            ) from error

    def doubt(self, response: Response, open_now: Collection[Key] = ()) -> str | None:
        """Return why a response does not count, or None if it does.

        Connections that are `open_now` may still be proven.
        """
        for attempt in response.attempts:
            if not attempt.turn:
                continue
            key = attempt.request_id[:SESSION_CHARACTERS], attempt.connection
            if attempt.turn <= self._turns.get(key, 0):
                continue
            if (why := self._out.get(key)) is not None:
                return f"its connection was out of step: {why}"
            if self._out and key not in open_now:
                return "its connection is not known to be in step, and others were out of step"
        return None

    def _take(self, step: ConnectionStep) -> None:
        key = step.session, step.connection
        if step.out is not None:
            self._out[key] = step.out
        else:
            self._turns[key] = max(step.turns, self._turns.get(key, 0))


def run_proofs(run: Path) -> Proofs:
    """Return the findings about connections to the endpoint of a run."""
    return Proofs(run / PROOFS_FILE)


def judges_proofs(judgements: Path) -> Proofs:
    """Return the findings about connections to the judges whose answers are in `judgements`."""
    return Proofs(judges_proofs_file(judgements))


def _is_torn(path: Path) -> bool:
    """Return True if a kill left an incomplete line at the end."""
    return path.exists() and path.read_bytes()[-1:] not in (b"", b"\n")


def doubtful(
    records: Iterable[Record], proofs: Proofs, open_now: Collection[Key] = ()
) -> Iterator[tuple[str, Response, str]]:
    """Yield the sample, the response and the reason for each response that does not count."""
    for record in records:
        if (
            record.response is not None
            and (why := proofs.doubt(record.response, open_now)) is not None
        ):
            yield record.id, record.response, why


def withdraw(journal: Journal, found: Iterable[tuple[str, Response, str]]) -> None:
    """Withdraw responses. Raises JournalError if that cannot be written."""
    for sample, _, why in found:
        journal.append(Record(id=sample, withdrawn=why))


def withdraw_all(journal: Journal, proofs: Proofs) -> None:
    """Withdraw unproven responses of earlier sessions if any connection was out of step.

    Raises RunFolderError for a damaged record, and JournalError if the withdrawal cannot be
    written.
    """
    if proofs.out and not journal.empty:
        withdraw(journal, list(doubtful(journal.records(), proofs)))


def keep_standing(records: Iterable[Record], proofs: Proofs) -> Iterator[Record]:
    """Yield the records without responses that do not count, for a folder that is only read.

    A killed run has not withdrawn those responses yet.
    """
    return (one for one in records if one.response is None or proofs.doubt(one.response) is None)


def describe_proofs(
    proofs: Proofs, journals: Iterable[Path], of: str = "the endpoint"
) -> list[str]:
    """Return lines about connections that were out of step and about withdrawn responses.

    `of` names the server side of the connections.
    """
    if not proofs.out:
        return []
    gone = sum(len(withdrawals(path)) for path in journals if path.exists())
    connections = f"{proofs.out} connection{'s' if proofs.out > 1 else ''}"
    answers = f"{gone} answer{'s were' if gone != 1 else ' was'} withdrawn and asked again"
    return [
        f"{connections} of {of} returned a response that no request had asked for, which shifted"
        f" later responses to other requests: {answers}; a proxy may have responded twice"
    ]
