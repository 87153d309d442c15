"""The options in which two plans differ, and the plans in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import Connection, Limits, Plan, Spec
from serve_eval.workflows.bisect.configurations import (
    along_steps,
    between_plans,
    fill_in,
    list_changes,
    mix,
)

TASKS = (Spec(name="gsm8k"),)


def _plan(model: str = "m", limits: Limits | None = None, **options: Any) -> Plan:
    launcher = Spec(name="trtllm", options=options)
    return Plan(model=model, launcher=launcher, tasks=TASKS, limits=limits or Limits())


GOOD = _plan(tp=1, config={"kv": {"dtype": "auto", "free": 0.9}, "batches": [1, 2]}, env={"A": "1"})
BAD = _plan(
    tp=2,
    config={"kv": {"dtype": "fp8", "free": 0.9}, "batches": [1, 2, 4], "speculative": {"n": 3}},
    env={"A": "1", "MY_TOKEN": "secret"},
    limits=Limits(concurrency=8, order="natural"),
)
NAMES = ["tp", "config.kv.dtype", "config.batches", "config.speculative", "env.MY_TOKEN"]


def test_mappings_differ_by_leaf_and_lists_as_one_value() -> None:
    changes = list_changes(GOOD, BAD)
    assert [change.name for change in changes] == [*NAMES, "limits.concurrency"]
    shown = {change.name: (change.shown.good, change.shown.bad) for change in changes}
    assert shown["config.kv.dtype"] == ("auto", "fp8")
    assert shown["config.batches"] == ("[1,2]", "[1,2,4]")
    assert shown["config.speculative"] == ("not set", '{"n":3}')
    assert shown["env.MY_TOKEN"] == ("not set", "***")


def test_a_mixture_has_the_chosen_changes_alone() -> None:
    changes = list_changes(GOOD, BAD)
    assert mix(GOOD, []) == GOOD
    every = replace(BAD, limits=replace(BAD.limits, order=GOOD.limits.order))
    assert mix(GOOD, changes) == every
    some = mix(GOOD, changes[1:2])
    assert some.launcher.options["config"] == {
        "kv": {"dtype": "fp8", "free": 0.9},
        "batches": [1, 2],
    }
    back = list_changes(BAD, GOOD)
    assert mix(BAD, back).launcher.options == GOOD.launcher.options
    assert GOOD.launcher.options["config"] == {
        "kv": {"dtype": "auto", "free": 0.9},
        "batches": [1, 2],
    }


def test_options_can_keep_their_value_or_change_together() -> None:
    changes = list_changes(GOOD, BAD, keep=["launcher.config.kv", "limits"])
    assert [change.name for change in changes] == [name for name in NAMES if name[7:9] != "kv"]
    changes = list_changes(GOOD, BAD, together=[["tp", "env.MY_TOKEN"], ["config"]])
    assert [(change.name, len(change.leaves)) for change in changes] == [
        ("tp+env.MY_TOKEN", 2),
        ("config", 3),
        ("limits.concurrency", 1),
    ]
    with pytest.raises(PlanError, match=r"bisect\.keep: the plans do not differ in 'tpp'"):
        list_changes(GOOD, BAD, keep=["tpp"])
    with pytest.raises(PlanError, match="the launcher 'trtllm', the bad one 'vllm'"):
        list_changes(GOOD, replace(BAD, launcher=Spec(name="vllm")))


def test_a_launcher_option_named_like_a_part_of_the_plan_has_a_prefix() -> None:
    good, bad = _plan(model="a"), _plan(model="b")
    good = replace(good, launcher=Spec(name="trtllm", options={"model": "/a", "on": 1}))
    bad = replace(bad, launcher=Spec(name="trtllm", options={"model": "/b", "on": True}))
    assert [one.name for one in list_changes(good, bad)] == ["launcher.model", "on", "model"]
    header = replace(good, connection=Connection(headers={"X-Route": "new"}))
    assert [one.name for one in list_changes(good, header)] == ["connection.headers.X-Route"]


def test_configurations_have_names_of_what_is_changed_least() -> None:
    found = between_plans(GOOD, list_changes(GOOD, BAD, keep=["limits", "env"]))
    assert found.describe(0) == "good again"
    assert found.describe(15) == "bad"
    assert found.describe(0b0011) == "good + tp, config.kv.dtype"
    assert found.describe(0b1101) == "bad - config.kv.dtype"
    assert found.list_changed(0b1001) == ("tp", "config.speculative")
    steps = along_steps([GOOD, BAD, BAD], ["v1", "v2", "v3"])
    assert [steps.describe(i) for i in range(3)] == ["v1 again", "v2", "v3"]
    assert steps.good is GOOD
    with pytest.raises(PlanError, match="v1 is named twice"):
        along_steps([GOOD] * 3, ["v1", "v2", "v1"])


def test_a_step_is_filled_in_everywhere() -> None:
    content = {"launcher": {"image": "r:{step}", "args": ["{step}", 1]}, "{step}": None}
    assert fill_in(content, "v2") == {"launcher": {"image": "r:v2", "args": ["v2", 1]}, "v2": None}
