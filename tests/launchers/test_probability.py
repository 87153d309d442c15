from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers.simulated import _mixture, probability

IDS = [str(i) for i in range(2000)]


@st.composite
def mixtures(draw: st.DrawFn) -> tuple[float, float]:
    """Draw a compatible accuracy and flip rate."""
    flip_rate = draw(st.floats(0.0, 1 / 3))
    half = min(3 * flip_rate / 2, 0.5)
    accuracy = draw(st.floats(half, 1 - half))
    assume(half <= accuracy <= 1 - half and 3 * flip_rate <= 1)
    return accuracy, flip_rate


@given(mixtures())
def test_the_mixture_has_the_declared_mean_and_the_declared_flip_rate(
    mixture: tuple[float, float],
) -> None:
    accuracy, flip_rate = mixture
    share, sure = _mixture(accuracy, flip_rate)
    assert 0.0 <= share <= 1.0
    assert 0.0 <= sure <= 1.0
    assert share / 2 + (1 - share) * sure == pytest.approx(accuracy)
    assert share * 2 * (1 / 2 - 1 / 3) == pytest.approx(flip_rate)


@settings(max_examples=50, deadline=None)
@given(mixtures(), st.integers(0, 1000))
def test_the_prompts_have_the_mean_and_the_flip_rate_of_the_mixture(
    mixture: tuple[float, float], seed: int
) -> None:
    accuracy, flip_rate = mixture
    of = probability(accuracy, flip_rate, seed)
    chances = [of("task", i) for i in IDS]
    assert all(0.0 <= p <= 1.0 for p in chances)
    # 6 standard errors, with at most 1/4 and 1/16 for the variances of p and of 2 p (1 - p)
    assert abs(sum(chances) / len(IDS) - accuracy) < 6 * math.sqrt(1 / 4 / len(IDS))
    assert abs(sum(2 * p * (1 - p) for p in chances) / len(IDS) - flip_rate) < 6 * math.sqrt(
        1 / 16 / len(IDS)
    )


@given(st.floats(0.0, 1.0), st.text(), st.text(max_size=20).filter(lambda s: s.isascii()))
def test_without_a_flip_rate_every_prompt_has_the_accuracy(
    accuracy: float, task: str, sample_id: str
) -> None:
    assert probability(accuracy, None, 0)(task, sample_id) == accuracy


def test_a_flip_rate_of_zero_makes_every_prompt_certain() -> None:
    chances = [probability(0.75, 0.0, 0)("task", i) for i in IDS]
    assert set(chances) == {0.0, 1.0}
    assert abs(sum(chances) / len(IDS) - 0.75) < 4 * math.sqrt(0.75 * 0.25 / len(IDS))


def test_the_same_seed_task_and_id_have_the_same_probability_and_others_do_not() -> None:
    of, again, other = probability(0.6, 0.2, 1), probability(0.6, 0.2, 1), probability(0.6, 0.2, 2)
    assert [of("task", i) for i in IDS] == [again("task", i) for i in IDS]
    assert [of("task", i) for i in IDS] != [other("task", i) for i in IDS]
    assert [of("task", i) for i in IDS] != [of("another", i) for i in IDS]


def test_accuracies_may_be_given_per_task() -> None:
    of = probability({"mmlu": 0.6, "gsm8k": 0.9}, None, 0)
    assert (of("mmlu", "1"), of("gsm8k", "1")) == (0.6, 0.9)
    with pytest.raises(LaunchError, match=r"no entry for the task 'arc', only for mmlu, gsm8k"):
        of("arc", "1")


@pytest.mark.parametrize(
    ("accuracy", "flip_rate", "said"),
    [
        (1.2, None, r"accuracy of 1\.2 is not between 0 and 1"),
        ({"mmlu": -0.1}, None, r"accuracy of -0\.1"),
        (0.5, 0.4, r"flip_rate of 0\.4 is not between 0 and 1/3"),
        (0.5, -0.1, r"flip_rate of -0\.1"),
        (0.9, 0.2, r"between 0\.3 and 0\.7 and cannot be 0\.9"),
        (float("nan"), None, "accuracy of nan"),
        (0.5, float("nan"), "flip_rate of nan"),
    ],
)
def test_impossible_wishes_are_refused_with_their_numbers(
    accuracy: float | dict[str, float], flip_rate: float | None, said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        probability(accuracy, flip_rate, 0)
