"""Pairs whose servers share a key are asked with the signature that their orchestrator would send.

The stand-in's servers check it with code of their own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.endpoint.launch import launch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._standin import config
from serve_eval.launchers._trtllm import shared_key
from serve_eval.schema import Attributed, Endpoint, Limits, Plan, ServerInfo, Spec
from serve_eval.workflows.attribute import legs
from serve_eval.workflows.attribute.attribute import attribute, prepare_asking
from tests.launchers.conftest import own_machine, plan_of, standin
from tests.standin.in_process import deployed

__all__ = ["own_machine", "plan_of", "standin"]
KEY = "ab" * 32


@pytest.fixture(scope="module")
def plan(data_root: Path) -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=8,
        no_reference=True,
        limits=Limits(concurrency=4),
    )


def asked(
    plan: Plan, out: Path, *, kept: str | None = None, variable: str | None = None
) -> Attributed:
    """Run a few samples on one pair that shares KEY, then ask it.

    `kept` is what the launch left in its file, `variable` the name of the variable that has KEY.
    """

    async def story() -> Attributed:
        async with deployed(
            1, 1, perf_metrics=False, flavour="main", auth_key=KEY, greeted=False
        ) as there:
            here = replace(plan, launcher=Spec(name="external", options={"base_url": there.url}))
            await evaluate(here, out, environ={})
            sessions = json.loads((out / "environment.json").read_text())
            sessions[-1]["endpoint"]["info"] |= {
                "servers": {**there.workers, "orchestrator": there.url},
                "log_dir": str(out / "logs"),
            }
            (out / "environment.json").write_text(json.dumps(sessions))
            if kept is not None:
                (out / "logs").mkdir(exist_ok=True)
                (out / "logs" / shared_key.KEPT).write_text(kept)
                (out / "logs" / shared_key.KEPT).chmod(0o600)
            environ = {variable: KEY} if variable else {}
            asking = await prepare_asking(
                out, here, samples=4, auth_key_env=variable, environ=environ
            )
            return await attribute(out, asking, environ=environ)

    return asyncio.run(story())


@pytest.mark.parametrize("how", [{"kept": f"{KEY}\n"}, {"variable": "PAIR_KEY"}])
def test_a_pair_answers_signed_requests(plan: Plan, tmp_path: Path, how: dict[str, str]) -> None:
    done = asked(plan, tmp_path, **how)
    assert done.in_pairs is not None
    assert (done.in_pairs.joined, done.exit_code) == (4, 0)
    assert KEY not in (tmp_path / "attribution.json").read_text()


@pytest.mark.parametrize("kept", [None, "cd" * 32])
def test_without_the_right_key_the_cause_and_three_ways_out_are_named(
    plan: Plan, tmp_path: Path, kept: str | None
) -> None:
    done = asked(plan, tmp_path, kept=kept)
    assert done.exit_code == 4
    [lost] = [line for line in done.warnings if line.startswith("no pair of workers answered")]
    assert legs.REFUSED in lost
    for way in ("--keep-servers", "--auth-key-env", "auth_key: false"):
        assert way in lost


def test_a_variable_that_is_not_set_is_refused(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="--auth-key-env: the variable NO_KEY is not set"):
        asyncio.run(prepare_asking(tmp_path, plan, auth_key_env="NO_KEY", environ={}))


@pytest.mark.parametrize(
    "params",
    [
        {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": None},
        {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": "tcp://h:1", "draft_tokens": [1]},
        {"encoded_opaque_state": "é", "ctx_info_endpoint": ["tcp://h:1", "tcp://h:2"]},
        {"encoded_opaque_state": None, "ctx_info_endpoint": []},
        {"first_gen_tokens": [7], "ctx_request_id": 1},
    ],
)
def test_the_signature_is_the_one_that_a_worker_computes(params: dict[str, object]) -> None:
    signed = legs.sign(KEY, params)
    config.check(KEY, params, signed)
    assert bool(signed) == any(params.get(name) is not None for name in config._SIGNED)
    if signed:
        with pytest.raises(ValueError, match="Invalid internal"):
            config.check("ef" * 32, params, signed)


def test_the_signature_of_known_data_is_as_published() -> None:
    """The digest was computed with openssl over the text {"ctx_info_endpoint":null,...}."""
    params = {"encoded_opaque_state": "AAE=", "ctx_info_endpoint": None}
    assert legs.sign("k", params) == {
        "x-trtllm-disagg-auth": (
            "sha256=2d84bf263f3f013a2937a81d80dcfe493ca887d3985778488c497b6f7b532c02"
        )
    }


def test_a_key_that_others_can_read_or_that_is_a_link_is_not_used(tmp_path: Path) -> None:
    endpoint = Endpoint(base_url="http://h/v1", info=ServerInfo(log_dir=str(tmp_path)))
    file = tmp_path / shared_key.KEPT
    assert legs.find_key(endpoint, None, {}) is None
    file.write_text(f"{KEY}\n")
    file.chmod(0o644)
    assert legs.find_key(endpoint, None, {}) is None
    file.chmod(0o600)
    assert legs.find_key(endpoint, None, {}) == KEY
    file.rename(tmp_path / "other")
    file.symlink_to(tmp_path / "other")
    assert legs.find_key(endpoint, None, {}) is None


@pytest.mark.slow
def test_a_launched_pair_with_the_default_key_is_asked(
    standin: Callable[..., None], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    standin("main", STANDIN_AUTH_ENFORCED="1")
    plan = plan_of("trtllm_disaggregated", {"gpus": [0, 1], "ready_timeout_s": 60.0}, limit=4)

    async def story() -> Attributed:
        out = tmp_path / "run"
        async with launch(plan, prepare(plan), tmp_path) as endpoint:
            await evaluate(plan, out, environ={}, launching=lambda *_: nullcontext(endpoint))
            asking = await prepare_asking(out, plan, samples=4, environ={})
            return await attribute(out, asking, environ={})

    done = asyncio.run(story())
    assert done.in_pairs is not None
    assert (done.in_pairs.joined, done.exit_code) == (4, 0)
    assert not list(tmp_path.rglob(shared_key.KEPT))
