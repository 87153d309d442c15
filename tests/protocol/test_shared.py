"""Test choices that mean the same for every task: their prompts, and their fingerprints."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import NotComparableError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.prepared_task import derive_seed, request_of
from serve_eval.plan.resolve import resolve
from serve_eval.protocol.shared import ONLY_IF_SET, apply, build_task
from serve_eval.schema import (
    AccuracySpec,
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Outcome,
    Override,
    Plan,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
)
from tests.cli.command import serve_eval

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}"
)
LONG = Override(max_tokens=512, stop=("\n",), extra={"top_k": 3, "min_p": 0.1})


def _score(sample, response):
    return Score(value=0.0, outcome=Outcome.WRONG)


def _task(prompt="Hi", **more):
    def load(roots, wanted):
        samples = [
            Sample(id="1", prompt=prompt, target=""),
            Sample(id="2", prompt=prompt, target="", override=LONG),
        ]
        return Dataset(samples=samples, files=(), total=2)

    return Task(
        name="t",
        version=1,
        reference_file="t",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=1),
        sampling=SamplingParams(max_tokens=16, stop=("Question:",)),
        extra={"truncate_prompt_tokens": 9},
        protocol={"num_fewshot": 5},
        load=load,
        score=_score,
        answers=lambda sample: ("1", "0"),
        chat=not isinstance(prompt, str),
        **more,
    )


def _requests(task):
    return [request_of(task, sample) for sample in task.load(DataRoots(), 2).samples]


def _asked(given, prompt="Hi"):
    return _requests(apply(_task(prompt), given))[0]


@pytest.fixture
def tokenizer(tmp_path):
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    return str(tmp_path)


def _user(text):
    return Message(role="user", content=text)


SYSTEM = Message(role="system", content="Be brief. ")


@pytest.mark.parametrize(
    ("given", "prompt", "asked"),
    [
        ({}, "Hi", "Hi"),
        ({}, (_user("Hi"),), (_user("Hi"),)),
        ({"apply_chat_template": True}, "Hi", (_user("Hi"),)),
        ({"apply_chat_template": False}, (_user("Hi"),), "Hi"),
        ({"system_prompt": "Be brief. "}, "Hi", "Be brief. Hi"),
        ({"system_prompt": "Be brief. ", "apply_chat_template": True}, "Hi", (SYSTEM, _user("Hi"))),
        ({"system_prompt": "Be brief. "}, (_user("Hi"),), (SYSTEM, _user("Hi"))),
        ({"system_prompt": ""}, "Hi", "Hi"),
    ],
)
def test_prompts_are_texts_or_turns_as_chosen(given, prompt, asked):
    assert _asked(given, prompt).prompt == asked


def test_several_turns_are_no_plain_text():
    with pytest.raises(PlanError, match="t: several turns or media cannot be sent as plain text"):
        _asked({"apply_chat_template": False}, (SYSTEM, _user("Hi")))


@pytest.mark.parametrize(
    ("given", "prompt", "stop"),
    [
        ({}, "Hi", ("Question:",)),
        (
            {},
            (_user("Hi"),),
            ("Question:",),
        ),  # a task that asks by chat declares its needs there
        ({"apply_chat_template": True}, "Hi", ()),
        ({"apply_chat_template": True, "stop": ["x"]}, "Hi", ("x",)),
        ({"apply_chat_template": True, "suite_exact": True}, "Hi", ("Question:",)),
        ({"stop": []}, "Hi", ()),
        ({"stop": None}, "Hi", ("Question:",)),
    ],
)
def test_stop_strings_of_a_base_model_are_not_sent_by_chat_unless_declared(given, prompt, stop):
    task = apply(_task(prompt), given)
    assert (_requests(task)[0].sampling.stop, task.protocol["stop"]) == (stop, list(stop))


def test_sampling_is_as_chosen_and_null_leaves_a_field_out():
    given = {
        "max_tokens": 7,
        "temperature": 0.6,
        "top_p": None,
        "seed": 3,
        "truncate_prompt_tokens": None,
    }
    request = _asked(given)
    assert request.sampling == SamplingParams(
        max_tokens=7,
        temperature=0.6,
        top_p=None,
        seed=derive_seed(3, request.sample_id),
        stop=("Question:",),
    )
    assert request.extra == {}


def test_what_is_chosen_for_the_task_comes_before_what_a_sample_asks_itself():
    def second(given):
        return _requests(apply(_task(), given))[1]

    assert (second({}).sampling.max_tokens, second({}).sampling.stop) == (512, ("\n",))
    assert second({"max_tokens": 7}).sampling.max_tokens == 7
    assert second({"stop": ["x"]}).sampling.stop == ("x",)
    assert second({"apply_chat_template": True}).sampling.stop == ()
    assert second({"extra_body": {"top_k": 9}}).extra == {
        "truncate_prompt_tokens": 9,
        "top_k": 9,
        "min_p": 0.1,
    }


@pytest.mark.parametrize("word", ["off", False])
def test_thinking_is_switched_in_the_servers_template(word):
    given = {
        "apply_chat_template": True,
        "thinking": word,
        "extra_body": {"chat_template_kwargs": {"thinking_budget": 5}},
    }
    assert _asked(given).extra["chat_template_kwargs"] == {
        "thinking_budget": 5,
        "enable_thinking": False,
    }


def test_as_the_suite_thinking_is_off_by_chat_also_where_the_server_renders():
    chat = {"apply_chat_template": True, "suite_exact": True}
    task = apply(_task(), chat)
    assert _requests(task)[0].extra["chat_template_kwargs"] == {"enable_thinking": False}
    assert task.protocol["thinking"] is False
    assert _asked({**chat, "thinking": "on"}).extra["chat_template_kwargs"] == {
        "enable_thinking": True
    }
    chosen = {"chat_template_kwargs": {"enable_thinking": True}}
    assert _asked({**chat, "extra_body": chosen}).extra["chat_template_kwargs"] == {
        "enable_thinking": True
    }
    assert "chat_template_kwargs" not in _asked({"suite_exact": True}).extra
    assert "chat_template_kwargs" not in _asked({"apply_chat_template": True}).extra


def test_other_answer_lengths_need_another_context():
    task = _task(context_tokens=100)
    assert apply(task, {}).context_tokens == 100
    assert apply(task, {"max_tokens": 6}).context_tokens == 90
    assert apply(task, {"max_tokens": 1016}).context_tokens == 1100
    assert apply(_task(), {"max_tokens": 6}).context_tokens is None


def test_a_template_of_a_folder_is_rendered_here_and_sent_without_special_tokens(
    tokenizer,
):
    chat = {"apply_chat_template": True, "tokenizer": tokenizer}
    request = _asked({**chat, "system_prompt": "S", "thinking": "on"})
    assert request.prompt == "[system]S[user]Hi[assistant]True"
    assert request.extra == {"truncate_prompt_tokens": 9, "add_special_tokens": False}
    assert request.sampling.stop == ()
    exact = _asked({**chat, "suite_exact": True})
    assert (exact.prompt, exact.extra["add_special_tokens"]) == ("[user]Hi[assistant]False", True)
    without = _asked(
        {**chat, "add_special_tokens": None, "extra_body": {"chat_template_kwargs": {"x": 1}}}
    )
    assert without.extra == {"truncate_prompt_tokens": 9}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tokenizer": "/x"}, "tokenizer: .*apply_chat_template: true"),
        ({"thinking": True}, "thinking: .*apply_chat_template: true"),
        ({"add_special_tokens": True}, "needs tokenizer"),
        ({"template_date": "2026-11-20"}, "needs tokenizer"),
        ({"extra_body": {"max_tokens": 1, "top_k": 1}}, "extra_body: cannot set max_tokens"),
        ({"max_tokens": 0}, "max_tokens must be"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"apply_chat_template": True, "tokenizer": "/nowhere"}, "no chat template"),
    ],
)
def test_choices_that_exclude_each_other_are_refused(given, why):
    with pytest.raises(PlanError, match=why):
        apply(_task(), given)


def test_log_probabilities_are_not_asked_for_by_chat():
    with pytest.raises(PlanError, match="plain text"):
        apply(_task(prompt_logprobs=True), {"apply_chat_template": True})


def test_every_choice_is_in_the_protocol_and_only_if_it_was_made(tokenizer):
    assert apply(_task(), {}).protocol == {
        "num_fewshot": 5,
        "apply_chat_template": False,
        "system_prompt": None,
        "max_tokens": 16,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": ["Question:"],
        "truncate_prompt_tokens": 9,
    }
    given = {
        "apply_chat_template": True,
        "tokenizer": tokenizer,
        "template_date": "2026-11-20",
        "thinking": "off",
        "seed": 1,
        "extra_body": {"top_k": 1},
        "suite_exact": True,
    }
    protocol = apply(_task(), given).protocol
    assert {name: protocol[name] for name in ONLY_IF_SET if name != "chat_template"} == {
        "seed": 1,
        "thinking": False,
        "extra_body": {"top_k": 1},
        "add_special_tokens": True,
        "template_date": "2026-11-20",
        "suite_exact": True,
    }
    assert str(protocol["chat_template"]).startswith("client sha256:")


def test_a_task_without_choices_is_loaded_as_it_is():
    task = _task()
    assert apply(task, {}).load is task.load


# Plans and flags


def test_the_tasks_that_are_there_keep_their_protocols():
    assert build_task(Spec(name="gsm8k")).protocol == {
        "fewshot_as_multiturn": False,
        "num_fewshot": 5,
        "filter": "mean",
        "random_seed": 0,
        "apply_chat_template": False,
        "system_prompt": None,
        "max_tokens": 256,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": ["Question:", "</s>", "<|im_end|>"],
        "truncate_prompt_tokens": 4096,
    }
    assert build_task(Spec(name="mmlu")).protocol == {
        "num_fewshot": 5,
        "none_cells": "nan",
        "random_seed": 0,
        "apply_chat_template": False,
        "system_prompt": None,
        "max_tokens": 2,
        "temperature": 0.0,
        "top_p": 1.0,
        "stop": [],
        "truncate_prompt_tokens": 4094,
    }


def test_gsm8k_by_chat_has_no_stop_strings_but_as_the_suite_has_them():
    chat = {"apply_chat_template": True}
    assert build_task(Spec(name="gsm8k", options=chat)).sampling.stop == ()
    exact = build_task(Spec(name="gsm8k", options={**chat, "suite_exact": True}))
    assert (exact.sampling.stop[0], exact.protocol["suite_exact"]) == ("Question:", True)


def test_choices_for_all_tasks_lie_between_the_file_and_the_flags():
    file = {
        "tasks": ["mmlu", {"gsm8k": {"system_prompt": "own"}}],
        "protocol": {"system_prompt": "all", "temperature": 0.5},
    }
    plan = resolve(file, {"choices": {"temperature": 0.25}}, {}).plan
    assert [dict(task.options) for task in plan.tasks] == [
        {"system_prompt": "all", "temperature": 0.25},
        {"system_prompt": "own", "temperature": 0.25},
    ]
    assert resolve(to_file(plan), {}, {}).plan == plan


def test_a_choice_that_a_task_does_not_have_is_refused_by_its_name():
    with pytest.raises(PlanError, match=r"tasks\[0\]\.mmlu\.fewshot_as_multiturn: unknown option"):
        resolve({"tasks": ["mmlu"]}, {"choices": {"fewshot_as_multiturn": True}}, {})
    with pytest.raises(
        PlanError, match=r"tasks\[0\]\.mmlu\.thinking: is a switch of the chat template"
    ):
        resolve({"tasks": ["mmlu"]}, {"choices": {"thinking": "on"}}, {})


def test_a_problem_of_a_task_comes_with_what_to_do():
    options = {"apply_chat_template": True, "tokenizer": "/nowhere"}
    with pytest.raises(
        PlanError, match=r"tasks\[0\]\.mmlu: /nowhere has no chat template\. Name the folder"
    ):
        resolve({"tasks": [{"mmlu": options}]}, {}, {})


def test_a_tokenizer_is_found_again_from_another_folder(tokenizer, monkeypatch):
    monkeypatch.chdir(Path(tokenizer).parent)
    options = {"apply_chat_template": True, "tokenizer": Path(tokenizer).name}
    plan = resolve({"tasks": [{"mmlu": options}]}, {}, {}).plan
    assert plan.tasks[0].options["tokenizer"] == tokenizer


def _judged(data_root, references, **options):
    plan = Plan(
        launcher=Spec(name="simulated"),
        model="nvidia/MiniMax-M3-NVFP4",
        accuracy_spec=AccuracySpec(quant_algo="MIXED_PRECISION"),
        tasks=(Spec(name="gsm8k_inferencemax", options=options),),
        dataset_roots=(str(data_root),),
        references_dir=None if references is None else str(references),
        allow_mismatch=("dataset",),
        allow_missing_reference=True,
        limit=2,
    )
    [p] = prepare(plan)
    return p


def _prepared(data_root, references, **options):
    return _judged(data_root, references, **options).why_no_reference


def test_a_shipped_reference_judges_the_protocol_that_it_was_taken_under(
    data_root, tokenizer, tmp_path
):
    assert _prepared(data_root, None) is None
    assert _prepared(data_root, None, suite_exact=True) is None
    assert _prepared(data_root, None, suite_exact=True, tokenizer=tokenizer) is None
    assert "thinking" in str(_prepared(data_root, None, suite_exact=True, thinking="on"))
    assert "chat_template" in str(_prepared(data_root, None, tokenizer=tokenizer))
    own = tmp_path / "own"
    own.mkdir()
    (own / "gsm8k_inferencemax.yaml").write_text(
        "nvidia/MiniMax-M3-NVFP4:\n  - quant_algo: MIXED_PRECISION\n    accuracy: 90\n"
    )
    assert _prepared(data_root, own) is None
    assert "suite_exact is True here and None with the reference" in str(
        _prepared(data_root, own, suite_exact=True)
    )


def test_the_report_says_what_the_suite_does_otherwise_than_a_tasks_defaults(
    data_root,
):
    assert (
        _judged(data_root, None).protocol
        == "assumed (task default; suite_exact would change stop, thinking)"
    )
    assert _judged(data_root, None, suite_exact=True).protocol == "assumed (as in the suite)"


def test_a_reference_is_not_compared_with_a_run_under_a_choice_that_it_knows_nothing_of(
    data_root,
):
    plan = Plan(
        model="meta-llama/Llama-3.1-8B-Instruct",
        launcher=Spec(name="external"),
        tasks=(Spec(name="gsm8k", options={"top_p": 0.5}),),
        dataset_roots=(str(data_root),),
        allow_mismatch=("dataset",),
    )
    with pytest.raises(NotComparableError, match=r"top_p is 0\.5 here and 1\.0 with the reference"):
        prepare(plan)
    (prepared,) = prepare(replace(plan, allow_mismatch=("dataset", "top_p")))
    assert prepared.protocol == "assumed (task default), mismatch allowed: top_p"
    assert prepared.fingerprint["top_p"] == "0.5"


FLAGS = """
    --set protocol.apply_chat_template=true --set protocol.system_prompt=S --num-fewshot 2
    --set protocol.fewshot_as_multiturn=true --set protocol.thinking=off --max-tokens 99
    --temperature 0.5 --set protocol.top_p=0.9 --set protocol.seed=4 --set protocol.suite_exact=true
    --set protocol.extra_body={"top_k":1}
"""


def test_every_flag_becomes_an_option_of_every_task_and_shows_in_the_dry_run(tmp_path, data_root):
    file = tmp_path / "plan.yaml"
    file.write_text(
        f"model: m\ntasks: [gsm8k]\ndataset_root: {data_root}\nlimit: 2\nno_reference: true\n"
    )
    done = serve_eval("run", file, *FLAGS.split(), "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["plan"]["tasks"] == [
        {
            "gsm8k": {
                "apply_chat_template": True,
                "system_prompt": "S",
                "num_fewshot": 2,
                "fewshot_as_multiturn": True,
                "thinking": "off",
                "max_tokens": 99,
                "temperature": 0.5,
                "top_p": 0.9,
                "seed": 4,
                "extra_body": {"top_k": 1},
                "suite_exact": True,
            }
        }
    ]
    roles = [turn["role"] for turn in told["tasks"][0]["first_prompt"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


@pytest.mark.usefixtures("simulated_here")
def test_a_run_with_a_template_of_our_own_is_answered_by_the_completions_route(
    tmp_path, data_root, tokenizer
):
    options = {
        "apply_chat_template": True,
        "tokenizer": tokenizer,
        "thinking": "off",
        "system_prompt": "S",
    }
    plan = Plan(
        model="simulated",
        launcher=Spec(
            name="simulated", options={"accuracy": 1.0, "no_chat": True, "strict_fields": True}
        ),
        tasks=(Spec(name="mmlu", options=options),),
        dataset_roots=(str(data_root),),
        limit=10,
        no_reference=True,
    )
    report = asyncio.run(evaluate(plan, tmp_path / "out"))
    assert report.tasks[0].result.value == 100.0
    assert report.tasks[0].fingerprint["thinking"] == "false"
