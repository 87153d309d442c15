"""Download from the Hugging Face hub, with the optional extra and only on the user's request."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import DatasetError, install_hint


@dataclass(frozen=True, slots=True, kw_only=True)
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
