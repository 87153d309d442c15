"""Test the prompts and scores of MMLU and MMLU-Pro."""

import gzip
import json
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, Outcome, Response, Sample
from serve_eval.tasks.mmlu import CATEGORY_OF, SUBCATEGORY_OF, SUBJECTS, _sample, task
from serve_eval.tasks.mmlu_pro import find_letter
from serve_eval.tasks.mmlu_pro import task as mmlu_pro_task
from tests.tasks.made_data import write_jsonl


def test_the_sample_of_4096_is_the_golden_one_of_4104(shared):
    dataset = task().load(DataRoots(roots=(shared / "data",)), 4096)
    ids = [sample.id for sample in dataset.samples]
    assert len(ids) == 4104
    assert dataset.total == 14042
    assert ids[:5] == [f"abstract_algebra-{row}" for row in (26, 86, 2, 55, 75)]
    assert ids[-3:] == [f"world_religions-{row}" for row in (82, 109, 151)]
    assert Counter(sample.target for sample in dataset.samples) == {
        "A": 955,
        "B": 1014,
        "C": 1077,
        "D": 1058,
    }


def test_a_literal_none_cell_prints_as_nan_unless_told_otherwise(shared):
    roots = DataRoots(roots=(shared / "data",))

    def options_of(none_cells):
        dataset = task(none_cells=none_cells).load(roots, 14042)
        questions = [str(sample.prompt).rsplit("\n\n", 1)[1] for sample in dataset.samples]
        wanted = {"nan": ". nan", "none": ". None"}[none_cells]
        return [
            s.id
            for s, q in zip(dataset.samples, questions, strict=True)
            if any(x.endswith(wanted) for x in q.split("\n"))
        ]

    with_none = options_of("none")
    assert sorted(with_none) == sorted(
        f"{subject}-{row}"
        for subject, rows in {
            "college_computer_science": (10, 94),
            "college_mathematics": (8, 21, 60),
            "college_physics": (60,),
            "electrical_engineering": (41, 68, 107, 117),
        }.items()
        for row in rows
    )
    assert set(with_none) <= set(options_of("nan"))


def test_all_questions_are_taken_in_file_order_when_more_are_wanted_than_there_are(
    data_root,
):
    dataset = task().load(DataRoots(roots=(data_root,)), 5700)
    assert len(dataset.samples) == 5700
    assert [sample.id for sample in dataset.samples[:3]] == [
        "abstract_algebra-0",
        "abstract_algebra-1",
        "abstract_algebra-2",
    ]


def test_as_many_as_there_are_are_all_of_them_though_subjects_differ_in_size():
    assert len(_sample({"small": 3, "large": 10}, 13, 0)) == 13
    assert len(_sample({"small": 3, "large": 10}, 12, 0)) == 3 + 6


def test_the_prompt_has_its_two_spaces_five_shots_and_no_trailing_space(data_root):
    prompt = task().load(DataRoots(roots=(data_root,)), 57).samples[0].prompt
    assert isinstance(prompt, str)
    head = (
        "The following are multiple choice questions (with answers) about  abstract"
        " algebra.\n\nWhat is "
    )
    assert prompt.startswith(head)
    assert prompt.count("\nAnswer:") == 6
    assert prompt.endswith("\nAnswer:")


def test_every_subject_has_a_category():
    assert len(SUBJECTS) == 57
    assert {CATEGORY_OF[SUBCATEGORY_OF[subject]] for subject in SUBJECTS} == set(
        CATEGORY_OF.values()
    )
    assert Counter(CATEGORY_OF[SUBCATEGORY_OF[s]] for s in SUBJECTS)["STEM"] == 18


def test_the_breakdown_counts_subjects_and_categories():
    samples = [
        Sample(id=str(i), prompt="p", target="A", metadata={"subject": subject})
        for i, subject in enumerate(["anatomy", "anatomy", "virology", "astronomy"])
    ]
    table = task().breakdown(zip(samples, [1.0, 0.0, 1.0, 1.0], strict=True))
    assert table["subject"] == {
        "anatomy": {"value": 50.0, "scored": 2},
        "astronomy": {"value": 100.0, "scored": 1},
        "virology": {"value": 100.0, "scored": 1},
    }
    assert table["category"] == {
        "STEM": {"value": 100.0, "scored": 1},
        "other (business, health, misc.)": {"value": pytest.approx(200 / 3), "scored": 3},
    }


def test_the_answer_is_matched_by_its_prefix():
    sample = Sample(id="x", prompt="p", target="C")
    assert task().score(sample, Response(text=" C", finish_reason="length")).value == 1.0


def _copy(data_root, target):
    shutil.copytree(data_root / "mmlu", target / "mmlu")
    return target / "mmlu"


def test_a_missing_subject_is_named(data_root, tmp_path):
    (_copy(data_root, tmp_path) / "test" / "virology_test.csv").unlink()
    with pytest.raises(
        DatasetError, match=r"incomplete: 1 files are missing:\n.*virology_test\.csv"
    ):
        task().load(DataRoots(roots=(tmp_path,)), 4096)


@pytest.mark.parametrize("row", ["a,b,c\n", "q,1,2,3,4,E\n", 'q,1,2,3,4,A\n"open', ""])
def test_a_malformed_file_is_named(data_root, tmp_path, row):
    (_copy(data_root, tmp_path) / "test" / "virology_test.csv").write_text(row)
    with pytest.raises(DatasetError, match=r"virology_test\.csv"):
        task().load(DataRoots(roots=(tmp_path,)), 4096)


def test_more_shots_than_there_are_dev_rows_are_refused(data_root, tmp_path):
    dev = _copy(data_root, tmp_path) / "dev" / "virology_dev.csv"
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:4]))
    with pytest.raises(DatasetError, match="virology"):
        task().load(DataRoots(roots=(tmp_path,)), 4096)
    with pytest.raises(PlanError, match="num_fewshot"):
        task(num_fewshot=6)


SHARED = Path(__file__).resolve().parents[2].parent / "shared/data"
REASON = "A: Let's think step by step. Two and two are four. The answer is (B)."


def _row(i=1, **more):
    row = {"question_id": i, "question": f"Which, {i}?", "options": ["one", "N/A", "two"]}
    row |= {"answer": "B", "answer_index": 1, "category": "computer science", "src": "made"}
    return {**row, "cot_content": "", **more}


def _load(folder, *rows, **options):
    shots = [_row(90 + i, cot_content=REASON) for i in range(2)]
    write_jsonl(folder / "validation.jsonl", shots)
    write_jsonl(folder / "test.jsonl", rows)
    made = mmlu_pro_task(**{"num_fewshot": 2, **options})
    return list(made.load(DataRoots(roots=(folder,)), len(rows)).samples)


def test_the_text_is_that_of_evaluate_from_local(tmp_path):
    [sample] = _load(tmp_path, _row())
    shot = (
        "Question:\nWhich, {}?\nOptions:\nA. one\nB. two\n"
        "Answer: Let's think step by step. Two and two are four. The answer is (B).\n\n"
    )
    assert sample.prompt == (
        "The following are multiple choice questions (with answers) about computer science. Think"
        ' step by step and then finish your answer with "the answer is (X)" where X is the correct'
        " letter choice.\n\n\n\n"
        + shot.format(90)
        + shot.format(91)
        + "Question:\nWhich, 1?\nOptions:\nA. one\nB. two\nAnswer: Let's think step by step."
    )
    assert (sample.id, sample.target) == ("test-1", "B")
    assert mmlu_pro_task().sampling.stop == ("Question:",)
    assert mmlu_pro_task().sampling.max_tokens == 2048


def test_the_message_is_that_of_evaluate_from_api(tmp_path):
    [sample] = _load(tmp_path, _row(), apply_chat_template=True)
    shot = (
        "Question: Which, {}?\nOptions: A. one\nB. two\n"
        "Answer: Let's think step by step. Two and two are four. The answer is (B).\n\n"
    )
    [turn] = sample.prompt
    assert turn.content == (
        "The following are multiple choice questions (with answers) about computer science. Think"
        ' step by step and then output the answer in the format of "The answer is (X)" at the'
        " end.\n\n"
        + shot.format(90)
        + shot.format(91)
        + "Question: Which, 1?\nOptions: A. one\nB. two\nAnswer: Let's think step by step.\n\n"
    )
    chat = mmlu_pro_task(apply_chat_template=True)
    assert (chat.sampling.stop, chat.sampling.max_tokens) == ((), 4000)


LETTERS = [
    ("The answer is (C). Or the answer is (D).", "C"),
    ("the answer is C, not B", "C"),
    ("The answer is: C. Answer: D", "D"),
    ("answer: A and Answer: B\nAnswer: C", "B"),
    ("no\nanswer:\n\nD", "D"),
    ("Answer: Answer: B", "B"),
    ("Answer: Both", "B"),
    ("**Answer:** C, so D", "D"),
    ("I think that it is A or, I guess, B", "B"),
    ("So A\nis it", "A"),
    ("ABC_D", None),
    ("So (K)", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "letter"), LETTERS)
def test_the_first_rule_that_finds_a_letter_counts(text, letter):
    assert find_letter(text) == letter


def _by_definition(text):
    """Return the letter by a search from every end of a line, as the rules are worded."""
    for place in range(len(text)):
        if text.startswith("answer is ", place):
            rest = text[place + 10 :].removeprefix("(")
            if rest[:1] and rest[0] in "ABCDEFGHIJ":
                return rest[0]
    for start in [0, *(i + 1 for i, c in enumerate(text) if c == "\n")]:
        end = text.find("\n", start)
        found = None
        for place in range(start, len(text) if end < 0 else end):
            if text[place] in "aA" and text.startswith("nswer:", place + 1):
                rest = text[place + 7 :].lstrip()
                found = rest[0] if rest[:1] and rest[0] in "ABCDEFGHIJ" else found
        if found:
            return found
    words = [
        c
        for i, c in enumerate(text)
        if c in "ABCDEFGHIJ"
        and not (i and (text[i - 1].isalnum() or text[i - 1] == "_"))
        and not (text[i + 1 : i + 2].isalnum() or text[i + 1 : i + 2] == "_")
    ]
    return words[-1] if words else None


PIECES = ["answer is ", "(", "B", "J", "K", "Answer:", "answer:", "\n", " ", "x", "_", "é", "D)"]


@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join))
@example("Answer: Answer: B")
def test_letters_are_found_as_the_rules_say(text):
    assert find_letter(text) == _by_definition(text)


@pytest.mark.parametrize("piece", ["answer: ", "A ", "Answer:", "answer is ", "x", "\n"])
def test_any_text_is_read_in_time_that_grows_with_its_length(piece):
    began = time.process_time()
    find_letter(piece * (400_000 // len(piece)))
    assert time.process_time() - began < 2.0


def test_scores_and_stars(tmp_path):
    [sample] = _load(tmp_path, _row())
    told = Response(text="The answer is **(B)**, A", finish_reason="stop")
    assert mmlu_pro_task().score(sample, told).answer == "A"
    right = mmlu_pro_task(apply_chat_template=True).score(sample, told)
    assert (right.answer, right.outcome) == ("B", Outcome.CORRECT)
    silent = mmlu_pro_task().score(sample, Response(text="no idea", finish_reason="stop"))
    assert (silent.value, silent.outcome) == (0.0, Outcome.UNPARSED)


def test_the_breakdown_is_by_category(data_root):
    dataset = mmlu_pro_task().load(DataRoots(roots=(data_root,)), 12032)
    assert (dataset.total, dataset.deviation) == (12032, None)
    table = mmlu_pro_task().breakdown((sample, 1.0) for sample in dataset.samples)
    assert sorted(table["category"]) == ["computer science", "law", "math"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(answer="C"), r"row 1: the answer 'C' is not one of the 2 options"),
        (_row(options="['a']"), "row 1: options must be a list of texts"),
        (_row(category="law"), "fewer than 2 questions of law with a text in column cot_content"),
        (_row(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_without_examples_the_page_says_what_to_fetch(tmp_path):
    write_jsonl(tmp_path / "mmlu_pro/test.jsonl", [_row()])
    with pytest.raises(DatasetError, match="no file for the split 'validation'") as raised:
        mmlu_pro_task().load(DataRoots(roots=(tmp_path,)), 1)
    assert "serve-eval data fetch mmlu_pro -o DIR" in raised.value.hint
    [sample] = mmlu_pro_task(num_fewshot=0).load(DataRoots(roots=(tmp_path,)), 1).samples
    assert str(sample.prompt).count("Question:") == 1
    with pytest.raises(PlanError, match="num_fewshot"):
        mmlu_pro_task(num_fewshot=6)


@pytest.mark.parametrize(
    ("model", "guesses", "lucky"),
    [("Meta-Llama-3.1-70B-Instruct", 188, 20), ("Meta-Llama-3.1-8B-Instruct", 694, 73)],
)
def test_recorded_answers_have_the_letters_of_the_authors(model, guesses, lucky):
    """They recorded G, a guess, where they found no letter."""
    file = SHARED / f"recorded/mmlu_pro/{model}.jsonl.gz"
    if not file.is_file():
        pytest.skip("needs the recorded answers of ../shared/data")
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    found = [(row, find_letter(row["text"])) for row in rows]
    assert [row for row, letter in found if letter not in (None, row["pred"])] == []
    guessed = [row for row, letter in found if letter is None]
    assert {row["pred"] for row in guessed} == {"G"}
    assert (len(guessed), sum(row["answer"] == "G" for row in guessed)) == (guesses, lucky)
    assert len(rows) == 12032
