"""The summary of each kind of run: what comes first, what is said in words, and its width."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

from serve_eval.report.summary.headline import ASCII, UNICODE, AxisPoints, draw_axis
from serve_eval.schema import (
    Attribution,
    Metric,
    OtherRule,
    ScorerError,
    VerdictOutcome,
    WrongExample,
)
from tests.report.summary.made import EARLY, PAIRED, RESULT, VERDICT, named, show, task

LONG = "a warning of many words that does not fit on one line of eighty columns, so it is wrapped"


def _passes(**changes):
    told = replace(PAIRED, down=3, up=1, p=0.25, interval=(-1.2, 0.4), finding="PASS")
    verdict = replace(VERDICT, outcome=VerdictOutcome.PASS, evaluated=83.4, paired=told)
    result = replace(RESULT, value=83.4, interval=(79.9, 86.4))
    return task(result, replace(verdict, **changes))


def test_a_red_run_says_what_fell_by_how_much_and_what_to_do():
    red = task(
        example=WrongExample(id="test-198", answer="90", target="12*7=84\n#### 80"),
        before={"steps": {"1": {"value": 95.2, "scored": 117}, "2": {"value": 68.0}}},
    )
    lines = show(red, places=["word_problems: prompts of more than 38 tokens"]).splitlines()
    assert lines[0] == (
        " FAIL   word_problems  ● 49.2  ▲ ref 83.8  -34.6  ┃ fails below 78.6 (classic)"
    )
    assert lines[1].strip().startswith("0 ┴")
    assert [line.rstrip() for line in lines[2:]] == [
        " drop     29.8 to 39.4 points (95 % interval over 500 prompts); 191 turned",
        "          wrong, 18 turned right; one-sided p < 0.0001",
        " where    prompts of more than 38 tokens",
        " asked    500 samples: 0 failed, 0 repaired, 1 cut off, 3 unreadable",
        " by steps 1: 75 (was 95)   2: 27 (was 68)",
        " e.g.     test-198: answered 90, expected 80",
        " next     serve-eval diagnose out",
        "          serve-eval show out test-198",
        " more     -v adds 5 more facts",
    ]


def test_a_green_run_is_short_and_shows_no_wrong_answer():
    green = replace(_passes(), example=WrongExample(id="test-1", answer="1", target="2"))
    shown = show(green)
    assert shown.startswith(" PASS   word_problems  ● 83.4  ▲ ref 83.8  -0.4  ┃ fails below")
    assert (
        " change   -1.2 to +0.4 points (95 % interval over 500 prompts); 3 turned wrong," in shown
    )
    assert "one-sided p = 0.2500" in shown
    assert "e.g." not in shown
    assert "next" not in shown


def test_an_allowed_mismatch_is_never_left_out():
    told = "recorded with the reference, mismatch allowed: num_fewshot"
    assert f" note     protocol: {told}\n" in show(_passes(protocol=told))


def test_a_value_always_has_an_interval():
    alone = replace(
        VERDICT,
        outcome=VerdictOutcome.NO_REFERENCE,
        rule="none",
        paired=None,
        reference=None,
        threshold=None,
        reasons=("no reference",),
    )
    none_right = replace(RESULT, planned=40, value=0.0, interval=(0.0, 8.8), breakdown={})
    shown = show(task(none_right, replace(alone, evaluated=0.0)))
    assert shown.startswith(" NO REFERENCE   word_problems  ● 0.0\n")
    assert " value    0.0 to 8.8 (95 % interval over 40 prompts)\n" in shown
    assert " why      no reference\n" in shown
    assert "serve-eval references take" in shown


def test_missing_answers_make_the_value_a_range():
    failed = replace(
        RESULT, failed=12, scored=488, failures={"timeout": 8, "http_error": 4}, bounds=(81.0, 83.4)
    )
    open_ = replace(
        VERDICT,
        outcome=VerdictOutcome.INCONCLUSIVE,
        bounds=(81.0, 83.4),
        reasons=("too_many_missing: 12 of 500",),
    )
    shown = show(task(failed, open_))
    assert shown.startswith(" INCONCLUSIVE   word_problems  81.0 to 83.4  ref 83.8  fails")
    assert " why      too_many_missing: 12 of 500\n" in shown
    said = " asked 500 samples: 12 failed (8 timeout, 4 http error), 0 repaired, 1 cut off, 3 "
    assert said in " ".join(shown.split())
    assert "serve-eval run --resume out" in shown
    assert "serve-eval show out --failed" in shown


def test_looping_answers_are_named_where_there_are_any():
    shown = show(task(replace(RESULT, looping=6), VERDICT))
    assert (
        " asked    500 samples: 0 failed, 0 repaired, 1 cut off, 6 looping, 3 unreadable\n" in shown
    )


def test_samples_that_were_not_asked_are_no_failures():
    """A run that was given up: of 500 samples, 30 were answered and 8 failed."""
    given_up = replace(RESULT, failed=470, scored=30, failures={"timeout": 8}, bounds=(5.0, 99.0))
    assert (
        " asked 38 of 500 samples: 8 failed (8 timeout), 0 repaired, 1 cut off, 3 unreadable "
        in " ".join(show(task(given_up, VERDICT)).split())
    )


def test_an_unsupported_task_has_a_reason_and_no_value():
    lacking = replace(RESULT, value=None, interval=None, scored=0, outcomes={}, breakdown={})
    cannot = replace(
        VERDICT,
        outcome=VerdictOutcome.UNSUPPORTED,
        rule="none",
        evaluated=None,
        reference=None,
        paired=None,
        reasons=("the endpoint gives no log-probabilities",),
    )
    lines = show(task(lacking, cannot)).splitlines()
    assert lines[0] == " UNSUPPORTED   word_problems"
    assert lines[1] == " why      the endpoint gives no log-probabilities"
    assert len(lines) == 3


def test_an_early_stop_shows_an_estimate_and_what_is_ruled_out():
    stopped = replace(RESULT, planned=1319, spared=1107, interval=None, scored=212)
    early = replace(_passes().verdict, evaluated=None, early=EARLY, paired=None, rule="paired")
    shown = show(task(stopped, early))
    assert shown.startswith(" PASS   word_problems  ~84.1  reference 83.8  rule paired\n")
    assert " stopped  after 212 of 1,319, 1,107 saved; a drop of 5.2 points is ruled out" in shown
    assert "1,107 not needed" in " ".join(shown.split())
    assert "95 %" not in shown


def test_the_classic_early_stop_states_its_bound():
    early = replace(EARLY, margin=None, rule="classic", alpha=None)
    stopped = replace(_passes().verdict, evaluated=None, early=early, paired=None)
    said = "the verdict of all prompts differs with probability 0.01 at most"
    assert said in " ".join(show(task(replace(RESULT, interval=None), stopped)).split())


PASSES_ALONE = replace(VERDICT, outcome=VerdictOutcome.PASS, evaluated=79.0)


@pytest.mark.parametrize(
    ("verdict", "row"),
    [
        (
            replace(PASSES_ALONE, other=OtherRule(rule="paired", outcome=VerdictOutcome.FAIL)),
            "classic (default); paired would say FAIL: a drop of",
        ),
        (
            replace(
                VERDICT,
                rule="paired",
                rule_named=True,
                evaluated=79.0,
                other=OtherRule(rule="classic", outcome=VerdictOutcome.PASS),
            ),
            "paired (chosen); classic would say PASS: value 79.0, threshold 78.6",
        ),
        (PASSES_ALONE, ""),
    ],
)
def test_one_row_says_which_rule_judged_and_what_the_other_says(verdict, row):
    shown = " ".join(show(task(verdict=verdict)).split())
    assert (f" rules {row}" in shown) if row else (" rules " not in shown)


def test_a_perplexity_has_no_points_and_fails_above_its_threshold():
    metric = Metric(name="perplexity", higher_is_better=False, lo=None, hi=None, scale=1.0)
    result = replace(
        RESULT, metric=metric, value=7.912, interval=(7.5, 8.3), aggregation="perplexity"
    )
    verdict = replace(VERDICT, evaluated=7.912, reference=7.663, threshold=9.25, paired=None)
    shown = show(task(replace(result, breakdown={}), verdict))
    assert "  7.912  ref 7.663  +0.2490  fails above 9.250 (classic)\n" in shown
    assert " value    7.500 to 8.300 (95 % interval of perplexity over 500 prompts)\n" in shown


def test_of_many_slices_those_that_fell_most_are_shown():
    now = {f"s{i:02}": {"value": 80.0 - i, "scored": 50} for i in range(20)}
    before = {f"s{i:02}": {"value": 80.0 if i == 3 else 70.0, "scored": 50} for i in range(20)}
    many = task(replace(RESULT, breakdown={"subject": now}), before={"subject": before})
    shown = " ".join(show(many).split())
    assert "by subject worst of 20: s19: 61 (was 70) s18: 62 (was 70) s17: 63 (was 70)" in shown
    alone = " ".join(show(task(replace(RESULT, breakdown={"subject": now}))).split())
    assert "worst of 20: s19: 61 s18: 62 s17: 63" in alone


def test_several_tasks_are_a_table_with_details_of_the_red_ones():
    shown = show(named("gsm8k", _passes(warnings=(LONG,))), named("mmlu", task()))
    lines = shown.splitlines()
    assert lines[0] == " FAIL   2 tasks: 1 FAIL, 1 PASS"
    assert [line.split() for line in lines[1:4]] == [
        ["verdict", "task", "value", "95", "%", "reference", "change", "fails"],
        ["FAIL", "mmlu", "49.2", "44.8", "to", "53.6", "83.8", "-34.6", "<", "78.6"],
        ["PASS", "gsm8k", "83.4", "79.9", "to", "86.4", "83.8", "-0.4", "<", "78.6"],
    ]
    assert lines[4].startswith(" drop     mmlu: 29.8 to 39.4")
    assert " warning  gsm8k: a warning of many words" in shown
    assert "asked    gsm8k" not in shown


def test_a_table_fits_eighty_columns_by_leaving_out_the_change_and_shortening_names():
    long = named("passkey_retrieval_of_128_thousand_tokens", _passes())
    wide = show(long, named("mmlu", task()), width=120).splitlines()
    assert "change" in wide[1].split()
    assert wide[3].split()[1] == long.result.task
    narrow = show(long, named("mmlu", task()), width=72).splitlines()
    assert "change" not in narrow[1].split()
    first, last = narrow[3].split()[1].split("…")
    assert long.result.task.startswith(first)
    assert long.result.task.endswith(last)
    assert narrow[3].split()[2:] == ["83.4", "79.9", "to", "86.4", "83.8", "<", "78.6"]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_terminal_is_never_wider_than_its_columns_and_no_word_breaks(width):
    red = task(verdict=replace(VERDICT, warnings=(LONG,), paired=None), reference=None)
    shown = show(red, named("b", red), width=width) + show(red, width=width).partition("\n")[2]
    assert all(len(line) <= width for line in shown.splitlines())
    assert set(LONG.split()) <= set(shown.split())


def test_in_a_log_a_row_is_one_line():
    red = task(verdict=replace(VERDICT, warnings=(LONG,)))
    assert f" warning  {LONG}\n" in show(red, terminal=False)


def test_scorer_errors_say_what_to_do_and_are_counted():
    errors = tuple(ScorerError(told=f"error {i}", count=1, sample=f"s{i}") for i in range(5))
    shown = " ".join(show(task(replace(RESULT, scorer_errors=errors))).split())
    assert "error 1 answer has no score, for example sample s2: error 2" in shown
    assert "error 2 more scorer errors in report.json" in shown
    assert "sample s3" not in shown
    assert "fix after fixing the scorer, serve-eval run --resume out scores" in shown


def test_workers_of_several_tasks_are_told_with_the_task():
    known = Attribution(how="ids", joined=200, planned=210, alpha=0.01, rows=())
    one = replace(task(), attribution=known)
    said = "the server is known for 200 of 210 samples"
    assert f" workers  {said}" in show(one)
    assert f" workers  mmlu: {said}" in show(named("mmlu", one), named("b", task()))


def test_wide_characters_count_as_two_columns():
    wide = replace(VERDICT, warnings=("\u6771\u4eac " * 40,))
    shown = show(task(verdict=wide))
    assert all(cell_len(line) <= 80 for line in shown.splitlines())


def test_text_of_a_model_cannot_steer_the_terminal():
    hostile = WrongExample(id="x", answer="\x1b[31mred\x07 \u202eback", target="y" * 100)
    shown = show(task(example=hostile))
    assert "answered red back, expected yyy" in " ".join(shown.split())
    assert "\x1b" not in shown
    assert "y" * 61 not in shown


def test_the_drawn_line_places_its_marks():
    def draw(value, marks=UNICODE):
        return draw_axis(
            51,
            ASCII if marks is ASCII else UNICODE,
            AxisPoints(
                value=value, interval=(value - 2.0, value + 2.0), threshold=78.0, reference=84.0
            ),
        )

    low, drawn, high = draw(83.0).split()
    assert (low, high) == ("76", "86")
    assert drawn.index("●") == 35
    assert drawn.index("▲") == 40
    assert drawn.index("┃") == 10
    assert drawn[25] == drawn[45] == "━"
    assert len(drawn) == 51
    low, drawn, high = draw(20.0, ASCII).split()
    assert (low, high) == ("0", "100")
    assert {drawn.index("o"), drawn.index("|"), drawn.index("^")} == {10, 39, 42}
    assert draw(100.0).endswith(" 100")


def test_the_field_that_explains_most_is_shown():
    level = {name: {"value": 80.0, "scored": 80} for name in ("bela", "emre", "mia")}
    split = {"beads": {"value": 98.0, "scored": 120}, "cards": {"value": 62.0, "scored": 120}}
    shown = show(task(replace(RESULT, breakdown={"name": level, "thing": split})))
    assert " by thing beads: 98   cards: 62\n" in shown
    assert "by name" not in shown
    assert " by ...   not shown here: name\n" in shown


def test_a_field_of_few_samples_does_not_hide_one_that_explains_more():
    few = {"a": {"value": 50.0, "scored": 2}, "b": {"value": 80.5, "scored": 238}}
    split = {"x": {"value": 90.0, "scored": 120}, "y": {"value": 70.0, "scored": 120}}
    shown = show(task(replace(RESULT, breakdown={"rare": few, "half": split})))
    assert " by half  x: 90   y: 70\n" in shown


def test_a_paired_fail_with_zero_in_its_interval_says_why():
    """One side of 95 % is tested, and both sides of 95 % are shown."""
    near = replace(PAIRED, interval=(-4.1, 0.2), p=0.043)
    failed = replace(VERDICT, outcome=VerdictOutcome.FAIL, rule="paired", alpha=0.05, paired=near)
    shown = " ".join(show(task(RESULT, failed)).split())
    why = "FAIL by one-sided p < 0.05: the two-sided interval may contain 0"
    assert f"one-sided p = 0.0430; {why}" in shown
    clear = replace(failed, paired=replace(near, interval=(-4.1, -0.2)))
    assert why not in " ".join(show(task(RESULT, clear)).split())
    classic = replace(failed, rule="classic")
    assert why not in " ".join(show(task(RESULT, classic)).split())
