from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.workflows.suite.matrix import (
    AxisValue,
    Layer,
    Problem,
    axes,
    label,
    merge,
    slug,
    unique,
)
from serve_eval.yaml_source import YamlDocument, parse

VALUES = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
FRAGMENTS = st.dictionaries(
    st.sampled_from(["model", "base_url", "seed", "reference_model"]), VALUES
)


@given(FRAGMENTS)
def test_a_label_is_safe_as_a_part_of_a_file_name(content: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", label(content))
    assert label(content)[-1] not in ".-_"


@given(st.text())
def test_a_slug_of_a_slug_is_the_same(text: str) -> None:
    assert slug(slug(text)) == slug(text)


@given(
    st.lists(st.sampled_from(["a", "A", "a-2", "b", "b-2", "b-3"])),
    st.lists(st.sampled_from(["a", "B-2"])),
)
def test_unique_names_differ_in_more_than_case_and_from_what_is_taken(
    names: list[str], taken: list[str]
) -> None:
    found = unique(names, taken)
    assert len({name.lower() for name in found} | {name.lower() for name in taken}) == len(
        found
    ) + len(set(taken))
    assert all(
        new == old or new.startswith(f"{old}-") for old, new in zip(names, found, strict=True)
    )
    assert unique(found) == found


def test_labels_say_what_the_value_is() -> None:
    for content, expected in (
        ({"model": "meta-llama/Llama-3.1-8B-Instruct"}, "Llama-3.1-8B-Instruct"),
        ({"base_url": "http://host:8000/v1"}, "host-8000"),
        ({"launcher": {"name": "simulated", "accuracy": 0.7}}, "simulated"),
        ({"accuracy_spec": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}, "FP8"),
        ({"accuracy_spec": {}}, "default"),
        ({"tasks": ["mmlu", {"gsm8k": {"num_fewshot": 3}}]}, "mmlu-gsm8k"),
        ({"verdict": {"paired": {"margin": 1}}}, "paired"),
        ({"limits": {"concurrency": 8}}, "concurrency-8"),
        ({"limit": 200}, "limit-200"),
    ):
        assert label(content) == expected


def _merged(*contents: dict[str, Any]) -> dict[str, Any]:
    return merge([Layer(content=content, place=lambda *path: "") for content in contents])


def test_a_section_is_merged_by_field_and_everything_else_replaced() -> None:
    lower = {
        "limits": {"concurrency": 4, "stream": True},
        "protocol": {"thinking": "off", "seed": 1},
        "tasks": ["mmlu"],
        "launcher": {"name": "simulated", "run": 1},
    }
    upper = {
        "limits": {"concurrency": 8},
        "protocol": {"seed": 2},
        "tasks": ["gsm8k"],
        "launcher": {"name": "simulated"},
    }
    both = {
        "limits": {"concurrency": 8, "stream": True},
        "protocol": {"thinking": "off", "seed": 2},
    }
    assert _merged(lower, upper) == {**upper, **both}


def test_an_address_of_a_higher_layer_replaces_a_launcher_and_the_other_way_round() -> None:
    url, launcher = {"base_url": "h:1"}, {"launcher": {"name": "simulated"}}
    assert _merged(url, launcher) == launcher
    assert _merged(launcher, url) == url
    assert _merged(launcher, {"base_url": None}) == {**launcher, "base_url": None}


MATRIX = """\
matrix:
  model: [one, two]
  sampling_seed:
    - 3
    - 4
  tasks:
    - mmlu
    - [mmlu, gsm8k]
    - {tasks: [gsm8k], limit: 7}
    - {tasks: [gpqa], attributes: {size: small}}
"""


def _axes(text: str) -> tuple[dict[str, list[AxisValue]], list[Problem]]:
    document = parse(text, "suite.yaml", PlanError)
    return axes(document.value["matrix"], document)


def test_a_sampling_seed_sets_the_seed_and_is_found_in_the_file() -> None:
    found, problems = _axes(MATRIX)
    assert problems == []
    layers = [one.layer for one in found["sampling_seed"]]
    assert [(one.content, one.sampling_seed, dict(one.attributes)) for one in layers] == [
        ({"protocol": {"seed": 3}}, 3, {}),
        ({"protocol": {"seed": 4}}, 4, {}),
    ]
    places = [one.place("protocol", "seed") for one in layers]
    assert places == ["suite.yaml:4: ", "suite.yaml:5: "]


def test_the_place_of_a_seed_ends_with_it_even_in_a_mapping() -> None:
    """Of the path in the plan, protocol and seed are not in the file."""
    document = YamlDocument(
        "suite.yaml",
        None,
        {
            ("matrix", "sampling_seed", 0): 7,
            ("matrix", "sampling_seed", 0, "protocol", "seed"): 8,
            ("matrix", "sampling_seed", 0, "more"): 9,
        },
    )
    [seed] = axes({"sampling_seed": [3]}, document)[0]["sampling_seed"]
    assert seed.layer.place("protocol", "seed") == "suite.yaml:7: "
    assert seed.layer.place("protocol", "seed", "more") == "suite.yaml:9: "


@pytest.mark.parametrize("seed", ["true", "x", "1.5", "[1]"])
def test_a_wrong_sampling_seed_is_named_by_its_place(seed: str) -> None:
    [(path, message)] = _axes(f"matrix: {{sampling_seed: [1, {seed}]}}")[1]
    assert path == ("sampling_seed", 1)
    assert message.startswith("expected a seed, a whole number, not ")


def test_a_value_that_tells_only_tasks_gives_its_name_to_them() -> None:
    found, _ = _axes(MATRIX)
    assert [one.label for one in found["tasks"]] == ["mmlu", "mmlu-gsm8k", "gsm8k", "gpqa"]
    assert [one.layer.task_label for one in found["tasks"]] == ["mmlu", "mmlu-gsm8k", "", ""]
    assert [one.layer.task_label for one in found["model"]] == ["", ""]
    twice, _ = _axes("matrix: {tasks: [mmlu, [mmlu]]}")
    assert [one.layer.task_label for one in twice["tasks"]] == ["mmlu", "mmlu-2"]
