"""Test what diagnose says of a comparison, of which it accuses only the worse side.

Both sides are real servers, asked by compare.
"""

import asyncio
import random
import re
from dataclasses import replace

import pytest

from serve_eval.evidence.answer_texts import is_loop
from serve_eval.schema import Comparison, DivergencePlaces, Spec, VerdictOutcome
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.paired_answers import drop_sound, find_worse
from serve_eval.workflows.diagnose.story import diagnose, find_leads
from tests.workflows.diagnose.server import (
    Said,
    Server,
    answers_to,
    list_lines,
    plan_for,
    sound,
)
from tests.workflows.diagnose.test_levels import healthy

SAMPLES = 60


def _diagnose(a, b, out, *, again=0):
    plan = plan_for(out, num_samples=SAMPLES, max_tokens=64)
    plan = replace(plan, no_reference=True, references_dir=None)
    answers = answers_to(plan.tasks[0])
    servers = [Server(act=act, answers=answers) for act in (a, b)]

    async def ask():
        async with servers[0].scripted.serve() as first, servers[1].scripted.serve() as second:
            places = [Spec(name="external", options={"base_url": url}) for url in (first, second)]
            sides = [CompareSide(plan=replace(plan, launcher=place)) for place in places]
            rules = CompareRules(rule=Spec(name="paired"), again=again)
            await compare(sides[0], sides[1], rules, out / "out", environ={}, show_flips=0)

    asyncio.run(ask())
    return diagnose(out / "out")


def _rules(found):
    return [one.rule for one in found.between]


def _only(found, rule):
    [one] = [one for one in found.between if one.rule == rule]
    return one


def _loop(asked):
    if asked.chance("loop") < 0.5:
        return Said(text="so it is " + "and so " * 30, finish="length", tokens=64)
    return sound(asked)


def _brief(asked):
    return Said(text=asked.target[:1], tokens=2)


def _wordy(asked):
    return Said(text=f"the answer is {asked.target}", tokens=30)


def _terse(asked):
    return Said(text=f"the answer is {asked.target}", tokens=25)


def _slightly(asked):
    return Said(text=f"the answer is {asked.target}", tokens=28)


def _cyrillic(asked):
    text = f"the answer is {asked.target}"
    return Said(text=f"{text} \u043e\u0442" if asked.chance("odd") < 0.5 else text, tokens=30)


def _same(asked):
    text = f"the answer is {asked.target}"
    return Said(text="the answer is always forty-two" if asked.number % 2 else text, tokens=30)


def _foreign(asked):
    return Said(text=f"?{sound(asked).text}")


def _late(asked):
    return Said(text=f"{sound(asked).text}?")


def _unsteady(asked):
    return Said(text=f"{asked.target}{asked.number}" if asked.chance("odd") < 0.5 else asked.target)


def test_equal_sides_have_no_difference(tmp_path):
    found = _diagnose(sound, sound, tmp_path, again=20)
    assert _rules(found) == []


def test_another_model_has_no_likely_cause_in_the_line_of_the_verdict(tmp_path):
    def another(asked):
        return Said(text=asked.target if asked.chance("other") < 0.3 else f"{asked.target}1")

    found = _diagnose(lambda asked: sound(asked, 0.7), another, tmp_path)
    assert [one.leads for one in found.between if one.rule == "even_loss"] == [False]
    assert found.verdict[0].startswith("FAIL ")
    assert "likely" not in found.verdict[0]


def test_a_loss_that_no_rule_places_is_one_of_weights_precision_or_cache(tmp_path):
    found = _diagnose(sound, lambda asked: sound(asked, 0.5), tmp_path)
    [one] = found.between
    assert one.rule == "even_loss"
    assert one.told.startswith("B has ")
    assert " answers wrong that A has right, and 0 the other way round" in one.told
    assert one.change[0].startswith("serve-eval verify http://127.0.0.1:")
    assert "likely: weights, precision or cache" in found.verdict[0]
    a, b = (run.tasks[0].breakdown for run in found.runs)
    assert a is None
    assert any(line.startswith("serve-eval verify http://") for line in b.next)


@pytest.mark.parametrize("legs", [False, True])
def test_an_even_loss_of_a_disaggregated_pair_may_be_in_its_transfer(legs, tmp_path):
    servers = ("h0:8001", "h1:8002") if legs else None

    def act(accuracy):
        return lambda asked: replace(sound(asked, accuracy), servers=servers)

    found = _diagnose(act(0.95), act(0.5), tmp_path)
    [one] = found.between
    assert one.rule == "even_loss"
    transfer = "or the transfer of KV caches between its context and generation servers"
    assert (transfer in one.told) is legs
    assert one.change[0].startswith("serve-eval check workers ") is legs


def test_loops_that_are_cut_are_not_a_lack_of_tokens(tmp_path):
    found = _diagnose(sound, _loop, tmp_path)
    cuts = _only(found, "cuts")
    assert cuts.told.startswith(f"B cuts {cuts.count} of {SAMPLES} answers at max_tokens where A")
    assert "repeat themselves to the end" in cuts.told
    assert not any("max_tokens=" in line for line in list_lines(tmp_path / "out"))
    swapped = _diagnose(_loop, sound, tmp_path / "swapped")
    assert _only(swapped, "cuts").told.startswith("A cuts ")


def test_tokens_are_advised_where_both_sides_lack_them(tmp_path):
    def cut(asked):
        wrong = asked.chance("cut") < 0.4
        return Said(text="so", finish="length", tokens=64) if wrong else sound(asked, 1.0)

    found = _diagnose(cut, cut, tmp_path)
    assert _rules(found) == []
    assert [one.rule for run in found.runs for one in run.findings] == ["truncated"] * 2


@pytest.mark.parametrize(
    ("b", "does"), [(_brief, "stops early"), (_terse, "gives shorter answers")]
)
def test_a_side_with_shorter_answers_is_named(tmp_path, b, does):
    told = _only(_diagnose(_wordy, b, tmp_path), "lengths").told
    assert told.startswith(f"B {does}: ")
    assert told.endswith(f"and A 30.0; shorter in {SAMPLES} of {SAMPLES} prompts")


def test_lengths_within_a_tenth_are_equal(tmp_path):
    assert "lengths" not in _rules(_diagnose(_wordy, _slightly, tmp_path))


@pytest.mark.parametrize(
    ("b", "told"),
    [
        (_cyrillic, "answers of B have letters of a script that the other side never writes"),
        (_same, "answers of B equal the answer to another prompt, and 0 of A"),
    ],
)
def test_signs_of_damage_are_counted_on_both_sides(tmp_path, b, told):
    assert told in _only(_diagnose(_wordy, b, tmp_path), "signs").told


@pytest.mark.parametrize(("b", "named"), [(_foreign, True), (_late, False)])
def test_a_difference_in_the_first_token_is_one_of_the_prompt(tmp_path, b, named):
    found = _diagnose(sound, b, tmp_path)
    assert ("first_token" in _rules(found)) is named
    if named:
        told = _only(found, "first_token").told
        assert f"in {SAMPLES} of {SAMPLES} answers" in told


@pytest.mark.parametrize(("late", "named"), [(0.0, True), (0.13, True), (0.5, False)])
def test_some_requests_with_another_prompt_are_told_from_numerics(tmp_path, late, named):
    def own(asked):
        return Said(text=f"the right answer is {asked.target}")

    def other(asked):
        if asked.chance("other") > 0.4:
            return own(asked)
        text = own(asked).text + "?" if asked.chance("late") < late else "It is the other answer."
        return Said(text=text)

    found = [one for one in _diagnose(own, other, tmp_path).between if one.rule == "first_token"]
    assert bool(found) is named
    if named:
        told = (
            r"\d+ of 60 answers of B differ from their first token on, and \d+ later: the prompt or"
        )
        assert re.match(told, found[0].told)
        assert ("and 0 later" in found[0].told) is (late == 0)


def test_a_side_that_disagrees_with_itself_is_named(tmp_path):
    found = _diagnose(sound, _unsteady, tmp_path, again=50)
    one = _only(found, "self_differences")
    assert one.told.startswith(
        f"B disagrees with itself in {one.count} of 50 prompts and A in 0 of"
    )


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("!" * 24, True),
        ("the sum is 4 and 4 and 4 and 4 and 4 and 4 and 4", True),
        ("12, 12, 12", False),
        ("a" * 23, False),
        ("no end in sight", False),
        ("", False),
        ("one two three " * 5, True),
        ("-" * 30 + " end", False),
    ],
)
def test_a_loop_is_a_piece_again_and_again_at_the_end(text, loop):
    assert is_loop(text) is loop


def _endless(asked):
    """Answer wrongly, at length, and never come to an end."""
    return Said(text=f"so it is {asked.number} " + "and so on " * 20, finish="length", tokens=64)


def _rambling(asked):
    if asked.chance("bad") < 0.5:
        return Said(text=f"it may be {asked.number} or perhaps another one, who knows", tokens=40)
    return Said(text=f"the answer is {asked.target}", tokens=20)


def _right(asked):
    return Said(text=f"the answer is {asked.target}", tokens=20)


def test_the_answers_of_the_sound_side_are_not_too_short(tmp_path):
    """Fails if the side with the shorter answers is named: "A gives shorter answers"."""
    found = _diagnose(_right, _rambling, tmp_path)
    told = _only(found, "lengths").told
    assert told.startswith("B gives longer answers: ")
    assert "; longer in " in told
    assert not any(f"{verb} A" in line for line in _lines(found) for verb in ("attribute", "look"))


def test_where_answers_do_not_end_the_others_are_not_short(tmp_path):
    found = _diagnose(_right, _endless, tmp_path)
    assert "cuts" in _rules(found)
    assert "lengths" not in _rules(found)
    assert _only(found, "cuts").told.startswith(f"B cuts {SAMPLES} of {SAMPLES} answers")
    assert found.runs[0].findings == ()


def test_a_sound_side_that_is_cut_now_and_then_is_not_explained(tmp_path):
    """A answers at length, which B's short wrong answers do not show."""

    def lengthy(asked):
        cut = asked.chance("cut") < 0.3
        return Said(text="so", finish="length", tokens=64) if cut else sound(asked, 1.0)

    found = _diagnose(lengthy, lambda asked: Said(text=f"{asked.number}", tokens=2), tmp_path)
    assert found.runs[0].findings == ()
    assert not any(one.told.startswith("A ") for one in found.between)


def _lines(found):
    return [change for one in found.between for change in one.change]


def _task(lost):
    [task] = healthy(random.Random(1), 60).tasks
    asked = tuple(replace(one, id=f"{i}", bad=i in lost) for i, one in enumerate(task.asked))
    return replace(task, asked=asked)


@pytest.mark.parametrize(
    ("a", "b", "worse"),
    [
        (set(), set(), None),
        (set(), set(range(5)), None),  # p = .06
        (set(), set(range(6)), 1),
        (set(range(6)), set(), 0),
        (set(range(20)), set(range(20)), None),
    ],
)
def test_the_worse_side_has_clearly_more_losses(a, b, worse):
    assert find_worse(_task(a), _task(b)) == worse


def test_findings_that_both_sides_have_are_kept():
    a, b = (
        replace(healthy(random.Random(1), 60), tasks=(_task(lost),))
        for lost in (set(), set(range(30)))
    )
    name = a.tasks[0].name
    cut, failed, looping = (
        Finding(rule=rule, told="", change=(), count=1, of=1, task=name)
        for rule in ("truncated", "protocol", "looping")
    )
    assert drop_sound(((cut, failed, looping), (cut,)), (a, b)) == [(cut, failed), (cut,)]


READING = (
    "the first token already differs in 12 of 15 flips: look at the prompt and its KV cache"
    " (template, prefix, transfer)"
)


@pytest.mark.parametrize("failed", [True, False])
def test_the_first_token_that_differs_leads_a_red_comparison(tmp_path, failed):
    """Fails if symptoms come first: B's answers are cut, which more of them show."""
    _diagnose(sound, _loop, tmp_path)
    done = COMPARE.find(tmp_path / "out", Comparison)
    [task] = done.tasks
    assert task.verdict.outcome is VerdictOutcome.FAIL
    outcome = VerdictOutcome.FAIL if failed else VerdictOutcome.PASS
    task = replace(
        task,
        places=DivergencePlaces(counts={}, confident={}, reading=READING),
        verdict=replace(task.verdict, outcome=outcome),
    )
    COMPARE.write(tmp_path / "out", replace(done, tasks=(task,)))
    found = diagnose(tmp_path / "out")
    rules = [one.rule for one in found.between]
    assert ("first_difference" in rules) is failed
    assert "cuts" in rules
    if failed:
        assert rules[0] == "first_difference"
        assert found.between[0].told == READING
        assert f"likely: {READING}" in found.verdict[0]
        leads = find_leads(read_folder(tmp_path / "out"))
        assert leads.causes == {"word_problems": READING}
