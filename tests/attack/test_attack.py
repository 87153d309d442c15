"""Test that runs under attack keep every sample's own answer.

Nothing is lost, doubled, swapped or changed.
"""

import pytest

from tests.attack.__main__ import FRONTS, attack


def _held(account):
    wrong = account.lost, account.doubled, account.swapped, account.changed
    assert wrong == (0, 0, 0, 0), account.table()
    assert account.value == pytest.approx(account.expected), account.table()
    assert account.exit_code == 3, account.table()


@pytest.mark.slow
def test_every_fault_and_a_kill_leave_each_sample_its_own_answer(tmp_path):
    account = attack(
        tmp_path, samples=600, in_flight=64, share=0.2, kills=1, seed=1, latency_s=0.05
    )
    assert account.kills == 1
    _held(account)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [True, False])
def test_ten_thousand_samples_hold_against_every_fault_and_thirty_kills(tmp_path, stream):
    account = attack(
        tmp_path,
        samples=10_000,
        in_flight=256,
        share=0.1,
        kills=30,
        seed=2,
        latency_s=0.3,
        stream=stream,
    )
    assert account.kills == 30
    _held(account)


@pytest.mark.slow
@pytest.mark.parametrize(
    "when", ["twice at once", "twice 2 ms apart", "twice while the next is asked"]
)
def test_one_answer_too_many_in_five_hundred_swaps_nothing(tmp_path, when):
    account = attack(
        tmp_path,
        samples=5000,
        in_flight=32,
        share=0.002,
        kills=0,
        seed=3,
        latency_s=0.02,
        faults=when,
        stream=False,
    )
    _held(account)


FAST = ("answers twice and dies", "ends connections after 4 to 7 answers")


@pytest.mark.parametrize(
    ("name", "stream"),
    [
        pytest.param(name, stream, marks=[] if name in FAST and not stream else pytest.mark.slow)
        for name in FRONTS
        for stream in (False, True)
    ],
)
def test_a_proxy_that_answers_twice_and_ends_before_a_proof_swaps_nothing(name, stream, tmp_path):
    options, in_flight, kills = FRONTS[name]
    account = attack(
        tmp_path,
        samples=400,
        in_flight=in_flight,
        share=0.0,
        kills=kills,
        seed=4,
        latency_s=0.02,
        stream=stream,
        front=("--doubles", "0.03", "--down-s", "0.2", *options),
        sessions_after=1,
    )
    _held(account)
    assert account.kills >= min(kills, 1)  # few questions, which a quick session may finish before
    assert account.front["copies"] > 0
    assert account.front["asked"] > account.planned  # what was withdrawn, or doubted before
    assert account.unproven == 0
