"""`serve-eval list launchers NAME` shows the type, default and meaning of each option."""

from __future__ import annotations

import re

import pytest

from serve_eval.cli._described import WIDTH, describe_plugin
from serve_eval.cli.listing import listing
from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.plugins.nested_options import options

LAUNCHERS = registry.list_shipped("launchers")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_option_of_every_launcher_is_described(name: str) -> None:
    found = options(registry.function("launchers", name))
    paths = [option.path for option in found]
    assert [
        option.path for option in found if not re.fullmatch(r"[A-Za-z].*\.", option.meaning)
    ] == []
    lines = describe_plugin("launchers", name)
    assert max(map(len, lines)) <= WIDTH
    shown = [line for line in lines if re.match(r"  \S", line)]
    assert [line.split()[0] for line in shown] == paths
    assert not re.search(r"NoneType|Struct|typing|<", "\n".join(lines))


def test_nested_options_are_described_by_type_and_default(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("launchers", "trtllm_disaggregated")
    told = capfd.readouterr().out
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


def test_the_list_of_all_says_where_nested_options_are_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("launchers")
    told = capfd.readouterr().out
    line = (
        "      context_servers: has its own options: see serve-eval list launchers"
        " trtllm_disaggregated\n"
    )
    assert line in told
    assert "Side(" not in told


def test_what_is_called_alike_may_mean_something_else() -> None:
    lines = describe_plugin("launchers", "slurm")
    at = lines.index("  container.engine (pyxis or docker or podman; pyxis)")
    assert "plug-in of SLURM" in lines[at + 1]
    assert "  image (text; required)" not in lines
    assert "  container.image (text; required)" in lines


def test_tasks_and_scorers_are_described_too(capfd: pytest.CaptureFixture[str]) -> None:
    listing("tasks", "gsm8k")
    assert "  num_fewshot (whole number; 5)\n" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("launchers", "trtlm", "unknown launcher 'trtlm'. Did you mean 'trtllm'?"),
        ("all", "trtllm", "all trtllm: name the kind"),
    ],
)
def test_a_name_that_there_is_not_is_refused(kind: str, name: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        listing(kind, name)
    assert message in str(caught.value)
