"""Test where a table places the tasks that an error kept from being asked."""

from __future__ import annotations

from serve_eval.schema import Metric, Spec
from serve_eval.series.cells import find_column
from serve_eval.series.planned_tasks import PlannedTask


def _planned(**fingerprint: str) -> PlannedTask:
    spec = Spec(name="passkey_lines", options={})
    return PlannedTask(spec=spec, metric=Metric(), fingerprint=fingerprint, prompts=30)


def test_tasks_that_were_not_asked_share_a_column_if_only_their_seeds_differ() -> None:
    first, second = (_planned(seed=seed, max_tokens="16") for seed in "12")
    assert find_column(first, {}) == find_column(second, {})
    assert find_column(first, {}) != find_column(_planned(seed="1", max_tokens="32"), {})
