"""Test the prompts and scores of AIME, GPQA and MATH-500."""

import asyncio
import csv
import hashlib
import io
import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from serve_eval.datasets.local import DataFile
from serve_eval.datasets.source import GPQA_PASSWORD
from serve_eval.errors import DatasetError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.results.scoring import ScoringProcesses, recipe_for
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Message, Outcome, Plan, Response, Spec
from serve_eval.scorers.math import TIMED_OUT
from serve_eval.tasks._samples import shuffle
from serve_eval.tasks.aime import prompt_text, task
from serve_eval.tasks.gpqa import INSTRUCTION, choice_orders, suite_orders
from serve_eval.tasks.gpqa import task as gpqa_task
from serve_eval.tasks.math_500 import SOURCE
from serve_eval.tasks.math_500 import task as task_math_500
from tests.tasks.made_data import encrypted_zip, write_jsonl

NEEDS_MATH = pytest.mark.skipif(find_spec("math_verify") is None, reason="needs the extra math")

YEARS = (2024, 2025, 2026)


def _load(root, year, wanted=30):
    return task(year=year).load(DataRoots(roots=(root,)), wanted)


def test_only_the_newest_problems_ask_for_a_box():
    assert prompt_text("p", 2024) == prompt_text("p", 2025) == "Question: p\nAnswer:"
    box = "Please reason step by step, and put your final answer within \\boxed{}."
    assert prompt_text("p", 2026) == f"Question: p\n{box}\nAnswer:"


def test_every_year_is_read_from_its_layout(data_root):
    oldest, old, new = (_load(data_root, year) for year in YEARS)
    assert (
        [s.target for s in oldest.samples]
        != [s.target for s in old.samples]
        == [s.target for s in new.samples]
    )
    assert [one.deviation for one in (oldest, old, new)] == [None] * 3
    [message] = new.samples[0].prompt
    assert "\\boxed{}" in message.content
    sample = old.samples[0]
    score = task().score(
        sample, Response(text=f"\\boxed{{0{sample.target}}}", finish_reason="stop")
    )
    assert score.parts == {"string": 0.0, "integer": 1.0}


def test_a_year_in_two_files_is_read_in_their_order(tmp_path):
    parts = [
        [{"problem": f"{part} {i}", "answer": f"{i}"} for i in range(15)] for part in ("I", "II")
    ]
    write_jsonl(tmp_path / "aime/test2025-I.jsonl", parts[0])
    with pytest.raises(DatasetError, match="'test2025-II'"):
        _load(tmp_path, 2025)
    write_jsonl(tmp_path / "aime/test2025-II.jsonl", parts[1])
    dataset = _load(tmp_path, 2025)
    assert [Path(file.path).name for file in dataset.files] == [
        "test2025-I.jsonl",
        "test2025-II.jsonl",
    ]
    assert (
        dataset.files[0]
        == DataFile(
            tmp_path / "aime/test2025-I.jsonl", (tmp_path / "aime/test2025-I.jsonl").read_bytes()
        ).source
    )
    by_id = {sample.id: sample for sample in dataset.samples}
    assert [by_id[f"2025-{i}"].prompt[0].content for i in (0, 15)] == [
        "Question: I 0\nAnswer:",
        "Question: II 0\nAnswer:",
    ]


@pytest.mark.parametrize("year", [2024, 2025])
@pytest.mark.parametrize(
    ("form", "outcome", "integer"),
    [
        ("First $3$ ways, so \\boxed{1000} is out.\n\\[ n = \\boxed{%s} \\]", Outcome.CORRECT, 1),
        ("It is $%s$.", Outcome.CORRECT, 1),
        ("%s", Outcome.CORRECT, 1),
        ("\\boxed{0%s}", Outcome.WRONG, 1),
        ("The answer is %s.", Outcome.WRONG, 1),
        ("\\boxed{1000}", Outcome.WRONG, 0),
        ("I cannot say.", Outcome.UNPARSED, 0),
    ],
)
def test_answers_to_real_problems_are_read(shared, year, form, outcome, integer):
    dataset = _load(shared / "data", year)
    assert (len(dataset.samples), dataset.deviation) == (30, None)
    for sample in dataset.samples:
        text = form % sample.target if "%" in form else form
        score = task(year=year).score(sample, Response(text=text, finish_reason="stop"))
        assert (score.outcome, score.parts["integer"]) == (outcome, integer), (sample.id, text)


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize(("accuracy", "value"), [(1.0, 100.0), (0.0, 0.0)])
def test_real_problems_are_asked_end_to_end(shared, tmp_path, accuracy, value):
    for year in (2024, 2025):
        plan = Plan(
            model="simulated",
            launcher=Spec(name="simulated", options={"accuracy": accuracy, "strict_fields": True}),
            tasks=(Spec(name="aime", options={"year": year}),),
            dataset_roots=(str(shared / "data"),),
            no_reference=True,
        )
        report = asyncio.run(evaluate(plan, tmp_path / f"{year}", environ={}))
        assert [(one.result.scored, one.result.value) for one in report.tasks] == [(30, value)]


def test_an_answer_that_is_no_integer_is_an_error_of_the_data(tmp_path):
    write_jsonl(tmp_path / "test.jsonl", [{"problem": "p", "answer": "x"}])
    with pytest.raises(DatasetError, match="must hold integers, not 'x'"):
        _load(tmp_path, 2025, 1)
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "p", "answer": "1"}))
    with pytest.raises(DatasetError, match="no text in column problem"):
        _load(tmp_path, 2025, 1)


def test_too_few_problems_are_an_error(tmp_path):
    write_jsonl(tmp_path / "aime24/test2024.jsonl", [{"problem": "p", "answer": "1"}])
    assert _load(tmp_path, 2024, 1).deviation == "1 problems, where AIME 2024 has 30"
    with pytest.raises(DatasetError, match="last of 1 problems; 2 are needed"):
        _load(tmp_path, 2024, 2)


def test_more_problems_than_the_year_has_are_told(tmp_path):
    write_jsonl(
        tmp_path / "aime24/test2024.jsonl", [{"problem": f"p{i}", "answer": "1"} for i in range(31)]
    )
    assert _load(tmp_path, 2024, 1).deviation == "31 problems, where AIME 2024 has 30"


EXACT = {"suite_exact": True}
SEED = {"random_seed": 1}


def test_the_order_of_the_choices_is_fixed_per_row():
    assert choice_orders(6, 0) == [
        [2, 0, 1, 3],
        [0, 1, 3, 2],
        [0, 2, 1, 3],
        [1, 0, 3, 2],
        [2, 0, 3, 1],
        [3, 1, 2, 0],
    ]
    assert choice_orders(3, 0) == choice_orders(198, 0)[:3]
    assert choice_orders(6, 1) != choice_orders(6, 0)


def test_suite_exact_has_the_order_of_a_machine_without_a_cache(data_root):
    asked = shuffle(198, 0)
    orders = [suite_orders(asked, 0)[row] for row in asked[:4]]
    assert orders == [
        [2, 0, 3, 1],
        [2, 3, 0, 1],
        [3, 2, 0, 1],
        [0, 3, 1, 2],
    ]  # as lm-eval 0.4.8 and 0.4.10 have them
    roots = DataRoots(roots=(data_root,))
    usual, exact, other = (
        gpqa_task(**options).load(roots, 198).samples for options in ({}, EXACT, {**EXACT, **SEED})
    )
    assert [s.id for s in usual] == [s.id for s in exact] != [s.id for s in other]
    assert sum(one.prompt == two.prompt for one, two in zip(usual, exact, strict=True)) < 30
    assert list(gpqa_task(**EXACT).load(roots, 9).samples) == list(exact[:9]), (
        "the number of samples does not change the order"
    )
    assert (
        gpqa_task().protocol["choice_seed"],
        gpqa_task(suite_exact=True).protocol["choice_seed"],
    ) == (
        0,
        None,
    )
    with pytest.raises(PlanError, match="no effect with suite_exact"):
        gpqa_task(choice_seed=1, suite_exact=True)


def test_the_archive_is_read_with_its_password_and_nothing_is_written(data_root):
    before = sorted(data_root.rglob("*"))
    dataset = gpqa_task().load(DataRoots(roots=(data_root,)), 198)
    assert sorted(data_root.rglob("*")) == before
    assert [Path(file.path).name for file in dataset.files] == ["dataset.zip"]
    assert b"Which," not in (data_root / "gpqa/dataset.zip").read_bytes()
    with (
        zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive,
        pytest.raises(RuntimeError, match="encrypted"),
    ):
        archive.read("dataset/gpqa_diamond.csv")
    assert [s.id for s in dataset.samples[:6]] == [
        f"diamond-{i}" for i in (106, 99, 129, 143, 102, 170)
    ]


def test_the_prompt_is_the_suites_and_the_letter_that_of_the_right_answer(data_root):
    sample = gpqa_task().load(DataRoots(roots=(data_root,)), 198).samples[0]
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read("dataset/gpqa_diamond.csv", pwd=GPQA_PASSWORD).decode()
    row = list(csv.DictReader(io.StringIO(text, newline="")))[106]
    assert isinstance(sample.prompt, str)
    assert sample.prompt.startswith(f"{INSTRUCTION}\n{row['Question']}\nA) ")
    choices = dict(line.split(") ") for line in sample.prompt.split("\n")[-4:])
    assert choices[sample.target] == row["Correct Answer"].strip()
    assert set(choices.values()) == {
        v.strip() for k, v in row.items() if k.endswith("Answer") or "Incorrect" in k
    }
    score = gpqa_task().score(
        sample, Response(text=f"Answer: {sample.target}", finish_reason="stop")
    )
    assert score.parts == {"first_answer": 1.0, "last_answer": 1.0}


def test_every_subset_and_chat(data_root):
    options = {
        "subset": "main",
        "num_samples": 12,
        "apply_chat_template": True,
        "system_prompt": "Think.",
    }
    made = build_task(Spec(name="gpqa", options=options))
    dataset = made.load(DataRoots(roots=(data_root,)), 12)
    assert made.reference_file == "gpqa_main"
    assert dataset.deviation == "12 questions, where main has 448"
    assert dataset.samples[0].prompt[0] == Message(role="system", content="Think.")
    assert made.sampling.stop == ()
    assert gpqa_task().sampling.stop == ("</s>",)


def test_a_plain_file_of_the_hub_s_layout_is_read_too(data_root, tmp_path):
    with zipfile.ZipFile(data_root / "gpqa/dataset.zip") as archive:
        text = archive.read("dataset/gpqa_diamond.csv", pwd=GPQA_PASSWORD)
    (tmp_path / "gpqa").mkdir()
    (tmp_path / "gpqa/gpqa_diamond.csv").write_bytes(text)
    plain = gpqa_task().load(DataRoots(roots=(tmp_path,)), 198)
    assert plain.samples == gpqa_task().load(DataRoots(roots=(data_root,)), 198).samples


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK", "BadZipFile"),
        (
            encrypted_zip({"dataset/gpqa_diamond.csv": b"Question\nq\n"}, b"other"),
            r"RuntimeError|BadZipFile",
        ),
        (encrypted_zip({"x": b""}, GPQA_PASSWORD), "the archive has no gpqa_diamond.csv"),
        (
            encrypted_zip({"gpqa_diamond.csv": b"Question\nq\n"}, GPQA_PASSWORD),
            "Incorrect Answer 1",
        ),
    ],
)
def test_a_broken_archive_is_named(tmp_path, content, message):
    (tmp_path / "dataset.zip").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        gpqa_task().load(DataRoots(roots=(tmp_path,)), 198)


SHARED = Path(__file__).resolve().parents[2].parent / "shared/data/math_500/test.jsonl"


def _row(**more):
    row = {"problem": "What is $1+\\frac{1}{2}$?", "solution": "$\\boxed{\\frac{3}{2}}$"}
    row |= {"answer": "\\frac{3}{2}", "subject": "Algebra", "level": 2}
    return {**row, "unique_id": "test/algebra/1.json", **more}


def _load_math_500(folder, *rows):
    write_jsonl(folder / "test.jsonl", rows)
    return list(task_math_500().load(DataRoots(roots=(folder,)), len(rows)).samples)


@NEEDS_MATH
def test_the_problem_is_asked_with_the_line_for_a_box(tmp_path):
    [sample] = _load_math_500(tmp_path, _row())
    [turn] = sample.prompt
    assert turn.content == (
        "What is $1+\\frac{1}{2}$?\n"
        "Please reason step by step, and put your final answer within \\boxed{}."
    )
    assert (sample.id, sample.target) == ("test-algebra-1", "\\frac{3}{2}")


@NEEDS_MATH
@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("So it is \\boxed{1.5}.", Outcome.CORRECT),
        ("So it is \\boxed{\\frac{6}{4}}.", Outcome.CORRECT),
        ("So it is \\boxed{\\frac{2}{3}}.", Outcome.WRONG),
        ("I cannot say.", Outcome.UNPARSED),
    ],
)
def test_equal_formulas_are_right(tmp_path, text, outcome):
    [sample] = _load_math_500(tmp_path, _row())
    response = Response(text=text, finish_reason="stop")
    assert task_math_500().score(sample, response).outcome is outcome


@NEEDS_MATH
def test_a_hostile_answer_costs_a_run_seconds_and_one_answer_its_point(data_root):
    """It is scored in another process, where the next answer finds the library loaded."""
    roots, spec = DataRoots(roots=(data_root,)), Spec(name="math_500")
    sample = next(s for s in task_math_500().load(roots, 500).samples if s.target.startswith("x^2"))
    recipe = recipe_for(spec, roots=roots, wanted=500)
    with ScoringProcesses({"math_500": recipe}, limit_s=60.0) as scoring:
        apart = scoring.of("math_500")
        assert apart is not None
        grades = [
            apart(sample, Response(text=text, finish_reason="stop")).result()
            for text in ("\\boxed{9^{9^{9^{9}}}}", f"\\boxed{{{sample.target}}}")
        ]
    assert not any(isinstance(one, Unfinished) for one in grades)
    assert [(score.value, score.mode) for score, _ in grades] == [(0.0, TIMED_OUT), (1.0, None)]


@NEEDS_MATH
def test_the_breakdown_is_by_level_and_subject(data_root):
    dataset = task_math_500().load(DataRoots(roots=(data_root,)), 500)
    assert (dataset.total, dataset.deviation) == (500, None)
    tables = task_math_500().breakdown((sample, 1.0) for sample in dataset.samples)
    assert sorted(tables["level"]) == ["1", "2", "3", "4", "5"]
    assert sorted(tables["subject"]) == ["Algebra", "Precalculus"]


@NEEDS_MATH
@pytest.mark.parametrize(
    ("row", "what"),
    [
        (_row(level=6), "row 1: level must be a number from 1 to 5, not 6"),
        (_row(answer=None), "row 1: answer is empty, not a text"),
    ],
)
def test_rows_that_cannot_be_asked_are_named(tmp_path, row, what):
    with pytest.raises(DatasetError, match=what):
        _load_math_500(tmp_path, row)


@NEEDS_MATH
def test_too_few_rows_say_where_to_get_the_others(tmp_path):
    _load_math_500(tmp_path, _row())
    with pytest.raises(DatasetError, match="has 1 rows; 2 are needed") as raised:
        task_math_500().load(DataRoots(roots=(tmp_path,)), 2)
    assert "serve-eval data fetch math_500 -o DIR" in raised.value.hint
    with pytest.raises(PlanError, match="num_samples"):
        task_math_500(num_samples=0)


@NEEDS_MATH
@pytest.mark.skipif(not SHARED.is_file(), reason="needs MATH-500 in ../shared/data")
def test_the_published_file_has_the_published_checksum_and_its_gold_answers_are_right():
    found = hashlib.sha256(SHARED.read_bytes()).hexdigest()
    assert found == SOURCE.sha256["test.jsonl"]
    made = task_math_500()
    samples = made.load(DataRoots(roots=(SHARED.parent,)), 500).samples
    gold = [Response(text=made.answers(one)[0], finish_reason="stop") for one in samples]
    values = [made.score(*pair).value for pair in zip(samples, gold, strict=True)]
    assert values == [1.0] * 500
