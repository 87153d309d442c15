"""Read the entries of reference files, with what weakens each of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plugins import registry
from serve_eval.protocol.shared import usual_task
from serve_eval.schema import Reference, Spec
from serve_eval.stats.repeats import instability
from serve_eval.verdicts import reference_samples, references
from serve_eval.verdicts.reference_noise import describe_few
from serve_eval.workflows.references import WANTED_RUNS, differ_as_a_whole, effect_of_runs

OLD_DAYS = 180
"""Age in days from which a reference gets a warning."""
_DETAILS = (
    "num_samples", "threshold", "alpha", "beta", "sigma", "higher_is_better", "date", "protocol",
    "reference_note",
)  # fmt: skip
"""Fields of an entry that are shown if they are set."""


@freeze
class ShownEntry:
    """An entry of a reference file.

    `name` is the model, or the test of an acceptance length, whose `least` passes (None: another
    kind of value). `details` are its other fields in words, `facts` have a label and a text.
    """

    name: str
    value: float
    least: float | None = None
    spec: str = ""
    details: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()


@freeze
class ShownFile:
    """A reference file with its numbers of models and entries."""

    folder: Path
    name: str
    models: int
    entries: int


@freeze
class CheckedFile:
    """A file that was checked: its problems, or what it says of its runs."""

    file: Path
    problems: tuple[str, ...]
    runs: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def list_directories(own: Path | None) -> list[Path]:
    """Return the folders that are searched: the user's own one and that of the shipped files."""
    shipped = references.find_shipped_dir()
    return [shipped] if own is None else [own, shipped]


def list_shown_files(own: Path | None) -> list[ShownFile]:
    """Return all reference files in the order in which they are searched."""
    found = []
    for file in references.list_files(list_directories(own)):
        if file.stem == references.ACCEPTANCE_LENGTH:
            models = entries = len(references.load_acceptance_length(file))
        else:
            by_model = references.load(file)
            models, entries = len(by_model), sum(map(len, by_model.values()))
        found.append(ShownFile(folder=file.parent, name=file.stem, models=models, entries=entries))
    return found


def list_entries(task: str, model: str | None, own: Path | None) -> list[ShownEntry]:
    """Return the entries of a task, of one model if it is given, in the order of their trial.

    Those of one model follow each other. Raises PlanError if there is no such file or model.
    """
    files = references.list_files(list_directories(own))
    chosen = [file for file in files if file.stem == task]
    if not chosen:
        known = sorted({file.stem for file in files})
        raise PlanError(f"there is no reference file {task!r}.{registry.nearest(task, known)}")
    acceptance = task == references.ACCEPTANCE_LENGTH
    found: dict[str, list[ShownEntry]] = {}
    for file in chosen:
        for one in _list_lengths(file) if acceptance else _list_values(file):
            found.setdefault(one.name, []).append(one)
    if model is not None and model not in found:
        raise PlanError(f"{task} has no entry for {model!r}.{registry.nearest(model, found)}")
    return [one for name, entries in found.items() if model in (None, name) for one in entries]


def check_files(path: Path) -> list[CheckedFile]:
    """Check a file, or the files of a folder. Of a file without a problem, read the runs.

    Raises ReferenceFileError if there is no file.
    """
    files = [path] if path.is_file() else references.list_files([path])
    return [
        CheckedFile(file=file, problems=tuple(problems))
        if (problems := references.check(file))
        else _read_runs(file)
        for file in files or [path]
    ]


def _read_runs(file: Path) -> CheckedFile:
    """Return the entries of a file that were registered from runs, with how many samples."""
    runs, warnings = [], []
    if file.stem != references.ACCEPTANCE_LENGTH:
        for model, entries in references.load(file).items():
            for one in entries:
                if one.runs is not None:
                    where = f"{file}:{one.line}: {model}"
                    runs.append(f"{where}: {count_runs(len(one.runs.values), one.runs.n)}")
                    few = _describe_few(one)
                    warnings += [] if few is None else [f"{where}: {few}"]
    return CheckedFile(file=file, problems=(), runs=tuple(runs), warnings=tuple(warnings))


def count_runs(runs: int, samples: int) -> str:
    """Return how many runs of how many samples: "3 runs of 500 samples"."""
    number = f"{runs} run" + "s" * (runs != 1)
    return f"{number} of {samples} sample" + "s" * (samples != 1)


def _list_values(file: Path) -> Iterator[ShownEntry]:
    for model, entries in references.load(file).items():
        for one in entries:
            taken = references.describe_taken(one)
            more = [
                f"{key}={getattr(one, key)}" for key in _DETAILS if getattr(one, key) is not None
            ]
            facts, warnings = _read_noise(one)
            yield ShownEntry(
                name=model,
                value=one.value,
                spec=references.spec_text(one.spec),
                details=(*more, *_describe_source(one.source, old=one.old)),
                facts=(*((("taken at", taken),) if taken else ()), *facts),
                warnings=(*([_describe_bias(one)] if one.measured else []), *warnings),
            )


def _list_lengths(file: Path) -> Iterator[ShownEntry]:
    for test, length in references.load_acceptance_length(file).items():
        yield ShownEntry(
            name=test,
            value=length.ref_al,
            least=length.min_al,
            details=_describe_source(length.source, old=length.old),
        )


def _describe_source(source: str | None, *, old: bool) -> tuple[str, ...]:
    return (*((f"from {source}",) if source else ()), *(("old",) if old else ()))


def _describe_few(found: Reference) -> str | None:
    """Return a warning about a reference with fewer samples than its task asks by default."""
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
        f"this biases the reference: {found.value:.3f} {chosen} {runs} ({values}), {below:.3f}"
        f" below {whole}: a drop of that size goes unseen"
    )


def _read_noise(found: Reference) -> tuple[list[tuple[str, str]], list[str]]:
    """Return facts on a reference from runs, and warnings: values, instability, place and age."""
    if found.runs is None:
        return [], []
    stored = reference_samples.read(Path(found.file).parent / found.runs.samples, found.runs.sha256)
    runs = (
        f"{count_runs(len(stored.runs), found.runs.n)}:"
        f" {', '.join(f'{v:.3f}' for v in found.runs.values)}"
    )
    warnings = []
    if len(stored.runs) > 1:
        noise = instability([list(run) for run in stored.runs])
        if noise.flip_rate is not None:
            runs += f"; two runs disagree on {noise.flip_rate:.2%} of the prompts"
        effect = effect_of_runs(stored.runs)
        if effect is not None:
            runs += f"; Cochran's Q {effect.q:.1f} ({effect.df} df, p {effect.p:.2g})"
        if (line := differ_as_a_whole(effect)) is not None:
            warnings.append(line)
    version = found.runs.endpoint and f"endpoint version {found.runs.endpoint}"
    where = ", ".join(filter(None, (found.runs.hardware, version)))
    if (few := _describe_few(found)) is not None:
        warnings.append(few)
    if len(stored.runs) < WANTED_RUNS:
        warnings.append(
            f"{WANTED_RUNS} runs are wanted: this reference is as noisy as the runs that it judges"
        )
    age = datetime.now(UTC).date() - date.fromisoformat(found.date or "1970-01-01")
    if age.days > OLD_DAYS:
        warnings.append(
            f"{age.days} days old: register again if the software or the model has changed"
        )
    return [("runs", runs), *([("measured", f"on {where}")] if where else [])], warnings
