"""Completion in a real bash, and the words that it offers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.cli._commands import COMMANDS
from serve_eval.cli.setup_completion import SCRIPTS, complete
from tests.cli.command import environment, serve_eval


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("20261101_a", "20261102_b"):
        Path("outputs", name).mkdir(parents=True)
    Path("outputs/latest").symlink_to("20261102_b")


@pytest.mark.parametrize(
    ("before", "incomplete", "offered"),
    [
        ("", "ve", ["verify"]),
        ("", "re", ["references"]),
        ("data cases", "ex", ["expand"]),
        ("check", "", ["load", "invariants", "tools", "workers"]),
        ("", "--v", ["--version"]),
        ("references", "re", ["register"]),
        ("references", "t", ["take"]),
        ("run", "--base", ["--base-url"]),
        ("run", "--api-key", ["--api-key-env"]),
        ("run --tasks", "gsm8k,passkey_s", ["gsm8k,passkey_short"]),
        ("run -t", "longbench_v", ["longbench_v1", "longbench_v2"]),
        ("run --launcher", "trtllm", ["trtllm", "trtllm_disaggregated"]),
        ("run --verdict", "no", ["noninferiority"]),
        ("run --resume", "", ["latest", "outputs/20261102_b", "outputs/20261101_a"]),
        ("show", "outputs/20261101", ["outputs/20261101_a"]),
        ("compare", "l", ["latest"]),
        ("references take host:8000 -t", "passkey_sh", ["passkey_short"]),
        ("references show", "gsm8k_inferencem", ["gsm8k_inferencemax"]),
        ("data fetch", "gsm", ["gsm8k"]),
        ("data list", "l", ["launchers"]),
        ("run --set", "limits.order", ["limits.order=", "limits.order_seed="]),
        ("smoke host:8000 --set", "connection.prox", ["connection.proxy="]),
        ("run -t gsm8k --set", "gsm8k.num_f", ["gsm8k.num_fewshot="]),
        ("run --launcher embedded --set", "launcher.dam", ["launcher.damage="]),
        ("show nothing", "", []),
        ("run", "pla", []),
        ("run --model", "x", []),
        ("nothing", "x", []),
        ("references nothing", "x", []),
    ],
)
@pytest.mark.usefixtures("runs")
def test_the_words_that_are_offered(before: str, incomplete: str, offered: list[str]) -> None:
    assert complete(before.split(), incomplete) == offered


def test_every_command_offers_its_options() -> None:
    assert complete([], "") == ["--help", "--version", *COMMANDS]
    for name in COMMANDS:
        offered = complete([name], "--")
        assert "--help" in offered or offered == [], name


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.usefixtures("runs")
def test_bash_completes_commands_options_and_runs(tmp_path: Path) -> None:
    """The script is sourced by a bash that then completes as it does on the tab key."""
    program = tmp_path / "bin/serve-eval"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m serve_eval "$@"\n')
    program.chmod(0o755)
    ask = """
eval "$(serve-eval setup completion bash)"
complete -p serve-eval
try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _serve_eval serve-eval; echo "${COMPREPLY[*]}"; }
try serve-eval smo
try serve-eval run --launcher embed
try serve-eval show ''
"""
    variables = environment()
    variables["PATH"] = f"{program.parent}:{variables['PATH']}"
    variables["PYTHONPATH"] = str(Path(__file__).parents[2])
    done = subprocess.run(
        ["bash", "-c", ask], env=variables, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "complete -o bashdefault -o default -F _serve_eval serve-eval",
        "smoke",
        "embedded",
        "latest outputs/20261102_b outputs/20261101_a",
    ]


def test_the_samples_of_a_run_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("-t", "word_problems", "--limit", "4", "--no-reference")
    assert serve_eval("run", "--launcher", "simulated", *asked, "-o", "out").returncode == 3
    offered = complete(["show", "out"], "test-")
    assert len(offered) == 4
    assert complete(["show", "--task", "word_problems", "out", offered[0]], "test-") == offered


FISH = """
source SCRIPT
complete -C 'serve-eval smo'
complete -C 'serve-eval run --set limits.outag'
"""
ZSH = """
compadd() { print -r -- "$@" }
compdef() { : }
source SCRIPT
words=(serve-eval smo); CURRENT=2; _serve_eval
words=(serve-eval run --set limits.order_); CURRENT=4; _serve_eval
"""


@pytest.mark.parametrize(
    ("shell", "script", "told"),
    [
        ("fish", FISH, ["smoke", "limits.outage_timeout_s="]),
        ("zsh", ZSH, ["-S  --", "-- smoke", "-S  -- limits.order_seed=", "--"]),
    ],
)
def test_fish_and_zsh_complete(shell: str, script: str, told: list[str], tmp_path: Path) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "serve-eval").write_text(f'#!/bin/sh\nexec {sys.executable} -m serve_eval "$@"\n')
    (tmp_path / "serve-eval").chmod(0o755)
    (tmp_path / "script").write_text(SCRIPTS[shell])
    variables = environment() | {"PYTHONPATH": str(Path(__file__).parents[2])}
    variables["PATH"] = f"{tmp_path}:{variables['PATH']}"
    asked = script.replace("SCRIPT", str(tmp_path / "script"))
    done = subprocess.run(
        [program, "-c", asked],
        env=variables, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout.splitlines() == told


def test_each_shell_has_a_script_and_another_is_refused() -> None:
    for shell, script in SCRIPTS.items():
        assert serve_eval("setup", "completion", shell).stdout == script
        if program := shutil.which(shell):
            subprocess.run([program, "-n", "-c", script], check=True, timeout=20)
    refused = serve_eval("setup", "completion", "zsch")
    assert (refused.returncode, "Did you mean 'zsh'" in refused.stderr) == (2, True)
