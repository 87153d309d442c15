"""Test the first place at which answers part, by tokens, texts and a real model.

The slow test repeats the table in docs/measured/compare-rounded-weights.md.
"""

import asyncio
from dataclasses import replace

import msgspec
import pytest

from serve_eval.client.client import Client
from serve_eval.evaluation.probe_server import AnswerToken as Token
from serve_eval.evaluation.probe_server import ask_tokens, read_answer
from serve_eval.evidence.answer_pairs import measure_places
from serve_eval.evidence.answer_texts import (
    describe_first_divergences,
    draw_first_divergences,
    find_first_divergences,
    find_token,
    part,
    read_first_divergences,
)
from serve_eval.evidence.self_flips import FLIP_ALPHA
from serve_eval.launchers import embedded
from serve_eval.schema import (
    Dataset,
    Endpoint,
    Hypothesis,
    LaunchContext,
    Limits,
    Message,
    Metric,
    Outcome,
    Parting,
    Plan,
    Request,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
    TextPlaces,
)
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.divergence import first_divergence, look_at_all
from tests.scripted_server import ScriptedServer, TokenLogprob, fail, logprobs


@pytest.mark.parametrize(
    ("one", "other", "character", "word", "before"),
    [
        ("so 12", "so 13", 4, 1, "so 1"),
        ("so 12", "so", 2, 0, "so"),
        ("so 12", "so 2", 3, 1, "so "),
        ("", "a", 0, 0, ""),
        ("x" * 100 + "a", "x" * 100 + "b", 100, 0, "x" * 48),
    ],
)
def test_texts_part_at_their_first_different_character(one, other, character, word, before):
    found = part(one, other)
    assert (found.character, found.word, found.token, found.before) == (
        character,
        word,
        None,
        before,
    )
    assert (found.before + found.a).endswith(one[character:][:48])
    assert (found.a, found.b) == (one[character:][:48], other[character:][:48])


def test_equal_texts_do_not_part():
    assert part("a", "a", ["a"]) is None
    assert find_first_divergences([]) is None


@pytest.mark.parametrize(
    ("tokens", "one", "other", "found"),
    [
        (["so", " 1", "2"], "so 12", "so 13", 2),
        (["so", " 12"], "so 12", "so 13", 1),
        (["so", " 1", "3", "!"], "so 12", "so 13", 2),  # those of the other answer
        (["so", " 1", "7"], "so 12", "so 13", 2),  # a third answer that begins alike
        (["so", " 2"], "so 12", "so 13", None),  # one that departs sooner
        (["so"], "so", "so 13", 1),  # an answer that ends there
        (["so", " 13"], "so", "so 13", 1),
        (["so"], "so 12", "so 13", None),
        ([], "", "a", 0),
    ],
)
def test_the_token_of_a_place(tokens, one, other, found):
    for parting in (part(one, other, tokens), part(other, one, tokens)):
        assert parting.token == found
        assert find_token(tokens, parting.character, parting.before) == found


def _summarize(*places, alike=False):
    """Summarize partings at these tokens (None: not known); the words are one further each."""
    partings = [
        Parting(
            character=9,
            word=i if place is None else place + 1,
            token=place,
            before="The answer is " if alike else f"{i} and ",
            a="1",
            b="2",
        )
        for i, place in enumerate(places)
    ]
    found = find_first_divergences(partings)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("found", "words", "reading"),
    [
        (_summarize(*[9] * 5), "always token 9 (5 of 5)", "look at the step that begins there"),
        (_summarize(*[9] * 4), "token 9 in 4 of 4", ""),
        (_summarize(*[9] * 6, 1, 2, 30), "token 9 in 6 of 9", "look at the step"),
        (_summarize(*[9] * 6, 1, 2, 30, 31), "token 9 in the median, from 1 to 31", ""),
        (_summarize(*[0] * 8), "always token 0 (8 of 8)", "look at the prompt and its KV cache"),
        (_summarize(*[1] * 8), "always token 1 (8 of 8)", "look at the first step of generation"),
        (_summarize(*[3] * 8, alike=True), "always token 3 (8 of 8)", "the answers begin alike"),
        (_summarize(*[0] * 8, alike=True), "always token 0 (8 of 8)", "look at the prompt"),
        (_summarize(*[7] * 5, *[None] * 5), "always token 7 (5 of 5)", "look at the step"),
        (_summarize(*[7] * 2, *[None] * 5), "word 5 in the median, from 2 to 8", ""),
    ],
)
def test_the_words_of_a_usual_place(found, words, reading):
    assert describe_first_divergences(found) == words
    read = read_first_divergences(found)
    assert read.startswith(reading)
    assert bool(read) == bool(reading)


def test_pairs_without_a_token_are_counted_beside_the_others():
    found = _summarize(*[7] * 5, *[None] * 5)
    assert (found.unit, found.parted, found.unplaced) == ("token", 5, 5)
    found = _summarize(*[7] * 4, *[None] * 5)
    assert (found.unit, found.parted, found.unplaced) == ("word", 9, 0)


def test_the_histogram_fits_in_80_columns():
    found = _summarize(0, 9, 9, 8, 40)
    assert list(draw_first_divergences(found)) == [
        "  token 0           1  #",
        "  tokens 1-3        0",
        "  tokens 4-7        0",
        "  tokens 8-15       3  ###",
        "  tokens 16-31      0",
        "  tokens 32+        1  #",
    ]
    many = replace(found, counts={**found.counts, "0": 90_000})
    assert max(map(len, draw_first_divergences(many))) <= 80
    assert list(draw_first_divergences(replace(found, counts={"0": 2}))) == [
        "  token 0           2  ##"
    ]


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([], None),
        ([("same", "same"), ("", "")], None),
        ([("abcd", "abXd"), ("same", "same")], (1, 0, 2.0, 0.5)),
        ([("abcd", "Xbcd"), ("abcd", "abcX")], (2, 1, 1.5, 0.375)),
        ([("", "abcd")], (1, 1, 0.0, 0.0)),
        ([("ab", "abcd"), ("abcd", "a"), ("abcdefgh", "abcdefg")], (3, 0, 2.0, 0.5)),
    ],
)
def test_the_first_differing_characters_of_texts(pairs, found):
    told = measure_places(pairs)
    if found is None:
        assert told is None
        return
    texts, at_start, character, share = found
    assert told == TextPlaces(
        texts=texts, at_start=at_start, median_character=character, median_share=share
    )


YES = Token("yes", -0.70, {"yes": -0.70, "no": -0.75})
NO = Token("no", -0.70, {"no": -0.70, "yes": -0.72})
SURE = Token("no", -0.01, {"no": -0.01, "yes": -4.6})
ALONE = Token("no", -0.01, {"no": -0.01, "maybe": -5.0})
FLAT = Token("no", -0.70, {"no": -0.70, "maybe": -0.71})
START = Token("I say", -0.1, {"I say": -0.1})


@pytest.mark.parametrize(
    ("other", "kind", "gaps"),
    [
        (NO, "near tie", (0.05, 0.02)),
        (SURE, "confident", (0.05, 4.59)),
        (ALONE, "confident", (0.05, 4.99)),
        (FLAT, "unknown", (0.05, 0.01)),
    ],
)
def test_how_sure_they_were(other, kind, gaps):
    found = first_divergence([START, YES, START], [START, other, YES])
    assert (found.kind, found.token, found.tokens) == (kind, 1, ("yes", "no"))
    assert found.gaps == pytest.approx(gaps)


RANKED = {"no": -0.1, "yes": -0.9}


@pytest.mark.parametrize(
    ("b_top", "greedy", "overruled"),
    [
        ({"yes": -0.9, "no": -0.1}, True, "B"),
        ({"yes": -0.9, "no": -0.1}, False, None),
        ({"yes": -0.95, "no": -0.06}, True, "B"),
        ({"yes": -0.9, "no": -0.4}, True, None),  # weights, cache or prompt may differ
        ({"yes": -0.85, "maybe": -0.1}, True, "B"),
        ({"yes": -0.05, "no": -0.1}, True, None),
    ],
)
def test_an_endpoint_that_does_not_write_its_likeliest_token_is_overruled(b_top, greedy, overruled):
    a, b = Token("no", RANKED["no"], RANKED), Token("yes", b_top["yes"], b_top)
    for one, other, side in ((a, b, overruled), (b, a, "A" if overruled else None)):
        found = first_divergence([START, one], [START, other], greedy=greedy)
        assert found.overruled == side
        assert (found.kind == "overruled") is (side is not None)


def test_who_is_overruled_on_both_sides_accuses_nobody():
    top = {"maybe": -0.1, "yes": -1.0, "no": -1.0}
    one, other = Token("yes", -1.0, top), Token("no", -1.0, top)
    assert first_divergence([one], [other], greedy=True).overruled is None


def test_answers_that_do_not_differ_or_of_which_one_goes_on():
    assert first_divergence([START, YES], [START, YES]).kind == "same again"
    longer = first_divergence([START], [START, YES])
    assert (longer.kind, longer.token) == ("unknown", 1)
    assert "of B" in longer.why


@pytest.mark.parametrize(
    "choice",
    [
        {"logprobs": None},
        {},
        {"logprobs": {"content": []}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [None]}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": []}},
        {"logprobs": {"tokens": ["a"], "token_logprobs": [float("inf")]}},
    ],
)
def test_what_has_no_log_probabilities_is_not_read(choice):
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_answer(msgspec.json.encode({"choices": [{"text": "a", **choice}]}))


def _endpoint(tokens):
    """Return a server that answers each request with these tokens."""
    return ScriptedServer(
        logprobs([TokenLogprob(text=t.text, logprob=t.logprob, top=t.top) for t in tokens])
    )


def _task():
    return Task(
        name="made",
        version=1,
        reference_file="made",
        metric=Metric(),
        hypothesis=Hypothesis(),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=lambda roots, n: Dataset(samples=[], files=(), total=0),
        score=lambda sample, response: Score(value=0.0, outcome=Outcome.WRONG),
        answers=lambda sample: ("1", "0"),
    )


def _look(a, b, samples):
    async def both():
        async with (
            a.serve() as at_a,
            b.serve() as at_b,
            Client(Endpoint(base_url=at_a, model="m"), Limits()) as one,
            Client(Endpoint(base_url=at_b, model="m"), Limits()) as other,
        ):
            found = await look_at_all(_task(), samples, one, other)
        return [f"{one.kind} {one.why}".strip() for one in found]

    return asyncio.run(both())


async def test_tokens_that_spell_a_key_together_are_masked():
    key = "sk-live-Q7pRz2VwX9mT4kLd"
    said = [Token(key[start : start + 4], -0.1, {}) for start in range(0, len(key), 4)]
    async with (
        _endpoint([YES, *said]).serve() as at_a,
        _endpoint([NO, *said]).serve() as at_b,
        Client(Endpoint(base_url=at_a, model="m"), Limits(), api_key=key) as one,
        Client(Endpoint(base_url=at_b, model="m"), Limits(), api_key=key) as other,
    ):
        told = await ask_tokens(
            Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=8)), one
        )
        assert [token.text for token in told.tokens] == ["yes", "***", *[""] * 5]
        [found] = await look_at_all(_task(), [Sample(id="1", prompt="p", target="1")], one, other)
        assert found.tokens == ("yes", "no")


@pytest.mark.parametrize("chat", [False, True])
def test_both_are_asked_as_the_task_asks_with_log_probabilities(chat):
    prompt = (Message(role="user", content="Yes or no?"),) if chat else "Yes or no?"
    samples = [Sample(id=str(i), prompt=prompt, target="yes") for i in range(3)]
    servers = _endpoint([START, YES]), _endpoint([START, SURE])
    assert _look(*servers, samples) == ["confident"] * 3
    asked = [body for server in servers for body in server.bodies]
    assert len(asked) == 6
    wanted = {"logprobs": True, "top_logprobs": 5} if chat else {"logprobs": 5}
    assert all({name: body[name] for name in wanted} == wanted for body in asked)
    assert all(body["max_tokens"] == 8 and body["temperature"] == 0.0 for body in asked)


def test_an_endpoint_that_refuses_is_asked_once_and_says_why():
    samples = [Sample(id=str(i), prompt="?", target="yes") for i in range(5)]
    refusing = ScriptedServer(fail(400, "no logprobs here"))
    found = _look(_endpoint([START, YES]), refusing, samples)
    assert found == ["unknown HTTP 400: no logprobs here"] * 5
    assert len(refusing.asked) == 1


SOUND = "embedded"


def _compared(
    damages,
    folder,
    *,
    problems,
    again,
    rule,
    seed=0,
):
    """Return the comparison with each form and its exit code."""
    found = {}

    async def story():
        context = LaunchContext(model=SOUND, log_dir=folder / "logs")
        async with embedded.launch(
            context, embedded.EmbeddedOptions(also={one: one for one in damages})
        ) as endpoint:
            running = Spec(name="external", options={"base_url": endpoint.base_url})
            task = Spec(
                name="word_problems", options={"num_samples": problems, "random_seed": seed}
            )
            for damage in damages:
                a, b = (
                    CompareSide(plan=Plan(model=one, launcher=running, tasks=(task,)))
                    for one in (SOUND, damage)
                )
                done = await compare(
                    a,
                    b,
                    CompareRules(rule=rule, again=again),
                    folder / damage,
                    show_flips=12,
                    environ={},
                )
                found[damage] = done.tasks[0], done.exit_code

    asyncio.run(story())
    return found


def test_int8_is_no_drop_and_int3_is_one(tmp_path):
    found = _compared(("int8", "int3"), tmp_path, problems=60, again=20, rule=Spec(name="paired"))
    (int8, passed), (int3, failed) = found["int8"], found["int3"]
    assert (passed, failed) == (PASS, FAIL)
    for task in (int8, int3):
        assert (task.itself.prompts, task.itself.own) == (20, 0)
    assert int8.worse + int8.better <= 3
    assert int3.worse > 5 * int3.better
    assert any(warning.startswith("more_flips: ") for warning in int3.warnings)
    assert not any(warning.startswith("more_flips: ") for warning in int8.warnings)
    looked = [flip.divergence for flip in int3.flips]
    assert len(looked) == 12
    assert {one.kind for one in looked if one is not None} <= {"near tie", "confident"}
    assert int3.places.reading == "", "wrong weights differ at any token"


def test_texts_tell_int4_apart_where_too_few_scores_change(tmp_path):
    int4, _ = _compared(
        ("int4",), tmp_path, problems=60, again=60, rule=Spec(name="paired"), seed=4
    )["int4"]
    told = int4.itself
    assert (told.prompts, told.own, told.own_texts) == (60, 0, 0)
    assert mcnemar(told.only_other, told.only_own).p_mid > FLIP_ALPHA
    assert told.other_texts > told.other
    assert (told.more, told.measure) == (True, "text")
    [said] = [warning for warning in int4.warnings if warning.startswith("more_flips: ")]
    assert (
        f"B's texts differ from A's first texts in {told.other_texts} of 60 prompts, A's own second"
        " texts in 0" in said
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paired", "noninferiority"])
def test_the_whole_task_tells_int8_from_int3(name, tmp_path):
    found = _compared(("int8", "int3"), tmp_path, problems=500, again=200, rule=Spec(name=name))
    assert {damage: code for damage, (_, code) in found.items()} == {"int8": PASS, "int3": FAIL}


@pytest.mark.slow
def test_four_bits_take_more_problems(tmp_path):
    found = _compared(
        ("int4", "int4-g32"), tmp_path, problems=2000, again=200, rule=Spec(name="paired")
    )
    for damage, (task, code) in found.items():
        assert code == FAIL, damage
        assert any(warning.startswith("more_flips: ") for warning in task.warnings), damage
