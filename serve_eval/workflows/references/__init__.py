"""Register a reference: the mean of finished runs, with their scores per sample, in a YAML file."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.open_tasks import refuse_identical
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import to_read
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.protocol.shared import usual_task
from serve_eval.schema import Plan, is_rehearsal
from serve_eval.stats.repeats import effect_of, instability
from serve_eval.storage import journal, run_folder
from serve_eval.storage.answer_origins import keep_standing, run_proofs
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.json_files import differences
from serve_eval.storage.sessions import read_sessions
from serve_eval.verdicts import reference_noise, reference_samples, references
from serve_eval.verdicts.reference_noise import describe_equal_runs, describe_one_seed
from serve_eval.verdicts.reference_probes import write_probes
from serve_eval.verdicts.reference_samples import SampleScores, StoredAnswers
from serve_eval.workflows.references.entries import make_folder, write_entry
from serve_eval.workflows.references.scored_runs import (
    ScoredRun,
    count_equal,
    describe_answers,
    describe_seeds,
    find_range,
    find_version,
    join_parts,
    leave_distinct_seeds,
    list_added,
    list_deployments,
    list_failed,
    read_scores,
)

if TYPE_CHECKING:
    from serve_eval.schema import IdentityProbes
    from serve_eval.stats.pairs import RunEffect


WANTED_RUNS = 3
"""Default number of runs of a reference. A single run is as noisy as the run that is compared with
it."""


@freeze
class Registered:
    """A reference that was written for a task, and warnings for its reader.

    `value` is the mean of `values`, one for each run, in the unit of the metric. `scores` is the
    file of the scores per sample (None: they have no bounds). `flip_rate` is the share of prompts
    on which two runs disagree (None: one run). `seeds` says how the runs were drawn, `taken` where,
    and `reason` why an older entry was replaced ("": there was none).
    """

    task: str
    model: str
    file: Path
    scores: Path | None
    value: float
    values: tuple[float, ...]
    samples: int
    flip_rate: float | None
    seeds: str
    taken: str
    reason: str
    warnings: tuple[str, ...]

    @property
    def runs(self) -> int:
        """Number of runs, of which each repeat is one."""
        return len(self.values)


@with_scope
def register(
    runs: Sequence[Path],
    references_dir: Path,
    *,
    hardware: str | None = None,
    reason: str | None = None,
    include_path: Sequence[str] = (),
    probes: Mapping[str, IdentityProbes] | None = None,
) -> list[Registered]:
    """Register these run folders as the reference of every task in them.

    Every repeat of a run counts as a run, and all of them are kept. Runs are taken in the given
    order, never by their value. An entry of the same model and specification is replaced only with
    a `reason`, and is kept within the new one. `include_path` lists folders with code that may be
    loaded; those of the saved plans may not. `probes` are those of the same deployment, by task.

    Raises RunFolderError for runs that are incomplete or not alike, and ReferenceFileError for a
    file that cannot be changed.
    """
    chosen = list(runs)
    for run in chosen:
        refuse_identical(run)
    plans = [to_read(run, include_path, writes=False) for run in chosen]
    prints = [run_folder.read_fingerprints(run) for run in chosen]
    alike, without = leave_distinct_seeds(plans, prints)
    _check_alike(chosen, alike, without)
    asked = without_missing_folder(alike[0])
    prepared = prepare(replace(asked, allow_missing_reference=True))
    taken = [read_scores(run, plan, prepared) for run, plan in zip(chosen, plans, strict=True)]
    answers = _read_answers(chosen[0], prepared)
    drawn = [_find_one_draw(p, chosen) for p in prepared]
    endpoint = find_version(chosen[0])
    deployments = list_deployments(chosen, plans)
    added = [list_added(chosen, p.task) for p in prepared]
    make_folder(references_dir)
    written = []
    for i, p in enumerate(prepared):
        scored = [one for of_run in taken for one in of_run[i]]
        written.append(
            _register(
                p,
                plans[0],
                chosen,
                scored,
                answers[i],
                references_dir,
                endpoint,
                deployments,
                hardware,
                reason,
                drawn[i],
                added[i],
                describe_seeds(p.task, plans),
                (probes or {}).get(p.task.name),
            )
        )
    return written


def without_missing_folder(plan: Plan) -> Plan:
    """Return the plan without its folder of references if that is not there (yet)."""
    folder = plan.references_dir
    return plan if folder is None or Path(folder).is_dir() else replace(plan, references_dir=None)


def effect_of_runs(runs: Sequence[array[float]]) -> RunEffect | None:
    """Test whether the runs of a reference differ as a whole.

    Returns None if there are too few runs or they vary too little.
    """
    if len(runs) < 2:
        return None

    return effect_of([list(run) for run in runs])


def differ_as_a_whole(effect: RunEffect | None) -> str | None:
    """Return a warning if the runs differ as a whole, with the correction of paired verdicts."""
    if effect is None or effect.inflation == 1.0:
        return None
    degrees = f"{effect.df} degree{'' if effect.df == 1 else 's'} of freedom"
    return (
        f"the runs may differ as a whole (Cochran's Q {effect.q:.1f}, {degrees}, p {effect.p:.2g}):"
        " 1 in 20 sound references shows p 0.05 or less by chance. Take it again with more runs: a"
        " real effect, as of a replica or a time of day, stays. Until then, paired verdicts against"
        f" this reference inflate their error by sqrt(Q/df) = {effect.inflation:.2f}"
    )


def _check_alike(
    runs: Sequence[Path], plans: Sequence[Plan], prints: Sequence[Mapping[str, Any]]
) -> None:
    if len(set(map(Path.resolve, runs))) < len(runs):
        raise RunFolderError(
            "a run is named twice", hint="Name different runs, each with its own answers."
        )
    for run, plan, found in zip(runs, plans, prints, strict=True):
        if is_rehearsal(plan, [one.endpoint for one in read_sessions(run)]):
            raise RunFolderError(
                f"{run} is a rehearsal: the stand-in answered, so it is no reference",
                hint="Run the plan without --rehearse.",
            )
        if plan.shard is not None:
            raise RunFolderError(
                f"{run} is shard {plan.shard} of a run",
                hint="Join all shards with serve-eval runs merge, and register the result.",
            )
        if plan.subset or plan.integration_test:
            raise RunFolderError(
                f"{run} asked a subset",
                hint="A reference needs complete runs: leave out --limit and --samples. For a"
                " smaller task, give every run --set TASK.num_samples=N.",
            )
        if plan.model is None:
            raise RunFolderError(f"{run} does not record which model was asked")
        for name in ("model", "reference_model", "accuracy_spec"):
            if getattr(plan, name) != getattr(plans[0], name):
                raise RunFolderError(f"{run} has another {name} than {runs[0]}")
        if differing := differences(prints[0], found):
            raise RunFolderError(
                f"{run} asked something else than {runs[0]}: {'; '.join(differing)}"
            )


def _read_answers(run: Path, prepared: Sequence[PreparedTask]) -> list[StoredAnswers | None]:
    """Return a description of a run's answers to every task; None for answers without texts."""
    return [
        describe_answers(
            p.dataset.samples,
            keep_standing(journal.read(samples_file(run, p.task.name)), run_proofs(run)),
        )
        for p in prepared
    ]


def _find_one_draw(prepared: PreparedTask, chosen: Sequence[Path]) -> list[str]:
    """Return a warning if the runs of a task are one draw, by their seed or by their texts."""
    task = prepared.task
    seed, temperature = task.sampling.seed, task.sampling.temperature
    told = describe_one_seed(len(chosen), seed, temperature)
    if told is not None or len(chosen) < 2 or temperature == 0:
        return [] if told is None else [told]
    samples = prepared.dataset.samples
    equal = count_equal(
        samples,
        (
            keep_standing(journal.read(samples_file(run, task.name)), run_proofs(run))
            for run in chosen
        ),
    )
    told = describe_equal_runs(len(chosen), len(samples), equal, temperature)
    return [] if told is None else [told]


def _register(
    prepared: PreparedTask,
    plan: Plan,
    chosen: Sequence[Path],
    scored: Sequence[ScoredRun],
    answers: StoredAnswers | None,
    references_dir: Path,
    endpoint: str | None,
    deployments: Sequence[Mapping[str, str]],
    hardware: str | None,
    reason: str | None,
    drawn: Sequence[str],
    added: Sequence[str] | None,
    seeds: str,
    probes: IdentityProbes | None,
) -> Registered:
    task, metric, model = prepared.task, prepared.task.metric, plan.reference_model or plan.model
    assert model is not None
    n, runs = len(prepared.dataset.samples), tuple(run.scores for run in scored)
    bounds = find_range(task, runs)
    values = [run.value for run in scored]
    value = math.fsum(values) / len(values)
    means = [metric.scale * (math.fsum(run) / n) for run in runs]
    variance = math.fsum(
        (metric.scale * v - m) ** 2 for run, m in zip(runs, means, strict=True) for v in run
    )
    today = datetime.now(UTC).date().isoformat()
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in model.rsplit("/", 1)[-1])[:40]
    place = (
        Path("samples")
        / f"{task.reference_file}-{slug}-{prepared.fingerprint['samples'][-8:]}-{_stamp()}.json"
    )
    sha256 = ""
    if bounds is not None:
        keys = b"".join(map(sample_key, prepared.dataset.samples))
        scores = SampleScores(
            task=task.name,
            lo=bounds[0],
            hi=bounds[1],
            keys=keys,
            runs=runs,
            answers=None
            if answers is None
            else replace(answers, cut_by_run=tuple(run.cut for run in scored)),
            parts=join_parts(task, scored),
        )
        sha256 = reference_samples.write(references_dir / place, scores)
    spec = {
        k: v
        for k in references.SPEC_KEYS
        if (v := getattr(plan.accuracy_spec, k)) not in (None, "auto")
    }
    effect = effect_of_runs(runs)
    told = {
        "endpoint": endpoint,
        "hardware": hardware,
        "server_adds": added,
        **_test_fields(effect),
        **({} if probes is None else _write_probes(references_dir, place, probes)),
    }
    entry = {
        **spec,
        references.value_key(metric.name): value,
        "runs": {
            "values": [round(value, 6) for value in values],
            "n": n,
            "sigma": round(math.sqrt(variance / (n * len(runs))), 3),
            "samples": place.as_posix(),
            "sha256": sha256,
            **{k: v for k, v in told.items() if v is not None},
            "deployments": [dict(one) for one in deployments],
        },
        "protocol": {**task.protocol, **task.reference_fields},
        "source": "serve-eval references register",
        "date": today,
    }
    if bounds is None:
        del entry["runs"]
        entry["sigma"] = round(math.sqrt(variance / (n * len(runs))), 3)
    file = references_dir / f"{task.reference_file}.yaml"
    kept = write_entry(file, model, spec, entry, reason)
    place = _keep_one(references_dir, place, kept)
    warnings = [*drawn]
    if bounds is None:
        warnings.append("its scores have no bounds, so the entry has no score per sample")
    usual = usual_task(prepared.spec).hypothesis
    own_n = prepared.dataset.total if usual.num_samples is None else usual.num_samples
    if (line := reference_noise.describe_few(n, own_n, usual)) is not None:
        warnings.append(line)
    if len(deployments) > 1:
        launched = "; ".join(map(references.describe_launched, deployments))
        warnings.append(f"the runs are of {len(deployments)} different deployments: {launched}")
    if (line := differ_as_a_whole(effect)) is not None:
        warnings.append(line)
    if doubted := sum(run.doubted for run in scored):
        warnings.append(
            f"the first answers to {doubted} of {n * len(runs)} samples are unknown: failed"
            " attempts may have lost them, and the reference holds the answers that came later."
            " Register runs without such failures (row `asked`: repaired)"
        )
    warnings += list_failed(chosen, task.name)
    if len(runs) < WANTED_RUNS:
        warnings.append(
            f"{len(runs)} of {WANTED_RUNS} runs: more runs would make the reference less noisy"
        )
    if plan.launcher.name == "simulated":
        warnings.append("the runs were simulated: this reference says nothing about any model")
    return Registered(
        task=task.name,
        model=model,
        file=file,
        scores=None if bounds is None else references_dir / place,
        value=value,
        values=tuple(values),
        samples=n,
        flip_rate=instability([list(run) for run in runs]).flip_rate if len(runs) > 1 else None,
        seeds=seeds,
        reason=(reason or "") if "replaced" in entry else "",
        taken=" and ".join(map(references.describe_launched, deployments)),
        warnings=tuple(warnings),
    )


def _write_probes(references_dir: Path, scores: Path, probes: IdentityProbes) -> dict[str, str]:
    """Write the probes next to the scores, and return the fields of the entry."""
    place = Path("probes") / scores.name
    return {
        "probes": place.as_posix(),
        "probes_sha256": write_probes(references_dir / place, probes),
    }


def _keep_one(references_dir: Path, place: Path, kept: str | None) -> Path:
    """Return the file of the scores, and remove one at `place` that an entry has elsewhere."""
    if not kept or kept == place.as_posix():
        return place
    (references_dir / place).unlink()
    return Path(kept)


def _test_fields(effect: RunEffect | None) -> dict[str, float | int]:
    """Return the test of the runs as fields of an entry.

    They are rounded so that no value has an exponent, which YAML would read as text.
    """
    if effect is None:
        return {}
    return {"cochran_q": round(effect.q, 3), "df": effect.df, "p": round(effect.p, 4)}


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
