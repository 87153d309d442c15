"""Describe registered references, and the entries of reference files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.verdicts import references

if TYPE_CHECKING:
    from serve_eval.schema import Reference
    from serve_eval.workflows.references.register import Registered

OLD_DAYS = 180
"""Age in days from which a reference gets a warning."""


def describe_registered(one: Registered) -> str:
    """Return a line about a reference that was written."""
    of = _count_runs(one.runs, one.samples)
    return f"{one.task}: {one.value:.3f}, the mean of {of}, in {one.file}"


def _count_runs(runs: int, samples: int) -> str:
    """Return how many runs of how many samples: "3 runs of 500 samples"."""
    number = f"{runs} run" + "s" * (runs != 1)
    return f"{number} of {samples} sample" + "s" * (samples != 1)


def list_registered_remarks(one: Registered) -> list[str]:
    """Return where a reference was taken that was written, and the warnings about it."""
    taken = [f"{one.task}: taken at {one.taken}"] if one.taken else []
    return [*taken, *(f"warning: {one.task}: {warning}" for warning in one.warnings)]


def describe_entries(files: list[Path]) -> dict[str, list[str]]:
    """Return a line per entry for each model: value, specification, overrides and provenance."""
    shown = (
        "num_samples",
        "threshold",
        "alpha",
        "beta",
        "sigma",
        "higher_is_better",
        "date",
        "protocol",
        "reference_note",
    )
    lines: dict[str, list[str]] = {}
    for file in files:
        for model, entries in references.load(file).items():
            for r in entries:
                more = [f"{key}={getattr(r, key)}" for key in shown if getattr(r, key) is not None]
                more += [f"from {r.source}"] if r.source else []
                more += ["old"] if r.old else []
                text = f"{r.value:8.3f}  {references.spec_text(r.spec)}"
                lines.setdefault(model, []).append(f"{text}  ({', '.join(more)})" if more else text)
                taken = references.describe_taken(r)
                below = [f"taken at {taken}"] if taken else []
                below += [_describe_bias(r)] if r.measured else []
                lines[model] += [f"          {line}" for line in (*below, *_noise(r))]
    return lines


def describe_runs(file: Path) -> list[str]:
    """Return a line per entry of a file that was registered from runs, with how many samples."""
    if file.stem == references.ACCEPTANCE_LENGTH:
        return []
    lines = []
    for model, entries in references.load(file).items():
        for one in entries:
            if one.runs is not None:
                where = f"{file}:{one.line}: {model}"
                lines.append(f"{where}: {_count_runs(len(one.runs.values), one.runs.n)}")
                few = _describe_few(one)
                lines += [] if few is None else [f"warning: {where}: {few}"]
    return lines


def _describe_few(found: Reference) -> str | None:
    """Return a warning about a reference with fewer samples than its task asks by default."""
    from serve_eval.errors import ServeEvalError
    from serve_eval.protocol.shared import usual_task
    from serve_eval.schema import Spec
    from serve_eval.verdicts.few_samples import describe_few

    if found.runs is None:
        return None
    try:
        usual = usual_task(Spec(name=found.task)).hypothesis
    except ServeEvalError:  # A task of the user's own, whose code or cases are elsewhere.
        return None
    return describe_few(found.runs.n, usual.num_samples, usual)


def _describe_bias(found: Reference) -> str:
    """Return by how much a value lies below the mean of the runs from which the source chose it."""
    values = ", ".join(f"{value:.3f}" for value in found.measured)
    number = len(found.measured)
    runs = f"the source's {number} runs" if number > 1 else "the source's run"
    whole = "their mean" if number > 1 else "it"
    chosen = "is the lowest of" if found.value in found.measured else "lies below"
    below = sum(found.measured) / number - found.value
    return (
        f"warning: this biases the reference: {found.value:.3f} {chosen} {runs} ({values}),"
        f" {below:.3f} below {whole}: a drop of that size goes unseen"
    )


def _noise(found: Reference) -> list[str]:
    """Return lines on the quality of a reference from runs: values, instability and age."""
    import datetime

    from serve_eval.stats.instability import instability
    from serve_eval.verdicts import reference_samples
    from serve_eval.workflows.references.register import (
        WANTED_RUNS,
        differ_as_a_whole,
        effect_of_runs,
    )

    if found.runs is None:
        return []
    stored = reference_samples.read(Path(found.file).parent / found.runs.samples, found.runs.sha256)
    told = [
        f"{_count_runs(len(stored.runs), found.runs.n)}:"
        f" {', '.join(f'{v:.3f}' for v in found.runs.values)}"
    ]
    if len(stored.runs) > 1:
        noise = instability([list(run) for run in stored.runs])
        if noise.flip_rate is not None:
            told[0] += f"; two runs disagree on {noise.flip_rate:.2%} of the prompts"
        effect = effect_of_runs(stored.runs)
        if effect is not None:
            told[0] += f"; Cochran's Q {effect.q:.1f} ({effect.df} df, p {effect.p:.2g})"
        if (line := differ_as_a_whole(effect)) is not None:
            told.append(f"warning: {line}")
    if found.runs.hardware or found.runs.endpoint:
        where = [
            found.runs.hardware,
            found.runs.endpoint and f"endpoint version {found.runs.endpoint}",
        ]
        told.append("measured on " + ", ".join(part for part in where if part))
    if (few := _describe_few(found)) is not None:
        told.append(f"warning: {few}")
    if len(stored.runs) < WANTED_RUNS:
        told.append(
            f"warning: {WANTED_RUNS} runs are wanted: this reference is as noisy as the"
            " runs that it judges"
        )
    age = datetime.datetime.now(datetime.UTC).date() - datetime.date.fromisoformat(
        found.date or "1970-01-01"
    )
    if age.days > OLD_DAYS:
        told.append(
            f"warning: {age.days} days old: register again if the software or the model has changed"
        )
    return told


def describe_lengths(files: list[Path]) -> dict[str, list[str]]:
    """Return the acceptance length of each test."""
    return {
        test: [_describe_length(length)]
        for file in files
        for test, length in references.load_acceptance_length(file).items()
    }


def _describe_length(length: references.AcceptanceLength) -> str:
    more = [f"from {length.source}"] if length.source else []
    more += ["old"] if length.old else []
    text = f"reference {length.ref_al:.4f}  least {length.min_al:.4f}"
    return f"{text}  ({', '.join(more)})" if more else text
