"""Test the distance of two answers to a probe, by real forms of answers."""

from __future__ import annotations

import pytest

from serve_eval.evidence.probes.floor import GONE, find_step, measure_distance
from serve_eval.schema import ProbeReading, TokenReading

RED = TokenReading(text=" red", logprob=-0.9, top={" red": -0.9, " blue": -1.2, " green": -2.5})
NEAR = TokenReading(text=" red", logprob=-0.95, top={" red": -0.95, " blue": -1.1, " green": -2.6})
BLUE = TokenReading(text=" blue", logprob=-0.8, top={" blue": -0.8, " red": -1.4, " green": -2.5})
OTHER = TokenReading(text=" car", logprob=-0.1, top={" car": -0.1, " bus": -2.4, " van": -4.0})


def _reading(*tokens: TokenReading, skipped: int = 0, text: str | None = None) -> ProbeReading:
    said = "".join(token.text for token in tokens) if text is None else text
    return ProbeReading(text=said, tokens=tokens, skipped=skipped)


@pytest.mark.parametrize(
    ("a", "b", "nats", "token", "at_least", "flipped"),
    [
        ((RED, RED), (RED, RED), 0.0, 0, False, False),
        ((RED, RED), (NEAR, RED), 0.05, 0, False, False),
        ((RED, RED), (RED, NEAR), 0.05, 1, False, False),
        ((RED, RED), (BLUE, OTHER), 0.5, 0, False, True),
        ((RED, RED), (OTHER, RED), 3.1, 0, True, True),
        ((OTHER, RED), (RED, RED), 2.4, 0, True, True),
        ((RED,), (RED,), 0.0, 0, False, False),
        ((RED, RED), (RED,), 0.0, 0, False, False),
    ],
)
def test_the_likeliest_token_of_the_reference_is_compared(
    a: tuple[TokenReading, ...],
    b: tuple[TokenReading, ...],
    nats: float,
    token: int,
    at_least: bool,
    flipped: bool,
) -> None:
    found = measure_distance("p", _reading(*a), _reading(*b))
    assert found is not None
    assert found.nats == pytest.approx(nats)
    assert (found.token, found.at_least, found.flipped) == (token, at_least, flipped)


def test_second_tokens_are_aligned_where_the_first_is_left_out() -> None:
    a = _reading(RED, RED)
    short = _reading(NEAR, skipped=1, text=" red red")
    found = measure_distance("p", a, short)
    assert found is not None
    assert (found.token, found.nats) == (1, pytest.approx(0.05))
    assert measure_distance("p", a, _reading(NEAR, skipped=1, text=" blue red")) is None
    back = measure_distance("p", short, a)
    assert back is not None
    assert back.token == 1


def test_an_answer_that_ended_at_once_is_as_far_as_can_be() -> None:
    found = measure_distance("p", _reading(RED, RED), ProbeReading(text=""))
    assert found is not None
    assert (found.nats, found.flipped) == (GONE, True)


@pytest.mark.parametrize(("text", "nats"), [(" red car", 0.0), (" blue", 0.3), (" car", 0.3)])
def test_flips_count_without_log_probabilities(text: str, nats: float) -> None:
    found = measure_distance("p", _reading(RED, RED), ProbeReading(text=text))
    assert found is not None
    assert found.nats == pytest.approx(nats)


def test_flips_of_near_ties_do_not_count() -> None:
    tie = TokenReading(text=" red", logprob=-0.9, top={" red": -0.9, " blue": -1.0})
    found = measure_distance("p", _reading(tie), ProbeReading(text=" blue"))
    assert found is not None
    assert (found.nats, found.flipped) == (0.0, True)


@pytest.mark.parametrize(
    ("values", "step"),
    [([-0.9, -1.25], 0.01), ([-0.5, -1.0], 0.1), ([-0.123456, -1.5], 1e-6), ([-0.1234567891], 0.0)],
)
def test_the_step_is_that_of_the_decimals(values: list[float], step: float) -> None:
    top = {str(i): value for i, value in enumerate(values)}
    token = TokenReading(text="0", logprob=values[0], top=top)
    assert find_step([_reading(token)]) == pytest.approx(step)
