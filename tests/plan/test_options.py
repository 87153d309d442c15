"""Test that options of a plan, keys of a plan file and fields of a plan agree."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest

from serve_eval.plan.options import IN_A_PLAN, ProtocolOptions, keys_in_file
from serve_eval.plan.plan_file import KEYS, NOT_SAVED, SECTIONS, to_file
from serve_eval.plan.resolve import resolve
from serve_eval.plugins.setting import Declared, list_declared
from serve_eval.schema import AccuracySpec, Connection, Limits, Plan, Spec

PLAN: dict[str, Any] = {
    "model": "m",
    "launcher": {"name": "external", "base_url": "h:1"},
    "tasks": ["gsm8k"],
    "verdict": {"classic": {"max_missing": 0.5}},
    "reference_model": "r",
    "dataset_root": "/data",
    "include_path": [],
    "allow_hub": True,
    "limit": 5,
    "samples": ["a", "b"],
    "shard": "2/4",
    "repeats": 3,
    "seed": 4,
    "preset": "gpt-oss",
    "no_reference": True,
    "allow_missing_reference": True,
    "allow_meaningless": True,
    "allow_mismatch": ["dataset"],
    "early_stop": 0.02,
    "no_prompts": True,
    "no_media": True,
    "server_defaults": "keep",
    "expect": {"kv_transfer": True, "speculation": False},
    "accuracy_spec": {"quant_algo": "FP8"},
    "connection": {"proxy": "http://proxy:1"},
    "limits": {"concurrency": 3},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_of_a_section_is_an_option(name: str) -> None:
    options = {key.partition(".")[2] for key, _ in keys_in_file() if key.startswith(f"{name}.")}
    assert options == {field.name for field in fields(SECTIONS[name])}


def test_every_key_is_saved_or_is_known_not_to_be() -> None:
    saved = to_file(resolve(PLAN, {}, {}).plan)
    assert set(PLAN) - {"include_path"} == set(saved)
    assert {*PLAN, "references_dir", *NOT_SAVED} == set(KEYS)


def test_a_saved_plan_is_the_same_plan() -> None:
    plan = resolve(PLAN, {}, {}).plan
    assert resolve(to_file(plan), {}, {}).plan == plan


WORDS = ("a", "drawn")
"""First words of defaults that are not values."""


def _told_defaults() -> list[tuple[Declared, str]]:
    """Return the options whose help names a default value.

    Each is a field of the plan or of a section.
    """
    names = {field.name for kind in (Plan, *SECTIONS.values()) for field in fields(kind)} - {
        "launcher"
    }
    found = [
        (option, re.search(r"(?:(\w+) \(default\)|default ([\w.]+))", option.setting.help))
        for key, option in keys_in_file()
        if key.rpartition(".")[2] in names
    ]
    return [
        (option, (told[1] or told[2]))
        for option, told in found
        if told and (told[1] or told[2]) not in WORDS
    ]


@pytest.mark.parametrize(
    ("option", "told"), _told_defaults(), ids=lambda one: getattr(one, "name", one)
)
def test_the_default_that_the_help_tells_is_that_of_the_plan(option: Declared, told: str) -> None:
    nouns = {"accuracy_spec": AccuracySpec(), "connection": Connection(), "limits": Limits()}
    plan = Plan(model=None, launcher=resolve({"tasks": ["gsm8k"]}, {}, {}).plan.launcher, tasks=())
    section, _, name = option.key.rpartition(".")
    default = getattr(nouns.get(section, plan), name, None)
    shown = default.name if isinstance(default, Spec) else default
    assert float(told) == shown if isinstance(shown, int | float) else told == shown


def test_no_flag_is_declared_twice() -> None:
    flags = [
        flag
        for structure in (*IN_A_PLAN, ProtocolOptions)
        for one in list_declared(structure)
        for flag in one.flags
    ]
    assert len(flags) == len(set(flags))
