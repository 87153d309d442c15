"""Test options of a plan from its file, --set, and the defaults of a user."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.options import IN_A_PLAN, ProtocolOptions, keys_in_file
from serve_eval.plan.plan_file import KEYS, NOT_SAVED, SECTIONS, to_file
from serve_eval.plan.resolve import resolve
from serve_eval.plan.settings import CHOICES, read_defaults, spread_keys
from serve_eval.plugins.setting import list_declared
from serve_eval.schema import AccuracySpec, Connection, Limits, Plan, Spec
from tests.cli.command import serve_eval

PLAN = {
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
    "accept_identical": True,
    "gpus": 8,
    "end_when_certain": True,
    "no_prompts": True,
    "no_media": True,
    "server_defaults": "keep",
    "expect": {"kv_transfer": True, "speculation": False},
    "accuracy_spec": {"quant_algo": "FP8"},
    "connection": {"proxy": "http://proxy:1"},
    "limits": {"concurrency": 3},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_every_field_of_a_section_is_an_option(name):
    options = {key.partition(".")[2] for key, _ in keys_in_file() if key.startswith(f"{name}.")}
    assert options == {field.name for field in fields(SECTIONS[name])}


def test_every_key_is_saved_or_is_known_not_to_be():
    saved = to_file(resolve(PLAN, {}, {}).plan)
    assert set(PLAN) - {"include_path"} == set(saved)
    assert {*PLAN, "references_dir", *NOT_SAVED} == set(KEYS)


def test_a_saved_plan_is_the_same_plan():
    plan = resolve(PLAN, {}, {}).plan
    assert resolve(to_file(plan), {}, {}).plan == plan


WORDS = ("a", "drawn")
"""First words of defaults that are not values."""


def _told_defaults():
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
def test_the_default_that_the_help_tells_is_that_of_the_plan(option, told):
    nouns = {"accuracy_spec": AccuracySpec(), "connection": Connection(), "limits": Limits()}
    plan = Plan(model=None, launcher=resolve({"tasks": ["gsm8k"]}, {}, {}).plan.launcher, tasks=())
    section, _, name = option.key.rpartition(".")
    default = getattr(nouns.get(section, plan), name, None)
    shown = default.name if isinstance(default, Spec) else default
    assert float(told) == shown if isinstance(shown, int | float) else told == shown


def test_no_flag_is_declared_twice():
    flags = [
        flag
        for structure in (*IN_A_PLAN, ProtocolOptions)
        for one in list_declared(structure)
        for flag in one.flags
    ]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["limits.concurrency=8"], {"concurrency": 8}),
        (["limits.concurrency=auto"], {"concurrency": "auto"}),
        (["limits.rate_limit=1e-3"], {"rate_limit": 0.001}),
        (["limits.rate_limit=inf"], {"rate_limit": float("inf")}),
        (["limits.rate_limit=fast"], {"rate_limit": "fast"}),
        (["limits.known_finish_reasons=it's over"], {"known_finish_reasons": ["it's over"]}),
        (["limits.known_finish_reasons=7"], {"known_finish_reasons": ["7"]}),
        (["limits.known_finish_reasons=[a, b]"], {"known_finish_reasons": ["a", "b"]}),
        (
            ["limits.known_finish_reasons=a", "limits.known_finish_reasons=b"],
            {"known_finish_reasons": ["a", "b"]},
        ),
        (["connection.headers={X-Team: evals}"], {"headers": {"X-Team": "evals"}}),
        (["include_path=/a"], {"include_path": ["/a"]}),
        (["include_path=/a b", "include_path=[/c]"], {"include_path": ["/a b", "/c"]}),
        (["protocol.max_tokens=99"], {CHOICES: {"max_tokens": 99}}),
        (["protocol.thinking=off"], {CHOICES: {"thinking": "off"}}),
        (['protocol.extra_body={"top_k": 1}'], {CHOICES: {"extra_body": {"top_k": 1}}}),
        (["protocol.extra_body={top_k: 1}"], {CHOICES: {"extra_body": {"top_k": 1}}}),
        (["gsm8k.num_samples=9"], {"set": ["gsm8k.num_samples=9"]}),
    ],
)
def test_a_value_is_that_of_a_plan_file(texts, found):
    assert spread_keys({"set": texts}) == found


def test_the_texts_of_a_list_replace_those_of_a_variable():
    of_variable = {"known_finish_reasons": ["c"], "set": ["limits.known_finish_reasons=a"]}
    assert spread_keys(of_variable) == {"known_finish_reasons": ["a"]}


def test_what_is_no_mapping_is_refused():
    with pytest.raises(PlanError, match="extra_body is not valid JSON"):
        spread_keys({"set": ["protocol.extra_body=top_k"]})


RUN = ("run", "-t", "passkey_short", "--no-reference", "--dry-run", "--json", "-m", "m")


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Return the file, in a folder of its own; the current folder is another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config/serve-eval/config.yaml"
    file.parent.mkdir(parents=True)
    return file


def _plan(*more, **environ):
    done = serve_eval(*RUN, *more, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["plan"], done.stderr.splitlines()


def test_a_flag_overrides_a_variable_that_a_plan_that_the_defaults(config):
    config.write_text("limits: {concurrency: 5, order: natural, stream: true}\ndataset_root: /d\n")
    plan, said = _plan()
    assert (plan["limits"]["concurrency"], plan["dataset_root"]) == (5, ["/d"])
    assert said == [
        "from flags: model, tasks, no_reference",
        f"from {config}: dataset_root, limits.concurrency, limits.order, limits.stream",
    ]
    Path("p.yaml").write_text("limits: {concurrency: 6, order: longest}\n")
    plan, _ = _plan("p.yaml")
    assert (plan["limits"]["concurrency"], plan["limits"]["order"]) == (6, "longest")
    assert plan["limits"]["stream"] is True
    plan, said = _plan("p.yaml", SERVE_EVAL_CONCURRENCY="7")
    assert plan["limits"]["concurrency"] == 7
    assert "from variables: limits.concurrency" in said
    assert "from p.yaml: limits.order" in said
    plan, said = _plan("p.yaml", "--concurrency", "8", SERVE_EVAL_CONCURRENCY="7")
    assert plan["limits"]["concurrency"] == 8
    assert not [line for line in said if line.startswith("from variables")]


def test_each_flag_is_named_and_no_variable_that_is_not_set(config):
    hot = (
        "--temperature",
        "0.5",
        "--set",
        "protocol.seed=7",
        "--set",
        "passkey_short.num_samples=9",
    )
    _, said = _plan(*hot)
    assert said == [
        "from flags: model, tasks, set, no_reference, protocol.temperature, protocol.seed"
    ]
    _, said = _plan("--set", "protocol.seed=7", "--set", "expect.kv_transfer=false")
    assert said == ["from flags: model, tasks, no_reference, expect, protocol.seed"]
    _, said = _plan("--set", "protocol.seed=7", SERVE_EVAL_SET="limits.stream=true")
    assert said == ["from flags: model, tasks, no_reference, protocol.seed"]
    _, said = _plan(SERVE_EVAL_SET="limits.stream=true")
    assert "from variables: limits.stream" in said
    _, said = _plan(SERVE_EVAL_TEMPERATURE="0.5", SERVE_EVAL_SET="passkey_short.num_samples=9")
    assert "from variables: set, protocol.temperature" in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dataset_rot: /d", "dataset_rot: unknown key. Did you mean 'dataset_root'?"),
        ("limits: {concurency: 1}", "concurency: unknown key. Did you mean 'concurrency'?"),
        ("limits: {concurrency: many}", "limits.concurrency"),
        ("no_prompts: 3", "no_prompts"),
        ("dataset_root: data", "data is not absolute"),
        ("- 1", "expected a mapping"),
        *(
            (f"{key}: x", "not allowed here, since it decides what is asked, judged or reached")
            for key in ("base_url", "include_path", "launcher", "connection", "protocol", "verdict")
        ),
        ("allow_code_execution: true", "not allowed here"),
        ("api_key: sk-1", "unknown key"),
    ],
)
def test_what_the_file_may_not_hold_is_refused_with_its_line(config, text, message):
    config.write_text(f"# mine\n{text}\n")
    done = serve_eval(*RUN)
    assert done.returncode == 2
    assert f"{config}" in done.stderr
    assert message in done.stderr


def test_a_file_that_others_can_write_is_refused(config):
    config.write_text("no_prompts: true\n")
    assert read_defaults().content == {"no_prompts": True}
    for mode in (0o620, 0o602):
        config.chmod(mode)
        with pytest.raises(PlanError, match="another user could have written it"):
            read_defaults()


def test_no_file_of_the_current_folder_is_read(config):
    for name in ("config.yaml", ".serve-eval.yaml", "serve-eval/config.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("limits: {concurrency: 3}\n")
    for place in ("", "."):
        assert read_defaults({"XDG_CONFIG_HOME": place, "HOME": "/nowhere"}).content == {}
    plan, _ = _plan()
    assert plan["limits"]["concurrency"] == 64


def test_commands_with_an_endpoint_as_argument_read_it_too(config):
    config.write_text("references_dir: /nowhere/else\n")
    done = serve_eval("references", "take", "127.0.0.1:9", "-t", "gsm8k", "-m", "m")
    assert done.returncode == 2
    config.write_text("limits: {concurrency: 0}\n")
    done = serve_eval("check", "load", "127.0.0.1:9", "-t", "passkey_short", "-m", "m")
    assert (done.returncode, "concurrency" in done.stderr) == (2, True), done.stderr
