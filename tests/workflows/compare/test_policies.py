"""Sides that differ because one kept what its server adds and the other replaced it are refused."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.capabilities.sampling import (
    SideSampling,
    choose_sent,
    find_unlike_policies,
)
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import (
    Comparison,
    Limits,
    Plan,
    SamplingDefault,
    SamplingDefaults,
    ServerDefaults,
    Spec,
)
from serve_eval.tasks import word_problems
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare

ADDS = {"repetition_penalty": 1.3}
RULES = CompareRules(rule=Spec(name="paired"), again=0)
ALLOWED = replace(RULES, allow_mismatch=("server_adds",))
REFUSED = r"server_adds is \['repetition_penalty'\] for A and \[\] for B, which sent a neutral"


def _plan(url: str, policy: ServerDefaults) -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="word_problems", options={"num_samples": 12}),),
        no_reference=True,
        limits=Limits(concurrency=16),
        server_defaults=policy,
    )


def _compare(
    folder: Path,
    *sides: tuple[dict[str, float], ServerDefaults],
    finished: str = "",
    rules: CompareRules = RULES,
    **options: Any,
) -> Comparison:
    """Compare servers with these defaults, asked under these policies; some are finished runs."""

    async def story() -> Comparison:
        async with AsyncExitStack() as stack:
            found = []
            for name, (defaults, policy) in zip("AB", sides, strict=True):
                app = create_app(WEIGHTS, {"m": "none"}, defaults=defaults)
                plan = _plan(await stack.enter_async_context(serve_app(app)), policy)
                run = folder.with_name(f"run_{name}") if name in finished else None
                if run is not None:
                    await evaluate(plan, run, environ={})
                found.append(CompareSide(plan=plan, folder=run))
            return await compare(*found, rules, folder, environ={}, **options)

    return asyncio.run(story())


@pytest.mark.parametrize("finished", ["AB", "A", "B", ""])
def test_policies_that_sample_otherwise_are_refused_before_the_answers(
    finished: str, tmp_path: Path
) -> None:
    sides = (ADDS, "keep"), ({}, "neutral")
    with pytest.raises(NotComparableError, match=REFUSED) as caught:
        _compare(tmp_path / "out", *sides, finished=finished)  # type: ignore[arg-type]
    assert caught.value.exit_code == 3
    assert "Ask A again with --set server_defaults=neutral" in caught.value.hint
    assert "--allow-mismatch server_adds" in caught.value.hint
    assert not any(file.stat().st_size for file in (tmp_path / "out").rglob("samples/*.jsonl"))
    assert not (tmp_path / "out/comparison.json").exists()


def test_an_allowed_mismatch_is_compared_and_named(tmp_path: Path) -> None:
    sides = (ADDS, "keep"), (ADDS, "neutral")
    found = _compare(tmp_path / "out", *sides, finished="A", rules=ALLOWED)  # type: ignore[arg-type]
    assert found.tasks[0].agreement.different
    assert any(line.startswith("mismatch allowed: word_problems: ") for line in found.warnings)


@pytest.mark.parametrize(
    "sides",
    [
        (({}, "keep"), (ADDS, "neutral")),  # nothing is added on either side
        ((ADDS, "keep"), ({}, "keep")),  # unlike servers under one policy
    ],
)
def test_other_sides_are_compared(sides: Any, tmp_path: Path) -> None:
    found = _compare(tmp_path / "out", *sides, finished="A")
    assert not any("mismatch" in line for line in found.warnings)


def _sampling(adds: bool | None, policy: ServerDefaults, obedience: Any = "heeded") -> SideSampling:
    penalty = SamplingDefault(
        name="repetition_penalty",
        sent_as="repetition_penalty",
        obedience=obedience,
        adds=adds,
        neutral=1.0,
    )
    found = choose_sent(SamplingDefaults(fields=(penalty,)), policy)
    return SideSampling.of_tasks(found, [word_problems.task()])


NOTHING = SideSampling.of_tasks(None, [word_problems.task()])


@pytest.mark.parametrize(
    ("a", "b", "keeps"),
    [
        (_sampling(True, "keep"), _sampling(True, "neutral"), "A"),
        (_sampling(False, "neutral"), _sampling(True, "keep"), "B"),
        (_sampling(True, "keep"), _sampling(None, "neutral"), "A"),
        (_sampling(True, "keep"), _sampling(True, "keep"), None),
        (_sampling(True, "keep"), _sampling(False, "keep"), None),
        (_sampling(False, "keep"), _sampling(True, "neutral"), None),
        (_sampling(None, "keep"), _sampling(True, "neutral"), None),
        (_sampling(True, "keep"), _sampling(False, "neutral", "ignored"), None),
        (_sampling(True, "neutral", "ignored"), _sampling(False, "neutral"), None),
        (_sampling(True, "keep"), NOTHING, None),
        (NOTHING, _sampling(True, "neutral"), None),
    ],
)
def test_only_a_known_difference_of_policies_refuses(
    a: SideSampling, b: SideSampling, keeps: str | None
) -> None:
    unlike = find_unlike_policies(a, b)
    assert (None if unlike is None else unlike.keeps) == keeps
