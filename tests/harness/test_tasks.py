"""Test tasks of lm-eval with our engine, offline.

Covers three kinds and their relatives, and refused tasks.
"""

import asyncio
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import (
    DatasetError,
    PlanError,
    SandboxError,
    ServeEvalError,
    WithheldCodeError,
)
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.plugins import extensions
from serve_eval.schema import Limits, Need, Plan, Spec, VerdictOutcome
from serve_eval.workflows.export import export
from serve_eval.workflows.rescore import rescore
from tests.harness.made_tasks import write

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

KINDS = ("made_sums", "made_capitals", "made_texts")
OTHERS = ("made_last_word", "made_contexts", "made_exact")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module", autouse=True)
def _no_network():
    """Allow only the loopback: looking up a name fails immediately."""
    import socket

    with pytest.MonkeyPatch.context() as patch:
        real = socket.getaddrinfo

        def only_here(host, *more, **how):
            if host not in (None, "127.0.0.1", b"127.0.0.1", "localhost"):
                raise AssertionError(f"{host} was looked up")
            return real(host, *more, **how)

        patch.setattr(socket, "getaddrinfo", only_here)
        yield


def _plan(folder, names, **more):
    options = more.pop("options", {})
    server = {
        "accuracy": 1.0,
        "prompt_logprobs": "echo",
        "strict_fields": False,
        **more.pop("server", {}),
    }
    specs = tuple(Spec(name=f"lm_eval:{name}", options=options) for name in names)
    launcher = Spec(name="simulated", options=server)
    own = {"include_path": (str(folder),), "no_reference": True}
    return Plan(**{"model": "simulated", "launcher": launcher, "tasks": specs, **own, **more})


def _prepare(plan):
    extensions.include(plan.include_path)
    return prepare(plan)


def _run(plan, out):
    return asyncio.run(evaluate(plan, out, environ={}))


def _one(plan, out):
    [task] = _run(plan, out).tasks
    return task


def _journal(out, name):
    return [
        json.loads(line)
        for line in (out / f"samples/lm_eval-{name}.jsonl").read_text().splitlines()
    ]


def test_the_files_of_lm_eval_are_searched_once_for_all_tasks(
    monkeypatch,
):
    from serve_eval.harness import library

    assert library.place("gsm8k", ()).name == "gsm8k.yaml"
    read = []
    usual = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda file: read.append(file) or usual(file))
    assert library.place("arc_easy", ()).name == "arc_easy.yaml"
    assert len(read) < 10


@pytest.mark.parametrize("form", ["echo", "prompt_logprobs"])
@pytest.mark.parametrize("accuracy", [1.0, 0.0])
def test_three_kinds_of_tasks_end_to_end(folder, tmp_path, accuracy, form):
    report = _run(
        _plan(folder, KINDS + OTHERS, server={"accuracy": accuracy, "prompt_logprobs": form}),
        tmp_path / "out",
    )
    found = {task.result.task.removeprefix("lm_eval:"): task for task in report.tasks}
    assert [found[name].result.scored for name in KINDS + OTHERS] == [8, 5, 3, 5, 2, 5]
    assert not any(task.result.failed for task in report.tasks)
    texts = found.pop("made_texts")
    for name, task in found.items():
        assert task.result.value == 100.0 * accuracy, name
        assert task.result.bounds == (100.0 * accuracy, 100.0 * accuracy)
        assert task.verdict.num_samples == task.result.planned
    assert found["made_sums"].result.secondary == {"exact_match,flexible-extract": 100.0 * accuracy}
    assert found["made_sums"].result.outcomes == {"correct" if accuracy else "unparsed": 8}
    assert found["made_capitals"].result.secondary.keys() == {"acc_norm,none"}
    perplexity = math.exp(0.5 if accuracy else 4.0)
    assert found["made_last_word"].result.secondary["perplexity,none"] == pytest.approx(perplexity)
    # 15 tokens except the first of each text; lm-eval counts words by white space and bytes
    nats = 0.5 if accuracy else 3.0
    tokens, words, size = 6 + 6 + 3, 7 + 7 + 4, 29 + 32 + 21
    assert texts.result.value == pytest.approx(math.exp(nats * tokens / words), rel=0.2)
    bits = texts.result.secondary["bits_per_byte,none"]
    assert texts.result.secondary["byte_perplexity,none"] == pytest.approx(2**bits)
    assert 0 < bits < nats * tokens / size / math.log(2) * 1.3
    assert (texts.result.aggregation, texts.result.metric.higher_is_better) == (
        "weighted_perplexity of word_perplexity",
        False,
    )
    for task in report.tasks:
        assert task.verdict.outcome is VerdictOutcome.NO_REFERENCE
        assert {"lm_eval", "task_version", "config", "num_fewshot"} <= task.fingerprint.keys()
    assert found["made_sums"].fingerprint["task_version"] == '"2.0"'


def test_what_is_sent_is_what_the_task_says(folder):
    [p] = _prepare(_plan(folder, ("made_sums",)))
    first = p.dataset.samples[0]
    assert str(first.prompt).endswith("Question: What is 0 plus 1?\nAnswer:")
    assert str(first.prompt).count("####") == 2
    assert (p.task.sampling.stop, p.task.sampling.max_tokens, dict(p.task.extra)) == (
        ("Question:",),
        40,
        {"top_k": 1},
    )
    assert [_prepare(_plan(folder, ("made_sums",)))[0].dataset.samples == p.dataset.samples] == [
        True
    ]
    [shots] = _prepare(_plan(folder, ("made_sums",), options={"num_fewshot": 3}))
    assert str(shots.dataset.samples[0].prompt).count("####") == 3
    assert shots.fingerprint["num_fewshot"] == "3"
    assert shots.fingerprint["config"] == p.fingerprint["config"]
    [turns] = _prepare(_plan(folder, ("made_sums",), options={"fewshot_as_multiturn": True}))
    assert [turn.role for turn in turns.dataset.samples[0].prompt] == ["user", "assistant"] * 2 + [
        "user"
    ]
    [chat] = _prepare(_plan(folder, ("made_sums",), options={"apply_chat_template": True}))
    assert [turn.text for turn in chat.dataset.samples[0].prompt] == [first.prompt]


def test_the_files_of_the_data_are_noted_and_a_changed_one_is_another_set(tmp_path):
    folder = write(tmp_path / "tasks")
    [p] = _prepare(_plan(folder, ("made_capitals",)))
    assert [Path(file.path).name for file in p.dataset.files] == ["capitals.jsonl"]
    rows = (folder / "lm_eval/capitals.jsonl").read_text().splitlines()
    (folder / "lm_eval/capitals.jsonl").write_text("\n".join(rows[:4]) + "\n")
    [shorter] = _prepare(_plan(folder, ("made_capitals",)))
    assert len(shorter.dataset.samples) == 4
    assert shorter.fingerprint["samples"] != p.fingerprint["samples"]


def test_a_task_of_lm_evals_own_runs_on_local_files(data_root, tmp_path):
    files = {"train": "gsm8k/train.jsonl", "test": "gsm8k/test.jsonl"}
    spec = Spec(name="lm_eval:gsm8k", options={"data_files": files})
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={"accuracy": 1.0}),
        tasks=(spec,),
        dataset_roots=(str(data_root),),
        limit=5,
        no_reference=True,
    )
    task = _one(plan, tmp_path / "out")
    assert (task.result.value, task.result.scored, task.verdict.num_samples) == (100.0, 5, 5)
    assert task.fingerprint["num_fewshot"] == "5"
    with pytest.raises(DatasetError, match=r"gsm8k/train\.jsonl is not in"):
        prepare(replace(plan, dataset_roots=(str(tmp_path),)))


def test_what_is_not_in_a_cache_is_not_fetched(folder):
    with pytest.raises(DatasetError, match="lm-eval cannot load it") as caught:
        prepare(
            Plan(
                model="m",
                launcher=Spec(name="simulated"),
                tasks=(Spec(name="lm_eval:gsm8k"),),
                no_reference=True,
            )
        )
    assert "--allow-hub" in caught.value.hint


def test_what_failed_is_not_scored_and_is_asked_again(folder, tmp_path):
    broken = {"failure_rate": 0.4, "seed": 1}
    plan = _plan(folder, ("made_sums",), server=broken, limits=Limits(max_attempts=1))
    first = _one(plan, tmp_path / "out").result
    assert (first.scored + first.failed, first.value) == (8, 100.0)
    assert first.failed >= 2
    assert first.bounds[0] < 100.0
    before = len(_journal(tmp_path / "out", "made_sums"))
    again = _one(plan, tmp_path / "out").result
    assert (again.scored, again.failed) == (first.scored, first.failed)
    ids = [record["id"] for record in _journal(tmp_path / "out", "made_sums")[before:]]
    assert len(set(ids)) == first.failed, "answered samples are not asked again"


def test_the_other_filter_gives_another_value_without_asking(folder, tmp_path):
    plan = _plan(folder, ("made_sums",), server={"empty_rate": 1.0})
    empty = _one(plan, tmp_path / "empty").result
    assert (empty.value, empty.outcomes) == (0.0, {"empty": 8})
    _run(_plan(folder, ("made_sums",)), tmp_path / "out")
    [told] = rescore(
        tmp_path / "out", ["lm_eval:made_sums.filter=flexible-extract"], include_path=[str(folder)]
    )
    assert (told.before, told.after, told.options) == (
        100.0,
        100.0,
        {"filter": (None, "flexible-extract")},
    )
    with pytest.raises(PlanError, match="decides what is asked"):
        rescore(tmp_path / "out", ["lm_eval:made_sums.num_fewshot=1"], include_path=[str(folder)])


def test_repeats_and_figures_that_are_no_mean(folder, tmp_path):
    task = _one(_plan(folder, ("made_mcc",), repeats=2), tmp_path / "out").result
    assert (task.value, task.scored, task.aggregation) == (1.0, 10, "matthews_corrcoef of mcc")
    prior = _one(
        _plan(folder, ("made_prior",), options={"prefix": "<s>"}), tmp_path / "prior"
    ).result
    assert (prior.value, prior.metric.name, prior.secondary) == (
        100.0,
        "acc_mutual_info",
        {"acc,none": 100.0},
    )
    chosen = _one(
        _plan(folder, ("made_capitals",), options={"metric": "acc_norm"}), tmp_path / "norm"
    ).result
    assert (chosen.metric.name, chosen.secondary) == ("acc_norm", {"acc,none": 100.0})


def test_a_metric_that_asks_for_the_likeliest_tokens_needs_an_endpoint_that_tells_them(
    folder, tmp_path
):
    [p] = _prepare(_plan(folder, ("made_last_word",)))
    assert Need.LIKELIEST_TOKENS in p.needs
    [p] = _prepare(_plan(folder, ("made_capitals",)))
    assert Need.LIKELIEST_TOKENS not in p.needs
    lacking = _one(
        _plan(folder, ("made_capitals",), server={"prompt_logprobs": "none"}), tmp_path / "out"
    )
    assert lacking.verdict.outcome is VerdictOutcome.UNSUPPORTED


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("made_sum", {}, r"unknown task 'made_sum'. Did you mean 'made_sums'"),
        (
            "made_group",
            {},
            r"a group of 3 tasks.*: lm_eval:made_capitals,lm_eval:made_sums,lm_eval:made_texts",
        ),
        ("made_votes", {}, "each document needs 3 answers"),
        ("made_class", {}, "is a Python class, and its configuration is not in a file"),
        (
            "made_lacks",
            {},
            "cannot be loaded: ModuleNotFoundError: No module named 'a_package_that_nobody_has'",
        ),
        (
            "made_sums",
            {"filter": "loose"},
            "no filter 'loose': it has strict-match, flexible-extract",
        ),
        ("made_sums", {"metric": "bleu"}, r"the task has no bleu,strict-match"),
        ("made_sums", {"num_fewshot": -1}, "num_fewshot must be 0 or more"),
        (
            "made_capitals",
            {"fewshot_as_multiturn": True},
            "log-probabilities need a plain text",
        ),
        (
            "made_capitals",
            {"apply_chat_template": True},
            "log-probabilities need a plain text",
        ),
        ("made_unsafe", {}, "scoring runs code written by the model"),
    ],
)
def test_what_cannot_be_asked_says_why(folder, name, options, said):
    with pytest.raises(ServeEvalError, match=said) as caught:
        _prepare(_plan(folder, (name,), options=options))
    if name in ("made_votes", "made_class"):
        assert "python -P -m serve_eval.lm_eval_model run" in caught.value.hint


def test_a_task_that_runs_code_is_made_where_that_is_allowed(folder):
    with pytest.raises(SandboxError) as caught:
        _prepare(_plan(folder, ("made_unsafe",)))
    assert "--allow-code-execution" in caught.value.hint
    [p] = _prepare(_plan(folder, ("made_unsafe",), allow_code_execution=True))
    assert p.task.unsafe


def test_nothing_of_lm_eval_is_printed(folder, capfd):
    _prepare(_plan(folder, KINDS))
    told = capfd.readouterr()
    assert (told.out, told.err) == ("", "")


def test_the_code_of_a_folder_runs_anew_only_when_it_is_named_anew(folder, tmp_path, monkeypatch):
    _run(_plan(folder, ("made_sums",)), tmp_path / "out")
    with pytest.raises(
        WithheldCodeError, match=r"takes its task 'lm_eval:made_sums' from .*, whose code runs only"
    ) as caught:
        export(tmp_path / "out")
    assert caught.value.hint == f"If you trust it: --include-path {folder}"
    assert len(export(tmp_path / "out", include_path=[str(folder)]).files) == 2
