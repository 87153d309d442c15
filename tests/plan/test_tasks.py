"""Test the presets, efforts and rules that a plan gives to its tasks."""

import re
from array import array
from dataclasses import replace

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.prepare import choose_rule
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.presets import settle_preset
from serve_eval.plan.resolve import resolve
from serve_eval.protocol.presets import read_presets
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.protocol.shared import build_task
from serve_eval.report.lines import describe_preset
from serve_eval.schema import (
    AccuracySpec,
    Aggregation,
    Dataset,
    Plan,
    Reference,
    ReferenceRuns,
    Sample,
    Spec,
)
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores

QWEN3 = "Qwen/Qwen3-8B"
THINKING = {
    "apply_chat_template": True,
    "temperature": 0.6,
    "top_p": 0.95,
    "max_tokens": 32768,
    "thinking": True,
    "extra_body": {"top_k": 20, "min_p": 0},
}


def _plan(file=None, **settings):
    return resolve({"tasks": ["gsm8k"], "model": QWEN3, **(file or {})}, settings, {}).plan


def _options(plan, task=0):
    return dict(plan.tasks[task].options)


@pytest.mark.parametrize("name", ["auto", "qwen3-thinking"])
def test_the_tasks_keep_the_values_and_the_plan_says_where_they_are_from(name):
    plan = _plan({"preset": name})
    assert _options(plan) == THINKING
    assert (plan.preset.name, plan.preset.table) == ("qwen3-thinking", read_presets().version)
    assert plan.preset.source.startswith("https://")
    assert plan.preset.read
    assert resolve(to_file(plan), {}, {}).plan == plan


def test_what_the_plan_a_flag_or_set_says_wins_over_the_preset_field_by_field():
    plan = _plan(
        {
            "tasks": [{"gsm8k": {"top_p": 0.5}}, {"aime": {"temperature": None}}],
            "protocol": {"extra_body": {"top_k": 5}},
        },
        preset="auto",
        choices={"max_tokens": 64},
        set=["gsm8k.temperature=0"],
    )
    first, second = _options(plan), _options(plan, 1)
    assert first == THINKING | {
        "top_p": 0.5,
        "max_tokens": 64,
        "temperature": 0,
        "extra_body": {"top_k": 5, "min_p": 0},
    }
    assert second["temperature"] is None
    assert second["top_p"] == 0.95
    assert "apply_chat_template" not in second  # it is always asked by chat


def test_a_flag_wins_over_the_preset_of_the_file_and_so_does_its_effort():
    plan = _plan({"preset": "gpt-oss", "effort": "low"}, preset="qwen3-thinking", effort="none")
    assert _options(plan)["thinking"] is False
    assert _options(plan)["temperature"] == 0.7
    assert (plan.preset.name, plan.preset.effort) == ("qwen3-no-thinking", "none")


def test_a_task_that_asks_for_likelihoods_stays_as_it_is():
    options = {"scoring": "loglikelihood"}
    plan = _plan({"tasks": [{"mmlu": options}, "gsm8k"], "preset": "auto"})
    assert _options(plan) == options
    assert _options(plan, 1) == THINKING


def test_without_a_chat_only_the_sampling_is_taken():
    protocol = {"apply_chat_template": False}
    plan = _plan({"preset": "auto", "protocol": protocol})
    assert _options(plan) == {
        "apply_chat_template": False,
        "temperature": 0.6,
        "top_p": 0.95,
        "max_tokens": 32768,
        "extra_body": {"top_k": 20, "min_p": 0},
    }
    plan = _plan({"preset": "deepseek-v3.1", "protocol": protocol})
    assert _options(plan) == protocol


def test_thinking_that_a_user_sets_replaces_the_switch_of_the_preset():
    plan = _plan({"preset": "deepseek-v3.2"}, choices={"thinking": "off"})
    assert _options(plan) == {
        "apply_chat_template": True,
        "temperature": 1.0,
        "top_p": 0.95,
        "thinking": "off",
    }


def test_an_effort_alone_sets_no_sampling():
    plan = _plan({"model": "openai/gpt-oss-20b", "effort": "high"})
    body = {"reasoning_effort": "high"}
    assert _options(plan) == {"apply_chat_template": True, "extra_body": body}
    assert (plan.preset.name, plan.preset.effort) == ("", "high")
    assert _options(_plan({"effort": "none"})) == {"apply_chat_template": True, "thinking": False}


def test_the_name_of_the_reference_decides_if_that_of_the_model_is_an_alias():
    plan = _plan({"model": "prod", "reference_model": "openai/gpt-oss-120b", "preset": "auto"})
    assert plan.preset.name == "gpt-oss"


def test_without_a_model_the_preset_waits_for_it():
    plan = _plan({"model": None, "preset": "auto", "effort": "high"})
    assert not plan.preset.taken
    assert _options(plan) == {}
    assert {"preset": "auto", "effort": "high"}.items() <= to_file(plan).items()
    named = settle_preset(replace(plan, model=QWEN3))
    assert dict(named.tasks[0].options) == THINKING


def test_a_task_with_a_wrong_option_is_reported_as_without_a_preset():
    with pytest.raises(PlanError, match=r"tasks\[0\].gsm8k.tempera: unknown option"):
        _plan({"tasks": [{"gsm8k": {"tempera": 1}}], "preset": "auto"})


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ({"preset": "qwen3-thinkin"}, "unknown preset 'qwen3-thinkin'. Did you mean"),
        ({"preset": "auto", "model": "a/b"}, "preset: auto: the table of presets has no row for"),
        ({"effort": "high", "model": "a/b"}, "effort: the table of presets does not say how a/b"),
        ({"effort": "low", "preset": "auto"}, "has no effort low: its efforts are none, high"),
        ({"effort": "hgih"}, "effort: expected none or low or medium or high or max, not 'hgih'"),
        ({"effort": "low,high"}, r"a run has one effort, not low, high; .*effort: \[low, high\]"),
        ({"effort": ["low", "high"]}, "a run has one effort, not low, high"),
        ({"effort": ["low"]}, "a run has one effort, not low"),
        ({"preset": {"name": "gpt-oss"}}, "expected a name, or what a run saved, and there is no"),
        ({"preset": {"nmae": 1}}, "expected a name, or what a run saved, and"),
    ],
)
def test_a_wrong_preset_or_effort_is_an_error(file, message):
    with pytest.raises(PlanError) as error:
        _plan(file)
    assert re.search(message, str(error.value))


def test_an_unknown_model_is_told_how_to_choose():
    with pytest.raises(PlanError) as error:
        _plan({"preset": "auto", "model": "a/b"})
    assert "--preset NAME" in str(error.value)
    assert "serve-eval data list presets" in str(error.value)


@pytest.mark.parametrize("settings", [{"preset": "gpt-oss"}, {"effort": "none"}])
def test_a_plan_with_the_values_of_a_preset_takes_no_other(settings):
    saved = to_file(_plan({"preset": "auto"}))
    with pytest.raises(PlanError, match="have the values of qwen3-thinking already"):
        resolve(saved, settings, {})


def test_the_line_about_a_preset_names_what_is_sent_in_the_place_of_its_values():
    [line] = describe_preset(_plan({"preset": "auto"}))
    assert "max_tokens 32768" in line
    assert "overridden" not in line
    [line] = describe_preset(_plan({"preset": "auto"}, choices={"max_tokens": 128}))
    assert line.endswith("min_p 0; overridden by max_tokens 128")
    tasks = [{"gsm8k": {"extra_body": {"top_k": 5}}}, {"aime": {"temperature": None}}]
    [line] = describe_preset(_plan({"preset": "auto", "tasks": tasks}))
    assert line.endswith("; overridden by top_k 5 (gsm8k); temperature None (aime)")
    assert describe_preset(_plan()) == []


@pytest.mark.parametrize(
    "file",
    [{"protocol": {"max_tokens": "auto"}}, {"tasks": [{"gsm8k": {"max_tokens": "auto"}}]}],
)
def test_a_plan_holds_a_number_of_tokens(file):
    with pytest.raises(PlanError, match="auto is a word of the command line") as bad:
        _plan(file)
    assert "Give a number" in str(bad.value) + bad.value.hint


SAMPLES = [Sample(id=str(i), prompt=f"p{i}", target="1") for i in range(12)]
PLAN = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="gsm8k"),))
MAXIMUM = Aggregation(name="largest", of=lambda scored: max(s.value for _, s in scored))


@pytest.fixture
def taken(tmp_path):
    """Return a reference with scores of the twelve samples."""
    keys = b"".join(map(sample_key, SAMPLES))
    scores = SampleScores(task="t", lo=0.0, hi=1.0, keys=keys, runs=(array("d", [1.0] * 12),))
    digest = reference_samples.write(tmp_path / "scores", scores)
    runs = ReferenceRuns(values=(100.0,), n=12, sigma=0.0, samples="scores", sha256=digest)
    file = str(tmp_path / "t.yaml")
    return Reference(task="t", model="m", spec=AccuracySpec(), value=100.0, runs=runs, file=file)


@pytest.mark.parametrize(
    ("plan", "change", "asked", "rule"),
    [
        (PLAN, lambda found: found, SAMPLES, "paired"),
        (PLAN, lambda found: found, SAMPLES[:10], "paired"),
        (PLAN, lambda found: found, SAMPLES[:9], "classic"),
        (PLAN, lambda found: replace(found, runs=None), SAMPLES, "classic"),
        (PLAN, lambda found: replace(found, threshold=90.0), SAMPLES, "classic"),
        (PLAN, lambda found: None, SAMPLES, "classic"),
        (
            PLAN,
            lambda found: found,
            [*SAMPLES, Sample(id="n", prompt="new", target="1")],
            "classic",
        ),
        (replace(PLAN, rule_named=True), lambda found: found, SAMPLES, "classic"),
        (
            replace(PLAN, verdict=Spec(name="noninferiority")),
            lambda found: found,
            SAMPLES,
            "noninferiority",
        ),
    ],
    ids=[
        *(
            "scores",
            "a subset",
            "nine prompts",
            "no scores",
            "a threshold",
            "no reference",
            "an unknown prompt",
        ),
        *("classic by name", "another rule"),
    ],
)
def test_scores_of_the_same_prompts_are_judged_one_by_one(
    taken,
    plan,
    change,
    asked,
    rule,
):
    dataset = Dataset(samples=asked, files=(), total=len(asked))
    assert choose_rule(plan, build_task(Spec(name="gsm8k")), dataset, change(taken)).name == rule


def test_a_value_that_is_no_mean_is_judged_by_the_value(taken):
    task = replace(build_task(Spec(name="gsm8k")), aggregation=MAXIMUM)
    dataset = Dataset(samples=SAMPLES, files=(), total=len(SAMPLES))
    assert choose_rule(PLAN, task, dataset, taken).name == "classic"
