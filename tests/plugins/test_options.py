"""Test the options that functions declare, and dotted paths to nested ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve_launcher
from serve_eval.plugins import registry
from serve_eval.plugins.declarations import (
    REQUIRED,
    Option,
    find_structure,
    list_fields,
    read_options,
)
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class _Place:
    host: Annotated[str, Setting("Where.")] = "here"
    port: Annotated[int | None, Setting("Which door.")] = None


@dataclass(frozen=True, kw_only=True)
class _Limits:
    wait_s: Annotated[float, Setting("How long.")] = 1.0
    retries: int = 0


@dataclass(frozen=True, kw_only=True)
class _Whole(_Place, _Limits):
    model: Annotated[str, Setting("What.")]
    words: Annotated[list[str], Setting("How.")] = field(default_factory=list)
    wait_s: Annotated[float, Setting("How long.")] = 5.0


class _Struct(msgspec.Struct, kw_only=True, rename={"inner": "outer"}):
    inner: Annotated[int, Setting("A number."), msgspec.Meta(gt=0)] = 3
    words: list[str] = []


def _by_structure(context: object, options: _Whole): ...
def _by_keyword(
    context: object, *, model: Annotated[str, Setting("What.")], words: list[str] | None = None
): ...
def _by_any(context: object, **options: object): ...
def _by_mapping(context: object, options: dict[str, Any]): ...
def _by_optional(context: object, *, options: _Whole): ...


def _by_described(_: object, options: Annotated[_Whole, "of a launcher"]): ...


def test_own_fields_come_first_and_a_changed_default_keeps_its_place():
    assert list(read_options(_by_structure).values()) == [
        Option(path="model", hint=str, default=REQUIRED, meaning="What."),
        Option(path="words", hint=list[str], default=[], meaning="How."),
        Option(path="host", hint=str, default="here", meaning="Where."),
        Option(path="port", hint=int | None, default=None, meaning="Which door."),
        Option(path="wait_s", hint=float, default=5.0, meaning="How long."),
        Option(path="retries", hint=int, default=0, meaning=""),
    ]


def test_keyword_parameters_are_options_too():
    assert list(read_options(_by_keyword).values()) == [
        Option(path="model", hint=str, default=REQUIRED, meaning="What."),
        Option(path="words", hint=list[str] | None, default=None),
    ]
    assert [option.required for option in read_options(_by_keyword).values()] == [True, False]


def test_a_struct_has_the_names_of_plans_and_keeps_its_bounds():
    inner, words = list_fields(_Struct)
    assert (inner.path, inner.default, inner.meaning) == ("outer", 3, "A number.")
    assert (words.path, words.default) == ("words", [])
    assert msgspec.convert(1, inner.hint) == 1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(0, inner.hint)


@pytest.mark.parametrize(
    ("function", "structure"),
    [
        (_by_structure, _Whole),
        (_by_described, _Whole),
        (_by_keyword, None),
        (_by_any, None),
        (_by_mapping, None),
        (_by_optional, None),
    ],
)
def test_a_structure_is_the_parameter_options(function, structure):
    assert find_structure(function) is structure


def planned(launcher, *settings):
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
def test_an_option_below_another_is_set(settings, options: dict[str, Any]):
    given = [f"launcher.{text}" for text in settings]
    assert planned("trtllm_disaggregated", *given).launcher.options == options


def test_what_a_plan_says_beside_it_stays():
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
def test_what_there_is_not_is_answered_with_what_there_is(launcher, setting, told):
    with pytest.raises(PlanError) as caught:
        planned(
            {"name": launcher, **({"image": "x"} if launcher == "container" else {})},
            f"launcher.{setting}",
        )
    assert told in str(caught.value)


def test_below_a_text_nothing_can_be_set():
    launcher = {"name": "trtllm", "config": "own.yaml"}
    with pytest.raises(
        PlanError,
        match=r"launcher\.config is 'own\.yaml' in this plan, and has no options to set",
    ):
        planned(launcher, "launcher.config.max_num_tokens=1")


def test_the_line_of_a_plan_is_that_of_the_nested_option():
    launcher = {"name": "trtllm_disaggregated", "context_servers": {"tpp": 4, "router": 1}}
    with pytest.raises(PlanError) as caught:
        planned(launcher)
    [problem] = caught.value.problems
    assert problem.startswith(
        "('launcher', 'context_servers', 'tpp'): launcher.context_servers.tpp: unknown option."
    )


def test_options_without_any_below_are_answered_as_before():
    def plain(*, count: int = 1): ...

    with pytest.raises(PlanError, match=r"^t\.cuont: unknown option\. Did you mean 'count'\?$"):
        registry.check_options(plain, {"cuont": 1}, "t")
