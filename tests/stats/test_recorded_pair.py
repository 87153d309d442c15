"""Test a real pair: one 405-billion-parameter model behind two deployments, on all of GSM8K."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from serve_eval.schema import Response, Sample
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.drop import Method
from serve_eval.stats.finding import PairedFinding
from serve_eval.stats.judgement import judge
from serve_eval.stats.pairs import pair
from serve_eval.tasks import gsm8k

ONE = "gsm8k_Meta-Llama-3.1-405B-Instruct_at_hyperbolic.jsonl"
OTHER = "gsm8k_Llama-3.1-405B-Instruct-Turbo.jsonl"


def _scores(shared: Path, name: str) -> list[float]:
    """Score by the flexible filter.

    It must agree with lm-evaluation-harness's own judgement of every answer.
    """
    task = gsm8k.task(filter="flexible-extract")
    questions = [
        json.loads(line) for line in (shared / "data/gsm8k/test.jsonl").read_text().splitlines()
    ]
    scores = {}
    for line in (shared / "data/recorded" / name).read_text().splitlines():
        row = json.loads(line)
        sample = Sample(id=str(row["idx"]), prompt="", target=questions[row["idx"]]["answer"])
        value = task.score(sample, Response(text=row["output"], finish_reason="stop")).value
        assert value == row["flexible"], row["idx"]
        scores[row["idx"]] = value
    return [scores[i] for i in range(len(questions))]


def test_two_deployments_of_one_model_are_found_alike_and_a_drop_of_one_point_is_excluded(
    shared: Path,
) -> None:
    reference, candidate = _scores(shared, ONE), _scores(shared, OTHER)
    pairs = pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)
    assert (sum(reference), sum(candidate), pairs.n) == (1265, 1261, 1319)
    assert (pairs.down, pairs.up) == (13, 9)
    value, mean = 100 * sum(candidate) / 1319, 100 * sum(reference) / 1319
    test = classic_test(1319, mean, 50.0, 0.05, 0.2)
    assert decide((value, value), test.threshold) is Decision.PASS
    told = judge(pairs, margin=(mean - test.threshold) / 100)
    assert (told.finding, told.test.method) == (PairedFinding.PASS, Method.MCNEMAR_MIDP)
    mid_p = (sum(math.comb(22, down) for down in range(14, 23)) + math.comb(22, 13) / 2) / 2**22
    assert told.test.p == pytest.approx(mid_p)
    point = judge(pairs, margin=0.01)
    assert point.noninferior.holds
    assert point.equivalent.holds
    assert not judge(pairs, margin=0.009).noninferior.holds
