"""Find the registered value of a run, and say how the deployment behind it was launched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError
from serve_eval.frozen import freeze
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Plan, Reference
from serve_eval.schema.task import file_stem
from serve_eval.verdicts.references.reference_file import (
    RANGES,
    Entries,
    list_files,
    load,
    models,
    number_problem,
    raise_all,
    range_problems,
    spec_text,
)

ACCEPTANCE_LENGTH = "acceptance_length"


@freeze
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


def find(
    name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]
) -> Reference | None:
    """Return the first entry of `<name>.yaml` for this model and spec, or None.

    All five spec values must equal those of `spec` (case-sensitive). Directories are searched in
    order, so a user's own entries come before the shipped ones. Raises ReferenceFileError for a
    malformed file or a missing directory.
    """
    for entries in _all_entries(name, directories):
        for reference in entries.get(model, ()):
            if reference.spec == spec:
                return reference
    return None


def explain_missing(name: str, model: str, spec: AccuracySpec, directories: Sequence[Path]) -> str:
    """Return why `find` found nothing, and what exists instead. Raises as `find` does."""
    files = _all_entries(name, directories)
    if not files:
        return f"there is no reference file {name}.yaml in {', '.join(map(str, directories))}"
    models = list(dict.fromkeys(model for entries in files for model in entries))
    if model not in models:
        more = f" To list all models: serve-eval references show {name}."
        return f"{name}.yaml has no model {model!r}.{nearest(model, models)}{more}"
    wanted = spec_text(spec)
    specs = list(
        dict.fromkeys(spec_text(r.spec) for entries in files for r in entries.get(model, ()))
    )
    same_but_case = [text for text in specs if text.casefold() == wanted.casefold()]
    hint = (
        f" Did you mean {same_but_case[0]!r}?"
        if same_but_case
        else f" Registered: {'; '.join(specs) or 'no entry'}."
    )
    return f"{name}.yaml has the model {model!r}, but not with the spec {wanted!r}.{hint}"


def check(path: Path) -> list[str]:
    """Return every problem of a file, or of all files of a directory.

    Raises ReferenceFileError if there is no file.
    """
    files = [path] if path.is_file() else list_files([path])
    if not files:
        raise ReferenceFileError(
            f"{path}: no reference file", hint="Reference files are named <task>.yaml."
        )
    problems = []
    for file in files:
        try:
            if file.stem == ACCEPTANCE_LENGTH:
                load_acceptance_length(file)
            else:
                problems += _check_ranges(file)
        except ReferenceFileError as error:
            problems += str(error).splitlines()
    return problems


def _check_ranges(file: Path) -> list[str]:
    """Return the problems of values that their metric cannot reach.

    The value of a task of lm-evaluation-harness may have any range, and so may one that was
    registered from runs: only a run knows the metric.
    """
    entries = [entry for found in load(file).values() for entry in found]
    if file.stem.startswith(file_stem("lm_eval:")):
        return []
    return [
        f"{entry.file}:{entry.line}: {entry.model}: {problem}"
        for entry in entries
        if entry.runs is None
        for problem in range_problems(entry, RANGES[entry.metric])
    ]


def _all_entries(name: str, directories: Sequence[Path]) -> list[Entries]:
    return [load(file) for file in list_files(directories) if file.stem == name]


LAUNCHER, EXTERNAL = "launcher", "external"
LONGEST = 60
"""Characters of an attribute at most; the middle of a longer one is left out."""


def list_launched(plan: Plan) -> dict[str, str]:
    """Return the name of the launcher, and each of its options as launcher.NAME.

    The address of an endpoint that already runs is left out: nothing launched it.
    """
    options = dict(plan.launcher.options)
    if plan.launcher.name == EXTERNAL:
        options.pop("base_url", None)
    named = {f"{LAUNCHER}.{name}": write_value(value) for name, value in sorted(options.items())}
    return {LAUNCHER: plan.launcher.name, **named}


def describe_reference(found: Reference) -> str:
    """Return the name of a reference in tables: its model, specification and deployment."""
    taken = describe_taken(found)
    name = f"{found.model}, {spec_text(found.spec)}"
    return f"{name}, taken at {taken}" if taken else name


def describe_taken(found: Reference) -> str:
    """Return the deployments that a reference was taken at: "launcher simulated, damage 0.5".

    It is empty if the reference was not registered from runs, or by an older version.
    """
    return " and ".join(map(describe_launched, _list_deployments(found)))


def describe_difference(found: Reference, plan: Plan) -> str:
    """Return in which launcher options a reference differs from a plan; empty if in none.

    An address differs for a good reason, and so does a version, which is compared elsewhere.
    Nothing is known of how a server was launched that already ran.
    """
    now = list_launched(plan)
    for taken in _list_deployments(found):
        had = {name: value for name, value in taken.items() if name.startswith(LAUNCHER)}
        if had not in (now, {LAUNCHER: EXTERNAL}):
            return (
                f"the reference was taken at {describe_launched(had)}; this run is at"
                f" {describe_launched(now)}"
            )
    return ""


def describe_launched(deployment: Mapping[str, str]) -> str:
    """Return a deployment on one line: "launcher simulated, damage 0.5".

    One that already ran is named by its address.
    """
    parts = [
        f"{name.removeprefix(f'{LAUNCHER}.')} {shorten(value)}"
        for name, value in deployment.items()
        if (name, value) != (LAUNCHER, EXTERNAL) or len(deployment) == 1
    ]
    return ", ".join(parts)


def _list_deployments(found: Reference) -> tuple[Mapping[str, str], ...]:
    return () if found.runs is None else found.runs.deployments


def write_value(value: object) -> str:
    """Return a text as it is, and any other value as JSON."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value, order="sorted", enc_hook=str).decode()


def shorten(text: str) -> str:
    """Return an attribute without its middle if it is long."""
    half = (LONGEST - 3) // 2
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3 - half]}...{text[-half:]}"
