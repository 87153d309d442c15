"""Nested options: dotted paths set them, and a wrong path gets a suggestion."""

from __future__ import annotations

from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve_launcher
from serve_eval.plugins import registry
from serve_eval.schema import Plan


def planned(launcher: str | dict[str, Any], *settings: str) -> Plan:
    return resolve_launcher(
        {"launcher": launcher}, {"model": "m", "set": list(settings)}, {}, lambda *path: f"{path}: "
    )


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (["context_servers.tp=2"], {"context_servers": {"tp": 2}}),
        (
            ["context_servers.tp=2", "context_servers.config.a.b=null", "context_servers.env.A=x"],
            {"context_servers": {"tp": 2, "config": {"a": {"b": None}}, "env": {"A": "x"}}},
        ),
        (
            ["context_servers={tp: 4}", "context_servers.pp=2"],
            {"context_servers": {"tp": 4, "pp": 2}},
        ),
        (["context_servers.tp=2", "context_servers={pp: 4}"], {"context_servers": {"pp": 4}}),
        (["gpus=[1, 2]"], {"gpus": [1, 2]}),
    ],
)
def test_an_option_below_another_is_set(settings: list[str], options: dict[str, Any]) -> None:
    given = [f"launcher.{text}" for text in settings]
    assert planned("trtllm_disaggregated", *given).launcher.options == options


def test_what_a_plan_says_beside_it_stays() -> None:
    launcher = {
        "name": "trtllm_disaggregated",
        "context_servers": {"tp": 4, "config": {"a": 1, "b": 2}},
    }
    found = planned(launcher, "launcher.context_servers.config.a=3").launcher.options
    assert found == {"context_servers": {"tp": 4, "config": {"a": 3, "b": 2}}}
    assert launcher["context_servers"] == {
        "tp": 4,
        "config": {"a": 1, "b": 2},
    }, "the plan's own options must not change"


@pytest.mark.parametrize(
    ("launcher", "setting", "told"),
    [
        (
            "trtllm_disaggregated",
            "context.tp=2",
            "context: unknown option. Did you mean launcher.context_servers.tp?",
        ),
        (
            "trtllm_disaggregated",
            "tp=2",
            (
                "tp: unknown option. Did you mean launcher.context_servers.tp or"
                " launcher.generation_servers.tp?"
            ),
        ),
        (
            "trtllm_disaggregated",
            "context_servers.instances=2",
            (
                "context_servers.instances: unknown option. Did you mean"
                " launcher.context_servers.num_instances?"
            ),
        ),
        (
            "trtllm_disaggregated",
            "context_servers.zz=2",
            "context_servers.zz: unknown option. Known: model, num_instances, router, env, tp",
        ),
        (
            "container",
            "trtllm_disaggregated.context.tp=1",
            "Did you mean launcher.trtllm_disaggregated.context_servers.tp?",
        ),
        (
            "container",
            "context_servers.tp=1",
            "Did you mean launcher.trtllm_disaggregated.context_servers.tp?",
        ),
        (
            "container",
            "trtllm.gpus=[0]",
            "trtllm.gpus: unknown option. Did you mean launcher.gpus?",
        ),
        ("container", "trtlm.tp=1", "trtlm: unknown option. Did you mean launcher.trtllm.tp?"),
        ("trtllm", "prot=1", "prot: unknown option. Did you mean 'port'?"),
        (
            "trtllm",
            "gpus=1",
            "gpus: Expected `str | array | null`, got `int`. Known: auto. A list is written [1].",
        ),
        ("trtllm", "gpus=0,1", "A list is written [0, 1]."),
        ("trtllm", "gpus=outo", "Did you mean 'auto'?"),
        ("trtllm", "extra_args=--x", "A list is written [--x]."),
        (
            "trtllm_disaggregated",
            "context_servers.tp=x",
            "context_servers.tp: Expected `int | null`, got `str`",
        ),
        ("trtllm", "model.x=1", "model: Expected `str | null`, got `object`"),
        ("trtllm", ".x=1", "expected NAME.OPTION=VALUE"),
    ],
)
def test_what_there_is_not_is_answered_with_what_there_is(
    launcher: str, setting: str, told: str
) -> None:
    with pytest.raises(PlanError) as caught:
        planned(
            {"name": launcher, **({"image": "x"} if launcher == "container" else {})},
            f"launcher.{setting}",
        )
    assert told in str(caught.value)


def test_below_a_text_nothing_can_be_set() -> None:
    launcher = {"name": "trtllm", "config": "own.yaml"}
    with pytest.raises(
        PlanError,
        match=r"launcher\.config is 'own\.yaml' in this plan, and has no options to set",
    ):
        planned(launcher, "launcher.config.max_num_tokens=1")


def test_the_line_of_a_plan_is_that_of_the_nested_option() -> None:
    launcher = {"name": "trtllm_disaggregated", "context_servers": {"tpp": 4, "router": 1}}
    with pytest.raises(PlanError) as caught:
        planned(launcher)
    [problem] = caught.value.problems
    assert problem.startswith(
        "('launcher', 'context_servers', 'tpp'): launcher.context_servers.tpp: unknown option."
    )


def test_options_without_any_below_are_answered_as_before() -> None:
    def plain(*, count: int = 1) -> None: ...

    with pytest.raises(PlanError, match=r"^t\.cuont: unknown option\. Did you mean 'count'\?$"):
        registry.check_options(plain, {"cuont": 1}, "t")
