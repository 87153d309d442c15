"""Describe where a data set comes from, and record the checksums of its files.

If a file no longer has its checksum, that is an error. Changed data never give a new score.
The known data sets are in known.json, with the checksums that were computed from the source's own
files at the given revision; the others are recorded at the first fetch. Every run reads the table,
so it is JSON: to import a reader of YAML takes 40 ms.
"""

from __future__ import annotations

import hashlib
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

import msgspec

from serve_eval.errors import DatasetError, install_hint
from serve_eval.frozen import freeze
from serve_eval.whole_file import write_named_file


@freeze
class HubSource:
    """A data set repository on the hub, with the wanted files and the revision.

    An `archive` in it is unpacked, and its folder becomes the data set. `members` are the wanted
    files of the archive.
    """

    repository: str
    patterns: tuple[str, ...]
    revision: str = "main"
    archive: str | None = None
    members: tuple[str, ...] = ("**/*",)


def _snapshot(source: HubSource) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise DatasetError(
            "the Hugging Face hub needs an optional package", hint=install_hint("hub")
        ) from error
    return Path(
        snapshot_download(
            source.repository,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=list(source.patterns),
        )
    )


def download(source: HubSource, snapshot: Callable[[HubSource], Path] = _snapshot) -> Path:
    """Return a local folder with the data set's files.

    HF_HUB_OFFLINE, HF_HOME and HF_ENDPOINT work as usual. An archive is unpacked next to the
    downloaded snapshot, with a filter that keeps every member inside. Raises DatasetError if the
    hub cannot be used or reached.
    """
    try:
        folder = snapshot(source)
        if source.archive is None:
            return folder
        unpacked = folder / "unpacked"
        if not unpacked.exists():
            partial = folder / "unpacked.partial"
            if zipfile.is_zipfile(folder / source.archive):
                with zipfile.ZipFile(folder / source.archive) as zipped:
                    zipped.extractall(partial)  # noqa: S202  (zipfile keeps every member inside)
            else:
                with tarfile.open(folder / source.archive) as archive:
                    archive.extractall(partial, filter="data")
            partial.rename(unpacked)
        return unpacked / "data" if (unpacked / "data").is_dir() else unpacked
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{source.repository} could not be downloaded from the Hugging Face hub:"
            f" {type(error).__name__}: {error}",
            hint=(
                "Check HF_HUB_OFFLINE, HF_ENDPOINT and the network, or put a local copy under"
                " --dataset-root."
            ),
        ) from error


@freeze
class Source:
    """A data set, with the folders below a root that may hold a copy, in search order.

    A fetch tries the `urls` of the files first, then the hub, and writes to the last folder.
    `sha256` has the known checksums, which belong to `revision`.
    """

    name: str
    folders: tuple[str, ...]
    homepage: str
    licence: str
    rows: str
    revision: str = "main"
    urls: Mapping[str, str] = field(default_factory=dict)
    sha256: Mapping[str, str] = field(default_factory=dict)
    hub: HubSource | None = None
    note: str = ""


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


GPQA_PASSWORD = b"deserted-untie-orchid"
"""Published by the authors next to the archive. It only keeps the questions out of crawled text."""

KNOWN = msgspec.json.decode(
    Path(__file__).with_name("known.json").read_bytes(), type=dict[str, Source]
)
"""By the name that `serve-eval data` uses."""
