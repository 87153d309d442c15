"""Test the runs of a matrix: their names, the patterns that match them, and their endpoints."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.evaluation import launch as endpoints
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.protocol.shared import build_task
from serve_eval.schema import AccuracySpec, DataRoots, Endpoint, Plan, Spec, SuiteReport, SuiteRun
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.suite.execution import evaluate_suite
from serve_eval.workflows.suite.file import read
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
from serve_eval.workflows.suite.suite_form import matches
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


RUN = SuiteRun(
    name="large-fp8",
    plan=Plan(
        model="org/large",
        launcher=Spec(name="external", options={"base_url": "http://host:8000/v1"}),
        tasks=(Spec(name="mmlu"), Spec(name="gsm8k")),
        accuracy_spec=AccuracySpec(quant_algo="FP8"),
    ),
    attributes={"size": 70, "moe": False},
)


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ({"model": "org/large"}, True),
        ({"model": "org/Large"}, False),
        ({"model": ["org/small", "org/large"]}, True),
        ({"name": "large-fp8", "task": "mmlu"}, True),
        ({"name": "large-fp8", "task": "gsm8k"}, False),
        ({"task": ["gsm8k", "mmlu"]}, True),
        ({"endpoint": "host:8000"}, True),
        ({"endpoint": "http://host:8000/v1/completions"}, True),
        ({"endpoint": "external"}, True),
        ({"endpoint": ["simulated", "host:8001"]}, False),
        ({"accuracy_spec": {"quant_algo": "FP8"}}, True),
        ({"accuracy_spec": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}, True),
        ({"accuracy_spec": {"quant_algo": None}}, False),
        ({"accuracy_spec": {"dtype": "auto"}}, True),
        ({"attributes": {"size": "70"}}, True),
        ({"attributes": {"size": 70, "moe": False}}, True),
        ({"attributes": {"size": 7}}, False),
        ({"attributes": {"colour": "None"}}, False),
        ({"model": "org/large", "attributes": {"moe": True}}, False),
    ],
)
def test_every_key_of_a_pattern_must_hold(pattern: dict[str, Any], held: bool) -> None:
    assert matches(pattern, RUN, "mmlu") is held


def test_without_a_task_only_the_run_is_asked_about() -> None:
    assert matches({"task": "gpqa", "model": "org/large"}, RUN)
    assert not matches({"task": "gpqa", "model": "org/small"}, RUN)


CHAT = {"num_samples": 30, "apply_chat_template": True}
SUITE = """\
defaults:
  dataset_root: {data}
  references_dir: {references}
  allow_mismatch: [apply_chat_template, stop]
  tasks: [{{gsm8k: {{num_samples: 30, apply_chat_template: true}}}}]
plans:
  - {{name: first, model: org/first, launcher: {{name: simulated, accuracy: 0.9}}}}
  - {{name: studio, model: studio, base_url: "{studio}", connection: {{api_key_env: ""}}}}
  - {{name: second, model: org/second, launcher: {{name: simulated, accuracy: 0.9}}}}
  - name: hosted
    model: hosted
    base_url: "{hosted}"
    connection: {{api_key_env: HOSTED_KEY, max_tokens_field: max_completion_tokens}}
    limits: {{concurrency: 4}}
  - {{name: first-again, model: org/first, seed: 1, launcher: {{name: simulated, accuracy: 0.9}}}}
"""


def _answers(file: Path, data_root: Path) -> Path:
    """Write the right answer to each question of the suite, for a running server."""
    task = build_task(Spec(name="gsm8k", options=CHAT))
    lines = []
    for sample in task.load(DataRoots(roots=(data_root,)), 30).samples:
        right, wrong = task.answers(sample)
        entry = {
            "sha256": prompt_sha256(sample.prompt),
            "right": right,
            "wrong": wrong,
            "probability": 1.0,
        }
        lines.append(msgspec.json.encode(entry))
    file.write_bytes(b"\n".join(lines) + b"\n")
    return file


class Launched:
    """The usual launchers, with a record of when their processes start and end."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.up: dict[int, str] = {}

    @asynccontextmanager
    async def launch(
        self, plan: Plan, prepared: Sequence[PreparedTask], folder: Path
    ) -> AsyncIterator[Endpoint]:
        assert not self.up, "the previous one has not ended"
        async with endpoints.launch(plan, prepared, folder) as endpoint:
            self.events.append(f"{plan.launcher.name} {plan.model}")
            if plan.launcher.name != "external":
                self.up[int(str(endpoint.info.pid))] = str(plan.model)
            yield endpoint
        for pid in list(self.up):
            assert not Path(f"/proc/{pid}/cmdline").exists()
            self.events.append(f"end {self.up.pop(pid)}")


async def _evaluate(
    tmp_path: Path, data_root: Path, launched: Launched, seen: dict[str, Any]
) -> SuiteReport:
    configs = {
        "studio": SimulatorConfig(
            answers=tmp_path / "answers", model="studio", no_completions=True, record=True
        ),
        "hosted": SimulatorConfig(
            answers=tmp_path / "answers", model="hosted", api_key="right", record=True
        ),
    }
    async with AsyncExitStack() as stack:
        urls = {}
        for name, config in configs.items():
            app = create_app(config)
            urls[name], seen[name] = await stack.enter_async_context(serve(app)), app[STATS]
        file = tmp_path / "suite.yaml"
        file.write_text(SUITE.format(data=data_root, references=tmp_path / "references", **urls))
        environ = {**os.environ, "HOSTED_KEY": "right", "OPENAI_API_KEY": "of-another"}
        suite = read(file, environ)
        return await evaluate_suite(
            suite, tmp_path / "out", environ=environ, launching=launched.launch
        )


def test_each_model_is_asked_at_its_own_endpoint_and_each_server_starts_and_ends_once(
    tmp_path: Path, data_root: Path
) -> None:
    (tmp_path / "references").mkdir()
    rows = [
        f"{model}:\n  - accuracy: 90.0\n"
        for model in ("org/first", "org/second", "studio", "hosted")
    ]
    (tmp_path / "references/gsm8k.yaml").write_text("".join(rows))
    _answers(tmp_path / "answers", data_root)
    launched, seen = Launched(), dict[str, Any]()
    report = asyncio.run(_evaluate(tmp_path, data_root, launched, seen))
    assert launched.events == [
        "simulated org/first",
        "end org/first",
        "external studio",
        "simulated org/second",
        "end org/second",
        "external hosted",
    ]
    assert {row.run: row.outcome.value for row in report.rows} == dict.fromkeys(
        ("first", "studio", "second", "hosted", "first-again"), "PASS"
    )
    assert report.exit_code == 0
    for name, keys, field in (
        ("studio", {None}, "max_tokens"),
        ("hosted", {"Bearer right"}, "max_completion_tokens"),
    ):
        stats = seen[name]
        assert {headers.get("Authorization") for headers in stats.headers} == keys
        assert {body["model"] for body in stats.bodies} == {name}
        assert all(field in body and "messages" in body for body in stats.bodies)
        assert len(stats.bodies) >= 30
    assert seen["hosted"].max_concurrent <= 4
