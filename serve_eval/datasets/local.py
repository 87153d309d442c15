"""Find the folder of a data set below the roots, and read its files with checksums.

A task file `serve_eval/tasks/NAME.py` with `SOURCE = Source(...)` at its top level declares the
data set NAME. A file whose SOURCE is one of known.py declares nothing.

A split is one file of rows: JSON lines (also compressed by gzip), a JSON list, CSV or TSV with a
header, or Parquet (with the optional extra), under any of the names that upstream copies use. A
large split may be several files.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import importlib.util
import io
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.datasets import source as datasets_source
from serve_eval.datasets.source import KNOWN, download
from serve_eval.datasets.source import Source as Source
from serve_eval.errors import DatasetError, install_hint
from serve_eval.plugins import registry
from serve_eval.schema import DataRoots, Dataset, Sample, SourceFile

TASKS = "serve_eval.tasks"
_DECLARES = re.compile(r"^SOURCE\b[^=\n]*=\s*Source\(", re.MULTILINE)
"""The line that a file must have to be imported, since most tasks take long to import."""


def find_sources() -> dict[str, Source]:
    """Return every data set by its name for `serve-eval data`, the shared ones first.

    Raises ValueError if a task file declares a set under the name of a shared one.
    """
    declared = {
        name: found
        for name in registry.list_shipped(TASKS)
        if (found := _read_source(f"{TASKS}.{name}")) is not None
    }
    if taken := sorted(declared.keys() & KNOWN.keys()):
        raise ValueError(
            f"serve_eval/tasks/{taken[0]}.py: SOURCE has the name of a set of"
            f" serve_eval/datasets/source.py; write SOURCE = KNOWN[{taken[0]!r}]"
        )
    return {**KNOWN, **declared}


def _read_source(module: str) -> Source | None:
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    if not _DECLARES.search(Path(spec.origin).read_text("utf-8")):
        return None
    found = getattr(importlib.import_module(module), "SOURCE", None)
    return found if isinstance(found, Source) else None


SHOWN_VALUE = 60
"""Characters of a wrong value that are shown."""
_SPLIT_NAMES = (
    *("{split}.jsonl", "{split}.jsonl.gz", "{split}.json", "{split}.csv", "{split}.tsv"),
    *("{split}.parquet", "{split}-*.parquet"),
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """The path and the content of a file."""

    path: Path
    content: bytes

    @property
    def source(self) -> SourceFile:
        """The file's entry in the report."""
        return SourceFile(path=str(self.path), sha256=datasets_source.sha256(self.content))


def candidates(source: Source, roots: DataRoots) -> list[Path]:
    """Return the possible folders of a data set: each name below each root, then the root.

    They need not exist.
    """
    return [
        folder
        for root in roots.roots
        for folder in (*(root / name for name in source.folders), root)
    ]


def find_folder(source: Source, roots: DataRoots, markers: Sequence[str]) -> Path:
    """Return the first candidate folder with a file that matches a marker, a glob pattern.

    Asks the hub only if `roots.allow_hub` is set. Raises DatasetError that lists the searched
    folders and gives advice.
    """
    searched = candidates(source, roots)
    for folder in searched:
        if any(next(folder.glob(marker), None) is not None for marker in markers):
            return folder
    if roots.allow_hub and source.hub is not None:
        return download(source.hub)
    looked = f"Searched for {_few(markers)} in:" + "".join(f"\n  {folder}" for folder in searched)
    if not searched:
        looked = f"Did not search for {_few(markers)}: no dataset root is set"
    missing = [str(root) for root in roots.roots if not root.is_dir()]
    no_root = f": there is no folder {' or '.join(missing)}" if missing else ""
    raise DatasetError(
        f"the data set {source.name} was not found{no_root}",
        hint=f"{advice(source)}\n{looked}",
    )


def advice(source: Source) -> str:
    """Return the ways to get a data set, one per line and the shortest first."""
    name = next((name for name, known in find_sources().items() if known == source), None)
    lines = []
    if name is not None and (source.urls or source.hub):
        lines.append(
            f"Fetch it with serve-eval data fetch {name} -o DIR, then add --dataset-root DIR."
        )
    if source.hub:
        lines.append(
            f"Or add --allow-hub to download {source.hub.repository} from the Hugging Face hub"
            " (extra: hub)."
        )
    lines.append(
        f"{'Or put' if lines else 'Put'} a copy from {source.homepage} into"
        f" <root>/{source.folders[-1]} and name the root with --dataset-root,"
        " SERVE_EVAL_DATASET_ROOT or LLM_MODELS_ROOT."
    )
    return "\n".join(lines)


def _few(names: Sequence[str], most: int = 3) -> str:
    """Return the first few names, and how many more there are."""
    if len(names) <= most + 1:
        return " or ".join(names)
    return f"{', '.join(names[:most])} and {len(names) - most} more"


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of one split, their file, and how their number differs from the published one."""

    rows: list[dict[str, Any]]
    file: DataFile
    deviation: str | None

    def build_dataset(self, samples: Sequence[Sample]) -> Dataset:
        """Return the data set that asks these samples of the rows."""
        return Dataset(
            samples=samples,
            files=(self.file.source,),
            total=len(self.rows),
            deviation=self.deviation,
        )


def read_split(
    source: Source,
    roots: DataRoots,
    split: str,
    columns: Sequence[str],
    *,
    wanted: int,
    published: int | None,
    subfolders: Sequence[str] = ("", "main/"),
) -> Split:
    """Return a split that is one file. `published` is its expected number of rows, if known.

    Raises DatasetError if it is missing or malformed, or has fewer rows than `wanted`.
    """
    file = find_split(
        source, find_folder(source, roots, split_markers([split], subfolders)), split, subfolders
    )
    table = rows(file, columns)
    told = f"{source.name} is incomplete: {file.path} has {len(table)} rows"
    check_rows(roots, len(table), wanted, told, source)
    differs = (
        None
        if published in (None, len(table))
        else f"{len(table)} rows, where {source.name} has {published}"
    )
    return Split(table, file, differs)


def check_rows(roots: DataRoots, found: int, wanted: int, told: str, source: Source) -> None:
    """Raise DatasetError if a task wants more rows than were found, unless fewer are allowed.

    `told` says what was found.
    """
    if found < wanted and not (found and roots.allow_fewer):
        hint = f"{advice(source)}\nTo ask only the rows that are there: --allow-mismatch dataset."
        raise DatasetError(f"{told}; {wanted} are needed", hint=hint)


def split_markers(splits: Iterable[str], subfolders: Iterable[str] = ("", "main/")) -> list[str]:
    """Return the glob patterns of the splits for `find_folder`."""
    return [
        sub + name.format(split=split)
        for split in splits
        for sub in subfolders
        for name in _SPLIT_NAMES
    ]


def find_split(
    source: Source, folder: Path, split: str, subfolders: Iterable[str] = ("", "main/")
) -> DataFile:
    """Return the file of one split in a data set's folder.

    Raises DatasetError if it is missing or in several pieces.
    """
    found = find_pieces(source, folder, split, subfolders)
    if len(found) > 1:
        raise DatasetError(
            f"{source.name}: the split {split!r} is in {len(found)} files; only one is supported"
        )
    return read_file(found[0])


def find_pieces(source: Source, folder: Path, split: str, subfolders: Iterable[str]) -> list[Path]:
    """Return the files of one split in a data set's folder, in their order.

    Raises DatasetError if there is none.
    """
    markers = split_markers([split], subfolders)
    for marker in markers:
        if found := sorted(folder.glob(marker)):
            return found
    raise DatasetError(
        f"{source.name} is incomplete: {folder} has no file for the split {split!r} (searched for"
        f" {_few(markers)})",
        hint=advice(source),
    )


def read_file(path: Path) -> DataFile:
    """Return the content of a file.

    Raises DatasetError if it cannot be read or was fetched with another checksum.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    datasets_source.check(path, content)
    return DataFile(path, content)


def rows(file: DataFile, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a JSON-lines, JSON, CSV, TSV or Parquet file as dictionaries.

    Raises DatasetError with the file and the line.
    """
    if file.path.suffix == ".gz":
        file = DataFile(file.path.with_suffix(""), _unpack(file))
    read = _READERS.get(file.path.suffix)
    if read is None:
        raise DatasetError(
            f"{file.path}: unknown format; use .jsonl, .json, .csv, .tsv or .parquet"
        )
    table = read(file)
    if not table:
        raise DatasetError(f"{file.path}: no rows")
    for number, row in enumerate(table, 1):
        wrong = [name for name in columns if not isinstance(row.get(name), str)]
        if wrong:
            raise DatasetError(
                f"{file.path}: row {number}: {_describe_wrong(row, wrong[0])}",
                hint=f"Fetch the data again, or correct the file{_name_page(file.path)}.",
            )
    return table


def _name_page(file: Path) -> str:
    """Return where the form of a file is described, if its set is one of docs/tasks.md."""
    folders = {folder for source in find_sources().values() for folder in source.folders}
    listed = any(f"/{folder}/" in f"{file.absolute().parent.as_posix()}/" for folder in folders)
    return ": docs/tasks.md shows its form" if listed else ""


def _describe_wrong(row: Mapping[str, Any], column: str) -> str:
    """Return what is wrong with a column of a row that should have a text."""
    if column not in row:
        return f"no column {column}; its columns are: {', '.join(map(str, row))}"
    value = row[column]
    if value is None:
        return f"{column} is empty, not a text"
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= SHOWN_VALUE else f"{shown[:SHOWN_VALUE]}..."
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{column} is {'the number ' if number else ''}{shown}, not a text"


def _unpack(file: DataFile) -> bytes:
    try:
        return gzip.decompress(file.content)
    except (OSError, EOFError, zlib.error) as error:
        raise DatasetError(f"{file.path}: not a gzip file: {error}") from error


def _jsonl(file: DataFile) -> list[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    table = []
    for number, line in enumerate(file.content.splitlines(), 1):
        if line.strip():
            try:
                table.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise DatasetError(f"{file.path}:{number}: not a JSON object: {error}") from error
    return table


def _json(file: DataFile) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(file.content, type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise DatasetError(f"{file.path}: not a JSON list of objects: {error}") from error


def text_of(file: DataFile) -> str:
    """Return the content as UTF-8. Raises DatasetError if it is not."""
    try:
        return file.content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DatasetError(f"{file.path}: not UTF-8: {error}") from error


def _csv(file: DataFile) -> list[dict[str, Any]]:
    try:
        return list(csv.DictReader(io.StringIO(text_of(file), newline=""), strict=True))
    except csv.Error as error:
        raise DatasetError(f"{file.path}: {error}") from error


def _tsv(file: DataFile) -> list[dict[str, Any]]:
    lines = io.StringIO(text_of(file), newline="")
    return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def _parquet(file: DataFile) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise DatasetError(
            f"{file.path}: reading Parquet needs pyarrow", hint=install_hint("hub")
        ) from error
    import pyarrow

    try:
        table: list[dict[str, Any]] = parquet.read_table(
            pyarrow.BufferReader(file.content)
        ).to_pylist()
    except pyarrow.ArrowException as error:
        raise DatasetError(f"{file.path}: not a Parquet file: {error}") from error
    return table


_READERS = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".tsv": _tsv, ".parquet": _parquet}
