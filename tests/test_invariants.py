"""One endpoint under changes that should change no answer: a sound one is not accused, a broken one by its change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from launchers._openai_server import serve_app
from launchers._simulator import SimulatorConfig, _Simulator
from launchers.simulated import probability
from serve_eval.endpoint import _write_answers
from serve_eval.invariants import check
from serve_eval.preparation import prepare
from serve_eval.report.exit_code import FAIL, PASS
from serve_eval.schema import Invariants, Limits, Plan, Spec
from tests.cli.command import serve_eval

N = 40


@pytest.fixture(scope="module")
def plan(data_root: Path) -> Plan:
    return Plan(
        model="simulated",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:1/v1"}),
        tasks=(Spec(name="gsm8k"),),
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=8),
    )


@pytest.fixture(scope="module")
def sound(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> SimulatorConfig:
    """An endpoint that judges 3 % of the prompts differently each time."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(replace(plan, no_reference=True)), probability(0.8, 0.03, 0))
    return SimulatorConfig(answers=path, varied=True)


Wrong = Callable[[dict[str, Any], int, int], bool]
"""Whether a request is answered wrongly: its body, how often its prompt has come before, how many are in flight."""


def _check(plan: Plan, config: SimulatorConfig, wrong: Wrong, out: Path) -> tuple[Invariants, int]:
    """What is found of an endpoint that answers some requests as one that lost half of what it knew."""
    good, bad = _Simulator(config), _Simulator(replace(config, damage=0.5, varied=False))
    seen: Counter[str] = Counter()
    flying = 0

    async def completions(request: web.Request) -> web.StreamResponse:
        nonlocal flying
        body = await request.json()
        flying += 1
        try:
            faulty = wrong(body, seen[body["prompt"]], flying)
            seen[body["prompt"]] += 1
            await asyncio.sleep(0.001)
            return await (bad if faulty else good).completions(request)
        finally:
            flying -= 1

    app = web.Application()
    app.router.add_post("/v1/completions", completions)

    async def run() -> Invariants:
        async with serve_app(app) as url:
            at = replace(plan, launcher=Spec(name="external", options={"base_url": url}))
            first = await check(at, out, environ={})
            asked = seen.total()
            assert replace(await check(at, out, environ={}), started_at="", wall_s=0.0) == replace(
                first, started_at="", wall_s=0.0
            )
            assert seen.total() == asked
            return first

    return asyncio.run(run()), seen.total()


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (lambda body, before, flying: False, []),
        (lambda body, before, flying: bool(body.get("stream")), ["streamed"]),
        (lambda body, before, flying: before == 0, ["cold"]),
        (lambda body, before, flying: flying > 1, ["alone"]),
    ],
    ids=["sound", "streams", "first-time", "batches"],
)
def test_what_breaks_is_named(
    plan: Plan, sound: SimulatorConfig, tmp_path: Path, wrong: Wrong, broken: list[str]
) -> None:
    found, asked = _check(plan, sound, wrong, tmp_path / "out")
    assert [one.arm for one in found.results] == ["cold", "shuffled", "streamed", "alone"]
    assert [one.arm for one in found.results if one.broken] == broken
    assert found.exit_code == (FAIL if broken else PASS)
    assert set(found.skipped) == {"rendered"}
    assert asked >= 6 * N
    assert json.loads((tmp_path / "out" / "invariants.json").read_text())["exit_code"] == found.exit_code


def test_chat_is_also_rendered_here_where_a_template_is_given(data_root: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (tmp_path / "plan.yaml").write_text(
        json.dumps(
            {
                "launcher": {"name": "simulated", "accuracy": 1.0},
                "tasks": [{"gsm8k": {"apply_chat_template": True}}],
                "dataset_root": str(data_root),
            }
        )
    )
    flags = ["--invariants", "--limit", "10", "--tokenizer", tmp_path / "tokenizer"]
    said = serve_eval("compare", tmp_path / "plan.yaml", *flags, "-o", tmp_path / "out")
    rows = {line.split()[1]: line.split() for line in said.stdout.splitlines() if line.startswith("gsm8k")}
    assert set(rows) == {"cold", "shuffled", "streamed", "alone", "rendered"}, said.stderr
    # The simulated endpoint knows the prompts of the chat alone, so that what is rendered is another question to it.
    assert said.returncode == FAIL
    assert rows["rendered"][-1] == "BROKEN"
    assert [rows[name][-1] for name in ("cold", "shuffled", "streamed", "alone")] == ["holds"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["host:1"], "or A alone with --invariants"),
        (["host:1", "host:2", "--invariants"], "or A alone with --invariants"),
        (["host:1", "host:2", "--tokenizer", "x"], "--tokenizer is for --invariants"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], message: str) -> None:
    said = serve_eval("compare", *arguments)
    assert said.returncode == 2
    assert message in said.stderr
