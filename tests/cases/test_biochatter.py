"""Files in the form of BioChatter's benchmark: what runs unchanged, what is skipped, and why."""

import hashlib

import pytest

from serve_eval.cases import biochatter, file
from serve_eval.cases.questions import questions
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Spec
from tests.cases.made import write_biochatter


@pytest.fixture
def found(tmp_path):
    write_biochatter(tmp_path)
    return file.read([str(tmp_path)])


def _reasons(one):
    return {skipped.name: skipped.reason for skipped in one.skipped}


def test_an_exam_runs_unchanged_with_the_scorers_that_its_fields_say(found):
    exam = questions(found, "medical_exam")
    assert not exam.skipped
    assert [(q.name, q.scorer.name) for q in exam.asked] == [
        ("single_choice:heart:en", "exact"),
        ("single_choice:heart:en", "exact"),
        ("short_words:heart:en", "exact"),
        ("regex:lungs:en", "words"),
        ("regex:lungs:en", "words"),
    ]
    first = exam.asked[0]
    assert [(turn.role, turn.text) for turn in first.turns] == [
        ("system", "Answer with the letter."),
        ("user", "Which one? (A) left (B) right"),
    ]


def test_one_question_with_two_expectations_is_two_cases_and_an_equal_case_is_asked_once(
    found,
):
    """BioChatter's key covers the expectation too."""
    *_, one, other = questions(found, "medical_exam").asked
    assert one.turns == other.turns
    assert one.id != other.id
    twice = questions(found, "twice")
    assert [q.name for q in twice.asked] == ["same"]
    assert "it is the same as the case at" in _reasons(twice)["same"]


def test_cases_are_scored_as_biochatter_does_unless_an_option_says_otherwise(
    found,
):
    first, *_, last = questions(found, "medical_exam").asked
    assert [(q.scorer.options, q.as_biochatter) for q in (first, last)] == [
        ({"as_biochatter": True}, True)
    ] * 2
    assert last.expected == {"words_in_response": [["air", "breath"], "oxygen"]}
    first, *_, last = questions(found, "medical_exam", as_biochatter=False).asked
    assert [(q.scorer.options, q.as_biochatter) for q in (first, last)] == [({}, False)] * 2
    assert last.expected == {"words_in_response": ["air|breath", "oxygen"]}
    terms = questions(found, "mcp_edam_qa", system_messages=["Name the term."])
    assert [(q.scorer, q.expected["words_in_response"], q.as_biochatter) for q in terms.asked] == [
        (Spec(name="words"), ["data_1", "format_2"], True)
    ]
    assert biochatter.choose_scoring("text_extraction", {"answer": "x"}) == (
        {"answer": "x"},
        Spec(name="rouge"),
    )


def test_what_biochatter_cannot_tell_right_from_wrong_is_noted(found):
    exam = questions(found, "medical_exam")
    assert exam.notes == (
        (
            "5 cases are compared in BioChatter's strict form (`B)` is wrong if b is expected);"
            " to compare the meaning: --set cases:medical_exam.as_biochatter=false"
        ),
        (
            "1 case, such as short_words:heart:en: in BioChatter's scoring, no answer is right,"
            " because"
            " only the answer is converted to lower case"
        ),
        (
            "2 cases, such as regex:lungs:en: in BioChatter's scoring, any letter of a word"
            " without synonyms is accepted"
        ),
    )
    assert questions(found, "medical_exam", as_biochatter=False).notes == ()


def test_scoring_as_biochatter_is_for_its_files_and_no_scorer_of_the_users(found, tmp_path):
    with pytest.raises(PlanError, match="as_biochatter: the option scorer decides"):
        questions(found, "medical_exam", scorer=Spec(name="words"), as_biochatter=True)
    (tmp_path / "own.yaml").write_text("c:\n  - {case: a, input: {prompt: p}, expected: x}\n")
    with pytest.raises(PlanError, match="the files are not BioChatter's"):
        questions(file.read([str(tmp_path / "own.yaml")]), "c", as_biochatter=True)


OWN = """
capitals:
  - {case: a, input: {prompt: Name it.}, expected: {answer: Paris}}
  - {case: b, input: {prompt: Name both.}, expected: {words_in_response: [Rome, [air, breath]]}}
"""


def test_a_file_of_the_users_whose_name_ends_alike_is_scored_as_other_files_are(
    tmp_path,
):
    """A user who does not know BioChatter may well choose such a name."""
    (tmp_path / "city_data.yaml").write_text(OWN)
    files = file.read([str(tmp_path)])
    own = questions(files, "capitals")
    assert [(q.scorer, q.as_biochatter) for q in own.asked] == [
        (Spec(name="exact"), False),
        (Spec(name="words"), False),
    ]
    assert own.asked[1].expected == {"words_in_response": ["Rome", "air|breath"]}
    assert own.notes == ()
    strict = questions(files, "capitals", as_biochatter=True)
    assert [(q.scorer.options, q.as_biochatter) for q in strict.asked] == [
        ({"as_biochatter": True}, True)
    ] * 2


def test_who_names_the_strict_form_hears_of_what_cannot_be_right_alone(tmp_path):
    """BioChatter's own tasks would refuse the option here."""
    own = (
        "c:\n  - {case: a, input: {prompt: p}, expected: Paris, scorer: {exact: {as_biochatter:"
        " true}}}\n"
    )
    (tmp_path / "own.yaml").write_text(own)
    [note] = questions(file.read([str(tmp_path / "own.yaml")]), "c").notes
    assert note.startswith("1 case, such as a: in BioChatter's scoring, no answer is right")


def test_a_scorer_that_says_the_strict_form_itself_gets_what_is_expected_as_it_stands(
    tmp_path,
):
    (tmp_path / "city_data.yaml").write_text(
        OWN.replace("{case: b,", "{case: b, scorer: {words: {as_biochatter: true}},")
    )
    *_, second = questions(file.read([str(tmp_path)]), "capitals").asked
    assert second.expected == {"words_in_response": ["Rome", ["air", "breath"]]}


ADVICE = "longevity_advice"
_JUDGE = Spec(name="judge", options={"judges": [{}]})


def test_fragments_of_prompts_are_joined_and_asked_with_each_of_the_common_system_messages(
    found,
):
    one = questions(found, ADVICE, scorer=_JUDGE)
    assert not one.skipped
    assert len(one.asked) == 2 * 2 * 2 + 2 * 1
    by_name = {q.name: q for q in one.asked}
    first = by_name["advice:short:no_cat:brief"]
    assert [(turn.role, turn.text) for turn in first.turns] == [
        ("system", "Advise."),
        ("system", "Be brief."),
        ("user", "I am 40.\n Should I?"),
    ]
    assert (
        by_name["advice:long:cat:full"].turns[-1].text
        == "I am a man of 40. Should I? My cat sleeps."
    )


def test_a_case_of_retrieval_has_its_own_messages_with_the_texts_in_them(
    found,
):
    """The mapping appears as Python prints it, and BioChatter's rule for braces applies."""
    by_name = {q.name: q for q in questions(found, ADVICE, scorer=_JUDGE).asked}
    messages = [turn.text for turn in by_name["rag:advice:short:brief"].turns]
    assert messages == [
        "Use {'one': {'Title': 'On cats', 'Price': '${5}'}} and {braces}.",
        "I am 40. Should I?",
    ]


def test_the_key_of_a_joined_case_is_of_what_biochatter_makes_of_it(found):
    """The expected key is written as BioChatter builds it.

    That fixes the order of its keys and the place of the system messages.
    """
    by_name = {q.name: q for q in questions(found, ADVICE, scorer=_JUDGE).asked}
    wanted = (
        '{"case": "advice:short:cat:full", "case_id": "1", "input": {"prompt": "I am 40.\\n Should'
        ' I? My cat sleeps.", "system_messages": ["Advise."]}, "expected": {"answer": ["No"],'
        ' "summary": "x", "key_words": ["y"]}}'
    )
    assert by_name["advice:short:cat:full"].md5 == hashlib.md5(wanted.encode()).hexdigest()
    rag = (
        '{"case": "rag:advice:short:brief", "input": {"prompt": "I am 40. Should I?",'
        ' "system_messages": ["Use {contexts} and {{braces}}."]}, "contexts": {"one": {"Title": "On'
        ' cats", "Price": "${5}"}}, "expected": {"answer": ["No"], "summary": "x"}}'
    )
    assert by_name["rag:advice:short:brief"].md5 == hashlib.md5(rag.encode()).hexdigest()


def test_skipped_cases_are_expanded_with_their_keys(found):
    skipped, asked = questions(found, ADVICE).skipped, questions(found, ADVICE, scorer=_JUDGE).asked
    assert [(one.name, one.md5) for one in skipped] == [(q.name, q.md5) for q in asked]
    one = skipped[0].reason
    assert one.startswith(
        "BioChatter uses a model as a judge of its answer; name a scorer (give your own file a name"
        " that does not end in _data.yaml): --set 'cases:longevity_advice.scorer="
    )


def test_modules_of_several_files_are_one_and_a_mapping_of_mappings_is_a_resource(
    found,
):
    assert len(found.modules["rag_interpretation"].cases) == 3
    assert set(found.resources) == {"kg_schemas"}


def test_what_cannot_be_asked_is_skipped_by_name_with_a_reason(found):
    rag = questions(found, "rag_interpretation")
    assert [q.name for q in rag.asked] == ["relevant:short", "relevant:long", "answers"]
    assert _reasons(rag) == {
        "implicit": (
            "BioChatter uses a model as a judge of its answer; name a scorer: --set"
            " 'cases:rag_interpretation.scorer={judge: {judges: [{model: MODEL, base_url: URL}]}}'"
        )
    }
    for module, words in {
        "biocypher_query_generation": "a knowledge graph's schema",
        "api_calling": "an agent that knows the parameters of an API",
        "mcp_edam_qa": "tools of an MCP server",
        "text_extraction": (
            "it has no prompt, because BioChatter's Python code builds it from ${query},"
            " ${caption},"
            " ${format}"
        ),
        "fragments": "its module has no general_system_messages",
        "odd": "only BioChatter's Python code can score",
    }.items():
        one = questions(found, module)
        assert not one.asked
        assert all(
            words in reason or "it is not a case" in reason for reason in _reasons(one).values()
        ), module
    assert _reasons(questions(found, "fragments"))["number 1"].startswith(
        "it is not a case: it has no input (give your own file"
    )


def test_options_give_what_is_missing(found):
    extraction = questions(
        found,
        "text_extraction",
        prompt="${caption} / ${query} / ${format}",
        scorer=Spec(name="words"),
    )
    assert len(extraction.asked) == 2 * 2 * 2
    assert extraction.asked[0].turns[-1].text == "TP53 by blot. / Which gene? / one symbol"
    assert extraction.asked[0].expected == {"answer": "TP53"}
    graph = questions(
        found, "biocypher_query_generation", system_messages=["Schema: ${kg_schemas[kg_schema]}"]
    )
    assert graph.asked[0].turns[0].text == 'Schema: {\n  "gene": {\n    "id": "str"\n  }\n}'
    assert graph.asked[0].scorer.name == "regex"
    with pytest.raises(PlanError, match="case implicit: expected must be a word, or synonyms"):
        questions(found, "rag_interpretation", scorer=Spec(name="words"))


def test_a_file_of_another_name_has_no_such_leave(tmp_path):
    (tmp_path / "own.yaml").write_text(
        "c:\n  - {case: a, input: {kg_schema: g}, expected: {behaviour: x}}\n"
    )
    with pytest.raises(PlanError, match="no question: give a prompt"):
        questions(file.read([str(tmp_path / "own.yaml")]), "c")


def test_the_task_says_what_is_skipped(found, tmp_path):
    from serve_eval.tasks.cases import task

    made = task("rag_interpretation", path=str(tmp_path))
    dataset = made.load(DataRoots(), 3)
    assert dataset.total == 3
    assert dataset.notes == (
        (
            "1 skipped (implicit): BioChatter uses a model as a judge of its answer; name a scorer:"
            " --set"
            " 'cases:rag_interpretation.scorer={judge: {judges: [{model: MODEL, base_url: URL}]}}'"
        ),
        (
            "3 cases are compared in BioChatter's strict form (`B)` is wrong if b is expected);"
            " to compare the meaning: --set cases:rag_interpretation.as_biochatter=false"
        ),
    )
    table = made.breakdown((sample, 1.0) for sample in dataset.samples)
    assert table["field 1"] == {
        "answers": {"value": 100.0, "scored": 1},
        "relevant": {"value": 100.0, "scored": 2},
    }


@pytest.mark.parametrize(
    ("module", "expected", "scorer"),
    [
        ("m", {"answer": "a"}, "exact"),
        ("m", {"parts_of_query": ["MATCH"]}, "regex"),
        ("m", {"words_in_response": ["a"]}, "words"),
        ("text_extraction", {"answer": "a"}, "rouge"),
        ("m", {"answer": "a", "parts_of_query": ["MATCH"]}, "exact"),
        ("m", {"answer": "a", "behaviour": "x"}, None),
        ("m", {"answer": "a", "individual": "x", "words_in_response": ["a"]}, None),
        ("m", {"behaviour": "x"}, None),
        ("m", "a", None),
    ],
)
def test_what_is_expected_says_how_biochatter_scores(module, expected, scorer):
    """An answer takes precedence; expectations for a judge model have no scorer of ours."""
    _, found = biochatter.choose_scoring(module, expected)
    assert (found and found.name) == scorer
