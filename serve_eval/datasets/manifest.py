"""Record the checksum of every fetched file in a manifest next to the data.

If a file no longer has its checksum, that is an error. Changed data never give a new score.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from serve_eval.errors import DatasetError
from serve_eval.whole_file import write_named_file

NAME = "serve-eval-datasets.json"
_DEPTH = 6
"""Maximum number of folders between a file of a data set and its root."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One fetched file.

    `sha256` is as sha256sum prints it. `known`: the checksum was published or computed beforehand,
    not only recorded at the first fetch.
    """

    sha256: str
    bytes: int
    data_set: str
    source: str
    revision: str
    licence: str
    fetched_at: str
    known: bool


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a root by their path below it."""

    schema_version: int = 1
    files: Mapping[str, Entry] = {}


def read(root: Path) -> Manifest:
    """Return the manifest of a root, empty if there is none. Raises DatasetError if unreadable."""
    path = root / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return Manifest()
    except (OSError, msgspec.DecodeError) as error:
        raise DatasetError(
            f"{path}: {error}", hint="Restore it, or fetch the data sets into an empty folder."
        ) from error


def write(root: Path, manifest: Manifest) -> None:
    """Replace the manifest of a root atomically."""
    data = msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=1) + b"\n"
    write_named_file(root / NAME, data)


def sha256(content: bytes) -> str:
    """Return the checksum as sha256sum prints it."""
    return hashlib.sha256(content).hexdigest()


def check(path: Path, content: bytes) -> None:
    """Raise DatasetError if a manifest above the file has another checksum for it."""
    check_sha256(path, sha256(content))


def check_sha256(path: Path, checksum: str) -> None:
    """Raise DatasetError if a manifest above the file has a checksum other than this one."""
    for root in path.absolute().parents[:_DEPTH]:
        if (root / NAME).is_file():
            entry = read(root).files.get(path.absolute().relative_to(root).as_posix())
            if entry is not None and entry.sha256 != checksum:
                raise build_change_error(path, entry)
            return


def build_change_error(path: Path, entry: Entry) -> DatasetError:
    """Return the error for a file that changed after it was fetched."""
    return DatasetError(
        f"{path} was changed since it was fetched on {entry.fetched_at}: its checksum is no longer"
        f" {entry.sha256}",
        hint=f"Delete it and fetch it again: serve-eval data fetch {entry.data_set}.",
    )
