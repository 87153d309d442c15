"""Imports the reference files of TensorRT-LLM's accuracy suite as figures with their provenance.

The suite ignores unknown keys and entries that can never match, and keeps no history; serve-eval refuses the first
two and keeps rows that only an older file has. What is dropped, moved or remarkable is told as an oddity, never
corrected: the figures stay those of the source. Comments and notes are not taken.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.verdicts import references

FOLDER = "tests/integration/defs/accuracy/references"
TRTLLM_COMMITS: Mapping[str, str] = {
    "SlimPajama-6B": "2a9abd95",
    "acceptance_length": "9645a994",
    "cnn_dailymail": "001b8e0a",
    "gpqa_diamond": "ed53795b",
    "gsm8k": "5bceeb1a",
    "gsm8k_inferencemax": "c64ee1a8",
    "gsm8k_inferencex": "5bceeb1a",
    "humaneval": "1262edbc",
    "json_mode_eval": "186f6ddf",
    "longbench_v1": "0e2003a9",
    "longbench_v2": "496e1509",
    "mixed_modality_omni": "2d0ab9f7",
    "mixed_modality_qwen_vl": "56efdd41",
    "mixed_modality_video_audio_omni": "49d9d428",
    "mmlu": "b35ac1b6",
    "mmmu": "029161f7",
    "passkey_retrieval_128k": "2a9abd95",
    "passkey_retrieval_64k": "1100b262",
    "videomme": "30d2c50c",
    "voxpopuli": "9496bfa2",
    "zero_scrolls": "54971871",
}
"""Commits of the snapshot that the shipped files were made from. Another checkout has other ones."""
TRTLLM_READ_ON = "2026-11-20"
"""The day on which that snapshot was read."""

_OVERRIDES = ("alpha", "beta", "sigma", "num_samples", "higher_is_better", "threshold")
_TEXTS = ("reference_note",)
_TAKEN = (*references.SPEC_KEYS, *references.METRICS, *_OVERRIDES)
_ALGORITHMS = ("quant_algo", "kv_cache_quant_algo", "spec_dec_algo")
_MIN_AL_SHARE = 0.95
_MANY_EQUAL = 4
_LONG_NAME = 8
_MARK = "# Figures of "
_OLDER_NAME = re.compile(r"(?P<task>.+)_(?P<commit>[0-9a-f]{7,40})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCount:
    """What a source file holds, and how many of its entries were written."""

    models: int
    entries: int
    written: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """`oddities` are lines "file: model: text", and `lost` are those of them that tell of figures that were not taken;
    `counts` are by source file, relative to the imported directory. Of the files `written`, `new` were not there, and
    `updated` hold other figures than before."""

    oddities: tuple[str, ...]
    lost: tuple[str, ...]
    counts: Mapping[str, FileCount]
    written: tuple[Path, ...]
    new: tuple[Path, ...]
    updated: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """An entry of a source file. `entry` holds only what is taken, in the order in which it is written."""

    file: str
    model: str
    entry: dict[str, Any]

    @property
    def key(self) -> tuple[str, ...]:
        default = {"dtype": "auto"}
        return (self.model, *(repr(self.entry.get(k, default.get(k))) for k in references.SPEC_KEYS))

    @property
    def metric(self) -> str:
        return next((key for key in references.METRICS if key in self.entry), "accuracy")

    @property
    def value(self) -> Any:
        return self.entry.get(self.metric)

    def odd(self, text: str) -> str:
        spec = " ".join(f"{k}={self.entry[k]}" for k in references.SPEC_KEYS if k in self.entry) or "default"
        return f"{self.file}: {self.model}: {spec}: {text}"


def import_directory(
    source: Path,
    target: Path,
    *,
    repository: str = "NVIDIA/TensorRT-LLM",
    commits: Mapping[str, str],
    read_on: str,
) -> ImportReport:
    """Writes one `<task>.yaml` into `target` for every task of `source` and of `source`/older (`<task>_<commit>.yaml`).

    `commits` maps a file's stem to the commit it was read at, `read_on` is that day; both go into the head of the
    files. The same arguments give the same bytes. Nothing is written when a file cannot be imported. Raises
    ReferenceFileError for that, for a folder without files and for a target file that no import wrote.
    """
    if source.resolve() == target.resolve():
        raise ReferenceFileError(f"{target}: is the folder to import from", hint="Write to another folder.")
    work = _Import(source, repository)
    texts = {}
    for task in sorted({*work.newest, *work.older}):
        texts[f"{task}.yaml"] = _head(task, repository, commits.get(task), read_on) + work.text_of(task)
    if not texts:
        raise ReferenceFileError(f"{source}: holds no *.yaml file", hint=f"Name a copy of {FOLDER}.")
    before = _write(texts, target)
    oddities = (*work.oddities, *_oddities_of_rows(work.rows), *_oddities_across(work.rows))
    return ImportReport(
        oddities=oddities,
        lost=tuple(work.lost),
        counts=dict(sorted(work.counts.items())),
        written=tuple(target / name for name in texts),
        new=tuple(target / name for name in texts if name not in before),
        updated=tuple(target / name for name, old in before.items() if _figures(old) != _figures(texts[name])),
    )


class _Import:
    """Reads the source files; collects rows, counts and oddities on the way."""

    def __init__(self, source: Path, repository: str) -> None:
        self.source, self.repository = source, repository
        self.oddities: list[str] = []
        self.lost: list[str] = []
        self.counts: dict[str, FileCount] = {}
        self.rows: list[_Row] = []
        self.newest = {file.stem: file for file in sorted(source.glob("*.yaml"))}
        self.older: dict[str, list[tuple[Path, str]]] = defaultdict(list)
        for file in sorted((source / "older").glob("*.yaml")):
            match = _OLDER_NAME.fullmatch(file.stem)
            if match and match["task"] != references.ACCEPTANCE_LENGTH:
                self.older[match["task"]].append((file, match["commit"]))
            else:
                self._lose(f"{self._name(file)}: -: skipped, not the <task>_<commit>.yaml of a task")

    def text_of(self, task: str) -> str:
        """The content of our file, checked by our own reader."""
        if task == references.ACCEPTANCE_LENGTH:
            return _dump(self._lengths(self.newest[task]))
        kept = self._distinct(self.newest[task]) if task in self.newest else {}
        for file, commit in self.older.get(task, ()):
            self._add_older(kept, file, task, commit)
        models: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in kept.values():
            models[row.model].append(row.entry)
        text = _dump(dict(models))
        references.parse(text, f"{task}.yaml (as imported)")
        self.rows += kept.values()
        return text

    def _distinct(self, file: Path) -> dict[tuple[str, ...], _Row]:
        """The rows of a file that can match, in file order."""
        rows = list(self._rows_of(file))
        kept: dict[tuple[str, ...], _Row] = {}
        for row in rows:
            first = kept.setdefault(row.key, row)
            if first is not row:
                if row.value == first.value:
                    self.oddities.append(row.odd("shadowed duplicate with the same value, dropped"))
                else:
                    values = f"{first.value}, then {row.value}"
                    self._lose(row.odd(f"shadowed duplicate with ANOTHER VALUE ({values}), dropped"))
        name = self._name(file)
        self.counts[name] = FileCount(models=len({row.model for row in rows}), entries=len(rows), written=len(kept))
        if not rows:
            self.oddities.append(f"{name}: -: the file has no entry")
        return kept

    def _add_older(self, kept: dict[tuple[str, ...], _Row], file: Path, task: str, commit: str) -> None:
        """Adds the rows that only the older file has, and tells which values moved since."""
        rows = self._distinct(file)
        only_older = {key: row for key, row in rows.items() if key not in kept}
        for key, row in rows.items():
            if key in kept and kept[key].value != row.value:
                self.oddities.append(row.odd(f"moved {row.value} -> {kept[key].value}, the newer is kept"))
        provenance = {"source": f"{self.repository} {task}.yaml @ {commit}", "old": True}
        kept |= {key: replace(row, entry={**row.entry, **provenance}) for key, row in only_older.items()}
        self.counts[self._name(file)] = replace(self.counts[self._name(file)], written=len(only_older))

    def _rows_of(self, file: Path) -> Iterator[_Row]:
        document, name = yaml_source.read(file, ReferenceFileError), self._name(file)
        for model, entries in _expect(dict, document, document.value or {}).items():
            for index, entry in enumerate(_expect(list, document, entries, model)):
                _expect(dict, document, entry, model, index)
                row = _Row(name, model, {key: entry[key] for key in _TAKEN if key in entry})
                for key in (key for key in entry if key not in _TAKEN):
                    why = "texts are not taken" if key in _TEXTS else "the suite ignores it"
                    self.oddities.append(row.odd(f"key {key!r} dropped, {why}"))
                yield row

    def _lengths(self, file: Path) -> dict[str, dict[str, float]]:
        lengths, name = references.load_acceptance_length(file), self._name(file)
        for test, length in lengths.items():
            if not math.isclose(length.min_al, _MIN_AL_SHARE * length.ref_al, rel_tol=1e-9):
                text = f"min_al {length.min_al} is not {_MIN_AL_SHARE} of ref_al {length.ref_al}"
                self.oddities.append(f"{name}: {test}: {text}")
        self.counts[name] = FileCount(models=len(lengths), entries=len(lengths), written=len(lengths))
        return {test: {"ref_al": length.ref_al, "min_al": length.min_al} for test, length in lengths.items()}

    def _lose(self, line: str) -> None:
        self.oddities.append(line)
        self.lost.append(line)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.source).as_posix()


def _expect(kind: type, document: yaml_source.Document, value: Any, *path: object) -> Any:
    if not isinstance(value, kind):
        name = "a mapping" if kind is dict else "a list"
        raise ReferenceFileError(
            f"{document.name}:{document.line(*path)}: {path[0] if path else '-'}: must be {name}",
            hint="This is not a reference file of the suite.",
        )
    return value


# ----------------------------------------------------------------------------------------------------- oddities


def _oddities_of_rows(rows: Sequence[_Row]) -> Iterator[str]:
    """What is remarkable in single rows, and in the rows of one model."""
    with_floats = {row.file for row in rows if isinstance(row.value, float)}
    for row in rows:
        if row.metric != "accuracy":
            yield row.odd(f"the value stands under {row.metric!r}")
        elif row.value == 0:
            yield row.odd("accuracy 0 never gates")
        if isinstance(row.value, int) and row.file in with_floats:
            yield row.odd(f"the integer {row.value} among floats")
        yield from (row.odd(f"{key} is set to {row.entry[key]}") for key in _OVERRIDES if key in row.entry)
    equal = Counter((row.file, row.model, row.value) for row in rows)
    for (file, model, value), count in equal.items():
        if count >= _MANY_EQUAL:
            yield f"{file}: {model}: {count} rows have the one value {value}: declared equal, hardly measured"


def _oddities_across(rows: Sequence[_Row]) -> Iterator[str]:
    """Names that differ between rows although they seem to mean one thing."""
    for key in _ALGORITHMS:
        named = [(row.entry[key], row.file) for row in rows if row.entry.get(key) is not None]
        yield from _variants(
            ((str.casefold(name), name, file) for name, file in named), f"{key} is spelt in several ways"
        )
    models = ((same, row.model, row.file) for row in rows for same in _plain_names(row.model))
    yield from _variants(models, "several names of what seems to be one model")


def _variants(named: Iterable[tuple[str, str, str]], text: str) -> Iterator[str]:
    """A line for every group of (group, name, file) with more than one name."""
    groups: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for group, name, file in named:
        groups[group][name].add(file)
    several = [sorted(files.items()) for files in groups.values() if len(files) > 1]
    lines = [
        f"*: {' / '.join(name for name, _ in names)}: {text} "
        f"({'; '.join(name + ' in ' + ', '.join(sorted(files)) for name, files in names)})"
        for names in several
    ]
    yield from dict.fromkeys(lines)


def _plain_names(model: str) -> set[str]:
    """A model's name without case and punctuation, with its owner and without. MXFP4 is how gpt-oss is published, so
    there the suffix tells nothing."""
    owner, _, name = model.casefold().removesuffix("-mxfp4").rpartition("/")
    return {plain for part in (owner + name, name) if len(plain := re.sub("[^a-z0-9]", "", part)) >= _LONG_NAME}


# ------------------------------------------------------------------------------------------------------ writing


class _Dumper(yaml_source.Dumper):
    """Indents lists under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _dump(content: Mapping[str, Any]) -> str:
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


def _head(task: str, repository: str, commit: str | None, read_on: str) -> str:
    at = f"commit {commit}" if commit else "commit not recorded"
    return (
        f"{_MARK}{repository}, {FOLDER}/{task}.yaml,\n"
        f"# {at}, read on {read_on}. Only figures and names were taken; `old: true` marks rows of an older version.\n"
        "# Written by `serve-eval references import`. Put entries of your own into a folder of your own.\n"
    )


def _figures(text: str) -> list[str]:
    """What a file says but for its head, which tells of the import."""
    return [line for line in text.splitlines() if not line.startswith("#")]


def _write(texts: Mapping[str, str], target: Path) -> dict[str, str]:
    """The text that each file had before, by name, where it was there."""
    try:
        before = {name: (target / name).read_text("utf-8") for name in texts if (target / name).exists()}
        if foreign := [name for name, text in before.items() if not text.startswith(_MARK)]:
            names = ", ".join(str(target / name) for name in foreign)
            raise ReferenceFileError(
                f"{names}: not written by an import, left alone", hint="Import into another folder."
            )
        target.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (target / name).write_text(text, "utf-8", newline="\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ReferenceFileError(f"{target}: cannot be written: {error}", hint="Import into another folder.") from error
    return before
