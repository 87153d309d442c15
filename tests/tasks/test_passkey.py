from __future__ import annotations

import pytest

from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Response
from serve_eval.tasks import passkey_retrieval_64k, passkey_retrieval_128k
from serve_eval.tasks._passkey import NOISE, keys


def test_the_keys_are_the_golden_ones() -> None:
    found = keys(20, 0)
    assert found[:6] == ["66048", "76475", "93824", "21948", "92411", "57815"]
    assert found[19] == "01868"


@pytest.mark.parametrize(
    ("task", "lines", "step"),
    [(passkey_retrieval_64k.task, 2610, 45), (passkey_retrieval_128k.task, 5220, 90)],
)
def test_the_first_twenty_lie_in_the_first_depths_of_59(task, lines: int, step: int) -> None:  # type: ignore[no-untyped-def]
    dataset = task().load(DataRoots(), 20)
    assert (dataset.total, len(dataset.samples), dataset.deviation) == (295, 20, None)
    for i, sample in enumerate(dataset.samples):
        text = sample.prompt
        assert text.count(NOISE) == lines
        before, _, after = text.partition(f"The pass key is {sample.target}. Remember it.")
        assert before.count(NOISE) == i // 5 * step
        assert after.count(NOISE) == lines - i // 5 * step
        assert text.endswith(
            "Here we go. There and back again.\n\n\nWhat is the pass key?\n\nThe pass key is"
        )
    assert [s.metadata["depth"] for s in dataset.samples[::5]] == [
        "0.0 %",
        "1.7 %",
        "3.4 %",
        "5.2 %",
    ]


def test_all_depths_reach_from_the_first_line_to_the_last() -> None:
    made = passkey_retrieval_64k.task(depths="all", num_samples=12)
    dataset = made.load(DataRoots(), 12)
    depths = [float(s.metadata["depth"].split()[0]) for s in dataset.samples]
    assert (depths[0], depths[-1], sorted(depths)) == (0.0, 100.0, depths)
    assert len(set(depths)) == 12
    assert len({s.id for s in dataset.samples}) == 12
    table = made.breakdown((s, float(i > 0)) for i, s in enumerate(dataset.samples))
    assert table["depth"]["0.0 %"] == {"value": 0.0, "scored": 1}  # type: ignore[index]


def test_every_sample_counts_and_one_miss_fails() -> None:
    made = passkey_retrieval_64k.task()
    assert (made.hypothesis.sigma, made.hypothesis.alpha) == (0.0, 0.5)
    assert made.sampling.max_tokens == 6
    sample = made.load(DataRoots(), 1).samples[0]
    assert made.score(sample, Response(text=" 66048. The", finish_reason="length")).value == 1.0
    with pytest.raises(PlanError, match="1 to 295"):
        passkey_retrieval_64k.task(num_samples=296)
