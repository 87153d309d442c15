"""The rule `tokens`: any other answer fails, and the output shows where answers part."""

import asyncio
import io
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import pytest
from rich.console import Console

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.report.document import print_document
from serve_eval.schema import Comparison, Limits, Plan, Spec
from serve_eval.storage.story_files import COMPARE
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.document import make_document
from tests.scripted_server import (
    ScriptedServer,
    TokenLogprob,
    answer,
    external,
    fail,
    logprobs,
)

N = 20
LENGTH = 14
ODD = 7
"""Prompts whose answers are different."""


@pytest.fixture
def plan():
    return Plan(
        model="made",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="word_problems", options={"num_samples": N}),),
        limits=Limits(concurrency=4),
    )


@pytest.fixture
def numbers(plan):
    """Return a number for each prompt."""
    [task] = prepare(replace(plan, no_reference=True))
    return {str(sample.prompt): i for i, sample in enumerate(task.dataset.samples)}


@dataclass(kw_only=True)
class _Server:
    """A server whose answers have LENGTH tokens, " w0" and so on behind the number of the prompt.

    `parts` is the token that is another one, by prompt; `once` limits that to the first answer to a
    prompt. Requests for log-probabilities get the sound tokens, as if the fault depended on load,
    or are refused with `bare`. `longer` adds tokens to the reported number. `lost` prompts fail.
    """

    numbers: dict[str, int]
    parts: Callable[[int], int | None] = lambda number: None
    again: bool = True
    bare: bool = False
    longer: Callable[[int], int] | None = lambda number: 0
    lost: Callable[[int], bool] = lambda number: False
    asked: set[int] = field(default_factory=set)
    examined: list[int] = field(default_factory=list)

    def script(self, request):
        number = self.numbers.get(request.prompt)
        if number is None:
            return answer("ok", usage=(9, 1))
        tokens = [f"{number}", *(f" w{i}" for i in range(1, LENGTH))]
        if "logprobs" in request.body:
            self.examined.append(number)
            if self.bare:
                return answer("".join(tokens), usage=(9, LENGTH))
            return logprobs([TokenLogprob(text=t, logprob=-0.1, top={t: -0.1}) for t in tokens])
        if self.lost(number):
            return fail(400, "lost")
        place = self.parts(number)
        if place is not None and (self.again or number not in self.asked):
            tokens[place:] = [" other"] * (LENGTH - place)
        self.asked.add(number)
        more = None if self.longer is None else (9, LENGTH + self.longer(number))
        return answer("".join(tokens), usage=more)


def _compare(plan, a, b, out, *, again=0, times=1):
    """Compare two servers, and do so again in the same folder until it was done `times` times."""

    async def run():
        async with AsyncExitStack() as stack:
            sides = []
            for one in (a, b):
                served = ScriptedServer(one.script, paths=["/v1/completions"]).serve()
                url = await stack.enter_async_context(served)
                at = replace(plan, launcher=external(url))
                sides.append(CompareSide(plan=at))
            rules = CompareRules(rule=Spec(name="tokens"), again=again)
            for _ in range(times):
                found = await compare(*sides, rules, out, environ={})
            return found

    return asyncio.run(run())


def _exact(found):
    [task] = found.tasks
    assert task.exact is not None
    return task.exact


def _print(found, out):
    console = Console(file=io.StringIO(), record=True, width=200)
    print_document(make_document(found, out), console, verbose=True)
    return console.export_text().splitlines()


def test_equal_answers_pass_and_say_what_that_excludes(plan, numbers, tmp_path):
    found = _compare(
        plan, _Server(numbers=numbers), _Server(numbers=numbers), tmp_path / "out", again=5
    )
    assert (found.exit_code, found.tasks[0].verdict.rule) == (PASS, "tokens")
    exact = _exact(found)
    assert (exact.answers, exact.missing, exact.different, exact.places) == (N, 0, 0, None)
    assert exact.own == ((0, 5), (0, 5))
    assert (
        " tokens   equal tokens: 20 of 20 answers (texts, and the numbers of generated"
        " tokens); that excludes a share of 13.9% or more that differ (95 %)"
    ) in _print(found, tmp_path)


def test_one_other_answer_fails(plan, numbers, tmp_path):
    other = _Server(numbers=numbers, parts=lambda number: 13 if number == 3 else None)
    found = _compare(plan, _Server(numbers=numbers), other, tmp_path / "out")
    assert found.exit_code == FAIL
    [verdict] = [task.verdict for task in found.tasks]
    assert verdict.reasons == ("different_answers: 1 of 20 answers of B differ from A's",)
    assert COMPARE.find(tmp_path / "out", Comparison) == found


def test_a_fault_that_is_gone_when_asked_again_is_placed_at_its_token(plan, numbers, tmp_path):
    """Only A is asked again, and its tokens show the place in the answers of the comparison.

    A resumed comparison keeps the places and asks nothing.
    """
    a, b = (
        _Server(numbers=numbers),
        _Server(numbers=numbers, parts=lambda n: 9 if n < ODD else None),
    )
    found = _compare(plan, a, b, tmp_path / "out", times=2)
    exact = _exact(found)
    assert exact.different == ODD
    assert (exact.places.unit, exact.places.usual, exact.places.at_usual) == ("token", 9, ODD)
    assert (sorted(a.examined), b.examined) == ([*range(ODD)], [])
    lines = _print(found, tmp_path)
    assert " tokens   different texts part at always token 9 (7 of 7)" in lines
    assert any("look at the step that begins there" in line for line in lines)
    examples = [i for i, line in enumerate(lines) if "parts at token 9, after " in line]
    assert len(examples) == 3
    assert lines[examples[0]].endswith("after '0 w1 w2 w3 w4 w5 w6 w7 w8 '")
    assert lines[examples[0] + 1 : examples[0] + 3] == [
        "            A: 'w9 w10 w11 w12 w13'",
        "            B: 'other other other other other'",
    ]


def test_places_that_do_not_concentrate_are_drawn(plan, numbers, tmp_path):
    b = _Server(numbers=numbers, parts=lambda number: number or None)
    b.parts = lambda number: number if 0 < number < 12 else None
    found = _compare(plan, _Server(numbers=numbers), b, tmp_path / "out")
    lines = _print(found, tmp_path)
    assert " tokens   different texts part at token 6 in the median, from 1 to 11" in lines
    assert "            tokens 8-15       4  ####" in lines
    assert not any("look at" in line for line in lines)


def test_without_tokens_the_place_is_the_word(plan, numbers, tmp_path):
    a, b = (
        _Server(numbers=numbers, bare=True, longer=None, parts=parts)
        for parts in (lambda number: None, lambda number: 9 if number < ODD else None)
    )
    found = _compare(plan, a, b, tmp_path / "out")
    exact = _exact(found)
    assert (exact.places.unit, exact.places.usual, exact.counts) == ("word", 9, "none")
    lines = _print(found, tmp_path)
    assert any("since no numbers of generated tokens are reported" in line for line in lines)
    assert any("parts at word 9, after" in line for line in lines)


@pytest.mark.parametrize(
    ("differing", "counts", "others", "code"),
    [
        (2, "compared", 2, FAIL),  # the same text in other tokens
        (N // 2 + 1, "otherwise", 0, PASS),  # one server counts the end of an answer
    ],
)
def test_equal_texts_of_another_number_of_tokens_differ_unless_most_do(
    plan,
    numbers,
    tmp_path,
    differing,
    counts,
    others,
    code,
):
    b = _Server(numbers=numbers, longer=lambda number: number < differing)
    found = _compare(plan, _Server(numbers=numbers), b, tmp_path / "out")
    exact = _exact(found)
    assert (exact.different, exact.other_counts, exact.counts) == (0, others, counts)
    assert found.exit_code == code


@pytest.mark.parametrize(
    ("lost", "reason"), [(1, "too_many_missing: 1 of 20"), (N - 9, "too_few_answers: 9 were")]
)
def test_missing_answers_are_no_differences(plan, numbers, tmp_path, lost, reason):
    b = _Server(numbers=numbers, lost=lambda number: number < lost)
    found = _compare(plan, _Server(numbers=numbers), b, tmp_path / "out")
    assert found.exit_code == UNDECIDED
    [verdict] = [task.verdict for task in found.tasks]
    assert verdict.reasons[0].startswith(reason)
    assert (_exact(found).different, _exact(found).missing) == (0, lost)
    odd = _Server(numbers=numbers, lost=b.lost, parts=lambda n: 2 if n == N - 1 else None)
    assert _compare(plan, _Server(numbers=numbers), odd, tmp_path / "odd").exit_code == FAIL


def test_a_side_that_differs_from_itself_breaks_the_promise(plan, numbers, tmp_path):
    """All first answers are equal; the second ones of one side are not."""

    class _Unsteady(_Server):
        def script(self, request):
            number = self.numbers.get(request.prompt)
            self.parts = lambda n: 5 if number in self.asked else None
            return super().script(request)

    sound = _Server(numbers=numbers)
    odd = _compare(plan, sound, _Unsteady(numbers=numbers), tmp_path / "b", again=N)
    first = {p.name for p in (tmp_path / "b").iterdir()}
    assert {"again", "again_b"} <= first
    exact = _exact(odd)
    assert exact.own[0] == (0, N)
    assert odd.exit_code == FAIL
    assert exact.own[1][0] == N


def test_a_run_cannot_be_judged_by_it(plan, tmp_path):
    judged = replace(plan, verdict=Spec(name="tokens"), no_reference=True)
    with pytest.raises(NotComparableError, match="compares the answers of two sides"):
        asyncio.run(evaluate(judged, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_probabilities_are_no_tokens(plan, numbers, tmp_path):
    """A task whose answers have no text is not judged."""
    silent = _Server(numbers=numbers)
    silent.script = lambda request: answer("", usage=(9, 1))
    found = _compare(plan, silent, silent, tmp_path / "out")
    [task] = found.tasks
    assert (task.exact, found.exit_code) == (None, UNDECIDED)
    assert task.verdict.reasons[0].startswith("no_answers: ")
