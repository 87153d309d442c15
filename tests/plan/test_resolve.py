"""Test how a plan is resolved, and refused where requests are too large."""

from pathlib import Path

import pytest

from serve_eval.datasets import small_media
from serve_eval.datasets.media import video_part
from serve_eval.errors import PlanError
from serve_eval.evaluation.preflight import check_sizes
from serve_eval.plan.plan_file import to_file
from serve_eval.plan.resolve import resolve, resolve_address
from serve_eval.plan.shared_options import read_expected
from serve_eval.schema import (
    AccuracySpec,
    Connection,
    Limits,
    Message,
    Plan,
    Sample,
    Spec,
    TextPart,
)
from serve_eval.yaml_source import parse

FULL = """\
model: meta-llama/Llama-3.1-8B-Instruct
base_url: host:8000
tasks:
  - mmlu
  - gsm8k: {num_fewshot: 4, filter: strict-match}
accuracy_spec: {quant_algo: FP8, kv_cache_quant_algo: FP8}
dataset_root: /data
limit: 200
seed: 3
limits: {concurrency: 8, stall_timeout_s: 30}
connection:
  headers: {X-Team: evals, Authorization: "Bearer ${MY_KEY}"}
  proxy: http://proxy:3128
verdict: {classic: {max_missing: 0.01}}
output_dir: out
"""


def _plan(text=FULL, settings=None, environ=None):
    return resolve(parse(text, "plan.yaml", PlanError).value, settings or {}, environ or {}).plan


def _problems(text=FULL, settings=None, environ=None):
    document = parse(text, "plan.yaml", PlanError)
    with pytest.raises(PlanError) as caught:
        resolve(
            document.value,
            settings or {},
            environ or {},
            lambda *path: f"plan.yaml:{document.line(*path)}: ",
        )
    return str(caught.value)


def test_a_full_file_becomes_a_plan():
    plan = _plan()
    assert plan.model == "meta-llama/Llama-3.1-8B-Instruct"
    assert plan.launcher == Spec(name="external", options={"base_url": "http://host:8000/v1"})
    assert plan.tasks == (
        Spec(name="mmlu"),
        Spec(name="gsm8k", options={"num_fewshot": 4, "filter": "strict-match"}),
    )
    assert plan.accuracy_spec == AccuracySpec(quant_algo="FP8", kv_cache_quant_algo="FP8")
    assert (plan.limit, plan.seed, plan.limits.concurrency, plan.limits.stall_timeout_s) == (
        200,
        3,
        8,
        30.0,
    )
    assert plan.verdict == Spec(name="classic", options={"max_missing": 0.01})


def test_a_plan_written_out_and_read_again_is_the_same():
    for plan in (
        _plan(),
        _plan("tasks: [gsm8k]\n"),
        _plan("tasks: [gsm8k]\nearly_stop: true\n"),
        _plan("tasks: [gsm8k]\nlauncher: {name: simulated, accuracy: 0.7}\n"),
    ):
        assert resolve(to_file(plan), {}, {}).plan == plan


def test_flags_and_file_with_the_same_content_give_the_same_plan():
    settings = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "base_url": "http://host:8000/v1/completions",
        "tasks": ["mmlu", "gsm8k"],
        "set": ["gsm8k.num_fewshot=4", "gsm8k.filter=strict-match", "verdict.max_missing=0.01"],
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "dataset_root": "/data",
        "limit": 200,
        "seed": 3,
        "concurrency": 8,
        "stall_timeout_s": 30.0,
        "headers": {"X-Team": "evals", "Authorization": "Bearer ${MY_KEY}"},
        "proxy": "http://proxy:3128",
    }
    assert _plan("{}", settings) == _plan()


def test_flags_beat_environment_beats_file():
    assert (
        _plan(environ={"OPENAI_BASE_URL": "env:1"}).launcher.options["base_url"]
        == "http://env:1/v1"
    )
    both = _plan(settings={"base_url": "flag:1"}, environ={"OPENAI_BASE_URL": "env:1"})
    assert both.launcher.options["base_url"] == "http://flag:1/v1"
    assert _plan(settings={"limit": 5, "quant_algo": "NVFP4"}).limit == 5


def test_tasks_chosen_by_flag_keep_their_options_of_the_file():
    assert _plan(settings={"tasks": ["gsm8k"]}).tasks == (
        Spec(name="gsm8k", options={"num_fewshot": 4, "filter": "strict-match"}),
    )


def test_an_address_by_flag_replaces_the_launcher_of_the_file_but_an_inherited_variable_does_not():
    text = "tasks: [gsm8k]\nlauncher: {name: simulated}\n"
    assert _plan(text, {"base_url": "h:1"}).launcher.name == "external"
    assert _plan(text, environ={"OPENAI_BASE_URL": "h:1"}).launcher.name == "simulated"


def test_an_address_by_flag_keeps_the_other_options_of_an_external_endpoint():
    text = "tasks: [gsm8k]\nlauncher: {name: external, base_url: 'old:1', ready_timeout_s: 5}\n"
    assert _plan(text, {"base_url": "new:1"}).launcher.options == {
        "base_url": "http://new:1/v1",
        "ready_timeout_s": 5,
    }
    assert (
        _plan("tasks: [gsm8k]\nlauncher:\n", {"launcher": "simulated"}).launcher.name == "simulated"
    )


def test_without_an_address_the_default_port_of_trtllm_serve_is_meant():
    assert _plan("tasks: [gsm8k]\n").launcher.options["base_url"] == "http://localhost:8000/v1"


def test_the_suites_variables_are_honoured():
    plan = _plan(
        environ={
            "TRTLLM_ACCURACY_NO_REFERENCE": "1",
            "INTEGRATION_TEST": "1",
            "LLM_MODELS_ROOT": "/models",
        }
    )
    assert plan.allow_missing_reference
    assert not plan.no_reference
    assert plan.integration_test
    assert plan.dataset_roots == ("/data", "/models/datasets", "/models")


@pytest.mark.parametrize(("given", "eps"), [("true", 0.01), ("false", None), ("0.05", 0.05)])
def test_an_early_stop_is_a_switch_or_a_probability(given, eps):
    assert _plan(f"tasks: [gsm8k]\nearly_stop: {given}\n").early_stop == eps


def test_set_values_are_yaml():
    plan = _plan(
        "{}",
        {"tasks": ["gsm8k"], "set": ["gsm8k.truncate_prompt_tokens=null", "gsm8k.stop=[a, b]"]},
    )
    assert plan.tasks[0].options == {"truncate_prompt_tokens": None, "stop": ["a", "b"]}


def test_every_problem_is_reported_at_once_with_its_place():
    text = """\
model: 3
task: [gsm8k]
tasks:
  - gsm8k: {num_fewsho: 3, max_tokens: many}
  - mlu
limit: 0
limits: {concurrency: -1, speed: 9}
launcher: {name: simulatd}
api_key: sk-abcdefgh
"""
    found = _problems(text)
    for part in (
        "plan.yaml:1: model: ",
        "plan.yaml:2: task: unknown key. Did you mean 'tasks'?",
        "plan.yaml:4: tasks[0].gsm8k.num_fewsho: unknown option. Did you mean 'num_fewshot'?",
        "plan.yaml:4: tasks[0].gsm8k.max_tokens: ",
        "plan.yaml:5: tasks[1].mlu: unknown task 'mlu'. Did you mean 'mmlu'?",
        "plan.yaml:6: limit: must be 1 or more",
        "plan.yaml:7: limits.concurrency: must be above 0",
        "plan.yaml:7: limits.speed: unknown key.",
        "plan.yaml:8: launcher: unknown launcher 'simulatd'. Did you mean 'simulated'?",
        "plan.yaml:9: api_key: keys are read from the environment only",
    ):
        assert part in found
    assert "sk-abcdefgh" not in found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tasks: []\n", "name at least one task"),
        ("model: m\n", "name at least one task"),
        ("tasks: gsm8k\n", "expected a list"),
        ("tasks: [gsm8k, gsm8k]\n", "gsm8k is listed twice"),
        ("tasks: [[gsm8k]]\n", "tasks[0]: expected a name"),
        ("tasks: [{gsm8k: {fewshot_as_multiturn: true}}]\n", "needs apply_chat_template"),
        ("tasks: [gsm8k]\nlimits: 3\n", "limits: expected a mapping"),
        ("tasks: [gsm8k]\nbase_url: 'http://me:pw@host'\n", "credentials"),
        (
            "tasks: [gsm8k]\nbase_url: h:1\nlauncher: {name: simulated}\n",
            "base_url: cannot be used with the launcher",
        ),
        ("tasks: [gsm8k]\nreferences_dir: /nowhere/at/all\n", "is not a folder"),
        ("tasks: [gsm8k]\nearly_stop: 1.5\n", "early_stop: must be true, false, or a probability"),
        ("tasks: [gsm8k]\nearly_stop: soon\n", "early_stop: Expected"),
        (
            "tasks: [gsm8k]\nearly_stop: true\nlimits: {order: longest}\n",
            "early_stop: needs the random order of samples",
        ),
        (
            "tasks: [gsm8k]\nearly_stop: 0.05\nverdict: elsewhere\n",
            (
                "early_stop: works with the rules classic, noninferiority, paired, not with"
                " 'elsewhere'"
            ),
        ),
        (
            "tasks: [gsm8k]\nverdict: clasic\n",
            "unknown verdict rule 'clasic'. Did you mean 'classic'?",
        ),
    ],
)
def test_a_bad_plan_says_what_is_wrong(text, message):
    assert message in _problems(text)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"set": ["gsm8k.num_fewshot"]}, "expected NAME.OPTION=VALUE"),
        (
            {"set": ["gsmk.num_fewshot=3"]},
            "'gsmk' is not a task of this run. Did you mean 'gsm8k'?",
        ),
        ({"headers": {"Authorization": "Bearer sk-abcdefgh"}}, "looks like a secret"),
        ({"headers": {"X-Api-Key": "sk-abcdefgh"}}, "looks like a secret"),
        ({"headers": {"X-Whatever": "sk-abcdefgh"}}, "looks like a secret"),
        ({"headers": {"Authorization": "sk-abcdefgh"}}, "looks like a secret"),
        ({"headers": {"authorization": "Token sk-abcdefgh"}}, "looks like a secret"),
        ({"headers": {"Proxy-Authorization": "plain-sk-abcdefgh"}}, "looks like a secret"),
        ({"proxy": "http://me:sk-abcdefgh//@proxy:1"}, "credentials"),
        ({"proxy": "http://[zz"}, "expected http://host:port"),
        ({"proxy": "proxy:3128"}, "expected http://host:port"),
        ({"api_key_env": "hf_AbCdEf1234567890"}, "expected the name of an environment variable"),
        ({"proxy": "http://me:sk-abcdefgh@proxy"}, "credentials"),
        ({"limit": 0}, "limit: must be 1 or more"),
    ],
)
def test_bad_settings_say_what_is_wrong_and_repeat_no_secret(settings, message):
    found = _problems(settings=settings)
    assert message in found
    assert "sk-abcdefgh" not in found


def test_a_relative_path_is_made_absolute_so_that_a_run_can_be_resumed_from_elsewhere():
    assert _plan("tasks: [gsm8k]\ndataset_root: data\n").dataset_roots == (
        str(Path("data").absolute()),
    )


def test_the_way_to_an_endpoint_is_that_of_a_run_without_its_tasks():
    settings = {
        "base_url": "host:8000",
        "model": "m",
        "headers": {"X-Team": "evals"},
        "proxy": "http://proxy:1",
    }
    alone, whole = resolve_address(settings, {}), _plan("tasks: [gsm8k]\n", settings)
    assert (alone.model, alone.launcher, alone.connection) == (
        whole.model,
        whole.launcher,
        whole.connection,
    )
    assert alone.tasks == ()
    told = resolve_address({}, {"OPENAI_BASE_URL": "http://other/v1"}).launcher.options["base_url"]
    assert told == "http://other/v1"
    bad = {"base_url": "ftp://h", "proxy": "nonsense", "headers": {"X-Key": "sk-abcdefgh"}}
    with pytest.raises(PlanError) as caught:
        resolve_address(bad, {})
    assert len(caught.value.problems) == 3
    assert "sk-abcdefgh" not in str(caught.value)


FILE = {"tasks": ["word_problems"], "expect": {"kv_transfer": True, "speculation": True}}


def test_flags_come_after_the_plan_name_by_name():
    assert resolve(FILE, {}, {}).plan.expect == FILE["expect"]
    flags = {"expect": read_expected(["speculation=false,prefix_cache", "deterministic=true"])}
    assert resolve(FILE, flags, {}).plan.expect == {
        "kv_transfer": True,
        "speculation": False,
        "prefix_cache": True,
        "deterministic": True,
    }


@pytest.mark.parametrize(
    ("expect", "message"),
    [
        ({"kv_transfers": True}, "expect.kv_transfers: unknown part of a path. Did you mean"),
        ({"kv_transfer": "yes"}, "expect: Expected `bool`"),
    ],
)
def test_what_no_run_can_prove_is_refused(expect, message):
    with pytest.raises(PlanError) as raised:
        resolve({**FILE, "expect": expect}, {}, {})
    assert message in str(raised.value)


def test_a_flag_takes_true_or_false():
    with pytest.raises(PlanError, match="expected speculation, speculation=true or"):
        read_expected(["speculation=no"])


DOT = Path(small_media.__file__).with_name("dot.mp4")
BYTES = (DOT.stat().st_size + 2) // 3 * 4 + len("Hi")


def _check(most, *parts, send_media="inline"):
    plan = Plan(
        model="m",
        launcher=Spec(name="external"),
        tasks=(),
        connection=Connection(send_media=send_media),
        limits=Limits(max_request_bytes=most),
    )
    samples = [
        Sample(
            id=str(number),
            prompt=(Message(role="user", content=(TextPart(text="Hi"), *parts[:number])),),
            target="",
        )
        for number in range(1 + len(parts))
    ]
    check_sizes("t", [*samples, Sample(id="text", prompt="x" * 9999, target="")], plan)


def test_a_request_of_the_largest_size_is_sent():
    _check(BYTES, video_part(DOT))
    _check(BYTES + len("data:video/mp4;base64,"), small_media.dot())


def test_a_larger_request_is_refused_with_what_to_do():
    with pytest.raises(PlanError) as refused:
        _check(BYTES - 1, video_part(DOT), video_part(DOT))
    assert str(refused.value) == (
        f"t: the request of sample 2 has {2 * BYTES - 2:,} bytes; the limit is {BYTES - 1:,},"
        " and 1 more requests exceed it"
    )
    assert "--set connection.send_media=path" in refused.value.hint
    with pytest.raises(PlanError, match="the limit is 99"):
        _check(99, small_media.dot())


def test_a_path_is_no_large_request():
    _check(999, video_part(DOT), video_part(DOT), send_media="path")


@pytest.mark.parametrize(
    ("text", "settings", "rule"),
    [
        ("", {"set": ["verdict.margin=2"]}, Spec(name="paired", options={"margin": 2})),
        (
            "verdict: noninferiority\n",
            {"set": ["verdict.margin=2"]},
            Spec(name="noninferiority", options={"margin": 2}),
        ),
        (
            "",
            {"set": ["verdict.max_missing=0.1"]},
            Spec(name="classic", options={"max_missing": 0.1}),
        ),
        ("", {}, Spec(name="classic")),
    ],
)
def test_a_margin_alone_chooses_the_rule_that_has_one(text, settings, rule):
    plan = _plan(f"model: m\ntasks: [word_problems]\nbase_url: h:1\n{text}", settings)
    assert (plan.verdict, plan.rule_named) == (rule, bool(text or settings))


def test_a_margin_of_another_rule_is_refused():
    text = "model: m\ntasks: [word_problems]\nbase_url: h:1\nverdict: classic\n"
    assert "verdict.margin: unknown option" in _problems(text, {"set": ["verdict.margin=2"]})
