"""Read the entries of TensorRT-LLM's reference files, and find oddities among them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.frozen import freeze, freeze_places
from serve_eval.verdicts import references
from serve_eval.yaml_parsing import Dumper

OVERRIDES = ("alpha", "beta", "sigma", "num_samples", "higher_is_better", "threshold")
_TEXTS = ("reference_note",)
_TAKEN = (*references.SPEC_KEYS, *references.METRICS, *OVERRIDES)
_MIN_AL_SHARE = 0.95
_CHOSEN_LOW: Mapping[tuple[str, str, float], tuple[float, ...]] = {
    ("gpqa_diamond", "nvidia/Llama-3_3-Nemotron-Super-49B-v1", 42.42): (
        47.98,
        42.42,
        52.02,
        51.52,
        48.48,
        47.47,
        45.96,
    ),
    ("gsm8k", "deepseek-ai/DeepSeek-V4-Flash-Base", 90.9): (90.9, 91.02, 91.43),
    ("gsm8k", "deepseek-ai/DeepSeek-V4-Pro", 96.0): (96.32,),
    ("gsm8k", "deepseek-ai/DeepSeek-V4-Pro", 95.9): (96.475,),
}
"""Runs of which the suite chose the lowest value or one below, by task, model and that value.

The figures stand in comments of its files, which are not imported.
"""
_PULL_REQUESTS = {"acceptance_length_disaggregated": 19176}
"""The sources of figures that a file of their own holds, since no version of the file has them."""
_OLDER_NAME = re.compile(r"(?P<task>.+)_(?P<commit>[0-9a-f]{7,40})")


@freeze
class FileCount:
    """The size of a source file, and how many of its entries were written."""

    models: int
    entries: int
    written: int


@freeze_places
class Row:
    """An entry of a source file. `entry` holds only what is imported, in the order of writing."""

    file: str
    model: str
    entry: dict[str, Any]

    @property
    def key(self) -> tuple[str, ...]:
        default = {"dtype": "auto"}
        return (
            self.model,
            *(repr(self.entry.get(k, default.get(k))) for k in references.SPEC_KEYS),
        )

    @property
    def metric(self) -> str:
        return next((key for key in references.METRICS if key in self.entry), "accuracy")

    @property
    def value(self) -> Any:
        return self.entry.get(self.metric)

    def odd(self, text: str) -> str:
        spec = (
            " ".join(f"{k}={self.entry[k]}" for k in references.SPEC_KEYS if k in self.entry)
            or "default"
        )
        return f"{self.file}: {self.model}: {spec}: {text}"


class SourceFiles:
    """A reader of the source files that collects rows, counts and oddities."""

    def __init__(self, source: Path, repository: str) -> None:
        self.source, self.repository = source, repository
        self.oddities: list[str] = []
        self.lost: list[str] = []
        self.counts: dict[str, FileCount] = {}
        self.rows: list[Row] = []
        files = sorted(source.glob("*.yaml"))
        lengths = [file for file in files if file.stem.startswith(references.ACCEPTANCE_LENGTH)]
        self.newest = {file.stem: file for file in files if file not in lengths[1:]}
        self._lengths_files = lengths
        self.older: dict[str, list[tuple[Path, str]]] = defaultdict(list)
        for file in sorted((source / "older").glob("*.yaml")):
            match = _OLDER_NAME.fullmatch(file.stem)
            if match and match["task"] != references.ACCEPTANCE_LENGTH:
                self.older[match["task"]].append((file, match["commit"]))
            else:
                self._lose(
                    f"{self._name(file)}: -: skipped, since its name is not <task>_<commit>.yaml"
                )

    def of_several(self, task: str) -> bool:
        """Return whether the rows of a task come from files of several versions."""
        return task == references.ACCEPTANCE_LENGTH and len(self._lengths_files) > 1

    def text_of(self, task: str, commit: str | None) -> str:
        """Return the content of the file to write, checked by serve-eval's own reader.

        `commit` is that of the task's file.
        """
        if task == references.ACCEPTANCE_LENGTH:
            return dump(self._lengths(commit))
        kept = self._distinct(self.newest[task]) if task in self.newest else {}
        for file, commit in self.older.get(task, ()):
            self._add_older(kept, file, task, commit)
        models: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in kept.values():
            if runs := _CHOSEN_LOW.get((task, row.model, row.value)):
                row.entry["measured"] = list(runs)
            models[row.model].append(row.entry)
        text = dump(dict(models))
        references.parse(text, f"{task}.yaml (as imported)")
        self.rows += kept.values()
        return text

    def _distinct(self, file: Path) -> dict[tuple[str, ...], Row]:
        """Return the rows of a file that can match, in file order."""
        rows = list(self._rows_of(file))
        kept: dict[tuple[str, ...], Row] = {}
        for row in rows:
            first = kept.setdefault(row.key, row)
            if first is not row:
                if row.value == first.value:
                    self.oddities.append(row.odd("shadowed duplicate with the same value, dropped"))
                else:
                    values = f"{first.value}, then {row.value}"
                    self._lose(
                        row.odd(f"shadowed duplicate with ANOTHER VALUE ({values}), dropped")
                    )
        name = self._name(file)
        self.counts[name] = FileCount(
            models=len({row.model for row in rows}), entries=len(rows), written=len(kept)
        )
        if not rows:
            self.oddities.append(f"{name}: -: the file has no entry")
        return kept

    def _add_older(
        self, kept: dict[tuple[str, ...], Row], file: Path, task: str, commit: str
    ) -> None:
        """Add the rows that only the older file has, and report which values have changed since."""
        rows = self._distinct(file)
        only_older = {key: row for key, row in rows.items() if key not in kept}
        for key, row in rows.items():
            if key in kept and kept[key].value != row.value:
                self.oddities.append(
                    row.odd(f"moved {row.value} -> {kept[key].value}, the newer value is kept")
                )
        provenance = {"source": f"{self.repository} {task}.yaml @ {commit}", "old": True}
        kept |= {
            key: replace(row, entry={**row.entry, **provenance}) for key, row in only_older.items()
        }
        self.counts[self._name(file)] = replace(
            self.counts[self._name(file)], written=len(only_older)
        )

    def _rows_of(self, file: Path) -> Iterator[Row]:
        document, name = yaml_source.read(file, ReferenceFileError), self._name(file)
        for model, entries in _expect(dict, document, document.value or {}).items():
            for index, entry in enumerate(_expect(list, document, entries, model)):
                _expect(dict, document, entry, model, index)
                row = Row(name, model, {key: entry[key] for key in _TAKEN if key in entry})
                for key in (key for key in entry if key not in _TAKEN):
                    why = "texts are not imported" if key in _TEXTS else "the suite ignores it"
                    self.oddities.append(row.odd(f"key {key!r} dropped, {why}"))
                yield row

    def _lengths(self, commit: str | None) -> dict[str, dict[str, Any]]:
        """Return the rows of all files of acceptance lengths, those of the newest file first.

        The files sort by age: acceptance_length.yaml is the oldest, and the others have a date or a
        word behind that name. A row that only the oldest of several has is marked as old.
        """
        oldest, *newer = self._lengths_files
        found: dict[str, dict[str, Any]] = {}
        for file in (*newer, oldest):
            name = self._name(file)
            rows = dict(self._lengths_of(file))
            for test in rows.keys() & found.keys():
                values = rows[test]["ref_al"], found[test]["ref_al"]
                if values[0] != values[1]:
                    self.oddities.append(
                        f"{name}: {test}: moved {values[0]} -> {values[1]}, the newer value is kept"
                    )
            only = {test: row for test, row in rows.items() if test not in found}
            if file is oldest and newer:
                where = f"{self.repository} {file.name}" + (f" @ {commit}" if commit else "")
                old = {"source": where, "old": True}
                only = {test: {**row, **old} for test, row in only.items()}
            found |= only
            self.counts[name] = FileCount(models=len(rows), entries=len(rows), written=len(only))
        return found

    def _lengths_of(self, file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        document, name = yaml_source.read(file, ReferenceFileError), self._name(file)
        pull_request = _PULL_REQUESTS.get(file.stem)
        source = {"source": f"{self.repository}#{pull_request}"} if pull_request else {}
        for test, entry in _expect(dict, document, document.value or {}).items():
            _expect(dict, document, entry, test)
            length, least = entry.get("ref_al"), entry.get("min_al")
            if not isinstance(length, float | int):
                self._lose(f"{name}: {test}: no acceptance length was measured, dropped")
                continue
            usual = round(_MIN_AL_SHARE * length, 7)
            if least is None:
                least = usual
            elif not math.isclose(least, _MIN_AL_SHARE * length, rel_tol=1e-4):
                text = f"min_al {least} is not {_MIN_AL_SHARE} of ref_al {length}"
                self.oddities.append(f"{name}: {test}: {text}")
            yield test, {"ref_al": length, "min_al": least, **source}

    def _lose(self, line: str) -> None:
        self.oddities.append(line)
        self.lost.append(line)

    def _name(self, file: Path) -> str:
        return file.relative_to(self.source).as_posix()


def _expect(kind: type, document: yaml_source.YamlDocument, value: Any, *path: object) -> Any:
    if not isinstance(value, kind):
        name = "a mapping" if kind is dict else "a list"
        raise ReferenceFileError(
            f"{document.name}:{document.line(*path)}: {path[0] if path else '-'}: must be {name}",
            hint="This is not a reference file of the suite.",
        )
    return value


class _Dumper(Dumper):
    """A dumper that indents lists under their key."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def dump(content: Mapping[str, Any]) -> str:
    """Return YAML in the layout of the files."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)


_ALGORITHMS = ("quant_algo", "kv_cache_quant_algo", "spec_dec_algo")
_MANY_EQUAL = 4
_LONG_NAME = 8


def oddities_of_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what is remarkable in single rows, and in the rows of one model."""
    with_floats = {row.file for row in rows if isinstance(row.value, float)}
    for row in rows:
        if row.metric != "accuracy":
            yield row.odd(f"the value is named {row.metric!r}")
        elif row.value == 0:
            yield row.odd("accuracy 0 never gates")
        if isinstance(row.value, int) and row.file in with_floats:
            yield row.odd(f"the integer {row.value} among floats")
        yield from (
            row.odd(f"{key} is set to {row.entry[key]}") for key in OVERRIDES if key in row.entry
        )
    equal = Counter((row.file, row.model, row.value) for row in rows)
    for (file, model, value), count in equal.items():
        if count >= _MANY_EQUAL:
            yield (
                f"{file}: {model}: {count} rows have the same value {value}: declared equal, hardly"
                " measured"
            )


def oddities_across(rows: Sequence[Row]) -> Iterator[str]:
    """Yield names that differ between rows although they seem to mean the same thing."""
    for key in _ALGORITHMS:
        named = [(row.entry[key], row.file) for row in rows if row.entry.get(key) is not None]
        yield from _variants(
            ((str.casefold(name), name, file) for name, file in named),
            f"{key} is spelt in several ways",
        )
    models = ((same, row.model, row.file) for row in rows for same in _plain_names(row.model))
    yield from _variants(models, "several names for what seems to be one model")


def _variants(named: Iterable[tuple[str, str, str]], text: str) -> Iterator[str]:
    """Yield a line for every group of (group, name, file) with more than one name."""
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
    """Return a model's name without case and punctuation, with and without its owner.

    gpt-oss is published as MXFP4, so that suffix is dropped.
    """
    owner, _, name = model.casefold().removesuffix("-mxfp4").rpartition("/")
    return {
        plain
        for part in (owner + name, name)
        if len(plain := re.sub("[^a-z0-9]", "", part)) >= _LONG_NAME
    }
