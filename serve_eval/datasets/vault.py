"""Fetch data sets into a root, record their checksums, and verify them.

Only this module uses the network for data, and only on a user's request. A filled root can be
copied to a machine without a network, because it contains the manifest.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from serve_eval.datasets import source as datasets_source
from serve_eval.datasets.source import HubSource, Source, download
from serve_eval.errors import DatasetError
from serve_eval.frozen import freeze
from serve_eval.whole_file import replace_named_file

OK, CHANGED, MISSING = "ok", "changed", "missing"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@freeze
class FetchedSet:
    """The state of one file of a data set."""

    data_set: str
    path: Path
    state: str
    sha256: str | None


def default_root(environ: Mapping[str, str]) -> Path:
    """Return the folder for data sets: SERVE_EVAL_DATASET_ROOT, else one in the user's cache."""
    if named := environ.get("SERVE_EVAL_DATASET_ROOT", "").strip().split("\n")[0]:
        return Path(named)
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "serve-eval" / "datasets"


def folder_of(source: Source, root: Path) -> Path:
    """Return the folder below a root in which a set is put."""
    return root / source.folders[-1]


def where(source: Source, root: Path) -> Path:
    """Return the folder of an existing copy below a root, else the one that a fetch writes to."""
    places = (root / name for name in source.folders)
    return next((place for place in places if place.is_dir()), folder_of(source, root))


def get_url(url: str, target: Path) -> None:
    """Download one file. Raises DatasetError, also if HF_HUB_OFFLINE forbids downloads."""
    import httpx

    if os.environ.get("HF_HUB_OFFLINE", "").strip().lower() in ("1", "true", "yes", "on"):
        raise DatasetError(
            f"{url} was not downloaded: HF_HUB_OFFLINE is set",
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
    """Fetch a set into `root` and record its files.

    Raises DatasetError, and leaves existing files as they are, if a file differs from the known
    checksum or from the one recorded at an earlier fetch.
    """
    target = folder_of(source, root)
    with TemporaryDirectory() as scratch:
        got, revision = _get(source, Path(scratch), get, from_hub)
        entries, found = dict(datasets_source.read(root).files), []
        for path, file in got.items():
            key = (target / path).relative_to(root).as_posix()
            digest, before = _file_digest(file), entries.get(key)
            _check_known(source, path, digest)
            if before is not None and before.sha256 != digest:
                raise DatasetError(
                    f"{source.name}: {path} differs from the copy fetched on {before.fetched_at}:"
                    " the source has changed",
                    hint=(
                        "Keep the existing copy, or fetch the new one into another folder: -o DIR."
                    ),
                )
            entries[key] = before or datasets_source.Entry(
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
        datasets_source.write(root, datasets_source.Manifest(files=entries))
    return found


def verify(sets: Mapping[str, Source], root: Path) -> list[FetchedSet]:
    """Return every recorded file of the sets and every one with a known checksum, in set order."""
    recorded = datasets_source.read(root).files
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
    """Raise DatasetError for a file that does not have its known checksum."""
    wanted = source.sha256.get(path, digest)
    if digest != wanted:
        raise DatasetError(
            f"{source.name}: {path} does not have the known checksum {wanted}",
            hint=(
                f"The source has changed: {source.homepage}. You can put the known version of the"
                " file into the dataset root by hand."
            ),
        )


def _place(file: Path, target: Path) -> None:
    """Copy a file atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with file.open("rb") as source, replace_named_file(target) as out:
        shutil.copyfileobj(source, out)


def _build_found(name: str, path: Path, wanted: str, there: str | None) -> FetchedSet:
    state = MISSING if there is None else OK if there == wanted else CHANGED
    return FetchedSet(data_set=name, path=path, state=state, sha256=there)


def _get(
    source: Source,
    scratch: Path,
    get: Callable[[str, Path], None],
    from_hub: Callable[[HubSource], Path],
) -> tuple[dict[str, Path], str]:
    """Return the files of a set by their path in it, and their revision."""
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
    return datasets_source.sha256(path.read_bytes())
