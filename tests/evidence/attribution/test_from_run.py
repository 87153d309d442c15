"""Test the attribution of a task to servers and its report."""

import io
import math
from dataclasses import replace

import msgspec
import pytest
from msgspec.structs import replace as replace_struct
from rich.console import Console

from serve_eval.evidence.attribution import PLACE, attribute_task, wrong
from serve_eval.report.attribution import sentences, table
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    Attribution,
    Failure,
    FailureKind,
    Metric,
    Response,
    Usage,
    WorkerShare,
)
from serve_eval.storage.answer_origins import Served
from serve_eval.storage.journal import Record
from serve_eval.verdicts.below_reference import RIGHT, estimate_expected

POINTS, LOSS = Metric(), Metric(name="perplexity", higher_is_better=False, lo=None, hi=None)


@pytest.mark.parametrize(
    ("values", "metric", "bad"),
    [
        ([1, 0, 1], POINTS, [False, True, False]),
        ([1, 1], POINTS, [False, False]),
        ([0, 0], POINTS, [True, True]),
        ([0.2, 0.5, 0.9, 1.0], POINTS, [True, True, False, False]),
        ([0.5, 0.5, 1.0], POINTS, [True, True, False]),
        ([0.5, 0.5], POINTS, [False, False]),
        ([3.0, 7.0, 5.0], LOSS, [False, True, False]),
        ([], POINTS, []),
    ],
)
def test_what_counts_as_a_wrong_answer(values, metric, bad):
    assert wrong(values, metric) == bad


def _attempt(start_s):
    return Attempt(start_s=start_s, end_s=start_s + 1, failure=None, status=200, request_id="r")


def _answer(name, start_s, cached=None):
    usage = Usage(prompt_tokens=10, completion_tokens=5, cached_tokens=cached)
    response = Response(text="x", finish_reason="stop", usage=usage, attempts=(_attempt(start_s),))
    return Record(id=name, response=response)


def _failure(name, start_s):
    failure = Failure(kind=FailureKind.HTTP_ERROR, message="", attempts=(_attempt(start_s),))
    return Record(id=name, failure=failure)


def _line(name, start_s, generation, **more):
    return Served(
        task="t",
        id=name,
        started_s=start_s,
        context="c0",
        generation=generation,
        how="times",
        **more,
    )


def _known(n):
    return {
        f"{i}": [_line(f"{i}", float(i), f"g{i % 2}", kv_transfer_s=0.1 * (i % 2 + 1))]
        for i in range(n)
    }


def test_wrong_empty_and_failed_answers_are_measures_of_their_own():
    fates = [(f"{i}", math.nan if i % 4 == 1 else float(i % 4 != 3), i % 4 == 3) for i in range(80)]
    records = [(_failure if i % 4 == 1 else _answer)(f"{i}", float(i)) for i in range(80)]
    told = attribute_task(fates, records, _known(80), POINTS)
    assert (told.joined, told.planned) == (80, 80)
    shown = {(row.worker, row.measure): (row.answers, row.bad, row.accused) for row in told.rows}
    assert shown["g1", "wrong answers"] == (20, 20, True)
    assert shown["g1", "empty answers"] == (20, 20, True)
    assert shown["g1", "failures"] == (40, 20, True)
    assert shown["g0", "failures"] == (40, 0, False)


@pytest.mark.parametrize(("tasks", "accused"), [(1, True), (8, False)])
def test_the_tasks_of_a_run_share_the_chance_of_accusing_a_healthy_worker(tasks, accused):
    fates = [(f"{i}", float(not (i % 2 and i < 16)), False) for i in range(80)]
    records = [_answer(f"{i}", float(i)) for i in range(80)]
    told = attribute_task(fates, records, _known(80), POINTS, tasks=tasks)
    [row] = [one for one in told.rows if one.worker == "g1" and one.measure == "wrong answers"]
    assert (row.accused, told.alpha) == (accused, 0.01 / tasks), row
    assert 0.01 / 8 < row.p_holm <= 0.01


def _retried(i, bad, *, named=True):
    """Return the answer to a sample that was dealt in turn, and sent to g0 if `bad` failed."""
    own = f"g{i % 2}"
    tries = [(own, own == bad), *([("g0", False)] if own == bad else [])]
    attempts = tuple(
        replace_struct(
            _attempt(i + 0.1 * n),
            failure=FailureKind.HTTP_ERROR if fails else None,
            status=500 if fails else 200,
            servers=AnsweringServers(context="c0", generation=name) if named else None,
        )
        for n, (name, fails) in enumerate(tries)
    )
    response = Response(text="x", finish_reason="stop", usage=Usage(), attempts=attempts)
    return Record(id=f"{i}", response=response)


@pytest.mark.parametrize("bad", ["g1", None])
@pytest.mark.parametrize("named", [True, False])
def test_a_server_is_accused_of_attempts_that_a_retry_replaced(bad, named):
    """All answers are right, and all of them come from g0 where g1 is bad."""
    records = [_retried(i, bad, named=named) for i in range(40)]
    lines = {
        one.id: [_line(one.id, one.response.attempts[-1].start_s, "g0" if bad else f"g{i % 2}")]
        for i, one in enumerate(records)
        if one.response is not None
    }
    told = attribute_task([(f"{i}", 1.0, False) for i in range(40)], records, lines, POINTS)
    shown = {(row.worker, row.measure): (row.answers, row.bad, row.accused) for row in told.rows}
    if bad and named:
        assert shown == {
            ("g0", "failed at first"): (20, 0, False),
            ("g1", "failed at first"): (20, 20, True),
        }
        assert any(
            one.startswith("generation server g1: 20 of 20 failed at first, the others 0 of 20 (p")
            for one in sentences(told)
        )
    else:
        assert not shown


def test_the_first_attempt_of_a_sample_that_was_asked_once_more_counts():
    """A failed sample has one record for each time that the run asked it."""
    failed = [
        Record(
            id=f"{i}",
            failure=Failure(
                kind=FailureKind.HTTP_ERROR,
                message="",
                attempts=(
                    replace_struct(
                        _attempt(float(i)),
                        failure=FailureKind.HTTP_ERROR,
                        servers=AnsweringServers(context="c0", generation="g1"),
                    ),
                ),
            ),
        )
        for i in range(1, 40, 2)
    ]
    records = [_retried(i, None) for i in range(0, 40, 2)] + failed
    again = [_retried(i, None) for i in range(1, 40, 2)]
    told = attribute_task([(f"{i}", 1.0, False) for i in range(40)], [*records, *again], {}, POINTS)
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.measure, row.bad) == ("g1", "failed at first", 20)


def test_wrong_answers_are_counted_where_the_reference_was_right():
    """Check a server that turns some right answers wrong.

    Half of the prompts are too hard for the model. The errors are lost among these, and plain among
    the prompts that the reference had right.
    """
    hard = [i % 4 in (0, 1) for i in range(400)]
    known = estimate_expected(
        [[float(not one) for one in hard]] * 2, lo=0.0, hi=1.0, higher_is_better=True
    )
    fates = [(f"{i}", float(not hard[i] and i % 100 not in (3, 31)), False) for i in range(400)]
    records = [_answer(f"{i}", float(i)) for i in range(400)]
    alone = attribute_task(fates, records, _known(400), POINTS)
    assert not any(row.accused for row in alone.rows)
    assert {(row.worker, row.bad, row.answers) for row in alone.rows} == {
        ("g0", 100, 200),
        ("g1", 108, 200),
    }
    told = attribute_task(fates, records, _known(400), POINTS, expected=known)
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.measure, row.bad, row.answers) == ("g1", "wrong answers", 8, 100)
    assert (row.others_bad, row.others) == (0, 100)
    assert (alone.counted, told.counted, told.dealt_by) == ("", RIGHT, ())


@pytest.mark.parametrize("against", ["nothing", "runs that had them wrong", "a lucky run"])
def test_a_server_that_gets_the_hard_prompts_is_not_accused(against):
    """Check that prompts and servers cannot be told apart.

    The first server has the first half of the data set, in which every second answer is wrong. The
    other server has the second half, in which all answers are right.
    """
    hard = [i < 200 and i % 2 == 0 for i in range(400)]
    once = [1.0] * 400
    runs = {
        "a lucky run": [once],
        "runs that had them wrong": [[float(not one) for one in hard], once, once],
    }
    known = estimate_expected(runs.get(against, []), lo=0.0, hi=1.0, higher_is_better=True)
    assert (known is None) == (against == "nothing")
    lines = {f"{i}": [_line(f"{i}", float(i), f"g{i // 200}")] for i in range(400)}
    fates = [(f"{i}", float(not hard[i]), hard[i]) for i in range(400)]
    told = attribute_task(
        fates, [_answer(f"{i}", float(i)) for i in range(400)], lines, POINTS, expected=known
    )
    assert {row.measure for row in told.rows} == {"wrong answers", "empty answers"}
    assert not any(row.accused for row in told.rows)
    assert PLACE in told.dealt_by
    assert any(f"chooses a server by the prompt ({PLACE}" in line for line in sentences(told))


@pytest.mark.parametrize(("unlucky", "accused"), [(5, False), (14, True)])
def test_repeats_of_a_prompt_that_stay_with_a_server_are_no_evidence_of_their_own(unlucky, accused):
    """Ask each of 100 prompts four times, always at one server, which repeats its answer.

    All wrong ones are at g1: by chance, 5 of them are once in 36 rounds, and 14 never. Twenty wrong
    answers of 200 would be plain if they were independent.
    """
    bad = {2 * i + 1 for i in range(unlucky)}
    fates = [(f"{i}", float(i % 100 not in bad), False) for i in range(400)]
    lines = {f"{i}": [_line(f"{i}", float(i), f"g{i % 100 % 2}")] for i in range(400)}
    records = [_answer(f"{i}", float(i)) for i in range(400)]
    told = attribute_task(
        fates, records, lines, POINTS, prompts=100, kinds=lambda places: {"beginning": [*places]}
    )
    assert told.dealt_by == ()
    rows = {row.worker: row for row in told.rows}
    assert (rows["g1"].bad, rows["g1"].answers, rows["g1"].others_bad) == (4 * unlucky, 200, 0)
    assert rows["g1"].p == pytest.approx(math.comb(50, unlucky) / math.comb(100, unlucky), rel=1e-6)
    assert {one: row.accused for one, row in rows.items()} == {"g0": False, "g1": accused}


def test_a_line_of_an_earlier_answer_says_nothing_of_a_later_one():
    told = attribute_task(
        [("0", 1.0, False)], [_answer("0", 7.0)], {"0": [_line("0", 5.0, "g0")]}, POINTS
    )
    assert (told.joined, told.planned) == (0, 1)


def test_the_answer_counts_and_not_the_failure_before_it():
    records = [_failure("0", 5.0), _answer("0", 7.0), _answer("0", 9.0)]
    lines = {"0": [_line("0", 5.0, "g0"), _line("0", 7.0, "g1"), _line("0", 9.0, "g0")]}
    told = attribute_task([("0", 1.0, False)], records, lines, POINTS)
    assert [(one.worker, one.answers) for one in told.figures if one.role == "generation"] == [
        ("g1", 1)
    ]


def test_who_lets_wait_is_told_by_the_latencies_of_the_answers():
    def answer(k):
        record = _answer(f"{k}", float(k))
        assert record.response is not None
        response = msgspec.structs.replace(record.response, latency_s=5.0 if k % 2 else 1.0)
        return msgspec.structs.replace(record, response=response)

    told = attribute_task(
        [(f"{k}", 1.0, False) for k in range(80)], map(answer, range(80)), _known(80), POINTS
    )
    [slow] = [row for row in told.times if row.slow]
    assert (slow.worker, slow.taken_s, slow.others_s) == ("g1", pytest.approx(5), pytest.approx(1))
    assert told.rows == ()


def test_figures_are_medians_and_sums():
    told = attribute_task(
        [(f"{i}", 1.0, False) for i in range(10)],
        [_answer(f"{i}", float(i), i) for i in range(10)],
        _known(10),
        POINTS,
    )
    one, two = (figure for figure in told.figures if figure.role == "generation")
    assert (one.kv_transfer_s, two.kv_transfer_s) == (0.1, 0.2)
    assert (one.prompt_tokens, one.cached_tokens) == (50, 0 + 2 + 4 + 6 + 8)


def _row(worker, role, **more):
    given = {
        "answers": 50,
        "bad": 48,
        "others": 150,
        "others_bad": 12,
        "p": 3e-32,
        "p_holm": 1.2e-31,
    }
    return WorkerShare(
        **{
            "worker": worker,
            "role": role,
            "measure": "wrong answers",
            "accused": True,
            **given,
            **more,
        }
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [_row("h:8003", "generation")],
            "generation server h:8003: 48 of 50 wrong, the others 12 of 150 (p = 1e-31)",
        ),
        (
            [_row("a + b", "pair")],
            (
                "context server a with generation server b: 48 of 50 wrong, the others 12 of"
                " 150 (p = 1e-31); they always work together, so only serve-eval check workers can"
                " find which of them is the cause"
            ),
        ),
        (
            [_row("a", "context", accused=False), _row("a + b", "pair")],
            (
                "context server a with generation server b: 48 of 50 wrong, the others 12 of"
                " 150 (p = 1e-31); neither is worse with other servers"
            ),
        ),
        (
            [_row("a", "context", accused=False)],
            "no server is significantly worse than the others (level 0.01 over all rows)",
        ),
    ],
)
def test_who_is_accused_is_said_in_a_sentence(rows, said):
    told = Attribution(how="ids", joined=200, planned=210, alpha=0.01, rows=tuple(rows))
    held = (
        "this holds at level 0.01 if the router's choice of a server does not depend on how hard a"
        " prompt is"
    )
    assert list(sentences(told)) == [
        "the server is known for 200 of 210 samples (identified by ids)",
        said,
        *([held] if any(row.accused for row in rows) else []),
    ]
    counted = replace(told, counted=RIGHT)
    assert list(sentences(counted))[1:] == [
        f"wrong answers are counted only among prompts that a reference answered: {RIGHT}",
        said,
        *([held] if any(row.accused for row in rows) else []),
    ]
    assert held not in sentences(replace(told, how="asked"))


def test_the_table_cannot_control_a_terminal():
    told = Attribution(
        how="ids", joined=1, planned=1, alpha=0.01, rows=(_row("\x1b[2Jh", "context"),)
    )
    found = table(told)
    assert found is not None
    console = Console(file=io.StringIO(), width=120)
    console.print(found)
    assert "\x1b" not in console.file.getvalue()
    assert table(Attribution(how="ids", joined=1, planned=1, alpha=0.01, rows=())) is None


def test_workers_without_a_bad_answer_are_said_to_be_sound():
    told = Attribution(how="asked", joined=40, planned=40, alpha=0.01, rows=())
    assert list(sentences(told)) == ["no answer is wrong or empty, and no request failed"]
    assert table(told) is None
