"""Two endpoints at several numbers of requests in flight, over real sockets."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from serve_eval.schema import TaskAtLoad, VerdictOutcome
from serve_eval.workflows.compare.at_loads import correct_loads, name_tasks
from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, models
from tests.workflows.load.batch_server import targets_of

PROMPTS, ALL = 80, 500


class _Crowded:
    """Answers word problems rightly, but wrongly from a number in flight on."""

    def __init__(self, wrong_from: int) -> None:
        self.targets, self.wrong_from = targets_of(ALL), wrong_from
        self.flying = self.asked = 0

    async def __call__(self, request: HttpRequest) -> Reply:
        target = self.targets.get(request.prompt)
        if target is None:
            return answer("ok")
        self.asked += 1
        self.flying += 1
        await asyncio.sleep(0.02)
        crowded = self.flying >= self.wrong_from
        self.flying -= 1
        return answer(f"In all they have:\n#### {int(target) + crowded}", usage=(9, 9))

    def server(self) -> ScriptedServer:
        return ScriptedServer(self, paths=["/v1/completions"], routes={"/v1/models": models("m")})


def _compare(out: Path, wrong_from: int, loads: str, *more: str) -> tuple[int, str, int]:
    """Return the exit code, the output and the number of requests to B."""
    good, bad = _Crowded(PROMPTS), _Crowded(wrong_from)
    with good.server().serve_in_thread() as a, bad.server().serve_in_thread() as b:
        ran = serve_eval(
            "compare", a, b, "--tasks", "word_problems", "--limit", PROMPTS, "--self", 0,
            "--set", "compare.show_flips=0", "--concurrency", loads, "-o", out, *more,
        )  # fmt: skip
    return ran.returncode, ran.stdout + ran.stderr, bad.asked


def test_the_load_from_which_b_is_worse_is_named(tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, said, asked = _compare(out, 2, "1,16", "--margin", "10")
    assert (code, "word_problems at 16 in flight: B is worse from 16 on" in said) == (1, True), said
    found = json.loads((out / "load_comparison.json").read_text())
    assert sorted(found["order"]) == [1, 16]
    rows = {one["load"]: one for one in found["tasks"]}
    assert (rows[1]["lost"], rows[1]["won"], rows[1]["outcome"]) == (0, 0, "PASS")
    assert rows[16]["lost"] > 20
    assert (rows[16]["outcome"], rows[16]["p_holm"]) == ("FAIL", 2 * rows[16]["p"])
    assert (out / "16" / "comparison.json").exists()
    assert asked == 2 * PROMPTS


def test_equal_sides_pass_and_one_number_compares_once(tmp_path: Path) -> None:
    code, said, _ = _compare(tmp_path / "out", 99, "1,16", "--margin", "10")
    assert (code, " PASS   2 comparisons: 2 PASS" in said) == (0, True), said
    code, _, _ = _compare(tmp_path / "one", 99, "4", "--margin", "10")
    assert (code, (tmp_path / "one/comparison.json").exists()) == (0, True)


def test_what_has_no_load_is_refused(tmp_path: Path) -> None:
    for loads, words in (("0,4", "expected numbers"), ("1,x", "expected numbers")):
        ran = serve_eval("compare", "h:1", "h:2", "--tasks", "gsm8k", "--concurrency", loads)
        assert (ran.returncode, words in ran.stderr) == (2, True)
    code, _, _ = _compare(tmp_path / "out", 99, "4", "--margin", "10")
    ran = serve_eval("compare", tmp_path / "out/a", "h:2", "--concurrency", "1,4")
    assert (code, ran.returncode) == (0, 2)
    assert "a finished run was asked at one load" in ran.stderr


def _at(load: int, outcome: VerdictOutcome, p: float | None) -> TaskAtLoad:
    return TaskAtLoad(
        load=load, task="t", a=80.0, b=70.0, lost=9, won=1, failed=(0, 0), outcome=outcome, p=p
    )


@pytest.mark.parametrize(
    ("p", "corrected", "outcome", "words"),
    [
        (0.02, True, VerdictOutcome.INCONCLUSIVE, "not decided at 64"),
        (0.015, True, VerdictOutcome.FAIL, "B is worse from 64 on"),
        (0.04, False, VerdictOutcome.FAIL, "B is worse from 64 on"),
    ],
)
def test_drops_are_corrected_for_all_loads(
    p: float, corrected: bool, outcome: VerdictOutcome, words: str
) -> None:
    fine = [_at(load, VerdictOutcome.PASS, 0.5) for load in (1, 16)]
    found = correct_loads([*fine, _at(64, VerdictOutcome.FAIL, p)], corrected=corrected)
    assert (found[-1].outcome, name_tasks(found)) == (outcome, {"t": words})
