"""Identity by probes: the share that is seen, and what speaks against a deployment."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evidence.identity import (
    MISSED_ALPHA,
    MOST_LIMIT,
    compare_answers,
    compare_whole,
    explain_unfit,
    find_limit,
    find_unseen,
    judge_probes,
)
from serve_eval.schema import (
    IdentityProbe,
    IdentityProbes,
    IdentityReading,
    SamplingDefaults,
    TokenReading,
)

LENGTH = 4
LIKELY = -0.700001


def reading(shift=0.0, words="abcd", **more):
    """Return an answer whose log-probabilities are `shift` nats away."""
    tokens = tuple(
        TokenReading(text=word, logprob=LIKELY + shift, top={word: LIKELY + shift, "x": -1.4})
        for word in words
    )
    told = {"text": words, "finish": "length", "count": len(tokens), "prompt_tokens": 9}
    return IdentityReading(tokens=tokens, **{**told, **more})


def probes(again=0.0, count=20, whole=1):
    """Return probes whose repeated answers are `again` nats away."""
    return IdentityProbes(
        task="t",
        made_at="",
        source="",
        fingerprint={},
        stream=False,
        concurrency=1,
        length=LENGTH,
        defaults=SamplingDefaults(),
        probes=tuple(
            IdentityProbe(id=str(i), reading=reading(), again=(reading(again),))
            for i in range(count)
        ),
        whole=tuple(IdentityProbe(id="w", reading=reading(words="abc")) for _ in range(whole)),
    )


@given(st.integers(1, 10_000))
def test_a_fault_of_the_share_is_missed_with_the_promised_probability(count):
    assert (1 - find_unseen(count)) ** count == pytest.approx(MISSED_ALPHA)


def test_no_probes_see_nothing():
    assert find_unseen(0) == 1.0


CHANGES = {
    "prompt": ({"prompt_tokens": 10}, "prompt tokens"),
    "longer": ({"count": 5}, "were asked for"),
    "not listed": ({"words": "", "count": 4}, "were asked for"),
    "ends": ({"words": "ab", "finish": "stop"}, "ends after 2 tokens"),
    "parser": ({"text": "", "thoughts": "abcd"}, "another parser"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_no_numerics_explain_is_odd(change):
    more, why = CHANGES[change]
    assert why in compare_answers(reading(), reading(**more), LENGTH).odd


def test_another_token_ends_the_comparison():
    found = compare_answers(reading(), reading(0.1, "axyz"), LENGTH)
    assert (found.flipped, found.odd) == (True, "")
    assert found.nats > 0.05


@given(st.integers(1, LENGTH))
def test_a_shorter_question_is_compared_as_far_as_it_goes(length):
    now = reading(0.0, "abcd"[:length])
    assert compare_answers(reading(), now, length).odd == ""


def test_a_whole_answer_must_be_the_same_to_its_end():
    known = reading(words="abc", finish="stop")
    assert compare_whole(known, known) == ""
    for name, value in (
        ("text", "ab"),
        ("thoughts", "a"),
        ("calls", (("f", "{}"),)),
        ("finish", "length"),
        ("count", 4),
        ("prompt_tokens", 8),
    ):
        assert compare_whole(known, msgspec.structs.replace(known, **{name: value})), name


def judge(known, shift, whole=None, lost=0):
    """Judge a server whose answers are `shift` nats away."""
    answers = [(LENGTH - 1, reading(shift, "abc")) for _ in known.probes]
    answers[:lost] = [(LENGTH, None)] * lost
    return judge_probes(known, answers, [whole or one.reading for one in known.whole])


def test_a_server_may_differ_from_the_reference_as_that_does_from_itself():
    known = probes(again=0.02)
    assert find_limit(known) == pytest.approx(0.03)
    assert judge(known, 0.02).why == ""
    assert "further away" in judge(known, 0.04).why
    assert "other numerics" not in judge(known, 0.02).why


def test_many_small_distances_are_other_numerics():
    known = probes(again=0.0)
    loud = IdentityProbe(id="0", reading=reading(), again=(reading(0.05),))
    known = msgspec.structs.replace(known, probes=(loud, *known.probes[1:]))
    assert "other numerics" in judge(known, 0.02).why


def test_a_probe_without_an_answer_speaks_against_identity():
    assert "1 of 21 probes got no answer" in judge(probes(), 0.0, lost=1).why
    assert "whole answer" in judge(probes(), 0.0, whole=reading(words="abd")).why


def test_what_cannot_prove_identity_says_why():
    assert explain_unfit(probes(), 2) == ""
    assert "differs from itself" in explain_unfit(probes(again=MOST_LIMIT), 2)
    assert "no whole answer" in explain_unfit(probes(whole=0), 2)
    certain = TokenReading(text="a", logprob=math.log(0.99), top={})
    sure = IdentityReading(tokens=(certain,) * LENGTH, count=LENGTH, finish="length")
    known = probes()
    known = msgspec.structs.replace(
        known, probes=tuple(IdentityProbe(id=one.id, reading=sure) for one in known.probes)
    )
    assert "uncertain token" in explain_unfit(known, 2)
