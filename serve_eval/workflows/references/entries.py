"""Add and replace entries of reference files, which people edit too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.schema import AccuracySpec
from serve_eval.verdicts import references
from serve_eval.whole_file import write_named_file
from serve_eval.workflows.references import yaml_edit

_OTHER_FOLDER = "Name another folder."


def make_folder(folder: Path) -> None:
    """Make the folder of a user's references, and those around it, if it is missing.

    Raises ReferenceFileError if something else is there or if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        taken = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
        raise ReferenceFileError(
            f"{folder}: references belong in a folder, and {taken} is a file", hint=_OTHER_FOLDER
        ) from error
    except OSError as error:
        raise ReferenceFileError(
            f"{folder}: cannot be made: {error.strerror}", hint=_OTHER_FOLDER
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReferenceFileError(f"{folder}: cannot be written", hint=_OTHER_FOLDER)


def write_entry(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str | None:
    """Add an entry to a file, or replace the entry with the same specification.

    Everything else in the file stays as it is, including comments and order. An entry of the same
    scores stays too, since this command wrote it before: then the file of its scores is returned.
    """
    if (scores := _find_written(file, model, spec, entry, reason)) is not None:
        return scores
    text = _edit(file, model, spec, entry, reason)
    make_folder(file.parent)
    try:
        write_named_file(file, text.encode())
    except OSError as error:
        raise ReferenceFileError(f"{file}: cannot be written: {error.strerror}") from error
    return None


def _find_written(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str | None:
    """Return the scores of an entry of the same scores of single samples, and its reason."""
    if not file.exists():
        return None
    text = yaml_source.read_text(file, ReferenceFileError)
    entries = yaml_source.parse(text, str(file), ReferenceFileError).value.get(model, [])
    digest = entry.get("runs", {}).get("sha256")
    same = [one for one in entries if _list_spec(one) == spec]
    written = [one for one in same if digest and one.get("runs", {}).get("sha256") == digest]
    reasons = {one.get("replaced", [{}])[-1].get("reason") for one in written}
    if not written or (reason is not None and reason not in reasons):
        return None
    return str(written[0]["runs"].get("samples", ""))


def check_entry(file: Path, model: str, spec: AccuracySpec, reason: str | None) -> None:
    """Raise ReferenceFileError if `write_entry` would refuse an entry of this specification."""
    given = {
        key: value
        for key in references.SPEC_KEYS
        if (value := getattr(spec, key)) not in (None, "auto")
    }
    _edit(file, model, given, {**given, "accuracy": 0.0}, reason)


def _edit(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str:
    """Return the text of a file with an entry added or replaced."""
    text = "{}\n"
    if file.exists():
        text = yaml_source.read_text(file, ReferenceFileError)
        references.parse(text, str(file))  # A file with a mistake is not changed.
    entries = yaml_source.parse(text, str(file), ReferenceFileError).value.get(model, [])
    same = [i for i, old in enumerate(entries) if _list_spec(old) == spec]
    if same and not reason:
        raise build_taken_error(file, model, AccuracySpec(**spec))
    if same:
        old = dict(entries[same[0]])
        kept = old.pop("replaced", [])
        entry["replaced"] = [*kept, {**old, "reason": reason}]
        text = yaml_edit.replace_entry(text, str(file), model, same[0], entry, ReferenceFileError)
    else:
        text = yaml_edit.append_entry(text, str(file), model, entry, ReferenceFileError)
    references.parse(text, str(file))  # The new text must be readable.
    return text


def build_taken_error(file: Path, model: str, spec: AccuracySpec) -> ReferenceFileError:
    """Return the error for an entry that already exists."""
    return ReferenceFileError(
        f"{file}: {model} already has a reference for {references.spec_text(spec)}",
        hint="To replace it, give --reason 'why'. The old entry is kept in the new one.",
    )


def _list_spec(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry's specification that are set."""
    return {k: entry[k] for k in references.SPEC_KEYS if entry.get(k) not in (None, "auto")}
