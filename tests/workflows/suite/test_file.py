from datetime import date

import pytest
import yaml
from jsonschema import Draft202012Validator

from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.workflows.suite.file import read
from serve_eval.workflows.suite.suite_form import describe_suite, suite_to_file
from serve_eval.yaml_source import parse

PLAN = """\
model: org/from-file
base_url: filed:1
tasks: [gsm8k]
limits: {concurrency: 8, max_attempts: 2}
output_dir: elsewhere
"""


def _read(tmp_path, text, **environ):
    (tmp_path / "plans").mkdir(exist_ok=True)
    (tmp_path / "plans/filed.yaml").write_text(PLAN)
    (tmp_path / "suite.yaml").write_text(text)
    return read(tmp_path / "suite.yaml", environ)


def _problems(tmp_path, text):
    with pytest.raises(PlanError) as caught:
        _read(tmp_path, text)
    return str(caught.value).replace(f"{tmp_path}/", "")


def _names(suite):
    return [run.name for run in suite.runs]


def test_a_plan_in_a_suite_is_what_it_is_alone(tmp_path):
    suite = _read(tmp_path, "plans: [plans/filed.yaml]\n")
    assert _names(suite) == ["filed"]
    assert suite.name == "suite"
    assert suite.runs[0].plan == resolve(parse(PLAN, "p", PlanError).value, {}, {}).plan


def test_defaults_lie_below_plan_files_and_these_below_what_the_suite_says(tmp_path):
    suite = _read(
        tmp_path,
        """\
defaults:
  {limits: {concurrency: 4, rate_limit: 9}, launcher: {name: simulated}, seed: 3,
   attributes: {a: 1, b: 1}}
plans:
  - {plan: plans/filed.yaml, name: one, limits: {max_attempts: 7}, attributes: {b: 2}}
  - {model: org/inline, tasks: [mmlu], accuracy_spec: {quant_algo: FP8}}
""",
    )
    filed, inline = suite.runs
    assert (filed.name, inline.name) == ("one", "inline_FP8")
    limits = filed.plan.limits
    assert (limits.concurrency, limits.rate_limit, limits.max_attempts) == (8, 9, 7)
    assert (filed.plan.launcher.name, filed.plan.launcher.options["base_url"]) == (
        "external",
        "http://filed:1/v1",
    )
    assert (inline.plan.launcher.name, inline.plan.limits.concurrency) == ("simulated", 4)
    assert (filed.plan.seed, inline.plan.seed) == (3, 3)
    assert (filed.attributes, inline.attributes) == ({"a": 1, "b": 2}, {"a": 1, "b": 1})


def test_a_matrix_gives_every_combination_a_readable_name(tmp_path):
    suite = _read(
        tmp_path,
        """\
matrix:
  model: [org/small, {model: org/large, limits: {concurrency: 16}, attributes: {size: 70B}}]
  accuracy_spec: [{}, {quant_algo: FP8, kv_cache_quant_algo: FP8}]
  tasks: [mmlu, {gsm8k: {num_fewshot: 3}}, [mmlu, gsm8k]]
  endpoint: ["host:8000"]
""",
    )
    assert _names(suite) == [
        f"{model}_{spec}_{tasks}"
        for model in ("small", "large")
        for spec in ("default", "FP8")
        for tasks in ("mmlu", "gsm8k", "mmlu-gsm8k")
    ]
    last = suite.runs[-1]
    assert last.attributes == {"size": "70B"}
    assert (last.plan.model, last.plan.limits.concurrency, last.plan.accuracy_spec.quant_algo) == (
        "org/large",
        16,
        "FP8",
    )
    assert [task.name for task in last.plan.tasks] == ["mmlu", "gsm8k"]
    assert suite.runs[1].plan.tasks[0].options == {"num_fewshot": 3}
    assert {run.plan.launcher.options["base_url"] for run in suite.runs} == {"http://host:8000/v1"}


def test_an_axis_of_ones_own_changes_several_keys_and_becomes_an_attribute(tmp_path):
    suite = _read(
        tmp_path,
        """\
defaults: {model: m, tasks: [gsm8k]}
matrix:
  quantisation:
    - {label: fp8, base_url: "a:1", accuracy_spec: {quant_algo: FP8}}
    - {label: none, base_url: "b:1"}
""",
    )
    assert _names(suite) == ["fp8", "none"]
    assert [run.attributes for run in suite.runs] == [
        {"quantisation": "fp8"},
        {"quantisation": "none"},
    ]
    assert [run.plan.accuracy_spec.quant_algo for run in suite.runs] == ["FP8", None]


def test_a_launcher_is_a_value_of_the_axis_endpoint_in_all_its_forms(tmp_path):
    suite = _read(
        tmp_path,
        """\
defaults: {model: m, tasks: [gsm8k], base_url: "other:1"}
matrix:
  endpoint:
    - host:8000
    - {name: external, base_url: "late:1", ready_timeout_s: 5}
    - {name: simulated, accuracy: 0.5}
    - {simulated: {accuracy: 0.6}}
    - {launcher: {name: simulated}, label: third}
""",
    )
    assert _names(suite) == ["host-8000", "external", "simulated", "simulated-2", "third"]
    assert [dict(run.plan.launcher.options) for run in suite.runs] == [
        {"base_url": "http://host:8000/v1"},
        {"base_url": "http://late:1/v1", "ready_timeout_s": 5},
        {"accuracy": 0.5},
        {"accuracy": 0.6},
        {},
    ]


def test_exclude_takes_runs_away_and_tasks_out_of_runs(tmp_path):
    suite = _read(
        tmp_path,
        """\
defaults: {base_url: "h:1"}
matrix:
  model: [org/a, org/b]
  accuracy_spec: [{}, {quant_algo: FP8}]
  tasks: [[mmlu, gsm8k]]
exclude:
  - {model: org/a, accuracy_spec: {quant_algo: FP8}}
  - {model: [org/b, org/c], task: mmlu, accuracy_spec: {quant_algo: null}}
""",
    )
    assert {run.name: [task.name for task in run.plan.tasks] for run in suite.runs} == {
        "a_default": ["mmlu", "gsm8k"],
        "b_default": ["gsm8k"],
        "b_FP8": ["mmlu", "gsm8k"],
    }


def test_names_are_unique_whatever_repeats(tmp_path):
    suite = _read(
        tmp_path,
        """\
plans:
  - {model: org/M, base_url: "h:1", tasks: [gsm8k]}
  - {model: other/m, base_url: "h:1", tasks: [gsm8k]}
  - {name: M-2, model: x, base_url: "h:1", tasks: [gsm8k]}
  - {model: ../../.., base_url: "h:1", tasks: [gsm8k]}
  - {model: 模型, base_url: "h:1", tasks: [gsm8k]}
""",
    )
    assert _names(suite) == ["M", "m-3", "M-2", "default", "default-2"]


def test_an_inherited_address_replaces_none_that_the_suite_names(tmp_path):
    text = (
        "plans: [{name: a, model: m, tasks: [gsm8k], base_url: 'named:1'}, {name: b, model: m,"
        " tasks: [gsm8k]}]\n"
    )
    suite = _read(tmp_path, text, OPENAI_BASE_URL="http://inherited:1", SERVE_EVAL_MODEL="other")
    found = [run.plan.launcher.options["base_url"] for run in suite.runs]
    assert found == ["http://named:1/v1", "http://inherited:1/v1"]
    assert {run.plan.model for run in suite.runs} == {"m"}


def test_waivers_are_read_with_their_day(tmp_path):
    suite = _read(
        tmp_path,
        "plans: [plans/filed.yaml]\nwaivers: [{match: {task: gsm8k}, reason: ' issue 12 ', until:"
        " 2027-01-31}]\n",
    )
    (waiver,) = suite.waivers
    assert (dict(waiver.match), waiver.reason, waiver.until) == (
        {"task": "gsm8k"},
        "issue 12",
        date(2027, 1, 31),
    )


def test_a_suite_that_a_job_gets_is_the_same_suite(tmp_path):
    """`--write-job` writes one file, which is read back."""
    suite = _read(
        tmp_path,
        """\
plans:
  - {plan: plans/filed.yaml, name: one, attributes: {b: 2}}
  - {model: org/inline, base_url: "h:1", tasks: [mmlu]}
waivers: [{match: {task: gsm8k}, reason: issue 12, until: 2027-01-31}]
end_when_certain: true
max_tokens_total: 70000
max_time_s: 3600
""",
    )
    assert (suite.end_when_certain, suite.max_tokens_total, suite.max_time_s) == (True, 70000, 3600)
    file = tmp_path / "job/suite.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(suite_to_file(suite)))
    assert read(file, {}) == suite


@pytest.mark.parametrize("given", [("match", "reason"), ("match", "until"), ("reason", "until")])
def test_the_schema_of_a_suite_wants_all_of_a_waiver(given):
    whole = {"match": {"task": "gsm8k"}, "reason": "issue 12", "until": "2027-01-31"}
    check = Draft202012Validator(describe_suite())
    suite = {"plans": ["a.yaml"], "waivers": [whole]}
    assert check.is_valid(suite)
    assert not check.is_valid({**suite, "waivers": [{name: whole[name] for name in given}]})


def test_every_problem_is_said_at_once_with_file_and_line(tmp_path):
    found = _problems(
        tmp_path,
        """\
nam: x
defaults:
  limits: {speed: 9}
plans:
  - plans/filed.yaml
  - plans/gone.yaml
  - {name: a/b, model: m, tasks: [gsm8k]}
  - {name: same, model: m, tasks: [gsm8], api_key: sk-abcdefgh}
  - {name: SAME, model: m, tasks: [gsm8k], output_dir: x, attributes: {size: [1]}}
matrix:
  modle: [a, b]
  tasks: []
  accuracy_spec: [{quant_alg: FP8}]
exclude:
  - {modell: m}
waivers:
  - {match: {}, reason: "", until: someday, by: me}
  - {match: {attributes: 3, accuracy_spec: {quant: FP8}}, reason: r, until: 2027-01-01}
max_runs: many
""",
    )
    for part in (
        "suite.yaml:1: nam: unknown key. Did you mean 'name'?",
        "suite.yaml:3: limits.speed: unknown key.",
        "suite.yaml:6: plans[1].plan: plans/gone.yaml: cannot be read",
        "suite.yaml:7: plans[2].name: expected letters",
        "suite.yaml:8: tasks[0].gsm8: unknown task 'gsm8'. Did you mean 'gsm8k'?",
        "suite.yaml:8: api_key: keys are read from the environment only",
        "suite.yaml:9: plans[4].name: two runs are named 'SAME'",
        "suite.yaml:9: output_dir: not allowed in a suite; use -o",
        "suite.yaml:9: attributes.size: expected a plain value",
        (
            "suite.yaml:11: matrix.modle[0]: modle is not a plan key, so its values must be"
            " plan fragments."
        ),
        "suite.yaml:12: matrix.tasks: expected a list of one or more values",
        "suite.yaml:15: exclude[0].modell: unknown key. Did you mean 'model'?",
        "suite.yaml:17: waivers[0].match: expected a mapping with at least one of name, task",
        "suite.yaml:17: waivers[0].reason: expected a reason",
        "suite.yaml:17: waivers[0].until: expected the last valid day",
        "suite.yaml:17: waivers[0].by: unknown key.",
        "suite.yaml:18: waivers[1].match.attributes: expected a mapping",
        "suite.yaml:18: waivers[1].match.accuracy_spec.quant: unknown key.",
        "suite.yaml:19: max_runs: expected a number",
    ):
        assert part in found
    assert found.count("limits.speed") == 1
    assert "sk-abcdefgh" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]\n", "expected a mapping with plans or a matrix"),
        ("name: empty\n", "the suite has no runs: name plans, or a matrix"),
        ("plans: plans/filed.yaml\n", "suite.yaml:1: plans: expected a list"),
        ("plans: [3]\n", "plans[0]: expected a plan, or the path of a plan file"),
        (
            "plans: [plans/filed.yaml]\nexclude: [{model: org/other}]\n",
            "2: exclude[0]: excludes nothing",
        ),
        ("plans: [plans/filed.yaml]\nexclude: [{task: gsm8k}]\n", "everything is excluded"),
        ("plans: [{plan: 3}]\n", "expected the path of a plan file"),
        (
            "plans: [plans/filed.yaml, {tasks: [gsm8k], attributes: fast}]\n",
            "plans[1].attributes: expected a mapping",
        ),
        (
            "plans: [{name: a, model: m, tasks: [gsm8k], task_label: [gsm8k]}]\n",
            "plans[0].task_label: expected a text",
        ),
        (
            "matrix: {model: [a, b, c], tasks: [gsm8k]}\nmax_runs: 2\n",
            "1: matrix: 3 runs exceed max_runs (2)",
        ),
        (
            "matrix: {model: [a], accuracy_spec: [{quant_alg: F}], tasks: [mmlu]}\n",
            "1: accuracy_spec.quant_alg: unknown",
        ),
        (
            "matrix:\n  tasks: [mmlu]\n  model: [a]\n  accuracy_spec:\n  - {quant_alg: F}\n",
            "5: accuracy_spec.quant_alg: unknown",
        ),
        (
            "matrix: {endpoint: [3]}\n",
            "matrix.endpoint[0]: expected a base URL, a launcher, or a plan fragment",
        ),
        ("matrix: {model: [{label: [], model: m}]}\n", "matrix.model[0].label: expected a word"),
        (
            "matrix: {output_dir: [a], tasks: [mmlu]}\n",
            "output_dir: not allowed in a suite; use -o",
        ),
    ],
)
def test_a_bad_suite_says_what_is_wrong(tmp_path, text, message):
    assert message in _problems(tmp_path, text)


def test_a_name_stays_short_enough_for_a_folder_and_unique(tmp_path):
    long = "".join(
        f"  axis{i}: [{{label: {'a' * 80}, seed: 1}}, {{label: {'b' * 80}, seed: 2}}]\n"
        for i in range(4)
    )
    suite = _read(
        tmp_path, f"defaults: {{model: m, tasks: [gsm8k], base_url: 'h:1'}}\nmatrix:\n{long}"
    )
    names = _names(suite)
    assert len(set(names)) == 16
    assert max(map(len, names)) < 160


def test_a_matrix_that_explodes_is_refused_by_its_number_before_it_is_expanded(
    tmp_path,
):
    axes = "".join(
        f"  {name}: [{', '.join(map(str, range(1, 101)))}]\n" for name in ("seed", "limit", "model")
    )
    assert "suite.yaml:1: matrix: has 1000000 combinations; the limit is 10000" in _problems(
        tmp_path, f"matrix:\n{axes}"
    )
    thirty = "".join(
        f"  {name}: [{', '.join(map(str, range(1, 16)))}]\n" for name in ("seed", "limit")
    )
    found = _problems(tmp_path, f"defaults: {{model: m, tasks: [gsm8k]}}\nmatrix:\n{thirty}")
    assert "225 runs exceed max_runs (200): exclude some, or set max_runs: 225" in found


ASKED = "defaults: {model: m, base_url: 'h:1', tasks: [gsm8k]}\n"


@pytest.mark.parametrize("axis", ["protocol: [{seed: 1}, {seed: 2}]", "sampling_seed: [1, 2]"])
def test_an_axis_sets_the_sampling_seed_and_not_that_of_the_subset(tmp_path, axis):
    suite = _read(tmp_path, f"{ASKED}matrix: {{{axis}}}\n")
    assert _names(suite) == ["seed-1", "seed-2"]
    assert [run.plan.tasks[0].options for run in suite.runs] == [{"seed": 1}, {"seed": 2}]
    assert [(run.plan.seed, run.attributes) for run in suite.runs] == [(0, {}), (0, {})]


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("protocol: [{seed: 1, label: a}]", "did you mean `protocol: {seed: 1}`"),
        ("protocol: [{seed: 1, model: b}]", "seed together with model: did you mean"),
        ("protocol: [{temperature: 1, attributes: {a: 1}}]", "`protocol: {temperature: 1}`"),
        ("limits: [{concurrency: 2, model: b}]", "did you mean `limits: {concurrency: 2}`"),
        ("connection: [{api_key_env: K, label: a}]", "`connection: {api_key_env: K}`"),
        ("verdict: [{paired: {margin: 2}, label: a}]", "`verdict: {paired: {margin: 2}}`"),
        ("launcher: [{simulated: {}, label: a}]", "did you mean `launcher: {simulated: {}}`"),
        ("sampling_seed: [one]", "expected a seed, a whole number, not 'one'"),
        ("sampling_seed: [true]", "expected a seed, a whole number, not True"),
        ("sampling_seed: [{label: a, seed: 1}]", "expected a seed, a whole number"),
        ("temperature: [0, 0.7]", "Did you mean the axis `protocol: [{temperature: 0.7}]`"),
        ("run: [{label: a, sampling_seed: 1}]", "Did you mean `protocol: {seed: 1}`"),
        ("{sampling_seed: [1], protocol: [{seed: 2}]}", "asked with seed 2, not 1"),
        ("{sampling_seed: [1], tasks: [{gsm8k: {seed: 3}}]}", "asked with seed 3, not 1"),
    ],
)
def test_an_axis_that_could_mean_two_things_is_refused(tmp_path, axis, said):
    text = axis if axis.startswith("{") else f"{{{axis}}}"
    assert said in _problems(tmp_path, f"{ASKED}matrix: {text}\n")


@pytest.mark.parametrize(
    "axis",
    [
        "protocol: [{protocol: {seed: 4}, label: a}]",
        "limits: [{model: m2}]",
        "limits: [{limits: {concurrency: 2}, attributes: {a: 1}}]",
        "verdict: [{name: paired, margin: 3}]",
        "protocol: [{seed: 1, temperature: 0.5, num_fewshot: 3}]",
        "protocol: [{label: plain}]",
    ],
)
def test_an_axis_that_means_one_thing_is_read(tmp_path, axis):
    assert len(_names(_read(tmp_path, f"{ASKED}matrix: {{{axis}}}\n"))) == 1
