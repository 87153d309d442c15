"""Record the server and the connection that each response came from, to withdraw doubtful ones.

steps.jsonl of a run folder has a line for each proof that the responses of a connection were in
step, and a line for each connection that was out of step or ended before a proof. Responses that
such a connection left unproven are withdrawn. So are all unproven ones if any connection to the
endpoint was out of step in any session, and those of a session that ended before its last proofs.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.client.transport import MOST_ENDS
from serve_eval.errors import JournalError
from serve_eval.schema import Response
from serve_eval.storage.file_names import PROOFS_FILE, TRACE_FILE, judges_proofs_file
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT, Journal, Record, read, withdrawals
from serve_eval.whole_file import force_to_disk


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The servers of one request: the last attempt of a sample `id`, which began at `started_s`.

    `how` names the match between request and server (a word of `attribution.matching`). The time
    and size of the transfer of its KV cache are set if a server reported them.
    """

    task: str
    id: str
    started_s: float
    context: str | None
    generation: str | None
    how: str
    kv_transfer_s: float | None = None
    kv_bytes: float | None = None


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(Served)


def read_traces(run: Path) -> dict[str, dict[str, list[Served]]] | None:
    """Return the lines of a run folder by task and sample, or None if there is no such file.

    Skips lines that cannot be read, since the file is only informative.
    """
    try:
        lines = (run / TRACE_FILE).read_bytes().splitlines()
    except OSError:
        return None
    found: dict[str, dict[str, list[Served]]] = {}
    for line in lines:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            one = _decoder.decode(line)
            found.setdefault(one.task, {}).setdefault(one.id, []).append(one)
    return found


def append_traces(run: Path, lines: Iterable[Served]) -> None:
    """Append lines to those of a run folder. Raises OSError."""
    with os.fdopen(
        os.open(run / TRACE_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb"
    ) as file:
        file.write(b"".join(_encode(one) + b"\n" for one in lines))


SESSION_CHARACTERS = 24
"""Number of characters at the start of a request id that name its session."""

TURN = b'"turn":'
"""Part of every record with a response that needs a proof."""

Key = tuple[str, int]
"""A session and the number of one of its connections."""


class ConnectionStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finding about a connection.

    Its first `turns` responses were in step, or `out` says why it was out of step, or `lost` how it
    ended before a proof (`silent`: its server ended it without notice), or its first `trusted`
    responses stand although they stay unproven.
    """

    session: str
    connection: int
    turns: int = 0
    out: str | None = None
    lost: str | None = None
    silent: bool = False
    trusted: int = 0


_decode = msgspec.json.Decoder(ConnectionStep).decode


class Proofs:
    """The findings about connections, kept in a file that may not exist yet (None: in memory only).

    Skips lines that cannot be read. At worst, a sample without a proof is asked again. `silent`
    counts the connections that their server ended without notice and before a proof. The file stays
    open from the first finding until `close`: there is one for each check of each connection.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file: int | None = None
        self._turns: dict[Key, int] = {}
        self._out: dict[Key, str] = {}
        self._lost: dict[Key, str] = {}
        self._trusted: dict[Key, int] = {}
        self.silent = 0
        content = path.read_bytes() if path is not None and path.exists() else b""
        self._torn = content[-1:] not in (b"", b"\n")  # a kill left an incomplete line at the end
        for line in content.splitlines():
            try:
                self._take(_decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError):
                continue

    @property
    def out(self) -> int:
        """Number of connections out of step."""
        return len(self._out)

    @property
    def lost(self) -> int:
        """Number of connections that ended before a proof."""
        return len(self._lost)

    @property
    def trusted(self) -> int:
        """Number of connections with unproven responses that stand."""
        return len(self._trusted)

    def note(self, step: ConnectionStep) -> None:
        """Record a finding. Raises JournalError if it cannot be written."""
        self._take(step)
        if self._path is None:
            return
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(self._file, b"\n" * self._torn + _encode(step) + b"\n")
            self._torn = False
            if step.out is not None:
                force_to_disk(self._file)
        except OSError as error:
            hint = NO_ROOM_HINT if error.errno in FULL_DISK else ""
            raise JournalError(
                f"{self._path}: cannot write: {error.strerror}", hint=hint
            ) from error

    def close(self) -> None:
        """Close the file. A later finding opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def doubt(self, response: Response, open_now: Collection[Key] = ()) -> str | None:
        """Return why a response does not count, or None if it does.

        Connections that are `open_now` may still be proven.
        """
        for key, _ in self._unproven(response):
            if (why := self._out.get(key)) is not None:
                return f"its connection was out of step: {why}"
            if (how := self._lost.get(key)) is not None:
                return f"its connection ended before a proof that it was in step: {how}"
            if self._out and key not in open_now:
                return "its connection is not known to be in step, and others were out of step"
        return None

    def doubt_earlier(self, response: Response) -> str | None:
        """Return why a response of an earlier session does not count, or None if it does."""
        if (why := self.doubt(response)) is not None:
            return why
        if any(turn > self._trusted.get(key, 0) for key, turn in self._unproven(response)):
            return "its session ended before a proof that its connection was in step"
        return None

    def is_unproven(self, response: Response) -> bool:
        """Return True if nothing proves that a response belongs to its request."""
        return any(True for _ in self._unproven(response))

    def _unproven(self, response: Response) -> Iterator[tuple[Key, int]]:
        """Yield the connection and the turn of each answer that no proof covers."""
        for attempt in response.attempts:
            if attempt.turn:
                key = attempt.request_id[:SESSION_CHARACTERS], attempt.connection
                if attempt.turn > self._turns.get(key, 0):
                    yield key, attempt.turn

    def _take(self, step: ConnectionStep) -> None:
        key = step.session, step.connection
        if step.out is not None:
            self._out[key] = step.out
        elif step.lost is not None:
            self.silent += step.silent and key not in self._lost
            self._lost[key] = step.lost
        elif step.trusted:
            self._trusted[key] = step.trusted
        else:
            self._turns[key] = max(step.turns, self._turns.get(key, 0))


def run_proofs(run: Path) -> Proofs:
    """Return the findings about connections to the endpoint of a run."""
    return Proofs(run / PROOFS_FILE)


def judges_proofs(judgements: Path) -> Proofs:
    """Return the findings about connections to the judges whose answers are in `judgements`."""
    return Proofs(judges_proofs_file(judgements))


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


def withdraw_all(journal: Journal, proofs: Proofs) -> int:
    """Withdraw unproven responses of earlier sessions whose connections give reason to doubt.

    Return their number. Raises RunFolderError for a damaged record, and JournalError if the
    withdrawal cannot be written.
    """
    if journal.empty or not (proofs.out or proofs.lost):
        return 0
    found = list(doubtful(journal.records(), proofs))
    withdraw(journal, found)
    return len(found)


def withdraw_unsettled(journal: Journal, proofs: Proofs) -> int:
    """Withdraw what earlier sessions left unproven, for a session that can ask it again.

    Return the number of responses. Raises as `withdraw_all` does.
    """
    if journal.empty:
        return 0
    found = [
        (record.id, record.response, why)
        for record in journal.records(TURN)
        if record.response is not None and (why := proofs.doubt_earlier(record.response))
    ]
    withdraw(journal, found)
    return len(found)


def count_unproven(path: Path, proofs: Proofs) -> int:
    """Return the number of responses in a journal that count although nothing proves them."""
    if not path.exists():
        return 0
    return sum(
        record.response is not None and proofs.is_unproven(record.response)
        for record in keep_standing(read(path, TURN), proofs)
    )


def keep_standing(records: Iterable[Record], proofs: Proofs) -> Iterator[Record]:
    """Yield the records without responses that do not count, for a folder that is only read.

    A killed run has not withdrawn those responses yet.
    """
    return (one for one in records if one.response is None or proofs.doubt(one.response) is None)


def describe_proofs(
    proofs: Proofs, journals: Iterable[Path], of: str = "the endpoint"
) -> list[str]:
    """Return lines about connections that were out of step or ended without notice.

    They tell how many responses were withdrawn. `of` names the server side of the connections.
    """
    if not proofs.out and proofs.silent < MOST_ENDS:
        return []
    gone = sum(len(withdrawals(path)) for path in journals if path.exists())
    answers = f"{gone} answer{'s were' if gone != 1 else ' was'} withdrawn and asked again"
    if not proofs.out:
        return [
            f"{proofs.silent} connections of {of} ended without notice, before it was proven that"
            f" their answers belong to their samples: {answers}, each on a connection of its own"
        ]
    connections = f"{proofs.out} connection{'s' if proofs.out > 1 else ''}"
    return [
        f"{connections} of {of} returned a response that no request had asked for, which shifted"
        f" later responses to other requests: {answers}; a proxy may have responded twice"
    ]


def describe_unproven(count: int, of: str = "the endpoint") -> list[str]:
    """Return a line about responses that count although nothing proves whose they are.

    `of` names the server side of their connections.
    """
    if not count:
        return []
    answers = "1 answer was" if count == 1 else f"{count} answers were"
    return [
        f"{answers} never proven to belong to the right sample: a connection to {of} ended, or was"
        " cancelled, before a request for the models could prove it"
    ]
