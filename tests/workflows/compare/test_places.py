"""Test the places at which flips first differ, and the sentences that show them."""

import asyncio
import io
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from scipy.stats import binom

from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.answer_pairs import first_difference
from serve_eval.evidence.answer_texts import is_clear
from serve_eval.report.document import print_document
from serve_eval.report.run.conclusions import make_statements
from serve_eval.schema import (
    Agreement,
    Comparison,
    Divergence,
    Flip,
    Limits,
    Plan,
    Spec,
)
from serve_eval.storage.story_files import COMPARE
from serve_eval.verdicts.exit_code import FAIL
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.divergence import draw_places, find_places
from serve_eval.workflows.compare.document import make_document
from serve_eval.workflows.compare.rows import describe_flip
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.diagnose.finding import list_leading
from serve_eval.workflows.diagnose.story import diagnose
from tests.scripted_server import ScriptedServer, TokenLogprob, external, logprobs

SURE, TIE, SAME = "confident", "near tie", "same again"


def _flips(
    *seen,
    texts=("{}: it is one then", "{}: so it is two"),
    answers=("1", "2"),
):
    """Return flips with these kinds and tokens; "{}" in their texts is the number of the flip."""
    found = []
    for i, (kind, token) in enumerate(seen):
        a, b = (text.format(i) for text in texts)
        found.append(
            Flip(
                id=str(i),
                scores=(1.0, 0.0),
                answers=answers,
                target="1",
                texts=(a, b),
                first_difference=first_difference(a, b),
                divergence=Divergence(kind=kind, token=token),
            )
        )
    return found


def _places(flips):
    found = find_places(flips)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("place", "tokens"),
    [
        ("0", (0, 0, 0)),
        ("1-3", (1, 2, 3)),
        ("4-7", (4, 5, 7)),
        ("8-15", (8, 9, 15)),
        ("16-31", (16, 30, 31)),
        ("32+", (32, 33, 5000)),
    ],
)
def test_tokens_are_counted_by_range(place, tokens):
    found = _places(_flips(*((kind, token) for token in tokens for kind in (SURE, TIE))))
    assert {name: count for name, count in found.counts.items() if count} == {place: 6}
    assert {name: count for name, count in found.confident.items() if count} == {place: 3}


def test_a_summary_needs_three_flips_that_gave_a_result():
    results = (SURE, 0), (SAME, None)
    nothing = ("unknown", None)
    assert find_places(_flips(*results, *[nothing] * 20)) is None
    assert find_places([replace(flip, divergence=None) for flip in _flips(*results * 9)]) is None
    found = _places(_flips(*results, ("unknown", 3), nothing))
    assert {name: count for name, count in found.counts.items() if count} == {
        "0": 1,
        "1-3": 1,
        "same again": 1,
        "unknown": 1,
    }


def test_the_histogram_shows_confident_flips_darker_and_ends_at_the_last_one():
    seen = [(SURE, 0)] * 3 + [(TIE, 0), (TIE, 5)] + [(SAME, None)] * 2 + [("unknown", None)]
    assert list(draw_places(_places(_flips(*seen)))) == [
        "  token 0           4  ###.",
        "  tokens 1-3        0",
        "  tokens 4-7        1  .",
        "  same again        2  ..",
        "  unknown           1  .",
    ]


def test_the_histogram_fits_into_80_columns():
    lines = list(draw_places(_places(_flips(*[(SURE, 40)] * 5000, *[(TIE, 2)] * 1000))))
    assert max(map(len, lines)) <= 80
    assert (lines[-1].count("#"), lines[1].count(".")) == (40, 8)


def test_the_example_of_the_page_is_what_is_printed():
    page = Path(__file__).parents[3] / "docs/compare.md"
    seen = [(SURE, 0)] * 12 + [(SURE, 1), (TIE, 2), (TIE, 5), (SAME, None)]
    found = _places(_flips(*seen))
    shown = [*draw_places(found), f"{' ' * 10}{found.reading}"]
    assert "\n" + "\n".join(shown) + "\n```" in page.read_text()


FIRST = "the first token already differs in {} of {} flips: look at the prompt and its KV cache"
AT = "{} of {} flips first differ at token {}: look at "


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ([(SURE, 0)] * 5, FIRST.format(5, 5)),
        ([(SURE, 0)] * 6 + [(TIE, 9)] * 3, FIRST.format(6, 9)),
        ([(SURE, 0)] * 6 + [(TIE, 9)] * 4, ""),
        ([(SURE, 0)] * 6 + [(SAME, None)] * 4, ""),
        ([(SURE, 0)] * 4, ""),
        ([(TIE, 0)] * 20, ""),
        ([("unknown", 0)] * 20, ""),
        ([(TIE, token) for token in range(20)], ""),
        ([(SURE, token) for token in range(20)], ""),
        ([(SURE, 1)] * 9 + [(SURE, 0)], AT.format(9, 10, 1) + "the first step of generation"),
        ([(SURE, 9)] * 5, AT.format(5, 5, 9) + "the step that begins there"),
        ([(SURE, 9)] * 4 + [(SURE, 8)], ""),
    ],
)
def test_a_sentence_needs_most_flips_at_one_token(seen, said):
    reading = _places(_flips(*seen)).reading
    assert reading.startswith(said)
    assert bool(reading) == bool(said)


@pytest.mark.parametrize(
    ("token", "texts", "answers", "read"),
    [
        (9, ("{}: one", "{}: two"), ("1", "2"), True),
        (9, ("The answer: one", "The answer: two"), ("1", "2"), False),
        (0, ("one", "two"), ("1", "2"), True),
        (0, ("B", "C"), ("B", "C"), False),
        (0, ("b. It is", " C. It is"), ("B", "C"), False),
        (0, ("B", "I think C"), ("B", "C"), True),
        (0, ("B", "no idea"), ("B", None), True),
        (9, ("{}+1=42", "{}+1=43"), ("42", "43"), False),
        (9, ("{}+1=42 is 9", "{}+1=43 is 8"), ("9", "8"), True),
        (9, ("9, 8: {} one 9", "9, 8: {} two 8"), ("9", "8"), True),
        (9, ("{}: 89one", "{}: 89two"), ("9", "89"), True),
        (0, (16 * "1", 16 * "2"), (16 * "1", 16 * "2"), False),
        (0, (17 * "1", 17 * "2"), (17 * "1", 17 * "2"), True),
        (0, ("same", "same"), ("B", "C"), True),
    ],
)
def test_flips_that_the_form_of_the_answers_brings_to_one_token_do_not_count(
    token, texts, answers, read
):
    flips = _flips(*[(SURE, token)] * 8, texts=texts, answers=answers)
    assert bool(_places(flips).reading) is read


def test_a_sound_pair_gets_a_sentence_in_one_of_a_hundred_comparisons_at_most():
    """Each flip is confident at any one token with a chance of at most .15, independently.

    The chances of all tokens add up to 1 at most, so that 1 / .15 tokens have the highest chance.
    """
    for examined in range(1, 101):
        least = next(n for n in range(examined + 2) if is_clear(n, examined) or n > examined)
        assert binom.sf(least - 1, examined, 0.15) / 0.15 <= 0.01, examined


# Through sockets

WRONG = "no\n#### 7777"
N, SOUND = 12, 4
"""Prompts, of which B answers the first ones as A does."""


def _tokens(text, other=(), gap=0.0, place=0):
    """Split a text into its characters; at `place`, `other` is less likely by `gap` nats."""
    own = [-0.1 + min(gap, 0.0) if i == place else -0.1 for i in range(len(text))]
    return [
        TokenLogprob(
            text=one,
            logprob=own[i],
            top={one: own[i]} | (dict.fromkeys(other, own[i] - gap) if i == place else {}),
        )
        for i, one in enumerate(text)
    ]


def _ask(plan, gap, place, out, gap_of_b=None):
    """Compare a server with right answers to one whose answers are wrong from a token on."""
    [task] = prepare(replace(plan, no_reference=True))
    right = {str(one.prompt): one.target for one in task.dataset.samples}
    wrong = {prompt: text[:place] + WRONG for prompt, text in list(right.items())[SOUND:]}

    def serve(mine, others, gap):
        def script(request):
            text, other = mine.get(request.prompt, "2"), others.get(request.prompt, "2")
            return logprobs(_tokens(text, other[place : place + 1], gap, place))

        return ScriptedServer(script, paths=["/v1/completions"])

    async def run():
        async with AsyncExitStack() as stack:
            sides = []
            at_b = gap if gap_of_b is None else gap_of_b
            for server in (serve(right, right | wrong, gap), serve(right | wrong, right, at_b)):
                url = await stack.enter_async_context(server.serve())
                at = replace(plan, launcher=external(url))
                sides.append(CompareSide(plan=at))
            rules = CompareRules(rule=Spec(name="paired"), again=N)
            return await compare(*sides, rules, out, environ={})

    return asyncio.run(run())


@pytest.fixture
def plan():
    return Plan(
        model="made",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="word_problems", options={"num_samples": N}),),
        limits=Limits(concurrency=4),
    )


def _print(found, out):
    console = Console(file=io.StringIO(), record=True, width=80)
    print_document(make_document(found, out), console, verbose=True)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("gap", "place", "row", "reading"),
    [
        (
            5.0,
            0,
            "  token 0           8  ########",
            "the first token already differs in 8 of 8 flips: look at the prompt and its KV cache"
            " (template, prefix, transfer)",
        ),
        (0.05, 0, "  token 0           8  ........", ""),
        (
            5.0,
            3,
            "  tokens 1-3        8  ########",
            "8 of 8 flips first differ at token 3: look at the step that begins there"
            " (speculation, a new cache block, a limit of tokens)",
        ),
    ],
)
def test_a_comparison_prints_where_its_flips_first_differ(plan, tmp_path, gap, place, row, reading):
    out = tmp_path / "out"
    found = _ask(plan, gap, place, out)
    lines = _print(found, out)
    title = " word_problems: first different token of the examined flips (#: confident)"
    start = lines.index(title)
    assert row.strip() in [line.strip() for line in lines[start + 1 : start + 3]]
    assert any(line.strip().startswith("token ") for line in lines[:start]), "below the flips"
    [task] = found.tasks
    assert task.places.reading == reading
    assert [line for line in lines if "look at the" in line] == [
        f"{' ' * 3}{line}" for line in (reading,) if line
    ]
    assert COMPARE.find(out, Comparison) == found
    assert (found.exit_code, task.verdict.outcome) == (FAIL, "FAIL")


def test_a_side_that_does_not_write_its_likeliest_tokens_has_other_sampling(plan, tmp_path):
    """On a vLLM whose generation_config.json had a repetition_penalty, weights were suspected."""
    found = _ask(plan, 0.8, 3, tmp_path / "out", gap_of_b=-0.8)
    [task] = found.tasks
    assert task.places.overruled == "B"
    assert task.places.reading == (
        "in 8 of 8 flips B writes a token that it ranks below another, with the log-probabilities"
        " of A: B adds a penalty, a bias or a temperature (generation_config.json), and weights,"
        " cache and prompt are the same"
    )
    leading = list_leading(diagnose(tmp_path / "out").between)
    assert [one.rule for one in leading] == ["overruled"]
    assert task.places.reading in leading[0].told


def test_texts_and_second_answers_are_counted_over_all_prompts(plan, tmp_path):
    out = tmp_path / "out"
    found = _ask(plan, 5.0, 0, out)
    flips = f"{N - SOUND} of {N} (66.7%)"
    lines = _print(found, out)
    assert (
        " differ   answers differ: A from itself on 0 of 12 (0.0%), B from itself on 0 of 12"
        f" (0.0%), A from B on {flips}" in lines
    )
    [texts] = [line for line in lines if line.startswith(" texts ")]
    assert texts.endswith(
        "; 8 first differ at character 0 (median; 0% of the longer text), 8 at the first one"
    )
    rule = Spec(name="paired")
    unsteady = compare_folders(out / "a", out / "b", rule, again={"B": out / "a"})
    [line] = [line for line in _print(unsteady, out) if "answers differ" in line]
    assert line.endswith(f"answers differ: B from itself on {flips}, A from B on {flips}")
    mixed = Agreement(prompts=10, identical=5, same_answer=3, different=2)
    [task] = unsteady.tasks
    shown = _print(replace(unsteady, tasks=(replace(task, own=(mixed, None)),)), out)
    assert any("answers differ: A from itself on 2 of 10 (20.0%), A from B" in i for i in shown)
    once = compare_folders(out / "a", out / "a", rule)
    assert once.tasks[0].text_places is None
    assert once.tasks[0].places is None
    assert not [line for line in _print(once, out) if "differ:" in line or "first" in line]


def test_a_comparison_of_an_older_version_is_read(plan, tmp_path):
    found = _ask(plan, 5.0, 0, tmp_path)
    file = tmp_path / "comparison.json"
    content = json.loads(file.read_text())
    for name in ("own", "places", "text_places"):
        del content["tasks"][0][name]
    file.write_text(json.dumps(content))
    old = COMPARE.find(tmp_path, Comparison)
    [task] = old.tasks
    assert (task.own, task.places, task.text_places) == ((None, None), None, None)
    assert task.flips == found.tasks[0].flips
    assert not any("answers differ" in line for line in _print(old, tmp_path))


@pytest.mark.parametrize("id_", ["test-1", "a: b", "cases: 2 -> 3"])
@pytest.mark.parametrize(
    ("answer", "said"), [("8", "B answered 8"), (None, "B answered nothing readable")]
)
def test_a_flip_names_the_answer_of_each_side_and_leads_to_its_sample(id_, answer, said):
    flip = Flip(
        id=id_,
        scores=(1.0, 0.0),
        answers=("6", answer),
        target="6",
        texts=("6", answer or ""),
        first_difference=None,
    )
    [row] = describe_flip("gsm8k", flip)
    assert row == ("e.g.", f"{id_}: A answered 6, {said}, expected 6 (scores 1 and 0)")
    [statement] = make_statements([row], "gsm8k")
    assert statement.href.startswith("#sample=gsm8k%2F")
    assert "answered" not in statement.href
