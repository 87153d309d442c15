"""Test that a reference judges no run whose requests get other sampling fields from servers."""

from __future__ import annotations

import asyncio
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import NotComparableError, RunFolderError
from serve_eval.evaluation.capabilities.sampling import choose_sent, compare_with_reference
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import (
    AccuracySpec,
    Limits,
    Plan,
    Reference,
    ReferenceRuns,
    Report,
    SamplingDefault,
    SamplingDefaults,
    Spec,
    VerdictOutcome,
)
from serve_eval.tasks import word_problems
from serve_eval.workflows.references.register import register

ADDS = {"repetition_penalty": 1.3}
N = 12


def _plan(url: str, **options: Any) -> Plan:
    return replace(
        Plan(
            model="m",
            launcher=Spec(name="external", options={"base_url": url}),
            tasks=(Spec(name="word_problems", options={"num_samples": N}),),
            limits=Limits(concurrency=16),
        ),
        **options,
    )


def _run(defaults: dict[str, float], folder: Path, **options: Any) -> Report:
    async def main() -> Report:
        app = create_app(WEIGHTS, {"m": "none"}, defaults=defaults)
        async with serve_app(app) as url:
            return await evaluate(_plan(url, **options), folder, environ={})

    return asyncio.run(main())


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """References of servers that added a penalty, which was kept, and of one that adds none."""
    folder = tmp_path_factory.mktemp("references")
    for name, defaults in (("adds", ADDS), ("plain", {})):
        _run(defaults, folder / f"run_{name}", no_reference=True, server_defaults="keep")
        register([folder / f"run_{name}"], folder / name)
    return {name: str(folder / name) for name in ("adds", "plain")}


@pytest.mark.parametrize(
    ("taken", "defaults", "policy", "told", "hint"),
    [
        ("adds", {}, "neutral", "added repetition_penalty to its requests, and nothing", ""),
        ("adds", {}, "keep", "added repetition_penalty to its requests, and nothing", ""),
        ("adds", ADDS, "neutral", "which send a neutral repetition_penalty", "keep leaves"),
        ("plain", ADDS, "keep", "added nothing to its requests, and repetition_penalty", "neutral"),
    ],
)
def test_a_run_with_other_sampling_is_refused_before_its_first_sample(
    taken: str,
    defaults: dict[str, float],
    policy: str,
    told: str,
    hint: str,
    references: dict[str, str],
    tmp_path: Path,
) -> None:
    options = {"references_dir": references[taken], "server_defaults": policy}
    with pytest.raises(NotComparableError, match=told) as caught:
        _run(defaults, tmp_path / "run", **options)
    assert caught.value.exit_code == 3
    assert "--allow-mismatch server_adds" in caught.value.hint
    take = caught.value.hint.splitlines()[-1]
    assert shlex.split(take)[-4:] == [
        *("--references-dir", references[taken]),
        *("--reason", "other server_adds"),
    ]
    advice = [f"--set server_defaults={way}" for way in ("keep leaves", "neutral replaces")]
    assert [way for way in advice if way in caught.value.hint] == [
        way for way in advice if hint and hint in way
    ]
    assert not (tmp_path / "run/samples/word_problems.jsonl").stat().st_size

    allowed = _run(defaults, tmp_path / "allowed", allow_mismatch=("server_adds",), **options)
    [task] = allowed.tasks
    assert task.reference is not None
    assert "mismatch allowed: server_adds" in str(task.verdict.protocol)
    assert any(told in line for line in allowed.warnings)

    lacks = _run(defaults, tmp_path / "lacks", allow_missing_reference=True, **options)
    [task] = lacks.tasks
    assert (task.verdict.outcome, lacks.exit_code) == (VerdictOutcome.NO_REFERENCE, 3)
    assert told in task.verdict.reasons[0]
    assert task.result.scored == N


@pytest.mark.parametrize(
    ("taken", "defaults", "policy"),
    [
        ("adds", ADDS, "keep"),
        ("plain", {}, "neutral"),
        ("plain", {}, "keep"),
        ("plain", ADDS, "neutral"),
    ],
)
def test_a_run_with_the_same_sampling_is_judged(
    taken: str,
    defaults: dict[str, float],
    policy: str,
    references: dict[str, str],
    tmp_path: Path,
) -> None:
    report = _run(defaults, tmp_path, references_dir=references[taken], server_defaults=policy)
    [task] = report.tasks
    assert (task.result.value, report.exit_code) == (task.verdict.reference, 0)


def test_a_finished_run_is_not_judged_again_by_other_sampling(
    references: dict[str, str], tmp_path: Path
) -> None:
    _run({}, tmp_path, no_reference=True)
    plan = _plan("http://127.0.0.1:1/v1", references_dir=references["adds"])
    with pytest.raises(NotComparableError, match="server_adds is"):
        judge_again(plan, tmp_path)
    allowed = judge_again(replace(plan, allow_mismatch=("server_adds",)), tmp_path)
    assert allowed.tasks[0].reference is not None


def test_an_early_stop_ends_with_its_reference(references: dict[str, str], tmp_path: Path) -> None:
    report = _run(
        {},
        tmp_path,
        references_dir=references["adds"],
        allow_missing_reference=True,
        early_stop=0.2,
        verdict=Spec(name="classic"),
        rule_named=True,
    )
    [task] = report.tasks
    assert (task.result.scored, task.verdict.outcome) == (N, VerdictOutcome.NO_REFERENCE)


def test_runs_with_unlike_sampling_are_no_reference(tmp_path: Path) -> None:
    for name, defaults in (("one", {}), ("two", ADDS)):
        _run(defaults, tmp_path / name, no_reference=True, server_defaults="keep")
    with pytest.raises(RunFolderError, match="two, the server added repetition_penalty to"):
        register([tmp_path / "one", tmp_path / "two"], tmp_path / "references")
    assert not (tmp_path / "references").exists()


def _reference(adds: tuple[str, ...] | None, *, published: bool = False) -> Reference:
    runs = ReferenceRuns(values=(80.0,), n=10, sigma=40.0, samples="", sha256="", server_adds=adds)
    return Reference(
        task="word_problems",
        model="m",
        spec=AccuracySpec(),
        value=80.0,
        runs=None if published else runs,
    )


def _found(adds: bool | None, policy: str, obedience: Any = "heeded") -> SamplingDefaults:
    penalty = SamplingDefault(
        name="repetition_penalty",
        sent_as="repetition_penalty",
        obedience=obedience,
        adds=adds,
        neutral=1.0,
    )
    return choose_sent(SamplingDefaults(fields=(penalty,)), policy)  # type: ignore[arg-type]


PENALTY = ("repetition_penalty",)


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        (_reference(None), _found(False, "neutral"), None),
        (_reference(None), _found(False, "keep"), None),
        (_reference(None), _found(None, "neutral"), None),
        (_reference(None), _found(True, "neutral"), True),  # asked otherwise than its runs
        (_reference(None), _found(True, "keep"), False),  # asked as its runs
        (_reference((), published=True), _found(True, "neutral"), None),
        (_reference((), published=True), _found(True, "keep"), True),
        (_reference((), published=True), _found(True, "neutral", "ignored"), True),
        (_reference(PENALTY), _found(None, "neutral"), True),  # replaced, if it is added
        (_reference(PENALTY), _found(None, "keep"), False),
        (_reference(PENALTY), _found(None, "neutral", "refused"), False),
        (_reference(PENALTY), _found(False, "keep"), True),
        (_reference(PENALTY), SamplingDefaults(), False),
        (_reference(PENALTY), None, None),
        (_reference(()), _found(None, "keep"), None),
        (_reference(("top_k",)), _found(True, "keep"), True),
    ],
)
def test_only_a_known_difference_refuses(
    reference: Reference, found: SamplingDefaults | None, expected: bool | None
) -> None:
    other = compare_with_reference(found, reference, word_problems.task())
    assert (None if other is None else other.differs) == expected
