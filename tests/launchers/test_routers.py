"""Test types of routers before anything starts, and what a version does not support."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._standin.cluster import TYPES
from serve_eval.launchers._standin.options import ALL
from serve_eval.launchers._trtllm import version
from serve_eval.launchers._trtllm.command_line import Place, Server, to_yaml
from serve_eval.launchers._trtllm.flavour import adapt
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext

CONTEXT = LaunchContext(model="org/model", log_dir=Path("logs"))
PROBE = ("trtllm-serve", "disaggregated")
OLD, NEW = frozenset({"-c", "-t", "-r"}), frozenset({"-c", "-t", "-r", "--schedule_style"})
TOKENS = {"type": "load_balancing", "use_tokens": True}


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def _commands(router: object, side: str = "context_servers") -> None:
    options = {side: {"router": router}}
    trtllm_disaggregated.commands(
        CONTEXT,
        trtllm_disaggregated.DisaggregatedOptions(
            **registry.check_options(trtllm_disaggregated.launch, options, "launcher")
        ),
    )


@pytest.mark.parametrize(
    ("router", "told"),
    [
        (
            "load_balancng",
            "context_servers.router: unknown type 'load_balancng'. Did you mean 'load_balancing'?",
        ),
        ({"type": "kv_aware"}, "Did you mean 'kv_cache_aware'?"),
        ({"type": "roundrobin"}, "Did you mean 'round_robin'?"),
        ({"type": 7}, "Known: round_robin, load_balancing"),
    ],
)
def test_a_type_is_checked_with_the_nearest_name(router: object, told: str) -> None:
    with pytest.raises(PlanError) as caught:
        _commands(router)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Round_Robin", *sorted({name for names in TYPES.values() for name in names})]
)
def test_every_type_of_any_version_is_taken(name: str) -> None:
    _commands(name)
    _commands({"type": name}, "generation_servers")


def test_every_flavour_of_the_stand_in_has_the_first_three() -> None:
    assert set(TYPES) == set(ALL)
    assert all(names[:3] == version.TYPES[:3] for names in TYPES.values())


def _server(router: object, *, probe: tuple[str, ...] = PROBE) -> Server:
    content = {"context_servers": {"router": router}, "generation_servers": {}}
    files = {Path("orchestrator.yaml"): to_yaml(content)}
    return Server(name="o", argv=probe, probe=probe, place=Place(host="h", port=1), files=files)


@pytest.mark.parametrize(
    ("router", "flags", "refused"),
    [
        (TOKENS, OLD, True),
        (TOKENS, NEW, False),
        ({**TOKENS, "type": "LOAD_BALANCING"}, OLD, True),
        ({**TOKENS, "use_tokens": False}, OLD, False),
        ({**TOKENS, "type": "round_robin"}, OLD, False),
        (None, OLD, False),
    ],
)
def test_what_a_version_answers_with_500_is_refused(
    router: object, flags: frozenset[str], refused: bool
) -> None:
    server = _server(router)
    assert bool(version.problems(server, flags)) == refused
    if refused:
        with pytest.raises(PlanError, match="this version answers 500 to every request"):
            adapt([server], {PROBE: flags})
    else:
        adapt([server], {PROBE: flags})


def test_other_servers_have_no_router() -> None:
    assert version.problems(_server(TOKENS, probe=("trtllm-serve", "serve")), OLD) == []


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_a_load_in_tokens_is_launched_where_it_works(
    flavour: str, context: LaunchContext, standin: Callable[..., None]
) -> None:
    standin(flavour)

    async def story() -> str:
        given: dict[str, Any] = {
            "generation_servers": {"router": TOKENS},
            "gpus": [0, 1],
            "ready_timeout_s": 30.0,
        }
        options = registry.check_options(trtllm_disaggregated.launch, given, "launcher")
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**options)
        ) as endpoint:
            return endpoint.base_url

    if flavour == "main":
        assert asyncio.run(story()).startswith("http://")
        return
    with pytest.raises(PlanError, match="answers 500"):
        asyncio.run(story())
