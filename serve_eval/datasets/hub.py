"""The Hugging Face hub, through the optional extra and only when the user asked for it."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import DatasetError, install_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A data set repository on the hub: the files that are wanted of it, at which revision, and an
    archive in it that has to be unpacked (its folder then is the data set). `members` are the files
    of the archive that are wanted.
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
    """A local folder with the data set's files. Raises DatasetError when the hub cannot be used or
    reached.

    HF_HUB_OFFLINE, HF_HOME and HF_ENDPOINT work as everywhere. An archive is unpacked beside the
    downloaded snapshot, with the tar filter that keeps every member inside.
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
                    zipped.extractall(partial)  # noqa: S202  (zipfile keeps every member inside by itself)
            else:
                with tarfile.open(folder / source.archive) as archive:
                    archive.extractall(partial, filter="data")
            partial.rename(unpacked)
        return unpacked / "data" if (unpacked / "data").is_dir() else unpacked
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DatasetError(
            f"{source.repository} could not be had from the Hugging Face hub:"
            f" {type(error).__name__}: {error}",
            hint=(
                "Check HF_HUB_OFFLINE, HF_ENDPOINT and the network, or put a local copy under"
                " --dataset-root."
            ),
        ) from error
