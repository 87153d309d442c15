"""`serve-eval data list KIND NAME` shows the type, default and meaning of each option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from serve_eval.cli._described import WIDTH, describe_plugin, describe_task
from serve_eval.datasets.known import KNOWN
from serve_eval.datasets.local import find_sources
from serve_eval.errors import DatasetError
from serve_eval.plugins import registry
from serve_eval.plugins.declarations import options
from serve_eval.protocol import shared
from serve_eval.schema import DataRoots, Spec
from tests.cli.command import serve_eval

LAUNCHERS = registry.list_shipped("serve_eval.launchers")
TASKS = registry.list_shipped(shared.TASKS)
WITHOUT_LOAD = ("cases", "lm_eval", "longbench_v1")
"""Families, and a task that needs the extra lm-eval before its data."""


def _list(*arguments: str) -> str:
    done = serve_eval("data", "list", *arguments, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_option_of_every_launcher_is_described(name: str) -> None:
    found = options(registry.function("serve_eval.launchers", name))
    paths = [option.path for option in found]
    assert [
        option.path for option in found if not re.fullmatch(r"[A-Za-z].*\.", option.meaning)
    ] == []
    lines = describe_plugin("serve_eval.launchers", name)
    assert max(map(len, lines)) <= WIDTH
    shown = [line for line in lines if re.match(r"  \S", line)]
    assert [line.split()[0] for line in shown] == paths
    assert not re.search(r"NoneType|Struct|typing|<", "\n".join(lines))


def test_nested_options_are_described_by_type_and_default() -> None:
    told = _list("launchers", "trtllm_disaggregated")
    for text in (
        (
            "  context_servers (has its own options, listed below)\n      Servers that process"
            " prompts.\n"
        ),
        "  generation_servers.num_instances (whole number; 1)\n      Number of these servers.\n",
        "  generation_servers.env (mapping of texts; empty)\n",
        "  gpus (auto or list of whole numbers or texts; not set)\n",
        "  cache_transceiver (mapping; {backend: UCX})\n",
        "  ready_timeout_s (number; 3600)\n",
        "\nSet them with --set launcher.OPTION=VALUE, or below launcher in a plan.\n",
    ):
        assert text in told


def test_the_list_of_launchers_is_short() -> None:
    told = _list("launchers").splitlines()
    assert len(told) <= 2 * len(LAUNCHERS) + 2
    assert "context_servers" not in "".join(told)
    assert told[-2] == "  options of one: serve-eval data list launchers NAME"


def test_what_is_called_alike_may_mean_something_else() -> None:
    lines = describe_plugin("serve_eval.launchers", "slurm")
    at = lines.index("  container.engine (pyxis or docker or podman; pyxis)")
    assert "plug-in of SLURM" in lines[at + 1]
    assert "  image (text; required)" not in lines
    assert "  container.image (text; required)" in lines


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_described_with_its_data_and_every_option(name: str) -> None:
    found = options(registry.function(shared.TASKS, name))
    assert [one.path for one in found if not re.fullmatch(r"[A-Z].*\.", one.meaning)] == []
    lines = describe_task(name)
    assert max(map(len, lines)) <= WIDTH
    below = lines[lines.index("Options:") :]
    shown = [line.split()[0] for line in below if re.match(r"  \S", line)]
    assert shown == [one.path for one in found]
    assert not re.search(r"NoneType|typing|Annotated", "\n".join(lines))


@pytest.mark.parametrize("name", [name for name in TASKS if name not in WITHOUT_LOAD])
def test_a_task_names_its_data_if_it_cannot_do_without(name: str, tmp_path: Path) -> None:
    task = shared.usual_task(Spec(name=name))
    if not task.datasets:
        assert task.load(DataRoots(roots=(tmp_path,)), 2).samples
        return
    with pytest.raises(DatasetError) as caught:
        task.load(DataRoots(roots=(tmp_path,)), 2)
    source, hint = find_sources()[task.datasets[0]], caught.value.hint
    fetch = f"serve-eval data fetch {task.datasets[0]}"
    assert (fetch if source.urls or source.hub else f"Put a copy from {source.homepage}") in hint


def test_a_control_needs_no_reference() -> None:
    name = "mixed_modality_video_audio_omni"
    assert f"  references  none needed: compared with {name}" in describe_task(f"{name}_alone")


def test_a_data_set_that_cannot_be_fetched_is_got_by_hand() -> None:
    [line] = (one for one in describe_task("videomme") if "by hand" in one)
    assert line.split() == ["by", "hand,", "from", KNOWN["videomme"].homepage]


def test_the_facts_of_a_task_are_its_own() -> None:
    told = _list("tasks", "gsm8k")
    for text in (
        "  data        GSM8K: 1319 test, 7473 train\n",
        "              serve-eval data fetch gsm8k\n",
        "  asks        1319 samples; at most 256 tokens each\n",
        "  needs       an endpoint with completions\n",
        "  value       accuracy: mean of the samples, higher is better\n",
        " models\n              serve-eval references show gsm8k\n",
        "  protocol    version 1: fewshot_as_multiturn false, num_fewshot 5,",
        "  num_fewshot (whole number; 5)\n",
        "      Number of solved examples before each question.\n",
        "\nSet them with --set gsm8k.OPTION=VALUE, or in a plan.\n",
    ):
        assert text in told
    told = _list("tasks", "word_problems_perplexity")
    for text in (
        "  data        no data set to fetch\n",
        "; no answer, only log-probabilities\n",
        "  needs       an endpoint with prompt log-probabilities\n",
        "  value       perplexity: mean of the samples, lower is better\n",
        "  references  none registered\n              serve-eval references take host:8000",
    ):
        assert text in told
    assert "one for each NAME\n              serve-eval run --tasks lm_eval:NAME\n" in _list(
        "tasks", "lm_eval"
    )


def test_the_documented_description_is_what_is_printed() -> None:
    assert (
        _list("tasks", "passkey_short") in (Path(__file__).parents[2] / "docs/tasks.md").read_text()
    )


def test_scorers_are_described_too() -> None:
    assert "  absolute (number; 0)\n" in _list("scorers", "numeric")


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("launchers", "trtlm", "unknown launcher 'trtlm'. Did you mean 'trtllm'?"),
        ("tasks", "gsm", "unknown task 'gsm'. Did you mean 'gsm8k'?"),
        ("all", "trtllm", "all trtllm: name the kind"),
    ],
)
def test_a_name_that_there_is_not_is_refused(kind: str, name: str, message: str) -> None:
    refused = serve_eval("data", "list", kind, name)
    assert (refused.returncode, message in refused.stderr) == (2, True)
