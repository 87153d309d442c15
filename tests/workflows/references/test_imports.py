"""Results of other tools become references under the protocol that their files hold."""

import json

import pytest

from serve_eval.errors import ReferenceFileError
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Spec
from serve_eval.verdicts import reference_samples, references
from serve_eval.workflows.references.imports import import_results, task_match
from tests.workflows.references import foreign_files as foreign

ASKED = 40


def _samples(data_root, *, chat=False):
    """Return our GSM8K without shots, in the order of the file."""
    options = {"num_fewshot": 0, "apply_chat_template": chat}
    task = build_task(Spec(name="gsm8k", options=options))
    found = task.load(DataRoots(roots=(data_root,)), 1319).samples
    return sorted(found, key=lambda one: int(one.id.removeprefix("test-")))


@pytest.fixture(scope="module")
def answers(data_root):
    """Return the first prompts with scores, three quarters of them right."""
    own = _samples(data_root)[:ASKED]
    return [(str(one.prompt), float(number % 4 != 0)) for number, one in enumerate(own)]


def _import(source, data_root, **more):
    roots = () if data_root is None else (str(data_root),)
    return import_results(
        source, source.parent / "refs", dataset_roots=roots, **{"tasks": {}, **more}
    )


def _entry(source, task="gsm8k", model="org/m"):
    [entry] = references.load(source.parent / "refs" / f"{task}.yaml")[model]
    return entry


@pytest.mark.parametrize("version", ["0.4.3", "0.4.9.1", "0.4.13"])
def test_equal_prompts_of_lm_eval_keep_the_score_of_every_answer(
    version, answers, data_root, tmp_path
):
    file = foreign.write_lm_eval(tmp_path / "log", answers, version)
    [one] = _import(file, data_root).written
    assert (one.paired, one.count, one.value, one.refused) == (True, ASKED, 75.0, "")
    assert one.prompts == "all 40 are equal to ours"
    assert one.unknown == ()
    entry = _entry(file)
    assert entry.protocol == {
        "apply_chat_template": False,
        "num_fewshot": 0,
        "system_prompt": None,
        "fewshot_as_multiturn": False,
        "random_seed": 7,
        "max_tokens": 64,
        "temperature": 0.0,
        "stop": ["Question:"],
        "filter": "mean",
    }
    assert entry.source == f"imported: lm-eval {version}, gsm8k, {file.name}"
    assert entry.date == "2026-03-04"
    stored = reference_samples.read(file.parent / "refs" / entry.runs.samples, entry.runs.sha256)
    known = {stored.keys[6 * i : 6 * i + 6]: score for i, score in enumerate(stored.runs[0])}
    own = _samples(data_root)[:ASKED]
    assert [known[sample_key(one)] for one in own] == [score for _, score in answers]


def test_a_task_of_lm_eval_by_likelihood_has_no_unknown_sampling(tmp_path):
    content = foreign.lm_eval_results([("q", 1.0)], "0.4.13")
    content["results"] = {"mmlu": {"acc,none": 0.5, "acc_stderr,none": 0.1}}
    content["configs"] = {"mmlu": {"output_type": "multiple_choice", "num_fewshot": 5}}
    file = foreign.write_json(tmp_path / "log/results_1.json", content)
    [one] = _import(file, None).written
    assert (one.task, one.value, one.refused) == ("mmlu", 50.0, "prompts")
    assert one.protocol["scoring"] == "loglikelihood"
    assert one.unknown == ("none_cells",)


def test_other_prompts_of_lm_eval_are_a_field_that_refuses_runs(answers, data_root, tmp_path):
    other = [*answers[:-1], (f"{answers[-1][0]} ", 1.0)]
    file = foreign.write_lm_eval(tmp_path / "log", other, "0.4.13")
    [one] = _import(file, data_root).written
    assert (one.paired, one.refused) == (False, "prompts")
    assert one.prompts == "39 of 40 are equal to ours"
    entry = _entry(file)
    assert str((entry.protocol or {})["prompts"]).startswith("40 sha256:")
    assert (entry.runs, entry.num_samples) == (None, ASKED)


def test_results_alone_say_that_the_prompts_are_unknown(answers, data_root, tmp_path):
    content = foreign.lm_eval_results(answers, "0.4.9.1")
    del content["configs"]["gsm8k"]["generation_kwargs"]["until"]
    file = foreign.write_json(tmp_path / "log/results_1.json", content)
    [one] = _import(file, data_root).written
    assert (one.paired, one.refused, one.unknown) == (False, "", ("fewshot_as_multiturn", "stop"))
    assert one.prompts == "unknown: the file does not hold them"


def test_without_our_data_the_prompts_stay_unknown(answers, tmp_path):
    file = foreign.write_lm_eval(tmp_path / "log", answers, "0.4.13")
    [one] = _import(file, None).written
    assert (one.paired, one.refused) == (False, "")
    assert one.prompts.startswith("unknown: our data cannot be read")


def test_samples_alone_need_the_name_of_the_model(answers, data_root, tmp_path):
    results = foreign.write_lm_eval(tmp_path / "log", answers, "0.4.13")
    [samples] = results.parent.glob("samples_*.jsonl")
    assert _import(samples, data_root).written[0].model == "org/m"
    results.unlink()
    with pytest.raises(ReferenceFileError, match="does not say which model") as caught:
        _import(samples, data_root)
    assert "--model NAME" in caught.value.hint
    [one] = _import(samples, data_root, model="mine").written
    assert (one.model, one.value, one.count) == ("mine", 75.0, ASKED)
    assert "max_tokens" in one.unknown


def test_a_result_with_one_filter_is_a_reference_of_that_filter(answers, data_root, tmp_path):
    content = foreign.lm_eval_results(answers, "0.4.13")
    del content["results"]["gsm8k"]["exact_match,flexible-extract"]
    file = foreign.write_json(tmp_path / "log/results_1.json", content)
    assert _import(file, data_root).written[0].protocol["filter"] == "strict-match"


def test_a_chat_of_lm_eval_is_read_by_its_turns(data_root, tmp_path):
    own = _samples(data_root, chat=True)[:8]
    turns = [[{"role": "user", "content": one.prompt[0].text}] for one in own]
    file = foreign.write_lm_eval(
        tmp_path / "log",
        [(json.dumps(turn), 1.0) for turn in turns],
        "0.4.13",
        chat_template="{{ messages }}",
    )
    [one] = _import(file, data_root).written
    assert (one.paired, one.protocol["apply_chat_template"]) == (True, True)


def test_a_client_by_chat_sent_each_text_as_a_turn(data_root, tmp_path):
    own = [(str(one.prompt), 1.0) for one in _samples(data_root)[:8]]
    config = {"model": "local-chat-completions", "model_args": "model=org/m"}
    file = foreign.write_lm_eval(tmp_path / "log", own, "0.4.3", config=config)
    [one] = _import(file, data_root).written
    assert (one.paired, one.protocol["apply_chat_template"]) == (True, True)


@pytest.mark.parametrize("form", ["archive", "archive by zstandard", "json"])
def test_a_log_of_inspect_has_a_run_for_each_epoch(form, answers, data_root, tmp_path):
    log = foreign.inspect_log(answers, epochs=2)
    del log["eval"]["task_args"]  # The number of shots follows from the prompts.
    file = (
        foreign.write_eval(tmp_path / "log/a.eval", log)
        if form != "json"
        else foreign.write_json(tmp_path / "log/a.json", log)
    )
    if form.endswith("zstandard"):
        foreign.compress_again(file)
    [one] = _import(file, data_root).written
    assert (one.model, one.value, one.paired, one.count) == ("org-m", 75.0, True, ASKED)
    assert one.source == f"inspect 0.3.154, gsm8k, {file.name}"
    assert one.unknown == ("filter", "stop", "scorer")
    entry = _entry(file, model="org-m")
    assert entry.runs.values == (75.0, 75.0)
    assert (entry.protocol or {})["max_tokens"] == 64


def test_results_of_nemo_evaluator_are_named_as_asked_with_other_words(tmp_path):
    file = foreign.write_nemo(tmp_path / "log/results.yml", 0.75, 1319)
    [one] = _import(file, None).written
    assert (one.task, one.model, one.value, one.count) == ("gsm8k", "org/m", 75.0, 1319)
    assert (one.refused, one.protocol["max_tokens"]) == ("prompts", 64)
    assert one.protocol["apply_chat_template"] is False


def test_percents_of_nemo_skills_are_shares(tmp_path):
    file = foreign.write_nemo(tmp_path / "log/results.yml", 80.0, 50)
    assert _import(file, None).written[0].value == 80.0


def test_a_bundle_of_nemo_evaluator_has_its_answers(answers, data_root, tmp_path):
    file = foreign.write_nemo_bundle(tmp_path / "log", answers)
    told = {"gsm8k": "gsm8k"}
    [one] = _import(file, data_root, tasks=told).written
    assert (one.value, one.paired, one.refused) == (75.0, False, "prompts")
    assert one.prompts == "0 of 40 are equal to ours"  # asked by chat, and ours is a text


def test_a_run_of_sgl_eval_has_its_sampling_and_no_prompts(tmp_path):
    file = foreign.write_json(tmp_path / "log/metrics.json", foreign.sgl_metrics(0.625))
    [one] = _import(file, None).written
    assert (one.task, one.value, one.count) == ("gpqa", 62.5, 198)
    assert (one.protocol["temperature"], one.protocol["thinking"]) == (1.0, True)
    assert one.refused == "prompts"
    assert _entry(file, "gpqa_diamond").date == "2026-03-04"
    broken = foreign.write_json(file, foreign.sgl_metrics(0.5, partial=True))
    with pytest.raises(ReferenceFileError, match=r"metrics\.json: the run was broken off"):
        _import(broken, None)


def test_results_of_srt_slurm(tmp_path):
    file = foreign.write_json(tmp_path / "log/gsm8k.json", foreign.srt_gsm8k(0.9))
    [one] = _import(file, None).written
    assert (one.value, one.count, one.protocol["num_fewshot"]) == (90.0, 1319, 5)
    other = foreign.write_json(
        tmp_path / "log/gpqa_org_m.json", {"score": 0.5, "score:std": 0.5, "chars": 900.0}
    )
    with pytest.raises(ReferenceFileError, match="does not say which model"):
        _import(other, None)
    [one] = _import(other, None, model="org/m").written
    assert (one.task, one.value, one.refused) == ("gpqa", 50.0, "prompts")
    assert {"max_tokens", "temperature"} <= set(one.unknown)


def test_a_report_of_evalscope_has_its_reviews_and_its_configuration(answers, data_root, tmp_path):
    run = tmp_path / "20260304_050607"
    file = foreign.write_evalscope(run, answers)
    [one] = import_results(
        run, tmp_path / "refs", tasks={}, dataset_roots=(str(data_root),)
    ).written
    assert (one.paired, one.value, one.refused) == (True, 75.0, "")
    assert one.protocol["max_tokens"] == 64
    [entry] = references.load(tmp_path / "refs/gsm8k.yaml")["org/m"]
    assert entry.date == "2026-03-04"
    [reviews] = run.glob("reviews/*/*.jsonl")
    with pytest.raises(ReferenceFileError, match="answers of evalscope without their report"):
        _import(reviews, data_root)
    reviews.write_text("{cut")
    [one] = import_results(file, tmp_path / "more", tasks={}).written
    assert "no valid JSON" in one.remarks[0]


def test_a_folder_gives_the_newest_result_of_each_task_and_the_reasons_for_the_rest(
    answers, tmp_path
):
    old = foreign.lm_eval_results([*answers, ("x", 0.0)], "0.4.13", date=1700000000.0)
    foreign.write_json(tmp_path / "log/a/results_1.json", old)
    foreign.write_json(
        tmp_path / "log/b/results_2.json", foreign.lm_eval_results(answers, "0.4.13")
    )
    foreign.write_json(tmp_path / "log/c/metrics.json", foreign.sgl_metrics(0.5, name="mine"))
    (tmp_path / "log/d.json").write_text('{"other": 1}')
    (tmp_path / "log/e.eval").write_bytes(b"PK cut")
    found = _import(tmp_path / "log", None)
    assert [one.value for one in found.written] == [75.0]
    lost = "\n".join(found.lost)
    assert "results_1.json: gsm8k: results_2.json has a newer result" in lost
    assert "e.eval: no readable zip archive" in lost
    assert "the task 'mine' of sgl-eval 0.0.1 is none that is known here" in lost


def test_a_task_that_no_table_has_is_given_by_the_user(tmp_path):
    metrics = foreign.sgl_metrics(0.5, name="our_gpqa")
    file = foreign.write_json(tmp_path / "log/metrics.json", metrics)
    with pytest.raises(ReferenceFileError, match="our_gpqa") as caught:
        _import(file, None)
    assert "--task our_gpqa=TASK" in caught.value.hint
    assert _import(file, None, tasks={"our_gpqa": "gpqa"}).written[0].task == "gpqa"
    content = foreign.lm_eval_results([("q", 1.0)], "0.4.13")
    content["results"] = {"mine": content["results"]["gsm8k"]}
    file = foreign.write_json(tmp_path / "other/results_1.json", content)
    [one] = _import(file, None, tasks={"": "gsm8k"}).written
    assert (one.protocol["filter"], one.refused) == ("mean", "prompts")


def test_an_entry_is_replaced_only_with_a_reason(answers, data_root, tmp_path):
    results = foreign.lm_eval_results(answers, "0.4.13")
    file = foreign.write_json(tmp_path / "log/results_1.json", results)
    _import(file, data_root)
    with pytest.raises(ReferenceFileError, match="already has a reference"):
        _import(file, data_root)
    _import(file, data_root, reason="again")
    assert _entry(file).replaced[0]["reason"] == "again"


def test_every_row_of_the_tables_of_names_is_a_task_with_its_options():
    rows = {**task_match._COMMON, **task_match._LM_EVAL}
    assert len(rows) > 20
    for name, row in rows.items():
        assert build_task(Spec(name=row.name, options=dict(row.options))).name == row.name, name


def test_recorded_logs_of_lm_eval_have_other_shots_than_ours(shared, tmp_path):
    folder = shared / "data/recorded/lmeval_logs"
    found = import_results(
        folder, tmp_path, tasks={}, dataset_roots=(str(shared / "data"),)
    ).written
    assert [(one.model, one.value, one.count) for one in found] == [
        ("gemma3:12b-u1", 76.5, 100),
        ("gemma3:12b-it-q4_K_M", 79.0, 100),
    ]
    assert {one.prompts for one in found} == {"0 of 3 are equal to ours"}
    assert {one.refused for one in found} == {"prompts"}
