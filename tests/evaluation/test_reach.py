"""Test that every plan field and every shipped option is classified.

It is harmless, or it can run something or reach somewhere and needs consent.
"""

from __future__ import annotations

import typing
from dataclasses import fields

import pytest

from serve_eval.evaluation import reach
from serve_eval.plugins import registry
from serve_eval.protocol.shared import OPTIONS as CHOICES
from serve_eval.schema import Connection, Limits, Plan, Spec

TEXTS = (str, list, tuple, dict, typing.Any)


def _can_hold_text(hint: typing.Any) -> bool:
    """Return True if a type takes more than numbers and fixed words."""
    if typing.get_origin(hint) is typing.Literal:
        return False
    inner = typing.get_args(hint)
    return hint in TEXTS or typing.get_origin(hint) in TEXTS or any(map(_can_hold_text, inner))


@pytest.mark.parametrize("launcher", registry.list_shipped("serve_eval.launchers"))
def test_every_option_of_a_launcher_is_classified(launcher: str) -> None:
    options = set(registry.options_of(registry.load("serve_eval.launchers", launcher)))
    harmless = reach.HARMLESS[launcher]
    assert options <= harmless | reach.OPTIONS.keys(), "list it in serve_eval/evaluation/reach.py"
    assert harmless <= options, "it was removed"


def test_every_field_of_a_plan_is_classified() -> None:
    listed = [*reach.ASKING_FIELDS, *reach.ANEW_FIELDS, *reach.HARMLESS_FIELDS]
    assert sorted(listed) == sorted(field.name for field in fields(Plan)), (
        "list it in serve_eval/evaluation/reach.py"
    )
    ways = {*reach.CONNECTION, *reach.HARMLESS_CONNECTION}
    assert ways == {field.name for field in fields(Connection)}, (
        "list it in serve_eval/evaluation/reach.py"
    )
    hints = typing.get_type_hints(Limits).items()
    compared = {"known_finish_reasons"}  # with what a server says; nothing else is done with them
    assert {name for name, hint in hints if _can_hold_text(hint)} == compared


@pytest.mark.parametrize("task", registry.list_shipped("serve_eval.tasks"))
def test_every_option_of_a_task_that_can_hold_a_text_is_classified(task: str) -> None:
    make = registry.function("serve_eval.tasks", task)
    hints = typing.get_type_hints(make)
    texts = {f"{task}.{name}" for name in registry.options_of(make) if _can_hold_text(hints[name])}
    own = {name for name in texts if name.partition(".")[2] not in CHOICES}
    known = {*reach.JUDGED_BY, *reach.ASKING_OPTIONS, *reach.HARMLESS_OPTIONS}
    assert own <= known, "list it in serve_eval/evaluation/reach.py"
    assert {name for name in known if name.startswith(f"{task}.")} <= own, "it was removed"


def test_every_choice_that_can_hold_a_text_is_classified() -> None:
    assert {
        name for name, hint in CHOICES.items() if _can_hold_text(hint)
    } <= reach.HARMLESS_CHOICES
    assert CHOICES.keys() >= reach.HARMLESS_CHOICES


def test_options_of_launchers_and_tasks_that_are_not_ours_ask() -> None:
    task = Spec(name="towns", options={"where": "x", "max_tokens": 3})
    plan = Plan(model="m", launcher=Spec(name="theirs", options={"port": 1}), tasks=(task,))
    assert [(one.field, one.value) for one in reach.list_reached(plan)] == [
        ("launcher", "theirs"),
        ("launcher.port", 1),
        ("towns.where", "x"),
    ]
