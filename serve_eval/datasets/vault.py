"""Fetches data sets into a root, records what came, and says whether it is still the same.

The network is used here and nowhere else for data, and only when a user asks for a set. A root that
was filled here can be copied to a machine without a network: the manifest goes with it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from serve_eval.datasets import manifest
from serve_eval.datasets.hub import HubSource, download
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError

OK, CHANGED, MISSING = "ok", "changed", "missing"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedSet:
    """What is said of a file of a data set."""

    data_set: str
    path: Path
    state: str
    sha256: str | None


def default_root(environ: Mapping[str, str]) -> Path:
    """Where sets are kept when no folder is named: SERVE_EVAL_DATASET_ROOT, else a folder of the
    user's cache.
    """
    if named := environ.get("SERVE_EVAL_DATASET_ROOT", "").strip().split("\n")[0]:
        return Path(named)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serve-eval" / "datasets"


def folder_of(source: Source, root: Path) -> Path:
    """Where a set is put below a root."""
    return root / source.folders[-1]


def where(source: Source, root: Path) -> Path:
    """Where a set is below a root, by the names under which copies are kept; where none is, where
    it is put.
    """
    places = (root / name for name in source.folders)
    return next((place for place in places if place.is_dir()), folder_of(source, root))


def get_url(url: str, target: Path) -> None:
    """Downloads one file. Raises DatasetError; HF_HUB_OFFLINE forbids it as it does the hub."""
    import httpx

    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"):
        raise DatasetError(
            f"{url} was not asked for: HF_HUB_OFFLINE is set",
            hint="Unset it, or copy the files by hand.",
        )
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=60.0) as response,
            target.open("wb") as file,
        ):
            response.raise_for_status()
            for piece in response.iter_bytes():
                file.write(piece)
    except (httpx.HTTPError, OSError) as error:
        raise DatasetError(
            f"{url} could not be downloaded: {type(error).__name__}: {error}",
            hint="Check the network, or put a copy of the file under the dataset root by hand.",
        ) from error


def fetch(
    name: str,
    source: Source,
    root: Path,
    *,
    get: Callable[[str, Path], None] = get_url,
    from_hub: Callable[[HubSource], Path] = download,
) -> list[FetchedSet]:
    """Fetches a set into `root` and records its files.

    Raises DatasetError, and leaves what is there as it is, when a file differs from the checksum
    that is known or that was recorded at an earlier fetch.
    """
    target = folder_of(source, root)
    with TemporaryDirectory() as scratch:
        got, revision = _get(source, Path(scratch), get, from_hub)
        entries, found = dict(manifest.read(root).files), []
        for path, file in got.items():
            key = (target / path).relative_to(root).as_posix()
            digest, before = _file_digest(file), entries.get(key)
            _check_known(source, path, digest)
            if before is not None and before.sha256 != digest:
                raise DatasetError(
                    f"{source.name}: {path} is no longer what it was on {before.fetched_at}: the"
                    " source has changed",
                    hint=(
                        "Keep the copy that there is, or fetch the new one into another folder:"
                        " --to DIR."
                    ),
                )
            entries[key] = before or manifest.Entry(
                sha256=digest,
                bytes=file.stat().st_size,
                data_set=name,
                source=source.urls.get(path)
                or (source.hub.repository if source.hub else source.homepage),
                revision=revision,
                licence=source.licence,
                fetched_at=datetime.now(UTC).isoformat(timespec="seconds"),
                known=path in source.sha256,
            )
            found.append(FetchedSet(data_set=name, path=target / path, state=OK, sha256=digest))
        for path, file in got.items():
            _place(file, target / path)
        manifest.write(root, manifest.Manifest(files=entries))
    return found


def verify(sets: Mapping[str, Source], root: Path) -> list[FetchedSet]:
    """Every recorded file of the sets, and every one whose checksum is known, in the order of the
    sets.
    """
    recorded = manifest.read(root).files
    found: list[FetchedSet] = []
    for name, source in sets.items():
        entries = {
            root / key: entry.sha256 for key, entry in recorded.items() if entry.data_set == name
        }
        found += [
            _build_found(name, path, digest, _file_digest(path) if path.is_file() else None)
            for path, digest in sorted(entries.items())
        ]
        by_hand = [
            (root / folder / file, digest)
            for folder in source.folders
            for file, digest in source.sha256.items()
        ]
        found += [
            _build_found(name, path, digest, _file_digest(path))
            for path, digest in by_hand
            if path.is_file() and path not in entries
        ]
    return found


def _check_known(source: Source, path: str, digest: str) -> None:
    """Raises DatasetError for a file that came with another checksum than the known one."""
    wanted = source.sha256.get(path, digest)
    if digest != wanted:
        raise DatasetError(
            f"{source.name}: {path} came with another checksum than the known {wanted}",
            hint=(
                f"The source has changed: {source.homepage}. A copy of the known state may be put"
                " there by hand."
            ),
        )


def _place(file: Path, target: Path) -> None:
    """Copies a file so that it is there whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.partial")
    shutil.copyfile(file, partial)
    partial.replace(target)


def _build_found(name: str, path: Path, wanted: str, there: str | None) -> FetchedSet:
    state = MISSING if there is None else OK if there == wanted else CHANGED
    return FetchedSet(data_set=name, path=path, state=state, sha256=there)


def _get(
    source: Source,
    scratch: Path,
    get: Callable[[str, Path], None],
    from_hub: Callable[[HubSource], Path],
) -> tuple[dict[str, Path], str]:
    """The files of a set by their path in it, wherever they lie for now, and the revision they are
    of.
    """
    if source.urls:
        for path, url in source.urls.items():
            get(url, scratch / path)
        return {path: scratch / path for path in source.urls}, source.revision
    if source.hub is None:
        raise DatasetError(
            f"{source.name} cannot be fetched", hint=f"Get it by hand: {source.homepage}."
        )
    folder = from_hub(source.hub)
    patterns = source.hub.members if source.hub.archive else source.hub.patterns
    files = {
        f.relative_to(folder).as_posix(): f
        for p in patterns
        for f in sorted(folder.glob(p))
        if f.is_file()
    }
    if not files:
        raise DatasetError(
            f"{source.name}: {source.hub.repository} has none of {', '.join(source.hub.patterns)}"
        )
    commits = (place.name for place in (folder, *folder.parents) if _COMMIT.fullmatch(place.name))
    return files, next(commits, source.hub.revision)


def _file_digest(path: Path) -> str:
    return manifest.sha256(path.read_bytes())
