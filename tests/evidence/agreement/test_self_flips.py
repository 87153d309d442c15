"""Test if two endpoints differ by more than one differs from itself.

Covers how often two equal endpoints are reported as different.
"""

import random
from types import SimpleNamespace

import msgspec
import pytest
from scipy.stats import binom

from serve_eval.errors import RunFolderError
from serve_eval.evidence.answer_pairs import TaskAnswers, another_answer
from serve_eval.evidence.self_flips import FLIP_ALPHA, conclusion, evidence, find_drawn, self_flips
from serve_eval.schema import Agreement, Outcome, Response, SelfFlips, ToolCall
from serve_eval.stats.distances import common_prefix
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.scores import ScoreRecord
from serve_eval.workflows.compare.exact import Second, keep_like

ROUNDS, PROMPTS = 700, 200
SILENT = ({}, {}, {})


def _had(values, answers=None, folder=None):
    lines = {
        str(i): ScoreRecord(
            id=str(i),
            outcome=Outcome.CORRECT,
            value=value,
            target="",
            answer=None if answers is None else answers[i],
        )
        for i, value in enumerate(values)
    }
    task = SimpleNamespace(result=SimpleNamespace(task="made_up"))
    return TaskAnswers(task=task, folder=folder, lines=(lines,), said=({},), started_s={})


def _told(values, texts=None):
    """Compare the scores and texts of A's first answers, A's second answers and B's answers."""
    said = (
        SILENT if texts is None else [{str(i): text for i, text in enumerate(run)} for run in texts]
    )
    found = self_flips("A", *map(_had, values), said=said)
    assert found is not None
    return found


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# error rates


def _right_or_wrong(rng, changed):
    """Leave a tenth of the prompts undecided; B answers a share of the others differently."""
    chance = [
        rng.random() if rng.random() < 0.1 else float(rng.random() < 0.8) for _ in range(PROMPTS)
    ]
    of_b = [1.0 - p if p in (0.0, 1.0) and rng.random() < changed else p for p in chance]
    found = _told([[float(rng.random() < p) for p in known] for known in (chance, chance, of_b)])
    assert found.own - found.only_own == found.other - found.only_other
    return found


def _spoken(rng, changed):
    """Give a third of the prompts two texts, some right and some wrong; B changes a share."""
    kinds = [
        (f"{rng.random()}", rng.random() if rng.random() < 0.3 else 0.0) for _ in range(PROMPTS)
    ]
    apart = [rng.random() < changed for _ in kinds]

    def run(other):
        texts = [
            f"because {stem[: 9 - 4 * (rng.random() < p)]}{' so' * (other and b)}"
            for (stem, p), b in zip(kinds, apart, strict=True)
        ]
        return [float(len(text) % 3 > 0) for text in texts], texts

    runs = run(False), run(False), run(True)
    return _told([scores for scores, _ in runs], [texts for _, texts in runs])


def _continuous(rng, changed):
    """Vary the last digits of log-likelihoods in every run; B adds a change of its own."""
    true = [rng.gauss(-40.0, 8.0) for _ in range(PROMPTS)]
    of_b = [x + rng.gauss(0.0, changed) for x in true]
    return _told([[x + rng.gauss(0.0, 0.01) for x in known] for known in (true, true, of_b)])


WORLDS = {"right or wrong": _right_or_wrong, "texts": _spoken, "continuous": _continuous}


@pytest.mark.parametrize("world", WORLDS)
def test_two_that_are_alike_are_accused_no_more_often_than_alpha_says(world):
    rng = random.Random(5)
    accused = sum(WORLDS[world](rng, 0.0).more for _ in range(ROUNDS))
    assert accused <= binom.ppf(0.999, ROUNDS, FLIP_ALPHA)


@pytest.mark.parametrize(
    ("world", "changed", "measure"),
    [("right or wrong", 0.1, "score"), ("texts", 0.2, "text"), ("continuous", 0.02, "score")],
)
def test_one_that_answers_a_share_otherwise_is_found(world, changed, measure):
    rng = random.Random(6)
    found = [WORLDS[world](rng, changed) for _ in range(200)]
    assert sum(one.more for one in found) >= 180
    assert sum(one.measure == measure for one in found) >= 180


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# the measures


@pytest.mark.parametrize(
    ("own", "other", "p"),
    [
        (
            [0, 0, 0, 0, 0, 0, 0],
            [1, 1, 1, 1, 1, 1, 1],
            0.5**8,
        ),  # 7 in one direction only: 2**-7, halved by mid-p
        ([1, 1, 1, 0], [1, 1, 1, 0], 1.0),  # the same prompts in both directions prove nothing
        ([1, 0], [0, 1], 0.5),
    ],
)
def test_prompts_that_change_in_one_way_alone_decide(own, other, p):
    assert _told([[0.0] * len(own), own, other]).p == pytest.approx(p)


def test_texts_tell_what_scores_do_not():
    """Check an int4 model against bf16.

    A's second texts equal its first ones; 6 of B's 100 do not.
    """
    steady = [f"{i}+1={i + 1}" for i in range(100)]
    found = _told(
        [[1.0] * 100] * 3, [steady, steady, [*(text + "0" for text in steady[:6]), *steady[6:]]]
    )
    assert found.p == pytest.approx(2.0**-7)
    assert (found.more, found.measure, found.own, found.other) == (True, "text", 0, 0)
    assert (found.own_texts, found.other_texts, found.text_farther, found.text_nearer) == (
        0,
        6,
        6,
        0,
    )
    assert (
        f"{evidence(found)}: {conclusion(found)}"
        == "B's texts differ from A's first texts in 6 of 100 prompts, A's own second texts in 0 (p"
        " = 0.0078): more than its own nondeterminism"
    )


def test_two_measures_that_vary_apart_are_not_each_tested_at_the_whole_level():
    """Check two measures with unrelated changes.

    6 texts to 0 are reported on their own, but not if 6 other prompts change their scores on their
    own.
    """
    same = ["so"] * 12
    found = _told(
        [[1.0] * 12, [*[0.0] * 4, *[1.0] * 8], [*[1.0] * 4, *[0.0] * 2, *[1.0] * 6]],
        [same, same, [*same[:6], *["no"] * 6]],
    )
    assert (found.measure, found.text_farther, found.score_farther, found.score_nearer) == (
        "text",
        6,
        2,
        4,
    )
    assert found.p == pytest.approx(0.0155029296875)
    assert not found.more


def test_of_texts_that_all_differ_the_one_that_departs_later_is_nearer():
    first, second, across = (
        [f"the sum of {i} and {end}" for i in range(20)]
        for end in ("two is", "three makes", "2 gives")
    )
    found = _told([[1.0] * 20] * 3, [first, second, across])
    assert (found.own_texts, found.other_texts, found.text_farther, found.text_nearer) == (
        20,
        20,
        20,
        0,
    )
    assert (
        "in 20 of 20 prompts, A's own second texts in 20; B's differ sooner in 20, later in 0"
        in evidence(found)
    )
    assert _told([[1.0] * 20] * 3, [first, across, second]).text_nearer == 20
    assert (
        _told(
            [[1.0] * 20] * 3, [first, across, [t.replace("2 gives", "4 gives") for t in across]]
        ).p
        == 1.0
    )


def test_distances_tell_scores_apart_that_all_differ():
    rng = random.Random(1)
    first = [rng.gauss(-40.0, 8.0) for _ in range(60)]
    found = _told([first, [x + 0.001 for x in first], [x - 0.002 for x in first]])
    assert (found.own, found.other, found.only_own, found.only_other) == (60, 60, 0, 0)
    assert (found.score_farther, found.score_nearer, found.measure) == (60, 0, "score")
    assert found.p == pytest.approx(2.0**-61)
    assert "B's are farther from A's first in 60, nearer in 0" in evidence(found)


def test_without_texts_nobody_says_that_there_is_no_more_than_the_own_nondeterminism():
    by_score, by_both = _told([[1.0] * 9] * 3), _told([[1.0] * 9] * 3, [["yes"] * 9] * 3)
    assert (by_score.own_texts, by_both.own_texts) == (None, 0)
    assert conclusion(by_score) == "not more by score; texts were not compared"
    assert conclusion(by_both) == "no more than its own nondeterminism"


def test_without_labels_the_answers_decide_and_not_what_they_are_worth():
    wrong = [0.0] * 8
    first, again = (_had(wrong, ["7"] * 8) for _ in range(2))
    other = _had(wrong, ["8"] * 8)
    by_score = self_flips("A", first, again, other, said=SILENT)
    by_answer = self_flips("A", first, again, other, said=SILENT, differ=another_answer)
    assert (by_score.other, by_answer.other, by_answer.more) == (0, 8, True)


def test_where_no_exchange_can_be_assumed_neither_texts_nor_distances_count():
    runs = [_had([x] * 20, ["1"] * 20) for x in (0.0, 0.1, 0.9)]
    texts = [{str(i): text for i in range(20)} for text in ("a b c", "a b d", "x")]
    close = self_flips("A", *runs, said=texts, differ=another_answer, exchangeable=False)
    assert (close.p, close.measure, close.own_texts) == (1.0, "", None)
    finer = self_flips("A", *runs, said=texts, differ=another_answer)
    assert finer.p == pytest.approx(2.0**-21)


# ------------------------------------------------------------------------------------------------
# texts of a journal


def _written(folder, said):
    (folder / "samples").mkdir(parents=True)
    with Journal(folder / "samples" / "made_up.jsonl") as journal:
        for sample, response in said.items():
            journal.append(Record(id=sample, response=response))
    return folder


def test_thoughts_texts_and_tool_calls_are_read_from_the_journals(tmp_path):
    call = ToolCall(name="add", arguments='{"a": 1}')
    said = {
        str(i): Response(
            text="so 3", reasoning="1 and 2 make 3", tool_calls=(call,), finish_reason="stop"
        )
        for i in range(21)
    }
    changed = dict(said)
    for i in range(7):
        changed[f"{i}"] = msgspec.structs.replace(said[f"{i}"], reasoning="1 and 2 make 4")
        changed[f"{i + 7}"] = msgspec.structs.replace(said[f"{i + 7}"], text="so 4")
        changed[f"{i + 14}"] = msgspec.structs.replace(
            said[f"{i + 14}"], tool_calls=(ToolCall(name="add", arguments="{}"),)
        )
    folders = [
        _written(tmp_path / name, runs)
        for name, runs in (("a", said), ("again", said), ("b", changed))
    ]
    found = self_flips("A", *(_had([1.0] * 21, folder=folder) for folder in folders))
    assert (found.own_texts, found.other_texts, found.measure) == (0, 21, "text")


def test_repeats_of_a_run_serve_as_second_answers(tmp_path):
    a = {
        f"{i}{repeat}": Response(text=f"{i}{repeat}", finish_reason="stop")
        for i in range(9)
        for repeat in ("", "#2")
    }
    b = {f"{i}": Response(text=f"{i}", finish_reason="stop") for i in range(9)}
    once, other = (
        _had([1.0] * 9, folder=_written(tmp_path / name, runs))
        for name, runs in (("a", a), ("b", b))
    )
    twice = TaskAnswers(
        task=once.task, folder=once.folder, lines=once.lines * 2, said=({}, {}), started_s={}
    )
    found = self_flips("A", twice, twice, other, again_run=1)
    assert (found.own_texts, found.other_texts, found.text_nearer, found.more) == (9, 0, 9, False)
    last = self_flips("A", twice, other, twice, other_run=-1)
    assert (last.own_texts, last.other_texts, last.text_farther, last.more) == (0, 9, 9, True)


def test_a_journal_that_is_missing_is_told(tmp_path):
    runs = [_had([1.0], folder=tmp_path)] * 3
    with pytest.raises(RunFolderError, match=r"made_up\.jsonl cannot be read") as caught:
        self_flips("A", *runs)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("a", "b", "n"),
    [
        ("", "", 0),
        ("abc", "abc", 3),
        ("abc", "abd", 2),
        ("abc", "ab", 2),
        ("x", "y", 0),
        ("aXa", "aYa", 1),
    ],
)
def test_characters_in_common(a, b, n):
    assert common_prefix(a, b) == common_prefix(b, a) == n


def test_an_older_file_is_read_and_claims_nothing_of_texts():
    old = {
        "endpoint": "A", "prompts": 60, "own": 1, "other": 16, "only_own": 0, "only_other": 15, "p": 1.5e-05,  # noqa: E501
        "alpha": 0.01, "more": True, "agreement": {"prompts": 60, "identical": 59, "same_answer": 0, "different": 1},  # noqa: E501
    }  # fmt: skip
    found = msgspec.convert(old, SelfFlips)
    assert found.agreement == Agreement(prompts=60, identical=59, same_answer=0, different=1)
    assert (
        evidence(found)
        == "B and A differ in the score of 16 of 60 prompts, A with itself in 1 (p ="
        " 1.5e-05)"
    )
    assert (
        conclusion(msgspec.convert({**old, "more": False}, SelfFlips))
        == "not more by score; texts were not compared"
    )


@pytest.mark.parametrize(
    ("temperature", "seed", "repeats", "expected"),
    [
        ("0.8", "5", True, "other_seeds"),
        ("0.8", "5", False, "same"),
        ("0.8", "null", True, "seedless"),
        ("0.8", "null", False, "seedless"),
        ("null", "null", True, "seedless"),
        ("0", "5", True, "same"),  # no seed is sent
        ("0.0", "null", True, "same"),
        ("0.0", "null", False, "same"),
    ],
)
def test_a_side_disagrees_with_itself_only_in_the_same_draw(temperature, seed, repeats, expected):
    protocol = {"temperature": temperature, "seed": seed}
    answers = SimpleNamespace(task=SimpleNamespace(fingerprint=protocol))
    assert find_drawn(answers, repeats=repeats) == expected


@pytest.mark.parametrize(
    ("a", "b", "kept"),
    [
        ("same", "same", "AB"),
        ("seedless", "seedless", "AB"),
        ("other_seeds", "other_seeds", ""),
        ("other_seeds", "same", "B"),
        ("seedless", "other_seeds", "A"),
        ("seedless", "same", ""),
        (None, "same", "B"),
        (None, None, ""),
    ],
)
def test_only_answers_drawn_alike_are_compared(a, b, kept):
    twice = {
        name: Second(None, drawn=drawn) for name, drawn in (("A", a), ("B", b)) if drawn is not None
    }
    assert "".join(keep_like(twice)) == kept
