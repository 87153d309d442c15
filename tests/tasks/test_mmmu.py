"""Test tasks about images: MMMU, MMMU-Pro and OCRBench."""

import base64
import json

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.prepare import prepare
from serve_eval.schema import (
    DataRoots,
    ImagePart,
    MediaFile,
    Need,
    Plan,
    Response,
    Spec,
    TextPart,
)
from serve_eval.tasks import mmmu
from serve_eval.tasks._mmmu import SUBJECTS
from serve_eval.tasks.mmmu import task
from serve_eval.tasks.mmmu_pro import task as mmmu_pro_task
from serve_eval.tasks.ocrbench import contains
from serve_eval.tasks.ocrbench import task as ocrbench_task
from tests.tasks.made_data import png, write_jsonl


def _row(**more):
    row = {
        "id": "validation_Art_1",
        "question": "Which is <image 2>?",
        "question_type": "multiple-choice",
    }
    return {**row, "options": "['<image 1>', 'a \"dot\"']", "answer": "B", **more}


def _load(folder, *rows, **options):
    for number in (1, 2):
        (folder / f"Art/{number}.png").parent.mkdir(exist_ok=True)
        (folder / f"Art/{number}.png").write_bytes(png(number))
    named = [{"image_1": "1.png", "image_2": "2.png", **row} for row in rows]
    write_jsonl(folder / "Art/validation.jsonl", named)
    dataset = task(subjects=["Art"], **options).load(DataRoots(roots=(folder,)), len(rows))
    return list(dataset.samples)


def _seen(sample):
    """Return the parts of the turn: texts, and the content of images."""
    [turn] = sample.prompt
    parts = []
    for part in turn.content:
        if isinstance(part, ImagePart):
            parts.append(
                base64.b64decode(part.image_url.url.removeprefix("data:image/png;base64,"))
            )
        elif isinstance(part, TextPart):
            parts.append(part.text)
    return parts


TAIL = "Answer with the option's letter from the given choices directly."


def test_images_stand_before_the_text_without_its_marks(tmp_path):
    [sample] = _load(tmp_path, _row())
    assert _seen(sample) == [png(2), png(1), f'Which is ?\n\n(A) \n(B) a "dot"\n\n{TAIL}']


def test_or_in_their_places(tmp_path):
    [sample] = _load(tmp_path, _row(), interleaved=True)
    assert _seen(sample) == ["Which is ", png(2), "?\n\n(A) ", png(1), f'\n(B) a "dot"\n\n{TAIL}']
    [sample] = _load(tmp_path, _row(), interleaved=True, single_image=True)
    assert _seen(sample) == ["Which is ", png(2), "?\n\n(A) ", f'\n(B) a "dot"\n\n{TAIL}']


def test_or_the_first_one_alone(tmp_path):
    [sample] = _load(tmp_path, _row(), single_image=True)
    assert _seen(sample)[:-1] == [png(2)]


def test_an_open_question_may_have_several_answers(tmp_path):
    [sample] = _load(tmp_path, _row(question_type="open", options="[]", answer="['12', 'twelve']"))
    assert str(_seen(sample)[-1]).endswith(
        "?\n\nAnswer the question using a single word or phrase."
    )
    values = [
        task().score(sample, Response(text=text, finish_reason="stop")).value
        for text in ("Twelve.", "12", "13")
    ]
    assert values == [1.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(answer="C"), "not one of the 2 options"),
        (_row(options="A or B"), "is not a list"),
        (_row(image_2=None), "image_2: the image is missing"),
        (_row(image_2="3.png"), "No such file"),
        (_row(image_2="validation.jsonl"), "not a PNG, JPEG"),
        (_row(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load(tmp_path, row)


def test_the_whole_set_needs_images_and_chat(data_root):
    plan = Plan(
        model="m",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="mmmu"),),
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    [prepared] = prepare(plan)
    assert prepared.needs == {Need.CHAT, Need.IMAGES}
    assert (len(prepared.dataset.samples), prepared.dataset.deviation) == (900, None)


def test_as_many_of_each_subject(data_root):
    dataset = task(num_samples=31).load(DataRoots(roots=(data_root,)), 31)
    assert len(dataset.samples) == 2 * len(SUBJECTS)
    table = task().breakdown((sample, 1.0) for sample in dataset.samples)
    assert table["subject"] == {name: {"value": 100.0, "scored": 2} for name in sorted(SUBJECTS)}


def test_an_unknown_subject_has_its_nearest():
    with pytest.raises(PlanError, match="Did you mean 'Art_Theory'"):
        task(subjects=["Art_Teory"])


def _row_mmmu_pro(**more):
    row = {"id": "test_Art_1", "question": "Which is <image 1>?", "answer": "D"}
    return {**row, "options": "['a', '<image 2>', 'c', 'd']", "image_1": "1.png", **more}


def _load_mmmu_pro(folder, *rows, **options):
    write_jsonl(folder / "standard (10 options)/test.jsonl", rows)
    (folder / "standard (10 options)/1.png").write_bytes(png(1))
    return list(mmmu_pro_task(**options).load(DataRoots(roots=(folder,)), len(rows)).samples)


def _told(sample):
    [turn] = sample.prompt
    return [
        part.text
        if isinstance(part, TextPart)
        else "image" * isinstance(part, ImagePart | MediaFile)
        for part in turn.content
    ]


def test_it_asks_as_mmmu_and_leaves_missing_images_out(tmp_path):
    [sample] = _load_mmmu_pro(tmp_path, _row_mmmu_pro())
    text = (
        "Which is ?\n\n(A) a\n(B) \n(C) c\n(D) d\n\n"
        "Answer with the option's letter from the given choices directly."
    )
    assert _told(sample) == ["image", text]


def test_or_for_thoughts_before_the_letter(tmp_path):
    [sample] = _load_mmmu_pro(tmp_path, _row_mmmu_pro(), prompt="cot", interleaved=True)
    assert _told(sample)[:2] == ["Which is ", "image"]
    assert _told(sample)[-1].endswith(
        "Answer the preceding multiple choice question. The last line of your response should be of"
        " the following format: 'Answer: $LETTER' (without quotes) where LETTER is one of options."
        " Think step by step before answering."
    )


def test_answers_of_thinking_models_are_read_by_option(tmp_path):
    [sample] = _load_mmmu_pro(tmp_path, _row_mmmu_pro())
    response = Response(text="(A) looks wrong.\n\n**Answer: D**", finish_reason="stop")
    assert mmmu_pro_task().score(sample, response).answer == "A"
    kept = mmmu_pro_task(post_process="strip_thinking_mmmu")
    assert kept.score(sample, response).answer == "D"
    assert kept.protocol["post_process"] == "strip_thinking_mmmu"
    assert "post_process" not in mmmu_pro_task().protocol
    assert mmmu.task(post_process="kimi_k3_mmmu").protocol["post_process"] == "kimi_k3_mmmu"


def test_mmmu_reads_them_too(tmp_path):
    (tmp_path / "Art").mkdir()
    (tmp_path / "Art/1.png").write_bytes(png(1))
    write_jsonl(tmp_path / "Art/validation.jsonl", [_row_mmmu_pro(question_type="multiple-choice", options="['a', 'b', 'c', 'd']")])  # noqa: E501  # fmt: skip
    plain, kept = (
        mmmu.task(subjects=["Art"], post_process=by) for by in ("none", "strip_thinking_mmmu")
    )
    [sample] = plain.load(DataRoots(roots=(tmp_path,)), 1).samples
    response = Response(text="(A) looks wrong.\n\n**Answer: D**", finish_reason="stop")
    assert [one.score(sample, response).value for one in (plain, kept)] == [0.0, 1.0]


def test_both_subsets_are_found_and_broken_down(data_root):
    roots = DataRoots(roots=(data_root,))
    for options, letters in (({}, "ABCDEFGHIJ"), ({"subset": "standard_4"}, "ABCD")):
        one = mmmu_pro_task(**options)
        dataset = one.load(roots, 1730)
        assert (dataset.total, dataset.deviation) == (1730, None)
        assert {sample.target for sample in dataset.samples} == set(letters)
        table = one.breakdown((sample, 1.0) for sample in dataset.samples)
        assert sorted(table["topic_difficulty"]) == ["Easy", "Hard", "Medium"]
    assert len(mmmu_pro_task().load(roots, 1730).files) == 2


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row_mmmu_pro(answer="E"), "the answer 'E' is not one of the 4 options"),
        (_row_mmmu_pro(options="a or b"), "is not a list"),
        (_row_mmmu_pro(image_1="2.png"), "No such file"),
        (_row_mmmu_pro(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named_mmmu_pro(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load_mmmu_pro(tmp_path, row)


def _row_ocrbench(**more):
    row = {"dataset_name": "docVQA", "id": 708, "image_path": "docVQA/1.png", "answers": "$506 M"}
    return {**row, "question": "What is the value?", "type": "Doc-oriented VQA", **more}


def _load_ocrbench(folder, *rows, **options):
    """Write the authors' file with its images, and load it."""
    (folder / "OCRBench_Images/docVQA").mkdir(parents=True, exist_ok=True)
    (folder / "OCRBench_Images/docVQA/1.png").write_bytes(png(1))
    (folder / "OCRBench.json").write_text(json.dumps(rows))
    return list(ocrbench_task(**options).load(DataRoots(roots=(folder,)), len(rows)).samples)


def test_the_question_follows_its_image(tmp_path):
    [sample] = _load_ocrbench(tmp_path, _row_ocrbench())
    assert _told(sample) == ["image", "What is the value?"]
    [sample] = _load_ocrbench(tmp_path, _row_ocrbench(), text_first=True)
    assert _told(sample) == ["What is the value?", "image"]


def test_an_image_of_its_own_stays_in_its_file_and_those_of_the_hub_are_sent_as_bytes(
    tmp_path, data_root
):
    kinds = []
    hub = ocrbench_task().load(DataRoots(roots=(data_root,)), 1000)
    for sample in (_load_ocrbench(tmp_path, _row_ocrbench())[0], hub.samples[0]):
        [turn] = sample.prompt
        kinds.append(type(turn.content[0]))
    assert kinds == [MediaFile, ImagePart]
    assert (hub.total, hub.deviation) == (1000, None)


def test_questions_on_one_image_are_a_group(tmp_path):
    first, second = _load_ocrbench(tmp_path, _row_ocrbench(), _row_ocrbench(question="And this?"))
    assert first.group == second.group is not None


@pytest.mark.parametrize(
    ("text", "accepted", "formula", "right"),
    [
        ("It is $506 m\nin all.", ["$506 M"], False, True),
        ("It is $506\nm.", ["$506 M"], False, True),
        ("It is $ 506 m.", ["$506 M"], False, False),
        ("Centre", ["CENTRE"], False, True),
        ("The center", ["CENTRE", " center \n"], False, True),
        ("So y_{2} = -1", ["y _ { 2 } = - 1\n"], True, True),
        ("So Y_{2} = -1", ["y _ { 2 } = - 1\n"], True, False),
        ("so y_2\n=-1", ["y_2 = - 1"], True, True),
        ("so y_2\t=-1", ["y_2 = - 1"], True, False),
        ("", ["a"], False, False),
    ],
)
def test_an_answer_that_contains_an_expected_one_is_right(text, accepted, formula, right):
    assert contains(text, accepted, formula=formula) is right


def test_only_handwritten_formulas_are_compared_with_their_case(tmp_path):
    formula = {"dataset_name": "HME100k", "answers": ["Y = 1", "y = 2"]}
    plain, handwritten = _load_ocrbench(
        tmp_path, _row_ocrbench(answers=["Y = 1"]), _row_ocrbench(**formula)
    )
    if plain.id != "test-0":
        plain, handwritten = handwritten, plain
    told = Response(text="y = 1", finish_reason="stop")
    assert [ocrbench_task().score(one, told).value for one in (plain, handwritten)] == [1.0, 0.0]


def test_the_breakdown_is_by_component_and_type(data_root):
    samples = ocrbench_task().load(DataRoots(roots=(data_root,)), 1000).samples
    found = ocrbench_task().breakdown((sample, 1.0) for sample in samples)
    formulas = "Handwritten Mathematical Expression Recognition"
    assert list(found["type"]) == ["Doc-oriented VQA", formulas, "Regular Text Recognition"]
    assert list(found["component"]) == ["Doc-oriented VQA", formulas, "Text Recognition"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row_ocrbench(image_path="docVQA/2.png"), "there is no image docVQA/2.png in"),
        (_row_ocrbench(image_path=None), "row 1: the image is missing"),
        (_row_ocrbench(answers=[]), "row 1: answers must be a text or a list of texts"),
        (_row_ocrbench(answers=""), "row 1: answers must be a text or a list of texts"),
        (_row_ocrbench(question=None), "row 1: question is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named_ocrbench(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load_ocrbench(tmp_path, row)


@pytest.mark.parametrize(
    ("name", "make", "load", "row"),
    [
        ("mmmu_pro", mmmu_pro_task, _load_mmmu_pro, _row_mmmu_pro()),
        ("ocrbench", ocrbench_task, _load_ocrbench, _row_ocrbench()),
    ],
    ids=["mmmu_pro", "ocrbench"],
)
def test_too_few_rows_say_where_to_get_the_others(name, make, load, row, tmp_path):
    load(tmp_path, row)
    with pytest.raises(DatasetError, match="has 1 rows; 2 are needed") as raised:
        make().load(DataRoots(roots=(tmp_path,)), 2)
    assert f"serve-eval data fetch {name} -o DIR" in raised.value.hint
    with pytest.raises(PlanError, match="num_samples"):
        make(num_samples=0)
