"""Test the runs of a matrix, and the words for changed rows."""

import asyncio
import os
import re
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.evaluation import launch as endpoints
from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app, serve
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    AccuracySpec,
    DataRoots,
    Plan,
    Spec,
    SuiteChanges,
    SuiteReport,
    SuiteRow,
    SuiteRun,
    VerdictOutcome,
)
from serve_eval.schema.media import prompt_sha256
from serve_eval.workflows.suite.execution import evaluate_suite
from serve_eval.workflows.suite.file import read
from serve_eval.workflows.suite.matrix import (
    Layer,
    axes,
    label,
    merge,
    slug,
    unique,
)
from serve_eval.workflows.suite.rows import describe_changes, describe_proven, find_changes
from serve_eval.workflows.suite.suite_form import matches
from serve_eval.yaml_source import YamlDocument, parse
from tests.workflows.suite.test_judgement import _row

VALUES = st.one_of(st.text(), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none())
FRAGMENTS = st.dictionaries(
    st.sampled_from(["model", "base_url", "seed", "reference_model"]), VALUES
)


@given(FRAGMENTS)
def test_a_label_is_safe_as_a_part_of_a_file_name(content):
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", label(content))
    assert label(content)[-1] not in ".-_"


@given(st.text())
def test_a_slug_of_a_slug_is_the_same(text):
    assert slug(slug(text)) == slug(text)


@given(
    st.lists(st.sampled_from(["a", "A", "a-2", "b", "b-2", "b-3"])),
    st.lists(st.sampled_from(["a", "B-2"])),
)
def test_unique_names_differ_in_more_than_case_and_from_what_is_taken(names, taken):
    found = unique(names, taken)
    assert len({name.lower() for name in found} | {name.lower() for name in taken}) == len(
        found
    ) + len(set(taken))
    assert all(
        new == old or new.startswith(f"{old}-") for old, new in zip(names, found, strict=True)
    )
    assert unique(found) == found


def test_labels_say_what_the_value_is():
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


def _merged(*contents):
    return merge([Layer(content=content, place=lambda *path: "") for content in contents])


def test_a_section_is_merged_by_field_and_everything_else_replaced():
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


def test_an_address_of_a_higher_layer_replaces_a_launcher_and_the_other_way_round():
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


def _axes(text):
    document = parse(text, "suite.yaml", PlanError)
    return axes(document.value["matrix"], document)


def test_a_sampling_seed_sets_the_seed_and_is_found_in_the_file():
    found, problems = _axes(MATRIX)
    assert problems == []
    layers = [one.layer for one in found["sampling_seed"]]
    assert [(one.content, one.sampling_seed, dict(one.attributes)) for one in layers] == [
        ({"protocol": {"seed": 3}}, 3, {}),
        ({"protocol": {"seed": 4}}, 4, {}),
    ]
    places = [one.place("protocol", "seed") for one in layers]
    assert places == ["suite.yaml:4: ", "suite.yaml:5: "]


def test_the_place_of_a_seed_ends_with_it_even_in_a_mapping():
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
def test_a_wrong_sampling_seed_is_named_by_its_place(seed):
    [(path, message)] = _axes(f"matrix: {{sampling_seed: [1, {seed}]}}")[1]
    assert path == ("sampling_seed", 1)
    assert message.startswith("expected a seed, a whole number, not ")


def test_a_value_that_tells_only_tasks_gives_its_name_to_them():
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
def test_every_key_of_a_pattern_must_hold(pattern, held):
    assert matches(pattern, RUN, "mmlu") is held


def test_without_a_task_only_the_run_is_asked_about():
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


def _answers(file, data_root):
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

    def __init__(self):
        self.events = []
        self.up = {}

    @asynccontextmanager
    async def launch(self, plan, prepared, folder):
        assert not self.up, "the previous one has not ended"
        async with endpoints.launch(plan, prepared, folder) as endpoint:
            self.events.append(f"{plan.launcher.name} {plan.model}")
            if plan.launcher.name != "external":
                self.up[int(str(endpoint.info.pid))] = str(plan.model)
            yield endpoint
        for pid in list(self.up):
            assert not Path(f"/proc/{pid}/cmdline").exists()
            self.events.append(f"end {self.up.pop(pid)}")


async def _evaluate(tmp_path, data_root, launched, seen):
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
    tmp_path, data_root
):
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


ROW = SuiteRow(
    run="a", task="t", model="m", attributes={}, rule="classic",
    own=VerdictOutcome.PASS, outcome=VerdictOutcome.PASS, evaluated=90.0, p=0.2, p_holm=0.2,
)  # fmt: skip


def _report(*rows):
    return SuiteReport(
        schema_version=1, name="s", verdict="PASS", exit_code=0, alpha=0.05, runs=(), rows=rows,
        waivers=(), started_at="2026-11-28T03:04:05+01:00", wall_s=1.0,
    )  # fmt: skip


def _tell(earlier, now):
    changes = find_changes(earlier, now)
    return "" if changes is None else describe_changes(changes)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (ROW, ""),
        (replace(ROW, p_holm=0.4, q_bh=0.4), ""),
        (replace(ROW, evaluated=80.0), "changed: a/t (value 90.0 to 80.0)"),
        (replace(ROW, evaluated=None), "changed: a/t (value 90.0 to none)"),
        (replace(ROW, outcome=VerdictOutcome.FAIL), "(PASS to FAIL (alone: PASS))"),
        (replace(ROW, proven="drop"), "(PASS to PASS (drop))"),
        (replace(ROW, rule="paired"), "(by classic to paired)"),
        (replace(ROW, reference=91.0), "(reference none to 91.0)"),
        (replace(ROW, threshold=88.0), "(limit none to 88.0)"),
        (replace(ROW, failed=2), "(failed 0 to 2)"),
        (replace(ROW, task="u"), "1 row is new, 1 gone since the report of 2026-11-28 02:04 UTC:"),
    ],
)
def test_a_row_is_changed_if_what_it_says_is(now, told):
    said = _tell(_report(ROW), _report(now))
    assert told in said
    assert bool(said) == bool(told)


def test_many_rows_with_long_names_make_a_short_line():
    rows = [replace(ROW, run="r" * 200 + str(i), task="t" * 200) for i in range(600)]
    changed = [replace(row, evaluated=1.0) for row in rows[:200]]
    said = _tell(_report(*rows[:400]), _report(*changed, *rows[400:]))
    assert said.startswith("200 rows are new, 200 changed, 200 gone since the report of ")
    assert said.count("and 197 more") == 3
    assert len(said) < 900


def test_a_time_that_is_none_is_shown_as_it_is():
    assert "the report of last week" in describe_changes(
        SuiteChanges(report_of="last week", new=("a/t",))
    )


DROP = replace(
    _row(0, 0.01, True, "classic"),
    outcome=VerdictOutcome.PASS,
    proven="drop",
    proven_p=0.02,
    p_rise=0.03,
    evaluated=70.0,
    reference=71.0,
    threshold=69.0,
    margin=1.5,
    default_margin=False,
    higher_is_better=True,
    difference=-1.0,
    difference_interval=(-1.4, -0.6),
    in_points=True,
)
PAIRED = {"rule": "paired"}
SHARES = {"in_points": False, "difference": -0.5, "difference_interval": None}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {},
            "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0,"
            " one-sided p = 0.0100, Holm p = 0.0200; it passes because classic fails only values"
            " below 69.0",
        ),
        ({"higher_is_better": False, "p": None, "proven_p": None}, "fails only values above 69.0"),
        ({"threshold": None}, "Holm p = 0.0200"),
        (PAIRED, "because a drop of the margin, 1.5 points, is excluded"),
        (PAIRED | {"default_margin": True}, "margin, 1.5 points (the default), is excluded"),
        (PAIRED | {"margin": None}, "Holm p = 0.0200"),
        (PAIRED | SHARES, "of the margin, 1.500, is excluded"),
        ({"outcome": VerdictOutcome.INCONCLUSIVE}, "Holm p = 0.0200"),
        ({"proven": "rise", "difference": 1.0, "p_rise": None}, "Holm p = 0.0200"),
    ],
)
def test_a_proven_change_comes_with_its_figures_and_why_it_passes(fields, said):
    told = describe_proven(replace(DROP, **fields))
    assert told.endswith(said), told


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        (SHARES, "a drop is proven: worse by 0.5000, 70.00 against 71.00, one-sided p = 0.0100"),
        (
            {"proven": "rise", "difference": 1.0, "difference_interval": (0.6, 1.4)},
            "a rise is proven: gain 1.0 (0.6 to 1.4, 95 %), 70.0 against 71.0, one-sided p = 0.03",
        ),
        ({"evaluated": None}, "a drop is proven: drop 1.0 (0.6 to 1.4, 95 %), one-sided p = 0.01"),
    ],
)
def test_its_unit_is_that_of_the_row(fields, begins):
    told = describe_proven(replace(DROP, **fields))
    assert told.startswith(begins), told


@pytest.mark.parametrize(
    "fields", [{"proven": ""}, {"outcome": VerdictOutcome.FAIL}, {"difference": None}]
)
def test_nothing_is_said_where_a_fail_says_it_or_nothing_is_known(fields):
    row = replace(DROP, **fields)
    assert describe_proven(row) == ""
