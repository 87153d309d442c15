"""Files in the form of BioChatter's benchmark, written here: what runs unchanged, what is skipped and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.cases import file
from serve_eval.cases.questions import Questions, questions
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Spec
from tests.cases.made import write_biochatter


@pytest.fixture
def found(tmp_path: Path) -> file.CaseFiles:
    write_biochatter(tmp_path)
    return file.read([str(tmp_path)])


def _reasons(one: Questions) -> dict[str, str]:
    return {skipped.name: skipped.reason for skipped in one.skipped}


def test_an_exam_runs_unchanged_with_the_scorers_that_its_fields_say(found: file.CaseFiles) -> None:
    exam = questions(found, "medical_exam")
    assert not exam.skipped
    assert [(q.name, q.scorer.name) for q in exam.asked] == [
        ("single_choice:heart:en", "exact"),
        ("single_choice:heart:en", "exact"),
        ("regex:lungs:en", "words"),
        ("regex:lungs:en", "words"),
    ]
    first = exam.asked[0]
    assert [(turn.role, turn.text) for turn in first.turns] == [
        ("system", "Answer with the letter."),
        ("user", "Which one? (A) left (B) right"),
    ]


def test_one_question_with_two_expectations_is_two_cases_and_an_equal_case_is_asked_once(
    found: file.CaseFiles,
) -> None:
    """As in BioChatter, whose key covers the expectation."""
    _, _, one, other = questions(found, "medical_exam").asked
    assert one.turns == other.turns
    assert one.id != other.id
    twice = questions(found, "twice")
    assert [q.name for q in twice.asked] == ["same"]
    assert "it is the same as at" in _reasons(twice)["same"]


def test_synonyms_in_a_list_are_one_entry(found: file.CaseFiles) -> None:
    *_, last = questions(found, "medical_exam").asked
    assert last.expected == {"words_in_response": ["air|breath", "oxygen"]}


def test_modules_of_several_files_are_one_and_a_mapping_of_mappings_is_a_resource(found: file.CaseFiles) -> None:
    assert len(found.modules["rag_interpretation"].cases) == 3
    assert set(found.resources) == {"kg_schemas"}


def test_what_cannot_be_asked_is_skipped_by_name_with_a_reason(found: file.CaseFiles) -> None:
    rag = questions(found, "rag_interpretation")
    assert [q.name for q in rag.asked] == ["relevant:short", "relevant:long", "answers"]
    assert _reasons(rag) == {
        "implicit": "BioChatter has a model judge its answer; name a scorer with the option scorer"
    }
    for module, words in {
        "biocypher_query_generation": "a knowledge graph's schema",
        "api_calling": "an agent that knows the parameters of an API",
        "mcp_edam_qa": "tools of an MCP server",
        "text_extraction": "it has no prompt: BioChatter's Python code makes one of ${query}, ${caption}, ${format}",
        "longevity": "puts its prompt together out of the fragments of several mappings",
        "odd": "scored by BioChatter's Python code alone",
    }.items():
        one = questions(found, module)
        assert not one.asked
        assert all(words in reason or "it is no case" in reason for reason in _reasons(one).values()), module
    assert _reasons(questions(found, "longevity"))["number 1"] == "it is no case: it has no input"


def test_options_give_what_is_missing(found: file.CaseFiles) -> None:
    extraction = questions(
        found, "text_extraction", prompt="${caption} / ${query} / ${format}", scorer=Spec(name="words")
    )
    assert len(extraction.asked) == 2 * 2 * 2
    assert extraction.asked[0].turns[-1].text == "TP53 by blot. / Which gene? / one symbol"
    assert extraction.asked[0].expected == {"answer": "TP53"}
    graph = questions(found, "biocypher_query_generation", system_messages=["Schema: ${kg_schemas[kg_schema]}"])
    assert graph.asked[0].turns[0].text == 'Schema: {\n  "gene": {\n    "id": "str"\n  }\n}'
    assert graph.asked[0].scorer.name == "regex"
    with pytest.raises(PlanError, match="case implicit: expected must be a word, or synonyms"):
        questions(found, "rag_interpretation", scorer=Spec(name="words"))


def test_a_file_of_another_name_has_no_such_leave(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("c:\n  - {case: a, input: {kg_schema: g}, expected: {behaviour: x}}\n")
    with pytest.raises(PlanError, match="there is nothing to answer"):
        questions(file.read([str(tmp_path / "own.yaml")]), "c")


def test_the_task_says_what_is_skipped(found: file.CaseFiles, tmp_path: Path) -> None:
    from serve_eval.tasks.cases import task

    made = task("rag_interpretation", path=str(tmp_path))
    dataset = made.load(DataRoots(), 3)
    assert dataset.total == 3
    assert dataset.notes == (
        "1 skipped (implicit): BioChatter has a model judge its answer; name a scorer with the option scorer",
    )
    table = made.breakdown((sample, 1.0) for sample in dataset.samples)
    assert table["field 1"] == {"answers": {"value": 100.0, "scored": 1}, "relevant": {"value": 100.0, "scored": 2}}
