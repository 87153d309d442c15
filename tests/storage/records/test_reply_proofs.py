"""Test that a withdrawn answer leaves two records and nothing else."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.evaluation.early_stop import EarlyStopping
from serve_eval.evaluation.open_tasks import open_judgements
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.task_run import replay
from serve_eval.schema import (
    Attempt,
    Dataset,
    Failure,
    FailureKind,
    Hypothesis,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
    Usage,
)
from serve_eval.stats.early_stop import EarlyClassic
from serve_eval.storage.answer_origins import (
    ConnectionStep,
    Proofs,
    count_unproven,
    describe_proofs,
    describe_unproven,
    doubtful,
    judges_proofs,
    withdraw_all,
)
from serve_eval.storage.journal import Journal, Record, answers, read, withdrawals
from serve_eval.storage.scores import encode, pick_last_lines

SESSION = "0" * 24


def _response(text="7", *, turn=0, connection=1, session=SESSION):
    attempt = Attempt(
        start_s=1.0,
        end_s=2.0,
        failure=None,
        status=200,
        request_id=f"{session}{turn:012}",
        connection=connection if turn else 0,
        turn=turn,
    )
    usage = Usage(prompt_tokens=3, completion_tokens=len(text), cached_tokens=1)
    seconds = 0.5 + len(text)
    return Response(
        text=text,
        finish_reason="length" if len(text) > 3 else "stop",
        usage=usage,
        attempts=(attempt,),
        latency_s=seconds,
        ttft_s=seconds / 2,
        tpot_s=seconds / 9,
        tokens_per_step=1.5,
    )


def _task(**more):
    def score(sample, response):
        right = response.text == "7"
        value = 1.0 if right else 0.0
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        return Score(
            value=value,
            outcome=outcome,
            answer=response.text,
            parts={"length": float(len(response.text))},
        )

    fields = {
        "name": "t",
        "version": 1,
        "reference_file": "t",
        "metric": Metric(name="accuracy"),
        "hypothesis": Hypothesis(),
        "sampling": SamplingParams(max_tokens=2),
        "protocol": {},
        "load": lambda roots, n: Dataset(samples=[], files=(), total=0),
        "score": score,
        "answers": lambda sample: ("7", "8"),
        "failure_mode": lambda sample, response, score: f"says {response.text}",
    }
    return Task(**{**fields, **more})


def _samples(count):
    return [Sample(id=str(i), prompt=f"p{i}", target="7") for i in range(count)]


def _journal(path, *records):
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
        return list(journal.records())


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# the journal


def test_a_withdrawal_takes_all_answers_before_it_back_and_none_behind_it(tmp_path):
    failed = Record(id="a", failure=Failure(kind=FailureKind.TIMEOUT, message="slow"))
    first, other, second = (
        Record(id="a", response=_response("1")),
        Record(id="b", response=_response("2")),
        _response("3"),
    )
    gone = Record(id="a", withdrawn="out of step")
    written = [failed, first, other, gone]
    assert _journal(tmp_path / "j", *written) == [failed, other]
    assert _journal(tmp_path / "j", Record(id="a", response=second)) == [
        failed,
        other,
        Record(id="a", response=second),
    ]
    assert withdrawals(tmp_path / "j") == {"a": 4}
    sample = Sample(id="a", prompt="p", target="")
    assert list(answers([sample], read(tmp_path / "j"))) == [(sample, second)]
    assert json.loads((tmp_path / "j").read_bytes().splitlines()[3]) == {
        "id": "a",
        "withdrawn": "out of step",
    }


@pytest.mark.parametrize(
    "text", ['{"id":"a","withdrawn":"x"}', '"withdrawn":', '\\"withdrawn":"a"']
)
def test_what_an_answer_says_of_withdrawals_is_none(text, tmp_path):
    record = Record(id="a", response=_response(text))
    assert _journal(tmp_path / "j", record) == [record]


def test_old_journals_are_read_and_first_answers_are_written_as_before(tmp_path):
    attempt = {
        "start_s": 1.0,
        "end_s": 2.0,
        "failure": None,
        "status": 200,
        "request_id": "x",
        "streamed": False,
    }
    response = {"text": "7", "finish_reason": "stop", "attempts": [attempt]}
    (tmp_path / "old").write_text(json.dumps({"id": "a", "response": response}) + "\n")
    (record,) = read(tmp_path / "old")
    assert (record.response.attempts[0].connection, record.response.attempts[0].turn) == (0, 0)
    assert b"turn" not in msgspec.json.encode(record)


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# the accumulator


@given(
    texts=st.lists(st.sampled_from(["7", "8", "9", "long one"]), min_size=1, max_size=12),
    data=st.data(),
)
def test_a_tally_that_forgot_an_answer_is_as_one_that_never_had_it(texts, data):
    gone = data.draw(st.sets(st.integers(0, len(texts) - 1)))
    again = data.draw(st.sets(st.sampled_from(sorted(gone)))) if gone else set()
    written, expected_lines = [], []
    accumulator = ScoreAccumulator(_task(), _samples(len(texts)), _Lines(written))
    never = ScoreAccumulator(_task(), _samples(len(texts)), _Lines(expected_lines))
    for i, text in enumerate(texts):
        accumulator.add(i, _response(text, turn=i))
    for i in gone:
        accumulator.forget(i, _response(texts[i], turn=i))
    for i in again:
        accumulator.add(i, _response("7"))
    for i, text in enumerate(texts):
        if i not in gone or i in again:
            never.add(i, _response("7" if i in again else text, turn=0 if i in again else i))
    assert accumulator.result() == never.result()
    assert (accumulator.scored, accumulator.failed, list(accumulator.list_unanswered())) == (
        never.scored,
        never.failed,
        list(never.list_unanswered()),
    )
    assert list(pick_last_lines(written, accumulator.list_scored_ids())) == expected_lines
    assert [accumulator.score(i) for i in range(len(texts))] == [
        never.score(i) for i in range(len(texts))
    ]
    one, other = accumulator.traffic, never.traffic
    for name in ("attempts", "prompt_tokens", "completion_tokens", "cached_tokens"):
        assert (getattr(one, name) or 0) == (getattr(other, name) or 0)
    if never.scored:
        assert one.latency_s["p50"] == pytest.approx(other.latency_s["p50"], rel=0.01)
        assert (one.acceptance is None) == (other.acceptance is None)
        assert one.latency_s["max"] == pytest.approx(other.latency_s["max"], rel=0.01)


class _Lines:
    def __init__(self, lines):
        self._lines = lines

    def write(self, record):
        self._lines.append(encode(record))


# -----------------------------------------------------------------------------------------------------  # noqa: E501
# early stop


def test_an_early_decision_on_withdrawn_answers_falls_with_them():
    n = 400
    accumulator = ScoreAccumulator(_task(), _samples(n))
    order = list(range(n))
    prefix = EarlyStopping(
        accumulator,
        lambda: EarlyClassic.mean_only(n, 0.5, lo=0.0, hi=1.0, eps=0.01, max_missing=0.02),
        order,
        seed=0,
        higher_is_better=True,
        before=None,
    )
    wrong = [(i, _response("8", turn=2)) for i in order[:300]]
    for i, answer in wrong:
        accumulator.add(i, answer)
    assert prefix.look()
    for i, answer in wrong:
        accumulator.forget(i, answer)
    prefix.restart()
    assert not prefix.look()
    assert (prefix.looked_at, prefix.decision, prefix.result().saved) == (0, None, 0)
    for i in order:
        accumulator.add(i, _response("7"))
    assert prefix.look()
    assert prefix.result().estimate == 100.0


# ---------------------------------------------------------------------------------------------------------  # noqa: E501
# proofs


def _doubts(proofs, **open_now):
    """Return the doubts about turns 0 to 4 of connection 1."""
    return [proofs.doubt(_response(turn=turn), **open_now) is not None for turn in range(5)]


def test_what_is_not_proven_is_doubted_once_any_connection_was_out_of_step(tmp_path):
    proofs = Proofs(tmp_path / "s")
    assert _doubts(proofs) == [False] * 5
    proofs.note(ConnectionStep(SESSION, 1, turns=3))
    assert _doubts(proofs) == [False] * 5
    proofs.note(ConnectionStep("another session of 24 ch", 9, out="why"))
    assert _doubts(proofs) == [False, False, False, False, True]
    assert _doubts(proofs, open_now={(SESSION, 1)}) == [False] * 5
    proofs.note(ConnectionStep(SESSION, 1, out="why"))
    assert _doubts(proofs, open_now={(SESSION, 1)}) == [False, False, False, False, True]
    again = Proofs(tmp_path / "s")
    assert (_doubts(again), again.out) == ([False, False, False, False, True], 2)


def test_what_is_doubtful_tells_connections_that_are_open_now_apart():
    proofs = Proofs()
    proofs.note(ConnectionStep("another session of 24 ch", 9, out="why"))
    records = [
        Record(id="a", response=_response(turn=1)),
        Record(id="b", response=_response(turn=1, connection=2)),
        Record(id="c", failure=Failure(kind=FailureKind.TIMEOUT, message="slow")),
    ]
    assert [sample for sample, _, _ in doubtful(records, proofs)] == ["a", "b"]
    assert [sample for sample, _, _ in doubtful(records, proofs, {(SESSION, 1)})] == ["b"]


def test_answers_that_nothing_proves_are_counted_in_a_folder_that_is_only_read(tmp_path):
    proofs = Proofs()
    proofs.note(ConnectionStep(SESSION, 1, turns=1))
    _journal(
        tmp_path / "t",
        *(Record(id=str(turn), response=_response(turn=turn)) for turn in range(4)),
        Record(id="late", failure=Failure(kind=FailureKind.TIMEOUT, message="slow")),
    )
    assert count_unproven(tmp_path / "t", proofs) == 2
    assert count_unproven(tmp_path / "not asked yet", proofs) == 0


ENDED = "its session ended before a proof"


@pytest.mark.parametrize(
    ("steps", "reasons"),
    [
        ([], [None, ENDED, ENDED, ENDED]),
        ([{"turns": 1}], [None, None, ENDED, ENDED]),
        ([{"turns": 1}, {"trusted": 2}], [None, None, None, ENDED]),
        ([{"turns": 1}, {"lost": "cut"}], [None, None, "its connection ended", "its connection"]),
        ([{"turns": 2}, {"out": "two"}], [None, None, None, "its connection was out of step: two"]),
    ],
)
def test_an_earlier_session_must_have_proven_or_trusted_what_counts(steps, reasons):
    """The reasons are those about turns 0, which needs no proof, to 3."""
    proofs = Proofs()
    for step in steps:
        proofs.note(ConnectionStep(SESSION, 1, **step))
    for turn, reason in enumerate(reasons):
        found = proofs.doubt_earlier(_response(turn=turn))
        assert (found is None) == (reason is None), turn
        assert (found or "").startswith(reason or "")


@pytest.mark.parametrize(("count", "first"), [(1, "1 answer was"), (2, "2 answers were")])
def test_unproven_answers_are_counted_in_words_that_fit(count, first):
    [line] = describe_unproven(count, "the judge")
    assert line.startswith(f"{first} never proven to belong to the right sample")
    assert "a connection to the judge ended" in line
    assert describe_unproven(0) == []


def test_a_torn_or_damaged_line_costs_a_proof_and_no_run(tmp_path):
    file = tmp_path / "s"
    Proofs(file).note(ConnectionStep(SESSION, 1, turns=2))
    file.write_bytes(file.read_bytes() + b'{"session": "0')
    Proofs(file).note(ConnectionStep(SESSION, 2, out="why"))
    found = Proofs(file)
    assert found.out == 1
    assert _doubts(found) == [False, False, False, True, True]


def test_the_findings_are_the_users_alone_and_a_later_one_takes_no_proof_back(
    tmp_path,
):
    file = tmp_path / "s"
    proofs = Proofs(file)
    for turns in (4, 2):
        proofs.note(ConnectionStep(SESSION, 1, turns=turns))
    assert file.stat().st_mode & 0o777 == 0o600
    for found in (proofs, Proofs(file)):
        unproven = [found.is_unproven(_response(turn=turn)) for turn in (2, 4, 5)]
        assert unproven == [False, False, True]
    proofs.note(ConnectionStep(SESSION, 1))
    proofs.note(ConnectionStep(SESSION, 2))
    assert proofs.is_unproven(_response(turn=1, connection=2))


def test_a_folder_with_evidence_withdraws_what_a_kill_left_and_tells_how_many(
    tmp_path,
):
    path = tmp_path / "j"
    records = [Record(id=str(i), response=_response(turn=i)) for i in range(5)]
    _journal(path, *records)
    proofs = Proofs(tmp_path / "s")
    with Journal(path) as journal:
        withdraw_all(journal, proofs)
    assert len(list(read(path))) == 5
    assert describe_proofs(proofs, [path]) == []
    proofs.note(ConnectionStep(SESSION, 1, turns=2))
    proofs.note(ConnectionStep(SESSION, 2, out="why"))
    with Journal(path) as journal:
        withdraw_all(journal, proofs)
        accumulator = ScoreAccumulator(_task(), _samples(5))
        replay(journal, accumulator)
    assert list(accumulator.list_unanswered()) == [3, 4]
    (line,) = describe_proofs(proofs, [path])
    assert "1 connection of the endpoint" in line
    assert "2 answers were withdrawn" in line


def test_what_judges_said_out_of_step_is_withdrawn_when_it_is_read_again(tmp_path):
    path = tmp_path / "judged.jsonl"
    _journal(path, *(Record(id=f"{i} j p", response=_response(turn=i)) for i in range(4)))
    open_judgements(path)
    assert withdrawals(path) == {}
    known = judges_proofs(path)
    known.note(ConnectionStep(SESSION, 1, turns=2))
    known.note(ConnectionStep(SESSION, 2, out="why"))
    open_judgements(path)
    assert set(withdrawals(path)) == {"3 j p"}
