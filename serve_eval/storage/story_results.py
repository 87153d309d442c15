"""Keep the result files of commands other than run, such as comparisons or checks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval import whole_file
from serve_eval.errors import JournalError, ReferenceFileError, RunFolderError
from serve_eval.schema import (
    CanaryRecord,
    Comparison,
    Suite,
    SuiteReport,
    SuiteRow,
    VerificationReference,
)
from serve_eval.schema.verification import REFERENCE_VERSION
from serve_eval.storage import ownership
from serve_eval.storage.file_names import (
    ATTRIBUTION_FACES,
    CANARY_LOG,
    CHUNKS_FILE,
    EARLIER_SUITE_REPORT,
    PAGES,
    PRESSURE_FILE,
    SALT_FILE,
    SIDE_A,
    SIDE_B,
    SUITE_RUNS,
)
from serve_eval.storage.journal import NO_ROOM_HINT
from serve_eval.storage.json_files import (
    Versioned,
    decode_known,
    pretty_json,
    refuse_newer,
    write_private,
)
from serve_eval.storage.story_files import ATTRIBUTE, COMPARE, SUITE


class _Side(msgspec.Struct):
    """The part of a side that names the folder of a finished run."""

    run: str | None = None


class _Sides(msgspec.Struct):
    a: _Side
    b: _Side


def locate_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return A and B with their run folders, in the comparison's folder or that of a finished run.

    Raises RunFolderError for a file that is missing or damaged, or that a newer serve-eval wrote.
    """
    file = folder / COMPARE.plan
    try:
        sides = decode_known(file, _Sides, COMPARE.version)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    places = ((SIDE_A, sides.a.run), (SIDE_B, sides.b.run))
    return [(side.upper(), Path(run) if run else folder / side) for side, run in places]


def describe_comparison(folder: Path) -> str:
    """Return the verdicts of the comparison in a folder, for a table of its sides; "" for none."""
    found = COMPARE.find(folder, Comparison) if COMPARE.has_plan(folder) else None
    if found is None:
        return ""
    told = ", ".join(f"{one.verdict.task} {one.verdict.outcome.value}" for one in found.tasks)
    return f"{folder}: serve-eval compare judged B against A by pairs: {told}"


def read_suite(folder: Path) -> Suite:
    """Return the suite of a folder. Raises RunFolderError if there is none."""
    return suite_and_owner(folder)[0]


def suite_and_owner(folder: Path) -> tuple[Suite, bool]:
    """Return the suite of a folder, and whether this user saved it there.

    Raises RunFolderError if there is none.
    """
    file = folder / SUITE.plan
    try:
        stored = msgspec.json.decode(file.read_bytes())
        refuse_newer(folder, msgspec.convert(stored, Versioned).schema_version, SUITE.version)
        suite, own = msgspec.convert(stored["suite"], Suite), ownership.is_own(stored, folder)
    except FileNotFoundError as error:
        raise RunFolderError(f"{folder} holds no suite: there is no {SUITE.plan}") from error
    except (OSError, KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    for run in suite.runs:
        if run.name in ("", ".", "..") or "/" in run.name or "\0" in run.name:
            raise RunFolderError(
                f"{file}: the run name {run.name!a} cannot be used as the name of a folder"
            )
    return suite, own


def write_suite(folder: Path, suite: Suite) -> None:
    """Write the suite, signed by this user.

    Raises RunFolderError, and JournalError for a full disk.
    """
    content = ownership.add_signature({"schema_version": SUITE.version, "suite": suite}, folder)
    write_private(folder / SUITE.plan, pretty_json(content))


def write_suite_report(folder: Path, report: SuiteReport) -> None:
    """Write the report, and remove the earlier one.

    Raises RunFolderError, and JournalError for a full disk.
    """
    write_private(folder / SUITE.result, pretty_json(report))
    (folder / EARLIER_SUITE_REPORT).unlink(missing_ok=True)


def find_suite_report(folder: Path) -> SuiteReport | None:
    """Return the report of a suite, or None if it has not finished.

    Raises RunFolderError if it is damaged, or if a newer serve-eval wrote it.
    """
    return _read_report(folder / SUITE.result)


def find_suite_rows(run: Path) -> dict[str, SuiteRow]:
    """Return the judgement of a run in its suite by task; none outside of a suite with a report."""
    place = run.resolve()
    if place.parent.name != SUITE_RUNS or not SUITE.has_plan(place.parent.parent):
        return {}
    try:
        report = find_suite_report(place.parent.parent)
    except RunFolderError:
        return {}
    return {} if report is None else {row.task: row for row in report.rows if row.run == place.name}


def find_earlier_report(folder: Path) -> SuiteReport | None:
    """Return the report that was set aside, or None if there is none that can be read."""
    try:
        return _read_report(folder / EARLIER_SUITE_REPORT)
    except RunFolderError:
        return None


def _read_report(file: Path) -> SuiteReport | None:
    try:
        data = file.read_bytes()
        refuse_newer(file, msgspec.json.decode(data, type=Versioned).schema_version, SUITE.version)
        return msgspec.json.decode(data, type=SuiteReport)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error


def set_aside_report(folder: Path) -> None:
    """Remove the pages, and keep the report under another name: they describe an earlier state.

    A report that was set aside before stays if its suite was interrupted since. Raises
    RunFolderError.
    """
    for name in PAGES:
        (folder / name).unlink(missing_ok=True)
    try:
        whole_file.rename_over(folder / SUITE.result, folder / EARLIER_SUITE_REPORT)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"{folder / SUITE.result}: cannot be set aside: {error.strerror}"
        ) from error


def check_attribution(run: Path) -> None:
    """Raise RunFolderError if a newer serve-eval wrote the file, since it would be lost.

    A damaged file may be replaced.
    """
    ATTRIBUTE.find(run, Versioned)


def make_faces_folder(run: Path) -> Path:
    """Return the folder in a run for the page and the files of CI, which the run has of its own."""
    folder = run / ATTRIBUTION_FACES
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


class _Versioned(msgspec.Struct):
    version: int


def read_reference(path: Path) -> VerificationReference:
    """Return the reference in a file. Raises ReferenceFileError if it is none that can be read."""
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).version
        if version > REFERENCE_VERSION:
            raise ReferenceFileError(
                f"{path}: written by a newer serve-eval (version {version})",
                hint="Install that version, or register the reference again.",
            )
        return msgspec.json.decode(content, type=VerificationReference)
    except OSError as error:
        raise ReferenceFileError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReferenceFileError(
            f"{path} is no reference of `serve-eval verify`: {error}",
            hint="Make one with: serve-eval verify HOST --register FILE",
        ) from error


def write_reference(path: Path, reference: VerificationReference) -> None:
    """Write a reference, with a line for each probe.

    Raises RunFolderError, and JournalError for a full disk.
    """
    head = msgspec.to_builtins(reference)
    probes = head.pop("probes")
    lines = [msgspec.json.encode(one) for one in probes]
    text = msgspec.json.encode(head)[:-1] + b',"probes":[\n' + b",\n".join(lines) + b"\n]}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path.parent}: {error.strerror}") from error
    write_private(path, text)


class CacheSalt(msgspec.Struct, frozen=True, kw_only=True):
    """The salt from which each prompt gets a cache_salt of its own.

    `value` is None if none is sent, for the reason in `why`.
    """

    value: str | None
    why: str = ""


class PressureLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One filling of the cache: the tokens of other prompts that were `wanted` and `filled`.

    `seed` is that of the prompts.
    """

    wanted: int
    filled: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the pass that asks the old prompts after it."""
        return f"pressure_{self.wanted}"


class PressureLog(msgspec.Struct, frozen=True, kw_only=True):
    """The fillings so far, and the tokens for which the cache has room (None: not known).

    `skipped` is the reason why there are none; "": none yet.
    """

    levels: tuple[PressureLevel, ...] = ()
    capacity: int | None = None
    ended: bool = False
    skipped: str = ""


def find_chunks(folder: Path, of: Any) -> dict[str, Any]:
    """Return the lengths that earlier sessions settled on, by size, converted to the type `of`.

    Return none if they cannot be read.
    """
    try:
        return msgspec.json.decode((folder / CHUNKS_FILE).read_bytes(), type=dict[str, of])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def write_chunks(folder: Path, chunks: Mapping[str, object]) -> None:
    """Write the lengths that this session settled on.

    Raises RunFolderError, and JournalError for a full disk.
    """
    write_private(folder / CHUNKS_FILE, pretty_json(chunks))


def find_salt(folder: Path) -> CacheSalt | None:
    """Return the salt that an earlier session settled on, or None if there is none to read."""
    try:
        return msgspec.json.decode((folder / SALT_FILE).read_bytes(), type=CacheSalt)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_salt(folder: Path, salt: CacheSalt) -> None:
    """Write the salt. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / SALT_FILE, pretty_json(salt))


def read_pressure(folder: Path) -> PressureLog:
    """Return the fillings of earlier sessions; none if they cannot be read."""
    try:
        return msgspec.json.decode((folder / PRESSURE_FILE).read_bytes(), type=PressureLog)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return PressureLog()


def write_pressure(folder: Path, log: PressureLog) -> None:
    """Write the fillings so far. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / PRESSURE_FILE, pretty_json(log))


def read_canary_log(folder: Path) -> dict[str, CanaryRecord]:
    """Return the replies so far, by request; an incomplete last line is skipped.

    Raises RunFolderError for a damaged line.
    """
    file, found = folder / CANARY_LOG, dict[str, CanaryRecord]()
    if not file.exists():
        return found
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = msgspec.json.decode(line, type=CanaryRecord)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{file}:{number}: a damaged record: {error}") from error
        before = found.get(record.id)
        if before is not None:
            record = msgspec.structs.replace(record, failures=before.failures + record.failures)
        found[record.id] = record
    return found


class CanaryLog:
    """The replies of a pass, in a file that is open for writing."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def append(self, record: CanaryRecord) -> None:
        """Write one record. Raises JournalError."""
        try:
            self._file.write(msgspec.json.encode(record) + b"\n")
            self._file.flush()
        except OSError as error:
            raise JournalError(
                f"{self._path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT
            ) from error


@contextmanager
def open_canary_log(folder: Path) -> Iterator[CanaryLog]:
    """Open the replies of a folder for more of them, after dropping an incomplete last line."""
    path = folder / CANARY_LOG
    content = path.read_bytes() if path.exists() else b""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b")
    with file:
        file.truncate(content.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        yield CanaryLog(file, path)
