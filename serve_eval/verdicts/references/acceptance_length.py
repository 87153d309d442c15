"""Read registered acceptance lengths of speculative decoding, which have their own file format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.plugins.registry import nearest
from serve_eval.verdicts.references.checks import number_problem
from serve_eval.verdicts.references.reference_file import list_files, models, raise_all

ACCEPTANCE_LENGTH = "acceptance_length"


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptanceLength:
    """Tokens per step of speculative decoding.

    `ref_al` is the reference, `min_al` the least that passes. `old` marks a row that only an older
    file of the source has, and `source` names where a row comes from, if its file does not.
    """

    ref_al: float
    min_al: float
    source: str | None = None
    old: bool = False


def load_acceptance_length(file: Path) -> dict[str, AcceptanceLength]:
    """Return the content of `acceptance_length.yaml` by test.

    Raises ReferenceFileError that lists every problem.
    """
    document = yaml_source.read(file, ReferenceFileError)
    problems: list[str] = []
    found = {}
    for test, entry in models(document).items():
        troubles = list(_length_problems(entry))
        problems += [
            f"{document.name}:{document.line(test, key)}: {test}: {text}" for key, text in troubles
        ]
        if not troubles:
            found[test] = AcceptanceLength(
                ref_al=float(entry["ref_al"]),
                min_al=float(entry["min_al"]),
                source=entry.get("source"),
                old=entry.get("old", False),
            )
    raise_all(problems)
    return found


def find_acceptance_length(test: str, directories: Sequence[Path]) -> AcceptanceLength:
    """Return the first entry of this name.

    Raises ReferenceFileError if no `acceptance_length.yaml` has it.
    """
    known: list[str] = []
    for file in list_files(directories):
        if file.stem == ACCEPTANCE_LENGTH:
            entries = load_acceptance_length(file)
            if test in entries:
                return entries[test]
            known += entries
    hint = (
        f"Put NAME: {{ref_al: ..., min_al: ...}} into DIR/{ACCEPTANCE_LENGTH}.yaml and pass"
        " --references-dir DIR."
    )
    raise ReferenceFileError(
        f"{ACCEPTANCE_LENGTH}.yaml has no entry {test!r}.{nearest(test, known)}", hint=hint
    )


def _length_problems(entry: object) -> Iterator[tuple[str, str]]:
    keys, known = ("ref_al", "min_al"), ("ref_al", "min_al", "source", "old")
    if not isinstance(entry, dict):
        yield "", "must be a mapping with ref_al and min_al"
        return
    yield from (
        (key, f"unknown key {key!r}.{nearest(str(key), known)}")
        for key in entry
        if key not in known
    )
    if not isinstance(entry.get("source", ""), str):
        yield "source", "source must be text (put it in quotes)"
    if not isinstance(entry.get("old", False), bool):
        yield "old", "old must be true or false"
    troubles = {key: number_problem(entry[key]) if key in entry else "is missing" for key in keys}
    yield from ((key, f"{key} {text}") for key, text in troubles.items() if text)
    if not any(troubles.values()) and entry["min_al"] > entry["ref_al"]:
        yield "min_al", f"min_al {entry['min_al']} is above ref_al {entry['ref_al']}"
