"""Read and write the files of a suite: suite.json (runs and waivers) and suite_report.json."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval import file_system
from serve_eval.errors import RunFolderError
from serve_eval.schema import Suite, SuiteReport, SuiteRow
from serve_eval.storage import ownership
from serve_eval.storage.file_names import EARLIER_SUITE_REPORT, PAGES, SUITE_RUNS
from serve_eval.storage.folder_format import Versioned, refuse_newer
from serve_eval.storage.private_files import pretty_json, write_private
from serve_eval.storage.story_files import SUITE


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
        file_system.rename_over(folder / SUITE.result, folder / EARLIER_SUITE_REPORT)
    except FileNotFoundError:
        return
    except OSError as error:
        raise RunFolderError(
            f"{folder / SUITE.result}: cannot be set aside: {error.strerror}"
        ) from error
