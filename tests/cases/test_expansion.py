import hashlib
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.cases.expansion import ExpansionError, compat_md5, count, expand, sample_id

EXTRACTION = {
    "case": "extraction",
    "input": {
        "query": {"gene": "Which gene?", "assay": "Which assay?"},
        "caption": {"one": "TP53 by western blot.", "two": "BRCA1 by PCR."},
        "format": {"gene": "one symbol", "assay": "a list"},
        "system_messages": {"short": ["Be brief."], "long": ["Be", "thorough."]},
    },
    "expected": {
        "answer": {
            "one": {"gene": "TP53", "assay": "western blot"},
            "two": {"gene": "BRCA1", "assay": "PCR"},
        },
        "note": "kept",
    },
}


def _names(case):
    return [one.name for one in expand(case)]


def test_each_mapping_of_the_input_is_an_axis_and_names_are_joined_in_the_order_of_the_file():
    assert count(EXTRACTION) == 8
    names = _names(EXTRACTION)
    assert names[:3] == [
        "extraction:gene:one:short",
        "extraction:gene:one:long",
        "extraction:gene:two:short",
    ]
    assert names[-1] == "extraction:assay:two:long"
    assert len(set(names)) == 8


def test_format_goes_with_query_and_the_answer_is_looked_up_by_caption_and_query():
    by_name = {one.name: one.content for one in expand(EXTRACTION)}
    one = by_name["extraction:assay:two:long"]
    assert one["input"] == {
        "query": "Which assay?",
        "caption": "BRCA1 by PCR.",
        "format": "a list",
        "system_messages": ["Be", "thorough."],
    }
    assert one["expected"] == {"answer": "PCR", "note": "kept"}


def test_a_case_without_an_axis_is_itself():
    case = {
        "case": "plain",
        "input": {"prompt": "x", "system_messages": ["a"]},
        "expected": {"answer": "b"},
    }
    [one] = expand(case)
    assert (one.name, one.content) == ("plain", case)


def test_the_order_of_the_keys_stays_so_that_the_old_hash_comes_out():
    """The hash is the MD5 of Python's JSON of the expanded case, written as BioChatter does it."""
    values = {"prompt": {"a": "A?", "b": "B?"}, "system_messages": ["s"]}
    case = {"case": "rag", "input": values, "expected": {"answer": "x"}}
    wanted = [
        (
            '{"case": "rag:a", "input": {"prompt": "A?", "system_messages": ["s"]}, "expected":'
            ' {"answer": "x"}}'
        ),
        (
            '{"case": "rag:b", "input": {"prompt": "B?", "system_messages": ["s"]}, "expected":'
            ' {"answer": "x"}}'
        ),
    ]
    assert [json.dumps(one.content) for one in expand(case)] == wanted
    hashes = [hashlib.md5(text.encode()).hexdigest() for text in wanted]
    assert [compat_md5(one.content) for one in expand(case)] == hashes


def test_named_axes_are_the_only_ones_and_have_their_own_order():
    case = {
        "case": "c",
        "axes": ["b", "a"],
        "zip_with": {"hint": "a"},
        "input": {
            "a": {"x": 1, "y": 2},
            "b": ["p", "q"],
            "hint": {"x": "hx", "y": "hy"},
            "schema": {"k": "v"},
        },
        "expected": {"answer": {"by": ["a"], "values": {"x": "X", "y": "Y"}}, "note": "n"},
    }
    found = list(expand(case))
    assert [one.name for one in found] == ["c:p:x", "c:p:y", "c:q:x", "c:q:y"]
    assert found[1].content["input"] == {"a": 2, "b": "p", "hint": "hy", "schema": {"k": "v"}}
    assert found[1].content["expected"] == {"answer": "Y", "note": "n"}
    assert dict(found[2].chosen) == {"b": "q", "a": "x"}


def test_a_whole_expectation_is_addressed_by_several_axes():
    case = {
        "case": "c",
        "axes": ["a", "b"],
        "input": {"a": ["1", "2"], "b": ["x"]},
        "expected": {"by": ["b", "a"], "values": {"x": {"1": "one", "2": "two"}}},
    }
    assert [one.content["expected"] for one in expand(case)] == ["one", "two"]


def test_the_choice_of_a_tool_is_no_axis():
    choice = {"type": "function", "function": {"name": "f"}}
    case = {"case": "c", "input": {"prompt": "p", "tool_choice": choice}, "expected": "x"}
    assert [one.content["input"]["tool_choice"] for one in expand(case)] == [choice]


def test_no_axis_at_all_can_be_said():
    case = {"case": "c", "axes": [], "input": {"prompt": "p", "table": {"a": 1}}, "expected": "x"}
    assert _names(case) == ["c"]


JOINED = {
    "case": "advice",
    "join": {"prompt": " "},
    "input": {
        "style": {"brief": ["Be brief."], "long": ["Be thorough."]},
        "prompt": {
            "who": {"she": "She is 40.", "he": "He is 50.\n"},
            "question": "Should I run?",
            "more": {"none": "", "cat": "I have a cat."},
        },
    },
    "expected": {"by": ["prompt.who"], "values": {"she": "yes", "he": "no"}},
}


def test_parts_are_joined_to_one_text_and_those_that_are_mappings_are_axes():
    found = list(expand(JOINED))
    assert count(JOINED) == len(found) == 8
    assert [one.name for one in found[:3]] == [
        "advice:brief:she:none",
        "advice:brief:she:cat",
        "advice:brief:he:none",
    ]
    assert [one.content["input"]["prompt"] for one in found[:4]] == [
        "She is 40. Should I run?",
        "She is 40. Should I run? I have a cat.",
        "He is 50.\n Should I run?",
        "He is 50.\n Should I run? I have a cat.",
    ]
    assert [list(one.content) for one in found] == [["case", "input", "expected"]] * 8
    assert [one.content["expected"] for one in found[:4]] == ["yes", "yes", "no", "no"]
    assert dict(found[-1].chosen) == {"style": "long", "prompt.who": "he", "prompt.more": "cat"}


def test_named_axes_may_be_parts_and_something_may_go_with_them():
    case = {
        **JOINED,
        "axes": ["prompt.more", "prompt.who"],
        "zip_with": {"hint": "prompt.who"},
        "input": {"prompt": JOINED["input"]["prompt"], "hint": {"she": "her", "he": "him"}},
    }
    found = list(expand(case))
    assert [one.name for one in found] == [
        "advice:none:she",
        "advice:none:he",
        "advice:cat:she",
        "advice:cat:he",
    ]
    assert found[1].content["input"] == {"prompt": "He is 50.\n Should I run?", "hint": "him"}


def test_what_goes_with_an_axis_is_none_itself_and_may_be_a_part():
    """Otherwise each question would be asked once for each of its variants."""
    beside = {"prompt": "${a} ${hint}", "a": {"x": "X", "y": "Y"}, "hint": {"y": "HY", "x": "HX"}}
    case = {"case": "c", "zip_with": {"hint": "a"}, "input": beside, "expected": "z"}
    assert count(case) == 2
    assert [(one.name, one.content["input"]["hint"]) for one in expand(case)] == [
        ("c:x", "HX"),
        ("c:y", "HY"),
    ]
    parts = {"a": {"x": "X", "y": "Y"}, "hint": {"y": "HY", "x": "HX"}}
    joined = {
        **case,
        "join": {"prompt": "-"},
        "zip_with": {"prompt.hint": "prompt.a"},
        "input": {"prompt": parts},
    }
    assert [(one.name, one.content["input"]) for one in expand(joined)] == [
        ("c:x", {"prompt": "X-HX"}),
        ("c:y", {"prompt": "Y-HY"}),
    ]
    with pytest.raises(ExpansionError, match="'hint' is an axis itself"):
        list(expand({**case, "axes": ["a", "hint"]}))


def test_parts_without_a_variant_are_joined_too():
    [one] = expand(
        {
            "case": "c",
            "join": {"prompt": "\n"},
            "input": {"prompt": {"a": "A", "b": 2}},
            "expected": "x",
        }
    )
    assert one.content == {"case": "c", "input": {"prompt": "A\n2"}, "expected": "x"}


@pytest.mark.parametrize(
    ("change", "message", "key"),
    [
        (
            {"join": {"style": " "}, "input": {"style": "x"}},
            "input.style must be a mapping of the parts",
            ("join", "style"),
        ),
        (
            {"input": {"prompt": {}}},
            "input.prompt must be a mapping of the parts",
            ("join", "prompt"),
        ),
        (
            {"join": {"tool_choice": " "}, "input": {"tool_choice": {"type": "function"}}},
            "'tool_choice' cannot be joined: it is in the form of the API",
            ("join", "tool_choice"),
        ),
        (
            {"join": {"no": " "}},
            "input.no must be a mapping of the parts to join",
            ("join", "no"),
        ),
        (
            {"input": {"prompt": {"a": {"x": ""}}, "prompt.a": "1"}},
            "'prompt.a' already exists as another input",
            ("input", "prompt"),
        ),
        (
            {"axes": ["style", "prompt.who"]},
            "'prompt.more' is a mapping that `axes` leaves out",
            ("input", "prompt"),
        ),
        ({"axes": ["prompt.what"]}, "'prompt.what' is not an axis", ("axes",)),
        ({"input": {"prompt": {"a": {}}}}, "an axis without a variant", ("input", "prompt.a")),
        (
            {"input": {"prompt": {"a": True}}},
            "'prompt.a' is not a text: put it in quotes",
            ("input", "prompt"),
        ),
        (
            {"input": {"prompt": {"a": {"x": {"deep": "X"}}}}},
            "a variant of 'prompt.a' is a mapping, but must be a text",
            ("input", "prompt"),
        ),
        (
            {"input": {"prompt": {"a": ["x"]}}},
            "'prompt.a' is a list, but must be a text",
            ("input", "prompt"),
        ),
    ],
)
def test_parts_that_cannot_be_joined_say_where_and_why(change, message, key):
    with pytest.raises(ExpansionError) as error:
        list(expand({**JOINED, **change}))
    assert message in str(error.value)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("change", "message", "key"),
    [
        ({"input": {"prompt": {}}}, "an axis without a variant", ("input", "prompt")),
        (
            {"input": {"prompt": {True: "x"}}},
            "the key True of an axis is not a text",
            ("input", "prompt"),
        ),
        (
            {"axes": ["tools"], "input": {"tools": [{"type": "function"}]}},
            "'tools' cannot be an axis: it is in the form of the API",
            ("axes",),
        ),
        (
            {"axes": ["k"], "input": {"k": ["a", "b", "a"]}},
            "'a' occurs twice",
            ("input", "k"),
        ),
        (
            {"axes": ["k"], "input": {"k": [True]}},
            "YAML reads True, which is not a text",
            ("input", "k"),
        ),
        (
            {"axes": ["style"]},
            "'style' is not an axis: input.style must be a mapping or a list",
            ("axes",),
        ),
        (
            {"zip_with": {"format": "none"}},
            "'none' is not an axis of this case: query, caption",
            ("zip_with", "format"),
        ),
        (
            {"input": {"query": {"a": "?"}, "format": {"b": "!"}}},
            "'query' but has no value for a",
            ("input", "format"),
        ),
        (
            {"input": {"query": {"gene": "?"}, "caption": {"three": "!"}}},
            "no expectation for caption 'three'",
            ("expected", "answer"),
        ),
        (
            {"axes": [], "expected": {"by": "a", "values": {}}},
            "by 'a', which is not an axis of this case",
            ("expected",),
        ),
    ],
)
def test_what_cannot_be_expanded_says_where_and_why(change, message, key):
    with pytest.raises(ExpansionError) as error:
        list(expand({**EXTRACTION, **change}))
    assert message in str(error.value)
    assert error.value.key == key


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 3), max_size=3))
def test_as_many_cases_as_the_product_of_the_variants_with_names_of_their_own(
    sizes,
):
    axes = {name: {f"{name}{i}": f"value {i}" for i in range(size)} for name, size in sizes.items()}
    case = {"case": "c", "input": {**axes, "prompt": "p"}, "expected": "x"}
    names = _names(case)
    assert len(names) == len(set(names)) == count(case) == math.prod(sizes.values())
    assert all(name.count(":") == len(sizes) for name in names)


def test_the_id_of_a_sample_never_reads_as_that_of_a_repeat():
    assert sample_id("a:b", "1" * 64) == "a:b#q111111111111"
