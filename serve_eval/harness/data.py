"""Replace a task's data by local files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from serve_eval.datasets import local
from serve_eval.errors import DatasetError
from serve_eval.schema import DataRoots, SourceFile

READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
"""The loader of Hugging Face's datasets for a file, by its suffix."""


def with_local_files(
    name: str,
    config: Mapping[str, Any],
    data_files: Mapping[str, str] | None,
    roots: DataRoots,
    own: Sequence[str],
) -> tuple[dict[str, Any], tuple[SourceFile, ...]]:
    """Return the settings that name a task's local files, and those files.

    Raises DatasetError for a missing file.
    """
    kwargs = dict(config.get("dataset_kwargs") or {})
    given: Any = kwargs.get("data_files") if data_files is None else dict(data_files)
    if given is None:
        return {}, ()
    places = [*roots.roots, Path(), *map(Path, own)]
    sources: list[SourceFile] = []

    def find_data(text: Any) -> Any:
        if isinstance(text, Mapping):
            return {split: find_data(one) for split, one in text.items()}
        if not isinstance(text, str):
            return [find_data(one) for one in text]
        if "://" in text or "*" in text:
            return text
        path = next((place / text for place in places if (place / text).is_file()), None)
        if path is None:
            raise DatasetError(
                f"lm_eval:{name}: {text} is not in"
                f" {', '.join(str(place.absolute()) for place in places)}",
                hint="Give its folder as --dataset-root, or its full path.",
            )
        sources.append(local.read_file(path).source)
        return str(path)

    changed: dict[str, Any] = {"dataset_kwargs": {**kwargs, "data_files": find_data(given)}}
    if data_files is not None:
        kinds = {READERS.get(Path(file).suffix) for file in data_files.values()}
        if len(kinds) != 1 or None in kinds:
            raise DatasetError(
                f"lm_eval:{name}: data_files must all have the same suffix, one of"
                f" {', '.join(READERS)}"
            )
        changed |= {"dataset_path": kinds.pop(), "dataset_name": None}
    return changed, tuple(sources)
