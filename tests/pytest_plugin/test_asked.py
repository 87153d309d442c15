"""Test the plan of a test from its class, its markers, its call and the command line."""

import json
from dataclasses import replace

import pytest

from serve_eval.errors import LaunchError, NotComparableError, PlanError
from serve_eval.pytest_plugin import AccuracyTests
from serve_eval.pytest_plugin.asked import build_plan, merge_levels, read_base
from serve_eval.pytest_plugin.endings import say_for_tests
from serve_eval.pytest_plugin.results import _speak_to_tests, describe_error
from serve_eval.schema import AccuracySpec, Spec
from tests.pytest_plugin.run_pytest import run_pytest
from tests.report.summary.made import RESULT, VERDICT, make_report, task
from tests.scripted_server import external

CLASS = {"model_name": "my-org/my-model", "launcher": "embedded"}


def _build(*levels, base=None, base_url=None):
    return build_plan(merge_levels(["word_problems"], *levels), base or {}, base_url, {})


def test_the_call_overrides_markers_the_class_and_the_plan_of_all_tests():
    plan = _build(
        CLASS,
        {"limit": 20, "quant_algo": "FP8", "temperature": 0.5},
        {"limit": 10, "launcher_options": {"damage": "int8"}, "concurrency": 3},
        base={"limit": 5, "seed": 7, "launcher": "external", "base_url": "other:1"},
    )
    assert plan.launcher == Spec(name="embedded", options={"damage": "int8"})
    assert (plan.model, plan.reference_model) == ("my-org/my-model", "my-org/my-model")
    assert (plan.limit, plan.seed, plan.limits.concurrency) == (10, 7, 3)
    assert plan.accuracy_spec == AccuracySpec(quant_algo="FP8")
    assert plan.tasks == (Spec(name="word_problems", options={"temperature": 0.5}),)


def test_options_of_the_launcher_are_joined_over_all_levels():
    launcher = {"name": "embedded", "cache_blocks": 4}
    plan = _build(
        {**CLASS, "launcher": launcher},
        {"launcher_options": {"damage": "int8", "host_blocks": 2}},
        {"launcher_options": {"damage": "int3"}},
    )
    assert plan.launcher.options == {"cache_blocks": 4, "damage": "int3", "host_blocks": 2}


@pytest.mark.parametrize("named", [{}, {"launcher": "external"}])
def test_an_address_of_a_test_replaces_the_launcher_of_its_class(named):
    plan = _build(CLASS, {"base_url": "host:9", **named}, base_url="other:1")
    assert plan.launcher == external("http://host:9/v1")
    assert plan.reference_model == "my-org/my-model"


def test_a_test_without_a_launcher_asks_the_endpoint_of_the_options():
    plan = _build({"model_name": "my-model", "launcher": None}, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://host:9/v1"}
    # The endpoint reports the name that it serves; the reference is that of the test.
    assert (plan.model, plan.reference_model) == (None, "my-model")


def test_the_checkpoint_is_the_option_model_of_launchers_that_have_one():
    plan = _build({**CLASS, "launcher": "trtllm", "model_path": "/models/m"})
    assert plan.launcher.options == {"model": "/models/m"}
    with pytest.raises(PlanError, match="embedded has no option `model`"):
        _build({**CLASS, "model_path": "/models/m"})


def test_all_wrong_options_are_reported_at_once():
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"limt": 3, "quant_algos": "FP8", "launcher_options": {"damge": "int3"}})
    assert [problem.partition(":")[0] for problem in raised.value.problems] == [
        "limt",
        "quant_algos",
        "launcher.damge",
    ]


def test_the_plan_of_all_tests_is_a_mapping(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("- dataset_root")
    with pytest.raises(PlanError, match="expected a mapping of keys"):
        read_base(file)


def test_none_takes_back_what_the_class_or_the_plan_of_all_tests_says():
    base = {"launcher": "simulated", "limit": 5}
    plan = _build({**CLASS, "limit": 20}, {"launcher": None}, base=base, base_url="host:9")
    assert plan.launcher == external("http://host:9/v1")
    assert (plan.reference_model, plan.limit) == ("my-org/my-model", 20)
    plan = _build({**CLASS, "limit": 20}, {"launcher": None}, {"launcher": "embedded"}, base=base)
    assert plan.launcher == Spec(name="embedded")
    assert _build({**CLASS, "limit": 20}, {"limit": None}, base=base).limit is None
    plan = _build({"base_url": "class:1"}, {"launcher": None}, base=base, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://class:1/v1"}


def test_an_attribute_of_the_class_that_is_not_set_leaves_the_plan_of_all_tests():
    plan = _build(AccuracyTests().list_defaults(), base={"launcher": "embedded"}, base_url="host:9")
    assert plan.launcher == Spec(name="embedded")


@pytest.mark.parametrize("task", ["word_problems", {"word_problems": {"max_tokens": 3}}])
def test_an_option_of_a_task_is_told_in_the_form_that_works(task):
    with pytest.raises(PlanError) as raised:
        build_plan(merge_levels([task], CLASS, {"num_samples": 50, "shots": 5}), {}, None, {})
    told, other = raised.value.problems
    form = '{"word_problems": {"num_samples": 50}}'
    assert told == f"num_samples: an option of the task: evaluate({form}) or limit=N"
    assert "num_fewshot" in other
    plan = build_plan(merge_levels([json.loads(form)], CLASS), {}, None, {})
    assert plan.tasks == (Spec(name="word_problems", options={"num_samples": 50}),)


def test_a_misspelt_number_of_tokens_is_no_key():
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"max_token": 50, "api_key": "x", "hf_token": "x"})
    problems = dict(one.split(": ", 1) for one in raised.value.problems)
    assert problems["max_token"] == "unknown option. Did you mean 'max_tokens'?"
    for name in ("api_key", "hf_token"):
        assert problems[name].startswith("keys are read from the environment only")


def test_a_misspelt_number_of_samples_names_the_limit_and_the_option_of_the_task():
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"num_sample": 50})
    [told] = raised.value.problems
    assert told == (
        "num_sample: unknown option. Did you mean 'num_samples', an option of the task:"
        ' evaluate({"word_problems": {"num_samples": 50}}) or limit=N?'
    )


def test_a_number_of_samples_is_told_to_be_the_limit():
    with pytest.raises(PlanError) as raised:
        _build(CLASS, {"samples": 50})
    [told] = raised.value.problems
    assert told == "samples: expected ids of samples, not 50; to ask any 50 samples, use limit"


@pytest.mark.parametrize("more", [{}, {"model_path": "/models/m"}])
@pytest.mark.parametrize("address", ["host:9", None])
def test_options_that_no_launcher_takes_are_an_error(more, address):
    given = {"launcher_options": {"damage": "int3", "ready_timeout_s": 5}, "limt": 3}
    with pytest.raises(PlanError) as raised:
        _build({"model_name": "m", **more}, given, base_url=address)
    told = raised.value.problems[-1]
    assert told.startswith("launcher_options: no launcher is named that takes damage")
    assert ("host:9" in told) == (address is not None)
    assert raised.value.problems[0].startswith("limt: ")
    with pytest.raises(PlanError, match="no launcher is named") as alone:
        _build(CLASS, {"base_url": "host:9", "launcher_options": {"prt": 5}})
    assert "LAUNCHER" in str(alone.value.hint)


def test_options_of_a_running_endpoint_need_no_launcher():
    plan = _build({"launcher_options": {"ready_timeout_s": 5}}, base_url="host:9")
    wanted = {"ready_timeout_s": 5, "base_url": "http://host:9/v1"}
    assert plan.launcher == Spec(name="external", options=wanted)


@pytest.mark.parametrize(
    "named",
    ["embedded", {"name": "embedded", "cache_blocks": 4}, {"embedded": {"cache_blocks": 4}}],
)
@pytest.mark.parametrize("in_file", [True, False])
def test_the_launcher_of_the_plan_of_all_tests_takes_options(named, in_file):
    level = {"launcher_options": {"damage": "int3"}}
    base = {"launcher": named} if in_file else {}
    plan = _build({} if in_file else {"launcher": named}, level, base=base, base_url="host:9")
    more = {} if named == "embedded" else {"cache_blocks": 4}
    assert plan.launcher == Spec(name="embedded", options={**more, "damage": "int3"})


@pytest.mark.parametrize("back", [{"launcher": None}, {"base_url": "host:9"}])
def test_options_go_with_the_launcher_that_a_test_replaces(back):
    of_class = {**CLASS, "launcher_options": {"damage": "int3"}}
    plan = _build(of_class, back, base_url="host:9")
    assert plan.launcher.options == {"base_url": "http://host:9/v1"}


TESTS = """
from serve_eval.pytest_plugin import AccuracyTests

class Base(AccuracyTests):
    MODEL_NAME = LAUNCHER = "simulated"
    OPTIONS = {"limit": 10, "no_reference": True}

class TestIgnored(Base):
    LAUNCHER_OPTIONS = {"accuracy": 0.1}
    def test_without(self): self.evaluate("word_problems")
    def test_given(self): self.evaluate("word_problems", launcher_options=self.LAUNCHER_OPTIONS)

class TestMisspelt(Base):
    OPTION = {"limit": 3}
    MODEL = "another"
    def test_both(self): self.evaluate("word_problems")

class TestOwn(Base):
    TASKS, THRESHOLD, LIMIT, HELPER = ["word_problems"], 3, 20, print
    def test_own(self): self.evaluate(*self.TASKS, limit=self.LIMIT)
"""


def test_an_attribute_without_effect_is_an_error_and_own_constants_are_not(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = run_pytest(tmp_path, "-q", "-W", "ignore")
    assert "2 passed, 2 errors" in done.stdout, done.stdout
    told = [line for line in done.stdout.splitlines() if "no attribute of AccuracyTests" in line]
    assert told[:3] == [
        "PlanError: LAUNCHER_OPTIONS: no attribute of AccuracyTests, so it would have no effect."
        " Write OPTIONS = {'launcher_options': ...}, or rename it",
        "PlanError: OPTION: no attribute of AccuracyTests. Did you mean OPTIONS?",
        "MODEL: no attribute of AccuracyTests. Did you mean MODEL_NAME?",
    ]


@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (
            "Give the --model and a row, or --references-dir.",
            "Give the model_name= and a row, or references_dir=.",
        ),
        ("Add --model NAME.", "Add model_name=NAME."),
        (
            "Fetch it with serve-eval data fetch a --to DIR, then add --dataset-root DIR.",
            "Fetch it with serve-eval data fetch a --to DIR, then add dataset_root=DIR.",
        ),
        (
            "rules_disagree: paired says FAIL (p 0.01); --verdict paired lets it decide",
            'rules_disagree: paired says FAIL (p 0.01); verdict="paired" lets it decide',
        ),
        ("For all: --no-reference.", "For all: no_reference=True."),
        (
            "such as --tasks gsm8k. All: serve-eval data list --tasks x",
            'such as evaluate("gsm8k"). All: serve-eval data list --tasks x',
        ),
        ("anyway with --allow-mismatch dataset.", 'anyway with allow_mismatch=["dataset"].'),
        (
            "with --concurrency auto, a lower --concurrency, or",
            'with concurrency="auto", a lower concurrency=, or',
        ),
        ("with --concurrency 1", "with concurrency=1"),
        (
            "Fix the cause, then resume the run. --set limits.max_error_rate=SHARE allows more.",
            "Fix the cause, then run the test again. max_error_rate=SHARE allows more.",
        ),
        ("Resume with --set limits.rate_limit=R.", "Run the test again with rate_limit=R."),
        ("Resume once it responds.", "Run the test again once it responds."),
        (
            "Resume: serve-eval run --resume runs/a",
            "Run the test again: serve-eval run --resume runs/a",
        ),
        ("--set gsm8k.tokenizer=DIR.", '{"gsm8k": {"tokenizer": DIR}} as the task.'),
        ("add --set limits.stream=false. Scores", "add stream=False. Scores"),
        ("no chat: --set protocol.apply_chat_template=false", "no chat: apply_chat_template=False"),
        ("--set server_defaults=keep measures", 'server_defaults="keep" measures'),
        ("Add --set gsm8k.stop=[].", 'Add {"gsm8k": {"stop": []}} as the task.'),
        ("--set gsm8k.temperature=0.6.", '{"gsm8k": {"temperature": 0.6}} as the task.'),
        ("--set gsm8k.thinking=off", '{"gsm8k": {"thinking": "off"}} as the task'),
        ("--set protocol.extra_body='{\"top_k\": 1}'.", 'extra_body={"top_k": 1}.'),
        ("--set limits.known_finish_reasons=abort", 'known_finish_reasons=["abort"]'),
        ("--set verdict.repaired=trust", 'verdict={"name": NAME, "repaired": "trust"}'),
        ("--set launcher.tp=2", 'launcher_options={"tp": 2}'),
        (
            "--max-detects 20 needs --strict",
            "--serve-eval-max-detects 20 needs --serve-eval-strict",
        ),
        ("keep it with --output runs", "keep it with --serve-eval-output runs"),
        ("with --one-after-the-other", "with one_after_the_other=True"),
        (
            "If so, pass --trust-plan. Otherwise set your own values with flags.",
            "If so, name a copy of its plan, in a file of your own. Otherwise set your own values"
            " with options of the test.",
        ),
        (
            "(trtllm-serve: --tool_parser; --enable-auto-tool-choice)",
            "(trtllm-serve: --tool_parser; --enable-auto-tool-choice)",
        ),
    ],
)
def test_flags_are_keywords_and_commands_stay(hint, said):
    assert say_for_tests(hint) == said


def test_a_hint_to_take_a_reference_says_how_a_test_finds_it():
    error = NotComparableError("no row", hint="To take it:\n  serve-eval references take --model m")
    told = describe_error(error).splitlines()
    assert told[2] == "  serve-eval references take --model m"
    assert told[3].startswith('  Then references_dir="my-references"')


def test_what_a_server_said_is_quoted_as_it_is():
    assert describe_error(LaunchError("server: --model is required")).endswith(
        "--model is required"
    )


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("concurency", "concurrency"),
        ("refrences_dir", "references_dir"),
        ("temprature", "temperature"),
        ("model_nam", "model_name"),
        ("sample_timeout", "sample_timeout_s"),
    ],
)
def test_a_mistyped_keyword_is_compared_with_all_that_a_test_takes(wrong, meant):
    with pytest.raises(PlanError) as raised:
        build_plan(merge_levels(["gsm8k"], {wrong: 4}), {}, "host:1", {})
    assert raised.value.problems == [f"{wrong}: unknown option. Did you mean {meant!r}?"]


def test_warnings_of_a_run_name_keywords_and_commands_stay():
    told = (
        "rules disagree; --verdict paired lets it decide",
        "again with serve-eval judge RUN --verdict paired",
    )
    one = task(RESULT, replace(VERDICT, warnings=told))
    report = replace(make_report(one), warnings=("raise --concurrency 4",))
    said = _speak_to_tests(report)
    assert said.tasks[0].verdict.warnings == (
        'rules disagree; verdict="paired" lets it decide',
        told[1],
    )
    assert said.warnings == ("raise concurrency=4",)
