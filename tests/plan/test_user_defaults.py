"""The user's defaults file: what it may hold, who may write it, and what overrides it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.plan.settings import read_defaults
from tests.cli.command import serve_eval

RUN = ("run", "-t", "passkey_short", "--no-reference", "--dry-run", "--json", "-m", "m")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file, in a folder of its own; the current folder is another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "config/serve-eval/config.yaml"
    file.parent.mkdir(parents=True)
    return file


def _plan(*more: str, **environ: str) -> tuple[dict[str, Any], list[str]]:
    done = serve_eval(*RUN, *more, **environ)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["plan"], done.stderr.splitlines()


def test_a_flag_overrides_a_variable_that_a_plan_that_the_defaults(config: Path) -> None:
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


def test_each_flag_is_named_and_no_variable_that_is_not_set(config: Path) -> None:
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
def test_what_the_file_may_not_hold_is_refused_with_its_line(
    config: Path, text: str, message: str
) -> None:
    config.write_text(f"# mine\n{text}\n")
    done = serve_eval(*RUN)
    assert done.returncode == 2
    assert f"{config}" in done.stderr
    assert message in done.stderr


def test_a_file_that_others_can_write_is_refused(config: Path) -> None:
    config.write_text("no_prompts: true\n")
    assert read_defaults().content == {"no_prompts": True}
    for mode in (0o620, 0o602):
        config.chmod(mode)
        with pytest.raises(PlanError, match="another user could have written it"):
            read_defaults()


def test_no_file_of_the_current_folder_is_read(config: Path) -> None:
    for name in ("config.yaml", ".serve-eval.yaml", "serve-eval/config.yaml"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("limits: {concurrency: 3}\n")
    for place in ("", "."):
        assert read_defaults({"XDG_CONFIG_HOME": place, "HOME": "/nowhere"}).content == {}
    plan, _ = _plan()
    assert plan["limits"]["concurrency"] == 64


def test_commands_with_an_endpoint_as_argument_read_it_too(config: Path) -> None:
    config.write_text("references_dir: /nowhere/else\n")
    done = serve_eval("references", "take", "127.0.0.1:9", "-t", "gsm8k", "-m", "m")
    assert done.returncode == 2
    config.write_text("limits: {concurrency: 0}\n")
    done = serve_eval("check", "load", "127.0.0.1:9", "-t", "passkey_short", "-m", "m")
    assert (done.returncode, "concurrency" in done.stderr) == (2, True), done.stderr
