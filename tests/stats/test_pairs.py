from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import ServeEvalError
from serve_eval.stats.pairs import pair

NAN = math.nan
ACCURACY: dict[str, Any] = {"lo": 0.0, "hi": 1.0, "higher_is_better": True}


def test_right_or_wrong_answers_of_one_run_are_counted() -> None:
    pairs = pair([1, 1, 0, 0, 1], [1, 0, 1, 0, 0], **ACCURACY)
    assert pairs.differences.tolist() == [0, -1, 1, 0, -1]
    assert (pairs.down, pairs.up, pairs.binary, pairs.missing, pairs.n) == (2, 1, True, 0, 5)


def test_a_lower_error_rate_counts_as_better() -> None:
    pairs = pair([0.1, 0.5], [0.3, 0.2], lo=0.0, hi=math.inf, higher_is_better=False)
    assert pairs.differences.tolist() == pytest.approx([-0.2, 0.3])


def test_several_runs_are_averaged_and_no_longer_binary() -> None:
    pairs = pair([[1, 1], [1, 0], [1, 0]], [1, 1], **ACCURACY)
    assert pairs.differences.tolist() == pytest.approx([0, 2 / 3])
    assert not pairs.binary
    assert (pairs.down, pairs.up, pairs.reference_runs, pairs.candidate_runs) == (0, 0, 3, 1)


def test_a_missing_candidate_score_leaves_the_rest_of_the_range_open() -> None:
    pairs = pair([1, 0, 1, 1], [NAN, NAN, 1, 0], **ACCURACY)
    assert pairs.worst.tolist() == [-1, 0, 0, -1]
    assert pairs.best.tolist() == [0, 1, 0, -1]
    assert pairs.missing == 2
    assert pairs.differences.tolist() == [0, -1]
    assert pairs.down == 1


def test_a_missing_reference_score_leaves_the_range_open_the_other_way() -> None:
    pairs = pair([NAN, 1], [1, 1], **ACCURACY)
    assert (pairs.worst[0], pairs.best[0]) == (0, 1)


def test_a_prompt_missing_in_one_of_several_runs_is_open_only_for_that_run() -> None:
    pairs = pair([1, 1], [[NAN, 1], [1, 1]], **ACCURACY)
    assert (pairs.worst[0], pairs.best[0]) == (-0.5, 0)


def test_when_lower_is_better_the_worst_is_the_upper_end() -> None:
    pairs = pair([0.25, 0.5], [NAN, 0.5], lo=0.0, hi=1.0, higher_is_better=False)
    assert (pairs.worst[0], pairs.best[0]) == (-0.75, 0.25)


def test_a_metric_without_a_range_leaves_everything_open() -> None:
    pairs = pair([2.0, 3.0], [NAN, 3.0], lo=-math.inf, hi=math.inf, higher_is_better=True)
    assert (pairs.worst[0], pairs.best[0]) == (-math.inf, math.inf)


def test_equal_weights_are_no_weights() -> None:
    assert pair([1, 0], [1, 1], **ACCURACY, weights=[3, 3]).binary
    weighted = pair([1, 0], [1, 1], **ACCURACY, weights=[3, 1])
    assert not weighted.binary
    assert weighted.weights.tolist() == [0.75, 0.25]


def test_cluster_keys_become_numbers_and_clusters_are_the_independent_units() -> None:
    pairs = pair([1, 0, 1], [1, 1, 1], **ACCURACY, clusters=["b", "a", "b"])
    assert pairs.clusters is not None
    assert pairs.clusters.tolist() == [0, 1, 0]
    assert pairs.units == 2
    assert not pairs.binary


def test_a_prompt_without_weight_is_no_unit() -> None:
    assert pair([1, 0, 1], [1, 1, 1], **ACCURACY, weights=[1, 1, 0]).units == 2


SCORES = st.sampled_from([0.0, 0.25, 1.0, NAN])


@given(st.lists(st.tuples(SCORES, SCORES), min_size=1), st.booleans(), st.data())
def test_whatever_the_missing_answers_were_the_difference_lies_between_worst_and_best(
    rows: list[tuple[float, float]], better: bool, data: st.DataObject
) -> None:
    rows.append((1.0, 1.0))
    known = [tuple(s if s == s else data.draw(st.floats(0, 1)) for s in row) for row in rows]
    open_pairs = pair(
        [r for r, _ in rows], [c for _, c in rows], lo=0.0, hi=1.0, higher_is_better=better
    )
    full = pair(
        [r for r, _ in known], [c for _, c in known], lo=0.0, hi=1.0, higher_is_better=better
    )
    assert (open_pairs.worst <= full.differences).all()
    assert (full.differences <= open_pairs.best).all()


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (
            {"reference_runs": [], "candidate_runs": []},
            "reference has no scores",
            "at least one prompt",
        ),
        (
            {"reference_runs": [1.0], "candidate_runs": []},
            "candidate has no scores",
            "at least one prompt",
        ),
        (
            {"reference_runs": [1.0, 0.0]},
            "2 reference scores cannot be paired with 1",
            "same order",
        ),
        ({"candidate_runs": [math.inf]}, "candidate are infinite", "unit"),
        ({"candidate_runs": [71.0]}, r"outside 0\.\.1; the first is 71", "points to 100"),
        ({"reference_runs": [-0.1]}, "reference are infinite or outside", "unit"),
        ({"candidate_runs": [NAN]}, "none of the 1 prompts has a score on both sides", "failures"),
        ({"candidate_runs": [[1.0], [1.0, 0.0]]}, "different numbers of prompts", "each run"),
        ({"lo": 1.0}, r"range 1\.0\.\.1\.0 is empty", "lo < hi"),
        ({"hi": NAN}, "is empty", "lo < hi"),
        ({"weights": [1.0, 2.0]}, "2 weights do not fit 1 prompts", "exactly one weight"),
        ({"weights": [0.0]}, "sum above 0", "size of a prompt"),
        ({"weights": [-1.0]}, "not negative", "size of a prompt"),
        ({"weights": [NAN]}, "finite", "size of a prompt"),
        ({"weights": [math.inf]}, "finite", "size of a prompt"),
        ({"clusters": ["a", "b"]}, "2 cluster keys do not fit 1 prompts", "one key"),
    ],
)
def test_scores_that_cannot_be_paired_are_refused_with_what_to_do(
    arguments: dict[str, Any], message: str, hint: str
) -> None:
    given_arguments = {"reference_runs": [1.0], "candidate_runs": [0.0], **ACCURACY} | arguments
    with pytest.raises(ServeEvalError, match=message) as caught:
        pair(**given_arguments)
    assert hint in caught.value.hint


def test_averages_of_equal_scores_differ_by_nothing() -> None:
    scores = numpy.random.default_rng(0).random(1000)
    pairs = pair([scores] * 3, scores, lo=-math.inf, hi=math.inf, higher_is_better=True)
    assert not pairs.differences.any()
