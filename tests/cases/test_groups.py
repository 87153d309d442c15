"""Groups of cases: by a field, an input, a pattern or one by one; a warning if none is declared."""

from pathlib import Path

import pytest
import yaml

from serve_eval.cases import file
from serve_eval.cases.questions import questions
from serve_eval.errors import PlanError
from serve_eval.evaluation.preflight import NAME, warn_of_shared_texts
from serve_eval.schema import Message, Sample
from tests.cli.command import serve_eval

PASSAGE = "A long passage about the tides of the northern sea and of those who sail it. " * 4


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _groups(common, **cases):
    """Return the group of each case of a file."""
    listed = [
        {"case": name.replace("_", ":"), "expected": "y", **one} for name, one in cases.items()
    ]
    Path("cases.yaml").write_text(yaml.safe_dump({"c": {**common, "cases": listed}}))
    return {q.name: q.group for q in questions(file.read(["cases.yaml"]), "c").asked}


PROMPTED = {"input": {"prompt": "${passage} Which?", "passage": PASSAGE}}


def test_a_field_of_the_names_is_the_group():
    found = _groups(
        {"fields": ["text", "number"], "group": "text"},
        sea_1={"input": {"prompt": "one"}},
        sea_2={"input": {"prompt": "two"}},
        hill={"input": {"prompt": "three"}},
    )
    assert found == {"sea:1": "sea", "sea:2": "sea", "hill": "hill"}


def test_an_input_is_the_group_by_its_value():
    found = _groups(
        {"group": "passage"},
        a={"input": {"prompt": "${passage} One?", "passage": PASSAGE}},
        b={"input": {"prompt": "${passage} Two?", "passage": PASSAGE}},
        c={"input": {"prompt": "${passage} Two?", "passage": "another"}},
        d={"input": {"prompt": "alone"}},
    )
    assert found["a"] == found["b"] != found["c"]
    assert found["d"] == ""
    assert "tides" not in found["a"]  # of a hold-out set nothing but a hash is kept


def test_an_axis_is_the_group_of_its_variants():
    found = _groups(
        {"group": "country"},
        capital={
            "axes": ["country", "way"],
            "input": {
                "prompt": "${way} ${country}",
                "country": {"j": "Japan", "n": "Nepal"},
                "way": {"short": "Say", "long": "Tell me"},
            },
        },
    )
    assert found["capital:j:short"] == found["capital:j:long"] != found["capital:n:short"]


def test_a_pattern_matches_names_by_its_first_bracket_or_as_a_whole():
    cases = {
        "sea_1": {"input": {"prompt": "one"}},
        "sea_2": {"input": {"prompt": "two"}},
        "other": {"input": {"prompt": "three"}},
    }
    assert _groups({"group": "^(.*):"}, **cases) == {"sea:1": "sea", "sea:2": "sea", "other": ""}
    assert _groups({"group": "^se[a-z]+"}, **cases)["sea:1"] == "sea"


def test_a_case_can_name_its_own_group():
    found = _groups(
        {"group": "^(.*):"},
        a={"input": {"prompt": "one"}, "group": "tides"},
        b={"input": {"prompt": "two"}, "group": "tides"},
        sea_1={"input": {"prompt": "three"}},
    )
    assert found == {"a": "tides", "b": "tides", "sea:1": "sea"}


@pytest.mark.parametrize(
    ("group", "said"),
    [
        (
            "pasage",
            "'pasage' is neither one of `fields` nor an input of a case. Did you mean 'pass",
        ),
        ("^(.*", "'^(.*' is not a regular expression: missing ), unterminated subpattern"),
        ("^z:", "no name of a case matches '^z:'"),
        ("", "c.group: expected a text that is not empty"),
    ],
)
def test_a_group_that_no_case_has_is_refused_with_its_line(group, said):
    with pytest.raises(PlanError) as refused:
        _groups({"group": group, "fields": ["text"]}, a=PROMPTED)
    assert said in str(refused.value)
    assert str(refused.value).startswith("cases.yaml:")


def test_a_mapping_with_the_key_group_is_still_a_resource():
    Path("cases.yaml").write_text(
        "people: {group: Five}\n"
        "c:\n  - {case: a, input: {prompt: '${people.group}'}, expected: y}\n"
    )
    [asked] = questions(file.read(["cases.yaml"]), "c").asked
    assert asked.turns[-1].text == "Five"


def test_groups_change_neither_ids_nor_the_protocol_and_can_be_set_for_a_run():
    ids = {}
    for name, common in (("without", {}), ("with", {"group": "passage"})):
        _groups(common, a=PROMPTED)
        ids[name] = [q.id for q in questions(file.read(["cases.yaml"]), "c").asked]
    assert ids["without"] == ids["with"]
    done = serve_eval("data", "cases", "expand", "cases.yaml", "--set", "cases:c.group=passage")
    assert "c: 1 cases in 1 groups, scored by exact" in done.stdout


# -------------------------------------------------------------------------------------------------
# the warning


def _samples(passages, each, *, text=PASSAGE, role="user", **more):
    """Return questions on passages; `more` are fields of each sample."""
    return [
        Sample(
            id=f"{p}-{q}",
            prompt=(
                Message(role="system", content="Answer in one word. " * 20),
                Message(role=role, content=f"Text {p}: {text} It is {p}.\nQuestion {q}?"),
            ),
            target="y",
            **more,
        )
        for p in range(passages)
        for q in range(each)
    ]


def _warn(samples, task="cases:c"):
    return warn_of_shared_texts(task, samples) or ""


def test_questions_on_long_passages_warn_and_say_what_to_do():
    said = _warn(_samples(10, 4))
    assert said.startswith(f"{NAME}: 40 of 40 prompts share a long text with others, such as 0-0")
    assert said.endswith("add `group:` to the case file")
    assert _warn(_samples(10, 4), "own").endswith("Sample(group=...)")


@pytest.mark.parametrize(
    "samples",
    [
        pytest.param(_samples(10, 4, group="one"), id="a group is declared"),
        pytest.param(_samples(10, 4, text="short"), id="the text is short"),
        pytest.param(_samples(40, 1), id="each text is asked once"),
        pytest.param(_samples(1, 40), id="all prompts share it: an instruction"),
        pytest.param(_samples(60, 1) + _samples(2, 2)[:2], id="two of sixty-two"),
        pytest.param(_samples(3, 10, role="system"), id="three instructions"),
    ],
)
def test_other_prompts_do_not_warn(samples):
    assert _warn(samples) == ""


def test_a_passage_in_the_system_turn_warns_and_shots_of_a_subject_do_not():
    assert _warn(_samples(10, 4, role="system"))
    shots = [
        Sample(
            id=f"{s}-{q}",
            prompt=f"{s} {PASSAGE}\n\n{q}?",
            target="y",
            metadata={"subject": str(s)},
        )
        for s in range(5)
        for q in range(8)
    ]
    assert _warn(shots, "mmlu") == ""


def test_a_text_counts_by_its_end_too():
    samples = [
        Sample(id=f"{p}-{q}", prompt=f"Question {q}: {PASSAGE}{p}", target="y")
        for p in range(10)
        for q in range(3)
    ]
    assert _warn(samples)
