"""Runs become a reference: their mean and scores are added to a file that people edit.

The rest of the file stays as it is.
"""

import asyncio
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import chi2

from serve_eval.errors import ReferenceFileError, RunFolderError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app, serve
from serve_eval.schema import AccuracySpec, Plan, Spec, VerdictOutcome
from serve_eval.storage.answer_origins import SESSION_CHARACTERS, ConnectionStep, Proofs
from serve_eval.storage.file_names import PROOFS_FILE as STEPS
from serve_eval.storage.journal import read
from serve_eval.verdicts import reference_samples, references
from serve_eval.workflows.references import register
from serve_eval.workflows.rescore import rescore
from tests.cli.command import serve_eval

pytestmark = pytest.mark.usefixtures("simulated_here")

MODEL = "my-org/my-model"
FP8 = AccuracySpec(quant_algo="FP8")


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model=MODEL,
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "flip_rate": 0.1}),
        tasks=(Spec(name="gsm8k", options={"num_samples": 120}),),
        accuracy_spec=FP8,
        dataset_roots=(str(data_root),),
        no_reference=True,
    )


def _run(plan, folder, number=0, **more):
    options = {**plan.launcher.options, "run": number, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


@pytest.fixture(scope="module")
def finished(plan, tmp_path_factory):
    """Return a folder with two finished runs of the plan, `0` and `1`; tests do not change them."""
    folder = tmp_path_factory.mktemp("finished")
    for number in range(2):
        _run(plan, folder / str(number), number)
    return folder


def test_three_runs_become_a_reference_that_judges_the_next(plan, tmp_path):
    values = [_run(plan, tmp_path / str(i), i).tasks[0].result.value for i in range(3)]
    (registered,) = register(
        [tmp_path / str(i) for i in range(3)], tmp_path / "refs", hardware="8x H200"
    )
    of_runs = [value for value in values if value is not None]
    assert registered.runs == 3
    assert registered.value == pytest.approx(sum(of_runs) / 3)
    found = references.find("gsm8k", MODEL, FP8, [tmp_path / "refs"])
    assert found.value == pytest.approx(registered.value, abs=1e-6)
    assert found.runs.values == pytest.approx(of_runs, abs=1e-6)
    assert (found.runs.n, found.runs.hardware, found.runs.endpoint) == (120, "8x H200", "simulator")
    assert 30 < found.runs.sigma < 50
    assert found.protocol["num_fewshot"] == 5
    stored = reference_samples.read(tmp_path / "refs" / found.runs.samples, found.runs.sha256)
    assert [100 * sum(run) / 120 for run in stored.runs] == pytest.approx(of_runs, abs=0.01)
    judged = replace(plan, no_reference=False, references_dir=str(tmp_path / "refs"))
    assert _run(judged, tmp_path / "next", 7).tasks[0].verdict.outcome is VerdictOutcome.PASS
    assert (
        _run(judged, tmp_path / "bad", 8, damage=0.6).tasks[0].verdict.outcome
        is VerdictOutcome.FAIL
    )


def test_data_that_the_reference_does_not_know_is_not_paired_and_the_report_says_so(
    plan, finished, tmp_path
):
    register([finished / "0"], tmp_path / "refs")
    more = replace(
        plan,
        tasks=(Spec(name="gsm8k", options={"num_samples": 130}),),
        no_reference=False,
        references_dir=str(tmp_path / "refs"),
    )
    verdict = _run(more, tmp_path / "more", 1).tasks[0].verdict
    assert verdict.paired is None
    assert any("it lacks 10 of 130 prompts" in warning for warning in verdict.warnings)
    file = next((tmp_path / "refs/samples").iterdir())
    file.write_bytes(file.read_bytes() + b" ")
    changed = replace(more, tasks=plan.tasks)
    verdict = _run(changed, tmp_path / "changed", 1).tasks[0].verdict
    assert verdict.paired is None
    assert any("not the file that was registered" in warning for warning in verdict.warnings)


def test_a_reference_of_another_version_of_the_endpoint_is_pointed_out(plan, finished, tmp_path):
    register([finished / "0"], tmp_path / "refs")
    judged = replace(plan, no_reference=False, references_dir=str(tmp_path / "refs"))
    assert not [
        warning for warning in _run(judged, tmp_path / "same", 1).warnings if "version" in warning
    ]
    file = tmp_path / "refs/gsm8k.yaml"
    file.write_text(file.read_text().replace("endpoint: simulator", "endpoint: 1.2.0"))
    assert "gsm8k: the reference was taken at version 1.2.0; this endpoint reports simulator" in (
        _run(judged, tmp_path / "other", 1).warnings
    )


def _show(task, folder):
    """Return what `references show` prints of the entries of the model."""
    more = f"--model {MODEL} --references-dir {folder}"
    return serve_eval(f"references show {task} {more}").stdout


def test_a_reference_shows_how_noisy_and_how_old_it_is(plan, tmp_path):
    mmlu = replace(plan, tasks=(Spec(name="mmlu", options={"num_samples": 114}),))
    for i in range(3):
        _run(mmlu, tmp_path / str(i), i)
    register([tmp_path / str(i) for i in range(3)], tmp_path / "refs")
    file = tmp_path / "refs/mmlu.yaml"
    text = file.read_text()
    file.write_text(text[: text.index("date: ")] + "date: '2020-01-02'\n")
    said = _show("mmlu", tmp_path / "refs")
    assert "3 runs of 114 samples" in said
    assert "% of the prompts" in said
    assert "days old" in said


def test_fewer_runs_than_wanted_are_taken_with_a_warning(finished, tmp_path):
    (registered,) = register([finished / "0"], tmp_path / "refs")
    assert any("1 of 3 runs: more runs would make" in warning for warning in registered.warnings)
    assert any("simulated" in warning for warning in registered.warnings)


def test_a_file_that_people_edit_keeps_its_comments_and_its_order(finished, tmp_path):
    file = tmp_path / "refs" / "gsm8k.yaml"
    file.parent.mkdir()
    text = f"""# ours
zeta/model:   # first on purpose
  - accuracy: 71.250  # by hand
    date: 2026-01-02
{MODEL}:
  # the plain one
  - accuracy: 80.5
    reference_note: 'quoted: so'
"""
    file.write_text(text)
    register([finished / "0"], tmp_path / "refs")
    kept = file.read_text()
    assert kept.startswith(text)
    assert references.check(file) == []
    assert "quant_algo: FP8" in kept.removeprefix(text)


def test_a_file_of_windows_keeps_every_byte(finished, tmp_path):
    file = tmp_path / "refs" / "gsm8k.yaml"
    file.parent.mkdir()
    old = b"# ours\r\nmy-org/other:\r\n  - accuracy: 71.250  # by hand\r\n"
    file.write_bytes(old)
    register([finished / "0"], tmp_path / "refs")
    new = file.read_bytes()
    assert new.startswith(old)
    assert new.count(b"\n") == new.count(b"\r\n")
    assert references.find("gsm8k", MODEL, FP8, [tmp_path / "refs"]) is not None


def test_entries_within_brackets_are_refused_and_the_file_stays(finished, tmp_path):
    file = tmp_path / "refs" / "gsm8k.yaml"
    file.parent.mkdir()
    text = f"# ours\n{MODEL}: [{{accuracy: 80.5}}]\n"
    file.write_text(text)
    with pytest.raises(ReferenceFileError, match=r"gsm8k\.yaml:2: an entry of .* within brackets"):
        register([finished / "0"], tmp_path / "refs")
    assert file.read_text() == text
    assert not list(file.parent.glob("*.partial"))


def test_a_replacement_needs_a_reason_and_keeps_the_old_one(finished, tmp_path):
    refs = tmp_path / "refs"
    register([finished / "0"], refs)
    before = (refs / "gsm8k.yaml").read_text()
    with pytest.raises(ReferenceFileError, match=r"already has a reference for .*quant_algo=FP8$"):
        register([finished / "1"], refs)
    assert (refs / "gsm8k.yaml").read_text() == before
    old = references.find("gsm8k", MODEL, FP8, [refs])
    register([finished / "1"], refs, reason="new tokenizer")
    new = references.find("gsm8k", MODEL, FP8, [refs])
    assert new.value != old.value
    (kept,) = new.replaced
    assert (kept["accuracy"], kept["reason"]) == (old.value, "new tokenizer")
    register([finished / "0"], refs, reason="back again")
    last = references.find("gsm8k", MODEL, FP8, [refs])
    assert [entry["reason"] for entry in last.replaced] == ["new tokenizer", "back again"]


def test_runs_that_are_not_alike_or_not_whole_are_refused(plan, finished, tmp_path):
    _run(replace(plan, accuracy_spec=AccuracySpec()), tmp_path / "spec")
    _run(
        replace(plan, tasks=(Spec(name="gsm8k", options={"num_samples": 100}),)), tmp_path / "other"
    )
    _run(replace(plan, limit=20), tmp_path / "limited")
    _run(plan, tmp_path / "gaps", 0, failure_rate=0.05, failure_kind="wrapped_400")
    refs = tmp_path / "refs"
    for name, said in (
        ("spec", "another accuracy_spec"),
        ("other", "asked something else"),
        ("limited", "asked a subset"),
        ("0", "named twice"),
        ("gaps", "have no answer"),
        ("none", "holds no run"),
    ):
        with pytest.raises(RunFolderError, match=said):
            register([finished / "0", (finished if name == "0" else tmp_path) / name], refs)
    assert not refs.exists()


def _of_runs_with_shifts(plan, shifts, folder):
    """Return runs of an endpoint in which each run shifts the difficulty of all prompts.

    The logits of the prompts are normally distributed.
    """
    prepared = prepare(plan)
    rng = random.Random(5)
    logits = {sample.id: rng.gauss(1.0, 1.5) for sample in prepared[0].dataset.samples}

    async def run(number, shift):
        answers = folder / f"{number}.jsonl"
        _write_answers(
            answers, prepared, lambda task, sample: 1.0 / (1.0 + math.exp(-logits[sample] - shift))
        )
        async with serve(
            create_app(SimulatorConfig(answers=answers, model=MODEL, run=number))
        ) as url:
            at = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            await evaluate(at, folder / str(number), environ={})

    folder.mkdir()
    for number, shift in enumerate(shifts):
        asyncio.run(run(number, shift))
    return [folder / str(number) for number in range(len(shifts))]


@pytest.mark.parametrize(
    ("shifts", "differ"),
    [((0.0, 0.0, 0.0), False), ((-0.5, 0.0, 0.5), True), ((0.5, -0.5), True)],
    ids=["sound", "three", "two"],
)
def test_runs_that_differ_as_a_whole_are_pointed_out(plan, tmp_path, shifts, differ):
    more = replace(plan, tasks=(Spec(name="gsm8k", options={"num_samples": 400}),))
    runs = _of_runs_with_shifts(more, shifts, tmp_path / "runs")
    (registered,) = register(runs, tmp_path / "refs")
    found = references.find("gsm8k", MODEL, FP8, [tmp_path / "refs"])
    stored = reference_samples.read(tmp_path / "refs" / found.runs.samples, found.runs.sha256)
    scores = [list(run) for run in stored.runs]
    sums, k = [sum(run) for run in scores], len(shifts)
    rows = [sum(column) for column in zip(*scores, strict=True)]
    q = (
        (k - 1)
        * (k * sum(c * c for c in sums) - sum(sums) ** 2)
        / (k * sum(sums) - sum(r * r for r in rows))
    )
    p = float(chi2.sf(q, k - 1))
    assert found.runs.cochran_q == pytest.approx(q, abs=1e-3)
    assert (found.runs.df, found.runs.p) == (k - 1, pytest.approx(p, abs=1e-4))
    assert (p <= 0.05) is differ
    wanted = f"the runs may differ as a whole (Cochran's Q {q:.1f}, {k - 1} degree"
    told = [line for line in registered.warnings if line.startswith(wanted)]
    said = _show("gsm8k", tmp_path / "refs")
    assert f"Cochran's Q {q:.1f} ({k - 1} df, p {p:.2g})" in said
    assert (wanted in said) is differ
    assert len(told) == differ
    assert all("1 in 20 sound references shows" in line for line in told)
    assert all("Take it again with more runs" in line for line in told)
    assert all(line.endswith(f"sqrt(Q/df) = {math.sqrt(q / (k - 1)):.2f}") for line in told)


def test_graded_scores_tell_too_whether_runs_differ_as_a_whole(plan, tmp_path):
    """Answers without their mark score a half: only flexible-extract can read them."""
    runs = _of_runs_with_shifts(plan, (-1.0, 1.0), tmp_path / "runs")
    for run in runs:
        journal = run / "samples/gsm8k.jsonl"
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text(
            "".join(
                line.replace("#### ", "So it is ") if i % 3 else line
                for i, line in enumerate(lines)
            )
        )
    (registered,) = register(runs, tmp_path / "refs")
    found = references.find("gsm8k", MODEL, FP8, [tmp_path / "refs"])
    stored = reference_samples.read(tmp_path / "refs" / found.runs.samples, found.runs.sha256)
    assert 0.4 < sorted({value for run in stored.runs for value in run})[1] < 0.6
    assert found.runs.p < 0.05
    assert [line for line in registered.warnings if "differ as a whole" in line]


def test_a_single_run_and_runs_that_agree_have_no_such_test(finished, tmp_path):
    register([finished / "0"], tmp_path / "one")
    copied = Path(shutil.copytree(finished / "0", tmp_path / "copy"))
    register([finished / "0", copied], tmp_path / "alike")
    for refs in ("one", "alike"):
        text = (tmp_path / refs / "gsm8k.yaml").read_text()
        assert "cochran_q" not in text
        found = references.find("gsm8k", MODEL, FP8, [tmp_path / refs])
        assert (found.runs.cochran_q, found.runs.df, found.runs.p) == (None, None, None)


def test_an_unknown_key_of_the_runs_is_an_error(finished, tmp_path):
    register([finished / "0", finished / "1"], tmp_path / "refs")
    file = tmp_path / "refs/gsm8k.yaml"
    text = file.read_text()
    assert references.check(file) == []
    file.write_text(text.replace("cochran_q:", "cochran_w:"))
    (problem,) = references.check(file)
    assert "runs has an unknown key 'cochran_w'. Did you mean 'cochran_q'?" in problem


def test_answers_that_a_killed_run_had_not_withdrawn_yet_count_nowhere(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished / "0", run)
    journal = run / "samples/gsm8k.jsonl"
    turns = {
        record.id: attempt
        for record in read(journal)
        if record.response is not None
        for attempt in record.response.attempts
        if attempt.turn
    }
    one = next(iter(turns.values()))
    key = one.request_id[:SESSION_CHARACTERS], one.connection
    doubted = [
        a for a in turns.values() if (a.request_id[:SESSION_CHARACTERS], a.connection) == key
    ]
    (run / STEPS).unlink(missing_ok=True)
    proofs, before = Proofs(run / STEPS), journal.read_bytes()
    proofs.note(ConnectionStep(*key, out="bytes on an idle connection"))
    for session, connection in {
        (a.request_id[:SESSION_CHARACTERS], a.connection) for a in turns.values()
    } - {key}:
        proofs.note(ConnectionStep(session, connection, turns=1000))
    (rescored,) = rescore(run)
    assert (rescored.planned, rescored.answered) == (120, 120 - len(doubted))
    with pytest.raises(
        RunFolderError, match=f"{len(doubted)} of 120 samples of gsm8k have no answer"
    ):
        register([run], tmp_path / "refs")
    assert journal.read_bytes() == before, "a folder that is only read must not change"
