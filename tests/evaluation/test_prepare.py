from dataclasses import replace

import pytest

from serve_eval.errors import DatasetError, NotComparableError, PlanError, ReferenceFileError
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import AccuracySpec, Plan, Spec


@pytest.fixture
def plan(data_root):
    return Plan(
        model="meta-llama/Llama-3.1-8B-Instruct",
        launcher=Spec(name="external"),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        allow_mismatch=("dataset",),
    )


def _own(tmp_path, plan, entry):
    (tmp_path / "gsm8k.yaml").write_text(f"{plan.model}:\n  - {entry}\n")
    return replace(plan, references_dir=str(tmp_path))


def test_the_shipped_reference_of_the_model_and_specification_is_found(plan):
    (prepared,) = prepare(
        replace(plan, accuracy_spec=AccuracySpec(quant_algo="FP8", kv_cache_quant_algo="FP8"))
    )
    assert (prepared.reference.value, prepared.reference.old) == (72.85, True)
    assert prepared.hypothesis.num_samples == 1319
    assert prepared.protocol == "assumed (task default)"


def test_every_data_set_that_is_missing_is_named_with_what_to_do(plan, tmp_path):
    names = ("gsm8k", "mmlu", "gpqa")
    lost = replace(
        plan,
        tasks=tuple(Spec(name=name) for name in names),
        dataset_roots=(str(tmp_path),),
        no_reference=True,
    )
    with pytest.raises(DatasetError) as caught:
        prepare(lost)
    said = f"{caught.value}\n{caught.value.hint}"
    for name, folder in (("GSM8K", "gsm8k"), ("MMLU", "cais/mmlu"), ("GPQA", "gpqa")):
        assert f"the data set {name} was not found" in said
        assert f"into <root>/{folder} and name the root with --dataset-root" in said
    assert said.count("serve-eval data fetch") == 3


def test_all_problems_of_all_tasks_are_in_one_error_each_with_what_to_do(plan, tmp_path):
    """No task has a reference, two have no data, and none has the field that may differ."""
    wrong = replace(
        plan,
        model="m",
        tasks=tuple(Spec(name=name) for name in ("gsm8k", "mmlu", "passkey_short")),
        dataset_roots=(str(tmp_path),),
        allow_mismatch=("temprature",),
    )
    with pytest.raises(PlanError) as caught:
        prepare(wrong)
    paragraphs = str(caught.value).split("\n\n")
    for problem, fix in (
        ("gsm8k: gsm8k.yaml has no model 'm'", "references take"),
        ("passkey_short: there is no reference file", "-t gsm8k,mmlu,passkey_short"),
        ("allow_mismatch: unknown protocol field 'temprature'", "Did you mean 'temperature'"),
        ("the data set GSM8K was not found", "serve-eval data fetch gsm8k"),
        ("the data set MMLU was not found", "serve-eval data fetch mmlu"),
    ):
        [found] = [one for one in paragraphs if problem in one]
        assert fix in found
    assert caught.value.exit_code == 2
    with pytest.raises(NotComparableError) as alone:
        prepare(replace(plan, model="m"))
    assert alone.value.exit_code == 3


def test_a_users_own_row_comes_before_the_shipped_one(plan, tmp_path):
    (prepared,) = prepare(_own(tmp_path, plan, "accuracy: 11"))
    assert prepared.reference.value == 11


def test_a_rows_overrides_change_the_test_and_the_number_asked(plan, tmp_path):
    (prepared,) = prepare(
        _own(tmp_path, plan, "{accuracy: 50, num_samples: 100, sigma: 20, alpha: 0.01, beta: 0.1}")
    )
    h = prepared.hypothesis
    assert (h.num_samples, h.sigma, h.alpha, h.beta) == (100, 20, 0.01, 0.1)
    assert len(prepared.dataset.samples) == 100


@pytest.mark.parametrize(("registered", "n"), [(120, 60), (30, 30), (60, 60)])
def test_a_size_that_the_user_names_is_asked_whatever_the_reference_has(registered, n, tmp_path):
    (tmp_path / "word_problems.yaml").write_text(
        f"org/m:\n  - {{accuracy: 70, num_samples: {registered}}}\n"
    )
    plan = Plan(
        model="org/m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="word_problems", options={"num_samples": 60}),),
        references_dir=str(tmp_path),
    )
    (prepared,) = prepare(plan)
    assert (len(prepared.dataset.samples), prepared.hypothesis.num_samples) == (60, n)
    told = [note for note in prepared.notes if note.startswith("num_samples 60 was asked for")]
    assert bool(told) == (registered != 60)
    assert all(f"the reference has {registered}: 60 samples" in note for note in told)
    (usual,) = prepare(replace(plan, tasks=(Spec(name="word_problems"),)))
    assert len(usual.dataset.samples) == registered
    (limited,) = prepare(replace(plan, limit=20))
    assert (len(limited.dataset.samples), limited.hypothesis.num_samples) == (20, 20)


def test_no_note_names_an_n_of_a_judgement_where_nothing_judges():
    plan = Plan(
        model="org/m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="word_problems", options={"num_samples": 60}),),
        no_reference=True,
    )
    (prepared,) = prepare(plan)
    assert any("not the task's registered" in note for note in prepared.notes)
    assert not any("judged" in note for note in prepared.notes)


@pytest.mark.parametrize("value", [101, -1])
def test_a_value_that_the_metric_cannot_have_is_refused(plan, tmp_path, value):
    with pytest.raises(ReferenceFileError, match=f"accuracy must be 0 or more .* not {value}"):
        prepare(_own(tmp_path, plan, f"accuracy: {value}"))


CASES = "capital:\n  scorer: exact\n  cases:\n" + "".join(
    f'    - {{case: c{i}, input: {{prompt: "{i}?"}}, expected: {{answer: Paris}}}}\n'
    for i in range(5)
)


def _cases(tmp_path, entry, **more):
    """Return a plan for five cases with a reference."""
    (tmp_path / "cases.yaml").write_text(CASES)
    folder = tmp_path / "references"
    folder.mkdir()
    plan = Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(Spec(name="cases:capital", options={"path": str(tmp_path / "cases.yaml")}),),
        references_dir=str(folder),
    )
    [free] = prepare(replace(plan, no_reference=True))
    (folder / f"{free.task.reference_file}.yaml").write_text(f"m:\n  - {entry}\n")
    return replace(plan, **more)


@pytest.mark.parametrize(
    ("limit", "n", "note"),
    [
        (None, 5, "num_samples is 1,319, but the data has only 5 samples; the verdict uses n = 5"),
        (3, 3, "only 3 of 5 samples are asked, drawn at random (seed 0)"),
    ],
)
def test_an_n_above_the_data_is_said_and_not_used(tmp_path, limit, n, note):
    [task] = prepare(_cases(tmp_path, "{accuracy: 90, num_samples: 1319}", limit=limit))
    assert task.hypothesis.num_samples == n
    assert note in task.notes


def test_the_direction_of_a_reference_is_that_of_its_task(tmp_path):
    [task] = prepare(_cases(tmp_path, "{accuracy: 90, higher_is_better: false}"))
    assert not task.task.metric.higher_is_better


def test_another_name_can_be_used_for_the_look_up(plan):
    (prepared,) = prepare(replace(plan, model="/models/llama", reference_model=plan.model))
    assert prepared.reference is not None


def test_a_recorded_protocol_is_compared_field_by_field(plan, tmp_path):
    own = _own(
        tmp_path, plan, "{accuracy: 50, protocol: {num_fewshot: 8, apply_chat_template: true}}"
    )
    with pytest.raises(NotComparableError, match="num_fewshot is 5 here and 8 with the reference"):
        prepare(own)
    options = {"num_fewshot": 8, "apply_chat_template": True}
    (prepared,) = prepare(replace(own, tasks=(Spec(name="gsm8k", options=options),)))
    assert prepared.protocol == "recorded with the reference"
    (prepared,) = prepare(
        replace(own, allow_mismatch=("num_fewshot", "apply_chat_template", "dataset"))
    )
    assert (
        prepared.protocol
        == "recorded with the reference, mismatch allowed: num_fewshot, apply_chat_template"
    )


def test_a_reference_that_does_not_name_the_sampler_was_taken_with_the_older_one(plan, tmp_path):
    own = _own(tmp_path, plan, "{accuracy: 50, protocol: {apply_chat_template: true}}")
    for sampler in ("0.4.9", "0.4.10"):
        options = {"apply_chat_template": True, "fewshot_sampler": sampler}
        chosen = replace(own, tasks=(Spec(name="gsm8k", options=options),))
        if sampler == "0.4.9":
            assert prepare(chosen)
            continue
        with pytest.raises(
            NotComparableError,
            match=r"fewshot_sampler is '0\.4\.10' here and None with the reference",
        ):
            prepare(chosen)


def test_a_mismatch_can_be_printed_without_a_verdict(plan):
    deviating = replace(plan, tasks=(Spec(name="gsm8k", options={"max_tokens": 512}),))
    with pytest.raises(
        NotComparableError, match="max_tokens is 512 here and 256 with the reference"
    ):
        prepare(deviating)
    (prepared,) = prepare(replace(deviating, allow_missing_reference=True))
    assert prepared.reference is None
    assert "max_tokens" in (prepared.why_no_reference or "")


def test_no_reference_uses_none_where_a_row_applies_and_asks_the_same(plan):
    (judged,), (prepared,) = prepare(plan), prepare(replace(plan, no_reference=True))
    assert judged.reference is not None
    assert (prepared.reference, prepared.protocol) == (None, None)
    assert prepared.why_no_reference == "--no-reference was given"
    assert (prepared.fingerprint, prepared.hypothesis) == (judged.fingerprint, judged.hypothesis)


def test_no_reference_gives_no_other_reason_where_the_protocol_differs(plan):
    deviating = replace(plan, tasks=(Spec(name="gsm8k", options={"max_tokens": 512}),))
    (prepared,) = prepare(replace(deviating, no_reference=True))
    assert (prepared.reference, prepared.protocol) == (None, None)
    assert prepared.why_no_reference == "--no-reference was given"


def test_a_reference_that_may_be_missing_is_used_where_it_is_there(plan):
    (prepared,) = prepare(replace(plan, allow_missing_reference=True))
    assert prepared.reference is not None
    (without,) = prepare(replace(plan, allow_missing_reference=True, model="nobody/knows"))
    assert without.reference is None
    assert "nobody/knows" in (without.why_no_reference or "")
    (neither,) = prepare(replace(plan, allow_missing_reference=True, no_reference=True))
    assert neither.reference is None


@pytest.mark.parametrize(
    ("model", "spec", "message"),
    [
        ("meta-llama/Llama-3.1-8B-Instrct", AccuracySpec(), "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B-Instruct", AccuracySpec(quant_algo="NVFP8"), "FP8"),
    ],
)
def test_an_unknown_model_or_specification_comes_with_what_is_known(plan, model, spec, message):
    with pytest.raises(NotComparableError, match=message):
        prepare(replace(plan, model=model, accuracy_spec=spec))


def test_an_unknown_field_of_allow_mismatch_is_named(plan):
    with pytest.raises(
        PlanError,
        match=r"allow_mismatch: unknown protocol field 'num_fewshots'. Did you mean 'num_fewshot'",
    ):
        prepare(replace(plan, allow_mismatch=("num_fewshots",)))


def test_a_shipped_reference_does_not_judge_other_data_unless_told_to(plan):
    with pytest.raises(
        DatasetError, match="200 training and 1319 test questions, where GSM8K has 7473 and 1319"
    ) as caught:
        prepare(replace(plan, allow_mismatch=()))
    assert "--allow-mismatch dataset" in caught.value.hint
    (prepared,) = prepare(plan)
    assert any("not the published set" in note for note in prepared.notes)


def test_a_users_own_reference_may_be_of_any_data(plan, tmp_path):
    (prepared,) = prepare(_own(tmp_path, replace(plan, allow_mismatch=()), "accuracy: 50"))
    assert prepared.reference is not None


def test_a_value_of_another_metric_is_refused(plan, tmp_path):
    with pytest.raises(ReferenceFileError, match="the value is a wer; gsm8k gives accuracy"):
        prepare(_own(tmp_path, plan, "wer: 6.2"))


def test_a_share_instead_of_points_is_refused(plan, tmp_path):
    with pytest.raises(ReferenceFileError, match="not a fraction of 1"):
        prepare(_own(tmp_path, plan, "accuracy: 0.742"))


def test_a_recorded_field_that_the_task_does_not_know_can_be_allowed(plan, tmp_path):
    own = _own(tmp_path, plan, "{accuracy: 50, protocol: {num_shots: 5}}")
    with pytest.raises(NotComparableError, match="num_shots"):
        prepare(own)
    assert prepare(replace(own, allow_mismatch=("num_shots",)))


def test_a_malformed_reference_file_stops_the_run(plan, tmp_path):
    with pytest.raises(ReferenceFileError, match=r"gsm8k\.yaml:2"):
        prepare(_own(tmp_path, plan, "{acuracy: 50}"))


def test_problems_of_all_tasks_are_reported_at_once(plan):
    with pytest.raises(PlanError) as caught:
        prepare(replace(plan, tasks=(Spec(name="gsm9k"), Spec(name="mmlu", options={"shots": 1}))))
    assert len(caught.value.problems) == 2


def test_a_task_is_there_once_since_its_name_names_its_files(plan):
    years = [Spec(name="aime", options={"year": year}) for year in (2024, 2025)]
    with pytest.raises(PlanError, match="aime is listed twice"):
        prepare(replace(plan, tasks=tuple(years)))


def test_a_limit_above_the_size_changes_nothing(plan):
    (prepared,) = prepare(replace(plan, limit=5000))
    assert len(prepared.dataset.samples) == 1319
    assert not any("subset" in note for note in prepared.notes)
    assert prepared.hypothesis.num_samples == 1319


def test_the_subset_is_seeded_random_and_never_the_first(plan):
    full = [s.id for s in prepare(plan)[0].dataset.samples]
    subsets = [
        [s.id for s in prepare(replace(plan, limit=50, seed=seed))[0].dataset.samples]
        for seed in (0, 0, 1)
    ]
    assert subsets[0] == subsets[1] != subsets[2]
    assert subsets[0] != full[:50]
    assert sorted(subsets[0], key=full.index) == subsets[0]


def test_the_fingerprint_names_the_protocol_the_data_and_the_samples(plan):
    one, two = (prepare(replace(plan, limit=limit))[0].fingerprint for limit in (None, 10))
    assert one["num_fewshot"] == "5"
    assert one["stop"] == '["Question:","</s>","<|im_end|>"]'
    assert one["samples"] != two["samples"]
    assert one["samples"].startswith("1319 sha256:")
