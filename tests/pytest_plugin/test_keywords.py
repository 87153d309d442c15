"""Test that hints of the command line become words of a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.errors import LaunchError, NotComparableError, PlanError
from serve_eval.pytest_plugin.asked import build_plan, merge_levels
from serve_eval.pytest_plugin.keywords import say_for_tests
from serve_eval.pytest_plugin.results import _speak_to_tests, describe_error
from tests.report.summary.made import RESULT, VERDICT, make_report, task


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
        (
            "Resume with --set limits.rate_limit=R.",
            "Run the test again with rate_limit=R.",
        ),
        ("Resume once it responds.", "Run the test again once it responds."),
        (
            "Resume: serve-eval run --resume runs/a",
            "Run the test again: serve-eval run --resume runs/a",
        ),
        ("--set gsm8k.tokenizer=DIR.", '{"gsm8k": {"tokenizer": DIR}} as the task.'),
        ("add --set limits.stream=false. Scores", "add stream=False. Scores"),
        (
            "no chat: --set protocol.apply_chat_template=false",
            "no chat: apply_chat_template=False",
        ),
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
def test_flags_are_keywords_and_commands_stay(hint: str, said: str) -> None:
    assert say_for_tests(hint) == said


def test_a_hint_to_take_a_reference_says_how_a_test_finds_it() -> None:
    error = NotComparableError("no row", hint="To take it:\n  serve-eval references take --model m")
    told = describe_error(error).splitlines()
    assert told[2] == "  serve-eval references take --model m"
    assert told[3].startswith('  Then references_dir="my-references"')


def test_what_a_server_said_is_quoted_as_it_is() -> None:
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
def test_a_mistyped_keyword_is_compared_with_all_that_a_test_takes(wrong: str, meant: str) -> None:
    with pytest.raises(PlanError) as raised:
        build_plan(merge_levels(["gsm8k"], {wrong: 4}), {}, "host:1", {})
    assert raised.value.problems == [f"{wrong}: unknown option. Did you mean {meant!r}?"]


def test_warnings_of_a_run_name_keywords_and_commands_stay() -> None:
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
