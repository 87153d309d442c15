"""Whole runs with repeats over HTTP, behind a router that hashes prompts and names the servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.stats.no_worse import no_worse
from tests.workflows.diagnose.server import Asked, Said, Server, answers_to, plan_for, run, sound

PROMPTS, REPEATS = 60, 4


@pytest.mark.parametrize(("wrong", "accused"), [(0.1, False), (0.7, True)])
def test_repeats_that_a_router_keeps_at_a_server_accuse_it_by_prompts_only(
    tmp_path: Path, wrong: float, accused: bool
) -> None:
    """All wrong answers are at g0: of few prompts by chance, though plain by answers."""

    def answer(asked: Asked) -> Said:
        server = "g0" if asked.chance("server") < 0.5 else "g1"
        bad = server == "g0" and asked.chance("wrong") < wrong
        said = Said(text="0") if bad else sound(asked, 1.0)
        return replace(said, servers=("c0", server))

    plan = replace(plan_for(tmp_path, num_samples=PROMPTS), repeats=REPEATS)
    report = run(plan, Server(act=answer, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    told = report.tasks[0].attribution
    assert told is not None
    assert (told.joined, told.dealt_by) == (PROMPTS * REPEATS, ())
    [row] = [row for row in told.rows if row.worker == "g0" and row.measure == "wrong answers"]
    counts = row.answers, row.bad, row.others, row.others_bad
    assert row.others_bad == 0 < row.bad
    assert all(count % REPEATS == 0 for count in counts)
    a, b, c, d = (count // REPEATS for count in counts)
    assert row.p == pytest.approx(no_worse([(a, b, c, d)]), rel=1e-6)
    assert no_worse([counts]) < 0.001
    assert row.accused is accused
