"""A damaged transfer of a compared pair, from the comparison to the servers at fault, over HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.evaluation.endpoint.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import Comparison, Limits, Plan, Spec, VerdictOutcome
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.story import diagnose
from tests.standin.in_process import deployed
from tests.workflows.diagnose.shown import make_document_of

PLAN = Plan(
    model="m",
    launcher=Spec(name="external"),
    tasks=(Spec(name="word_problems", options={"num_samples": 40, "max_tokens": 64}),),
    no_reference=True,
    limits=Limits(concurrency=4),
)


async def _attribute(folder: Path) -> tuple[int, str]:
    program = str(Path(sys.executable).with_name("serve-eval"))
    process = await asyncio.create_subprocess_exec(
        *(program, "check", "workers", str(folder), "--samples", "12"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    told, _ = await process.communicate()
    return process.returncode or 0, told.decode()


def _compare(out: Path, *, faults: Mapping[str, Any], known: bool) -> tuple[Comparison, int, str]:
    """Compare two disaggregated pairs, then attribute the comparison while they still run."""
    answers = out / "answers.jsonl"
    _write_answers(answers, prepare(PLAN), lambda task, sample: 0.95)

    async def story() -> tuple[Comparison, int, str]:
        size = {"context_0": 2} if faults else None
        async with (
            deployed(1, 1, answers=answers, perf_metrics=False) as a,
            deployed(
                1,
                1,
                answers=answers,
                faults=faults,
                tensor_parallel=size,
                perf_metrics=False,
            ) as b,
        ):
            sides = [
                CompareSide(
                    plan=replace(
                        PLAN,
                        launcher=Spec(
                            name="external",
                            options={
                                "base_url": one.url,
                                **({"servers": one.workers} if known else {}),
                            },
                        ),
                    )
                )
                for one in (a, b)
            ]
            rules = CompareRules(rule=Spec(name="paired"), again=0)
            done = await compare(*sides, rules, out / "c", environ={}, show_flips=0)
            return done, *await _attribute(out / "c")

    return asyncio.run(story())


def test_a_damaged_transfer_is_named_from_the_comparison_on(tmp_path: Path) -> None:
    faults = {"generation_0": {"wrong_tp": True}}
    done, code, told = _compare(tmp_path, faults=faults, known=True)
    assert [one.verdict.outcome for one in done.tasks] == [VerdictOutcome.FAIL]
    found = diagnose(tmp_path / "c")
    command = f"serve-eval check workers {tmp_path / 'c' / 'b'}"
    assert make_document_of(tmp_path / "c").commands[0] == command
    assert [one.change[0] for one in found.between] == [command]
    assert found.runs[0].findings == ()
    assert code == 1
    assert "the transfer between them, or how they fit together" in " ".join(told.split())


@pytest.mark.parametrize("known", [True, False])
def test_a_sound_pair_is_not_sent_to_its_servers(tmp_path: Path, known: bool) -> None:
    done, code, told = _compare(tmp_path, faults={}, known=known)
    assert [one.verdict.outcome for one in done.tasks] != [VerdictOutcome.FAIL]
    commands = make_document_of(tmp_path / "c").commands
    assert not any(one.startswith("serve-eval check workers") for one in commands)
    assert code == (0 if known else 2), told
