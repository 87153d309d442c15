"""Check what judges are asked, how their verdicts are read, and what they come to."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.plugins import registry
from serve_eval.schema import (
    ImagePart,
    ImageUrl,
    Judgement,
    Message,
    Outcome,
    Response,
    Sample,
    TextPart,
    ToolCall,
)
from serve_eval.storage.assessments import _hash_question

JUDGES = [{"base_url": "host:1", "model": "a"}, {"base_url": "host:2", "model": "b"}]
ASKED = Sample(
    id="s", prompt=(Message(role="user", content="What is the capital of France?"),), target=""
)


def _scorer(**options):
    make = registry.load("serve_eval.scorers", "judge")
    given = {"judges": JUDGES[:1], **options}
    return make(**registry.check_options(make, given, "scorer.judge"))


def _questions(scorer, answer="Paris", expected="Paris", sample=ASKED):
    return list(scorer.questions(sample, expected, Response(text=answer, finish_reason="stop")))


def _text(question):
    (turn,) = question.prompt
    return turn.text


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("It is.\nVerdict: yes", 1.0),
        ("verdict: NO.", 0.0),
        ("**Verdict:** Yes!", 1.0),
        ("__Verdict__: **no**", 0.0),
        ("Final verdict - yes", 1.0),
        ("Verdict: yes\nNo, wait.\nVerdict: no\n", 0.0),
        ("Verdict: yes or no", None),
        ("Verdict: yes, because it is", None),
        ("Verdict: yes\nVerdict: unclear", None),
        ("The verdict is yes", None),
        ("yes", None),
        ("", None),
    ],
)
def test_a_verdict_stands_in_a_line_of_its_own_and_the_last_one_counts(said, value):
    (question,) = _questions(_scorer())
    assert question.read(said) == value


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("Verdict: 7", 0.7),
        ("Verdict: 10/10.", 1.0),
        ("Verdict: **0**", 0.0),
        ("Verdict: 2,5", 0.25),
        ("Verdict: 11", None),
        ("Verdict: -3", None),
        ("Verdict: 7 of 20", None),
        ("Verdict: 7/20", None),
        ("Verdict: good", None),
    ],
)
def test_points_are_a_share_of_the_most(said, value):
    (question,) = _questions(_scorer(metrics=[{"name": "correctness", "points": 10}]))
    assert "N being a number from 0 (not at all) to 10" in _text(question)
    assert question.read(said) == (None if value is None else pytest.approx(value))


def test_words_and_a_pattern_of_ones_own():
    own = {
        "name": "tone",
        "prompt": "Is ${answer} polite?",
        "success": ["PASS", "OK"],
        "failure": ["FAIL"],
    }
    (question,) = _questions(_scorer(metrics=[own]))
    assert _text(question).endswith("Verdict: PASS\nVerdict: FAIL")
    assert [question.read(f"Verdict: {word}") for word in ("pass", "ok", "Fail", "yes")] == [
        1.0,
        1.0,
        0.0,
        None,
    ]
    (question,) = _questions(_scorer(metrics=[{**own, "pattern": r"\[\[(\w+)\]\]"}]))
    assert _text(question).endswith(" polite?"), "a custom pattern needs a custom ending"
    assert [question.read(text) for text in ("[[FAIL]] no: [[PASS]]", "PASS")] == [1.0, None]


def test_an_inverted_metric_is_good_when_it_is_low():
    scorer = _scorer(
        metrics=[
            "toxicity",
            {"name": "length", "criterion": "Too long?", "points": 4, "inverted": True},
        ]
    )
    toxic, long = _questions(scorer)
    assert [toxic.read("Verdict: yes"), toxic.read("Verdict: no"), long.read("Verdict: 1")] == [
        0.0,
        1.0,
        0.75,
    ]
    said = tuple(
        Judgement(judge="a", metric=q.metric, round=1, value=v)
        for q, v in zip((toxic, long), (1.0, 0.5), strict=True)
    )
    score = scorer.score(None, Response(text="x", finish_reason="stop", judgements=said))
    assert (score.value, score.parts) == (0.75, {"toxicity_inverted": 1.0, "length_inverted": 0.5})
    assert score.mode == "low length_inverted"


def test_a_call_of_a_tool_is_shown_with_the_answer():
    calls = (ToolCall("weather", '{"city": "Paris"}'),)
    scorer = _scorer(metrics=["usefulness"])
    (question,) = scorer.questions(
        ASKED, None, Response(text="", finish_reason="tool_calls", tool_calls=calls)
    )
    assert '>\nweather({"city": "Paris"})\n<' in _text(question)


def test_a_pattern_that_would_search_for_ever_finds_nothing():
    (question,) = _questions(
        _scorer(metrics=[{"name": "own", "prompt": "${answer}", "pattern": r"^(\w+\s?)*$"}])
    )
    assert question.read("many words " * 40 + "!") is None


@given(answer=st.text(max_size=200), asked=st.text(max_size=50), expected=st.text(max_size=50))
def test_no_answer_can_end_its_own_place(answer, asked, expected):
    sample = Sample(id="s", prompt=asked, target="")
    own = {"name": "own", "prompt": "${prompt} ${expected} ${answer}"}
    for question in _questions(
        _scorer(metrics=["usefulness", own]), answer or "x", expected, sample
    ):
        (mark,) = re.findall(r"tags that end in (\w+) is", _text(question).partition("\n")[0])
        assert _text(question).count(f"</answer-{mark}>") == 1
        assert f"<answer-{mark}>\n{answer or 'x'}\n</answer-{mark}>" in _text(question)


def test_what_is_filled_in_is_not_filled_again():
    (question,) = _questions(
        _scorer(metrics=[{"name": "own", "prompt": "A: ${answer}"}]),
        "${expected} ${prompt}",
        "Paris",
    )
    assert "${expected} ${prompt}" in _text(question)
    assert "Paris" not in _text(question)


def test_the_places_hold_turns_images_and_what_is_expected():
    url = ImageUrl(url="data:image/png;base64,AA==")
    turns = (
        Message(role="system", content="Be brief."),
        Message(role="user", content=(TextPart(text="What is this?"), ImagePart(image_url=url))),
    )
    sample = Sample(id="s", prompt=turns, target="")
    (question,) = _questions(_scorer(), "A cat", {"answer": "a cat", "key_words": ["cat"]}, sample)
    assert "system: Be brief.\nuser: What is this? [image]\n" in _text(question)
    assert '"key_words": [\n' in _text(question)
    (question,) = _questions(_scorer(), "A cat", {"answer": "a cat"}, sample)
    assert ">\na cat\n<" in _text(question)
    (question,) = _questions(_scorer(metrics=["usefulness"]), "A cat", None, sample)
    assert "What is expected" not in _text(question)


def test_a_metric_that_compares_needs_something_to_compare_with():
    own = {"name": "own", "prompt": "${answer} ${expected}"}
    scorer = _scorer(metrics=["correctness", "usefulness", own])
    told = scorer.problems({"answer": ""})
    assert [line.split("metric ")[1].partition(":")[0] for line in told] == ["correctness", "own"]
    assert not scorer.problems("Paris")
    assert not _scorer(metrics=["toxicity"]).problems(None)


def _score(scorer, *values):
    said = tuple(Judgement(judge=j, metric=m, round=r, value=v) for j, m, r, v in values)
    return scorer.score("Paris", Response(text="x", finish_reason="stop", judgements=said))


def test_the_mean_is_over_what_could_be_read_and_a_majority_decides_where_wished():
    values = [
        ("a", "correctness", 1, 1.0),
        ("a", "correctness", 2, 1.0),
        ("b", "correctness", 1, 0.0),
    ]
    unread = ("b", "correctness", 2, None)
    options = {"judges": JUDGES, "rounds": 2}
    mean = _score(_scorer(**options), *values, unread)
    assert (mean.value, mean.outcome) == (pytest.approx(2 / 3), Outcome.PARTIAL)
    assert (mean.parts["judges_apart"], mean.parts["rounds_apart"]) == (1.0, 0.0)
    assert _score(_scorer(**options, majority=True), *values, unread).value == 1.0
    tied = _score(_scorer(**options, majority=True), *values, ("b", "correctness", 2, 0.0))
    assert (tied.value, tied.outcome) == (0.5, Outcome.PARTIAL)
    assert tied.answer == "correctness 0.5"


def test_the_key_is_of_what_is_asked_and_not_of_where():
    def key(judge, answer="Paris", **options):
        return _hash_question(_questions(_scorer(judges=[judge], **options), answer)[-1])

    judge = {"base_url": "host:1", "model": "a"}
    assert key(judge) == key(
        {**judge, "base_url": "elsewhere:2", "api_key_env": "KEY", "concurrency": 1}
    )
    others = [
        key({**judge, "model": "b"}),
        key({**judge, "sampling": {"temperature": 0.5}}),
        key({**judge, "extra_body": {"reasoning_effort": "low"}}),
        key(judge, "Rome"),
        key(judge, metrics=["usefulness"]),
        key(judge, rounds=2),
    ]
    assert len({key(judge), *others}) == 7


def test_what_decides_a_score_is_told_without_addresses():
    told = [
        _scorer(judges=[{"base_url": url, "model": "a"}], rounds=2).decisive
        for url in ("host:1", "other:2")
    ]
    assert told[0] == told[1]
    assert (told[0]["rounds"], told[0]["judges"][0]["model"]) == (2, "a")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"judges": []}, "judge.judges: name at least one"),
        ({"judges": [{"modl": "a"}]}, "unknown field `modl`"),
        ({"judges": [{"base_url": "h:1"}]}, "judges[0].model: required"),
        ({"judges": [{"model": "a"}]}, "judges[0].base_url: required; only name, sampling"),
        (
            {"judges": [{"base_url": "ftp://h", "model": "a"}]},
            "judges[0].base_url: expected host:port",
        ),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "api_key_env": "sk-abcdefgh1"}]},
            "name of an environment variable, not a key",
        ),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "headers": {"X-Api-Key": "abc"}}]},
            "as ${VARIABLE}",
        ),
        ({"judges": [{"base_url": "h:1", "model": "a", "name": "a b"}]}, "name: must be a word"),
        ({"judges": [{}, {}]}, "two judges are called 'itself'"),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "sampling": {"max_tokens": 0}}]},
            "max_tokens: must be 1",
        ),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "concurrency": 0}]},
            "concurrency: must be 1",
        ),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "rate_limit": 0}]},
            "rate_limit: must be above 0",
        ),
        (
            {"judges": [{"base_url": "h:1", "model": "a", "requests_per_minute": 0}]},
            "requests_per_minute: must be 1",
        ),
        ({"metrics": []}, "judge.metrics: name at least one"),
        ({"metrics": ["corectness"]}, "Did you mean 'correctness'?"),
        ({"metrics": ["toxicity", "toxicity"]}, "'toxicity' is listed twice"),
        (
            {"metrics": [{"name": "own", "prompt": "Good?"}]},
            "must contain ${answer}, the place of the answer",
        ),
        ({"metrics": [{"name": "own", "prompt": "${answer} ${foo}"}]}, "${foo} is not known"),
        (
            {"metrics": [{"name": "own", "prompt": "${answer}", "criterion": "Good?"}]},
            "belongs to our own prompt",
        ),
        ({"metrics": [{"name": "own", "criterion": "?", "points": 0}]}, "points: must be above 0"),
        (
            {"metrics": [{"name": "own", "criterion": "?", "failure": ["YES"]}]},
            "need different words",
        ),
        (
            {"metrics": [{"name": "own", "criterion": "?", "pattern": "("}]},
            "not a regular expression",
        ),
        (
            {"metrics": [{"name": "own", "criterion": "?", "pattern": "(?:ab){90000}"}]},
            "only texts of 180000",
        ),
        ({"rounds": 0}, "rounds: must be 1 or more"),
        ({"rounds": 2, "judges": [{"sampling": {"seed": 1}}]}, "every round gives the same"),
        (
            {"majority": True, "metrics": [{"name": "own", "criterion": "?", "points": 5}]},
            "points have a mean",
        ),
    ],
)
def test_what_is_wrong_with_the_options_is_said(options, problem):
    with pytest.raises(PlanError) as refused:
        _scorer(**options)
    assert problem in str(refused.value)


def test_the_examples_of_the_page_are_options_of_the_scorer():
    page = (Path(__file__).resolve().parents[2] / "docs/own-questions.md").read_text()
    page = page.partition("\n## Judges\n")[2].partition("\n## ")[0]
    whole, metrics = (
        yaml.safe_load(block)
        for block in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    assert len(_questions(_scorer(**whole["capitals"]["scorer"]["judge"]))) == 2 * 3 * 2
    assert [question.metric for question in _questions(_scorer(**metrics))] == [
        "politeness",
        "depth",
        "safety",
    ]
