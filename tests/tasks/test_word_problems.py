"""Test tasks of word problems: GSM8K in all its forms, and those of the embedded model.

Requests stay the same for a data version.
"""

import hashlib
import json
import math

import pytest

from serve_eval.datasets import generated
from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    DataRoots,
    Message,
    Outcome,
    PromptLogprobs,
    Response,
    Sample,
    Spec,
    Task,
)
from serve_eval.tasks import _passkey, gsm8k, word_problems
from serve_eval.tasks._gsm8k import STOP, gsm8k_inferencemax, gsm8k_inferencex, score
from serve_eval.tasks._gsm8k import shots as drawn
from serve_eval.tasks._samples import shuffle
from serve_eval.tasks.gsm8k import task
from serve_eval.tasks.perplexity import task as perplexity_task
from serve_eval.tasks.word_problems import OFF_BY
from serve_eval.tasks.word_problems import task as word_problems_task


def _rows(draws, *, twice=False):
    shots = drawn([{"i": i} for i in range(7473)], 5, 0, twice=twice)
    return [[row["i"] for row in next(shots)] for _ in range(draws)]


def test_the_order_is_that_of_a_shuffled_hugging_face_dataset():
    assert shuffle(1319, 0)[:8] == [264, 725, 996, 586, 1010, 12, 904, 130]


def test_the_shots_are_drawn_per_question_from_one_generator():
    assert _rows(3) == [
        [6917, 3155, 6209, 7292, 3445],
        [331, 2121, 4188, 3980, 3317],
        [6420, 6798, 2484, 3904, 2933],
    ]


def test_a_chat_prompt_in_one_turn_uses_the_second_of_two_draws():
    assert _rows(2, twice=True) == [[331, 2121, 4188, 3980, 3317], [4779, 7304, 7439, 1789, 4134]]


def _turns(roots, **options):
    made = task(apply_chat_template=True, **options)
    return [
        message.text
        for s in made.load(roots, 9).samples
        for message in s.prompt
        if isinstance(message, Message)
    ]


def test_the_sampler_of_newer_versions_draws_once_for_a_chat_prompt_in_one_turn(
    data_root,
):
    roots = DataRoots(roots=(data_root,))
    plain = [sample.prompt for sample in task().load(roots, 9).samples]
    assert _turns(roots, fewshot_sampler="0.4.10") == plain
    assert not set(_turns(roots)) & set(plain)
    assert _turns(roots) == _turns(roots, fewshot_sampler="0.4.9")
    turns = {"fewshot_as_multiturn": True}
    assert _turns(roots, **turns) == _turns(roots, **turns, fewshot_sampler="0.4.10")


def test_the_sampler_is_in_the_protocol_where_it_changes_the_shots():
    assert "fewshot_sampler" not in task(apply_chat_template=True).protocol
    assert "fewshot_sampler" not in task(fewshot_sampler="0.4.10").protocol
    many = task(apply_chat_template=True, fewshot_as_multiturn=True, fewshot_sampler="0.4.10")
    assert "fewshot_sampler" not in many.protocol
    for one in (task, gsm8k_inferencex):
        newer = one(apply_chat_template=True, fewshot_as_multiturn=False, fewshot_sampler="0.4.10")
        assert newer.protocol["fewshot_sampler"] == "0.4.10"


def test_the_first_raw_prompt_is_the_golden_one(shared):
    dataset = task().load(DataRoots(roots=(shared / "data",)), 1319)
    prompt = dataset.samples[0].prompt
    assert isinstance(prompt, str)
    assert len(prompt) == 3964
    digest = "dffd383baf9b45cdc94c19eadfff82c179760c3e5444ffd82d9f555e1fc78400"
    assert hashlib.sha256(prompt.encode()).hexdigest() == digest
    assert len(dataset.samples) == dataset.total == 1319


def test_the_request_carries_the_protocol_of_the_suite():
    made = build_task(Spec(name="gsm8k"))
    assert made.sampling.temperature == 0.0
    assert made.sampling.max_tokens == 256
    assert made.sampling.stop == ("Question:", "</s>", "<|im_end|>")
    assert made.extra == {"truncate_prompt_tokens": 4096}
    assert build_task(Spec(name="gsm8k", options={"truncate_prompt_tokens": None})).extra == {}


def test_a_chat_prompt_in_one_turn_holds_the_shots_and_the_question(data_root):
    options = {"apply_chat_template": True, "num_fewshot": 2, "system_prompt": "Be brief."}
    dataset = build_task(Spec(name="gsm8k", options=options)).load(DataRoots(roots=(data_root,)), 9)
    system, user = dataset.samples[0].prompt
    assert system == Message(role="system", content="Be brief.")
    assert isinstance(user, Message)
    assert user.text.count("Question: ") == 3
    assert user.text.endswith("\nAnswer:")


def test_fewshot_as_multiturn_makes_each_shot_two_turns(data_root):
    made = task(apply_chat_template=True, fewshot_as_multiturn=True, num_fewshot=2)
    prompt = made.load(DataRoots(roots=(data_root,)), 9).samples[0].prompt
    assert not isinstance(prompt, str)
    assert [turn.role for turn in prompt] == ["user", "assistant", "user", "assistant", "user"]
    assert "#### " in prompt[1].content


def test_no_shots_leave_the_bare_question(data_root):
    prompt = task(num_fewshot=0).load(DataRoots(roots=(data_root,)), 9).samples[0].prompt
    assert isinstance(prompt, str)
    assert prompt.startswith("Question: ")
    assert prompt.count("Question:") == 1


@pytest.mark.parametrize(
    ("text", "value", "outcome", "parts"),
    [
        ("... #### 18", 1.0, Outcome.CORRECT, (1.0, 1.0)),
        ("the answer is 18", 0.5, Outcome.PARTIAL, (0.0, 1.0)),
        ("#### 18\nSo 19.", 0.5, Outcome.PARTIAL, (1.0, 0.0)),
        ("#### 17", 0.0, Outcome.WRONG, (0.0, 0.0)),
        ("I cannot say", 0.0, Outcome.UNPARSED, (0.0, 0.0)),
    ],
)
def test_the_value_is_the_mean_of_both_filters(text, value, outcome, parts):
    sample = Sample(id="x", prompt="p", target="9*2=18\n#### 18")
    score = task().score(sample, Response(text=text, finish_reason="stop"))
    assert (score.value, score.outcome) == (value, outcome)
    assert (score.parts["strict-match"], score.parts["flexible-extract"]) == parts


def test_either_filter_can_be_the_value_alone():
    sample = Sample(id="x", prompt="p", target="#### 18")
    answer = Response(text="the answer is 18", finish_reason="stop")
    assert task(filter="flexible-extract").score(sample, answer).outcome is Outcome.CORRECT
    assert task(filter="strict-match").score(sample, answer).outcome is Outcome.UNPARSED


def test_multiturn_without_chat_is_refused():
    with pytest.raises(PlanError, match="apply_chat_template"):
        task(fewshot_as_multiturn=True)


def test_a_missing_split_is_named_before_anything_is_sent(tmp_path):
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n')
    with pytest.raises(DatasetError, match="'train'") as caught:
        task().load(DataRoots(roots=(tmp_path,)), 1)
    assert "--dataset-root" in caught.value.hint


def test_a_data_set_that_is_too_short_is_incomplete(tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"question": "q", "answer": "#### 1"}\n' * 7)
    with pytest.raises(DatasetError, match="incomplete"):
        task().load(DataRoots(roots=(tmp_path,)), 1319)
    assert len(task().load(DataRoots(roots=(tmp_path,)), 7).samples) == 7


def test_the_same_rows_give_the_same_samples_from_jsonl_csv_and_parquet(tmp_path, data_root):
    import csv

    from pyarrow import Table, parquet

    splits = ("train", "test")
    lines = {s: (data_root / f"gsm8k/{s}.jsonl").read_text().splitlines()[:30] for s in splits}
    rows = {s: [json.loads(line) for line in lines[s]] for s in splits}
    for split, table in rows.items():
        for kind in ("jsonl", "csv", "parquet"):
            (tmp_path / kind / "main").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"jsonl/main/{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in table)
        )
        with (tmp_path / f"csv/main/{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(table)
        parquet.write_table(
            Table.from_pylist(table), tmp_path / f"parquet/main/{split}-00000-of-00001.parquet"
        )
    samples = [
        task().load(DataRoots(roots=(tmp_path / kind,)), 30).samples
        for kind in ("jsonl", "csv", "parquet")
    ]
    assert samples[0] == samples[1] == samples[2]


LINE = "End your response with the answer on the last line, formatted as: #### [number]"


def test_every_question_has_the_line_and_the_shots_are_those_of_gsm8k(data_root):
    roots = DataRoots(roots=(data_root,))
    dataset = gsm8k_inferencemax().load(roots, 9)
    plain = gsm8k.task(apply_chat_template=True, fewshot_as_multiturn=True).load(roots, 9)
    assert [s.id for s in dataset.samples] == [s.id for s in plain.samples]
    for sample, other in zip(dataset.samples, plain.samples, strict=True):
        assert len(sample.prompt) == 11
        said = [t.text for t in sample.prompt if isinstance(t, Message)]
        turns = [text.replace(f"\n{LINE}", "") for text in said]
        assert turns == [t.text for t in other.prompt if isinstance(t, Message)]
        assert all(text.endswith(f"\n{LINE}\nAnswer:") for text in said[::2])


@pytest.mark.parametrize(
    ("text", "outcome", "answer", "flexible"),
    [
        ("#### 3\nno:\n#### 18", Outcome.CORRECT, "18", 1),
        ("#### 18\n#### 3", Outcome.WRONG, "3", 0),
        ("it is 18", Outcome.UNPARSED, None, 1),
        ("#### 18\n3", Outcome.CORRECT, "18", 0),
    ],
)
def test_the_last_marked_number_decides(text, outcome, answer, flexible):
    found = score(
        Sample(id="x", prompt="p", target="#### 18"), Response(text=text, finish_reason="stop")
    )
    assert (found.outcome, found.answer) == (outcome, answer)
    assert found.parts == {
        "strict-match": float(outcome is Outcome.CORRECT),
        "flexible-extract": flexible,
    }


def test_both_names_are_one_protocol_under_two_references():
    one, other = gsm8k_inferencemax(), gsm8k_inferencex()
    assert one.protocol == other.protocol
    assert (one.reference_file, other.reference_file) == ("gsm8k_inferencemax", "gsm8k_inferencex")
    assert (one.sampling.max_tokens, one.sampling.stop) == (12288, ())
    assert gsm8k_inferencemax(suite_exact=True).sampling.stop == STOP == ("</s>", "<|im_end|>")
    with pytest.raises(PlanError, match="apply_chat_template"):
        gsm8k_inferencex(apply_chat_template=False)


ROOTS = DataRoots()


def _digest(dataset):
    told = "".join(f"{(sample.id, sample.prompt, sample.target)}\n" for sample in dataset.samples)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("made", "version", "digest"),
    [
        (word_problems_task(), generated.DATA_VERSION, (1, "0403054f73aeaf86")),
        (word_problems.word_problems_perplexity(), generated.DATA_VERSION, (1, "a03f45ebba9e24b0")),
        (_passkey.passkey_short(), _passkey.SHORT_VERSION, (1, "59a91d0f1eb64ce6")),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else "",
)
def test_other_data_has_another_version(made, version, digest):
    """A changed generator makes other problems.

    Raise the data version and record the problems again.
    """
    assert (version, _digest(made.load(ROOTS, 50))) == digest
    assert made.protocol["data_version"] == version


def test_a_problem_is_a_text_or_a_chat_or_stands_behind_solved_ones():
    [text] = word_problems_task().load(ROOTS, 1).samples
    [chat] = word_problems_task(apply_chat_template=True).load(ROOTS, 1).samples
    [shown] = word_problems_task(num_fewshot=2).load(ROOTS, 1).samples
    assert isinstance(chat.prompt, tuple)
    assert chat.prompt == (Message(role="user", content=chat.prompt[0].text),)
    assert text.prompt == f"Question: {chat.prompt[0].text}\nAnswer: "
    assert isinstance(shown.prompt, str)
    first, second, last = shown.prompt.split("\n\n")
    assert last == text.prompt
    assert first.startswith("Question: ")
    assert "\n#### " in first
    assert first != second
    assert word_problems_task().sampling.stop == ("\n\n",)
    assert word_problems_task(apply_chat_template=True).sampling.stop == ()


def test_the_solution_is_right_line_by_line_and_only_its_number_counts():
    made = word_problems_task()
    for sample in made.load(ROOTS, 100).samples:
        *sums, last = sample.target.split("\n")
        for line in sums:
            left, _, right = line.partition("=")
            assert eval(left) == int(right)
        assert last == f"#### {sums[-1].partition('=')[2]}"
        assert sample.metadata == {"steps": str(len(sums))}
        number = last.removeprefix("#### ")
        for text, outcome in (
            (f"1+1=3\n#### {number}", Outcome.CORRECT),
            (f"#### {number}0", Outcome.WRONG),
            (f"{number}", Outcome.UNPARSED),
        ):
            assert made.score(sample, Response(text=text, finish_reason="stop")).outcome is outcome


def test_of_four_solutions_one_is_right_and_any_place_may_be_its():
    made = word_problems_task(scoring="loglikelihood")
    samples = made.load(ROOTS, 60).samples
    places = set()
    for sample in samples:
        assert len(set(sample.choices)) == 4
        places.add(sample.choices.index(sample.target))
        off = {
            int(choice.rpartition(" ")[2]) - int(sample.target.rpartition(" ")[2])
            for choice in sample.choices
        }
        assert off - {0} < set(OFF_BY)
    assert places == {0, 1, 2, 3}
    told = tuple(
        (-1.0, -2.0) if choice == samples[0].target else (-1.0, -2.5)
        for choice in samples[0].choices
    )
    response = Response(text="", finish_reason=None, choice_logprobs=told)
    assert made.score(samples[0], response).outcome is Outcome.CORRECT


def test_a_key_lies_at_every_depth():
    made = _passkey.passkey_short(sentences=10)
    samples = made.load(ROOTS, 22).samples
    for i, sample in enumerate(samples):
        before, _, after = str(sample.prompt).partition(
            f"The pass key is {sample.target}. Remember it."
        )
        assert before.count(".") == i % 11
        assert after.count(".") == 1 + 10 - i % 11
    table = made.breakdown((sample, 1.0) for sample in samples)
    assert list(table["depth"]) == [f"{10 * i} %" for i in range(11)]
    [chat] = _passkey.passkey_short(apply_chat_template=True).load(ROOTS, 1).samples
    assert isinstance(chat.prompt, tuple)
    said = Response(text=f"The pass key is {samples[0].target}.", finish_reason="stop")
    assert made.score(samples[0], said).value == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_samples": 0},
        {"num_fewshot": -1},
        {"num_fewshot": 1, "apply_chat_template": True},
        {"scoring": "loglikelihood", "apply_chat_template": True},
    ],
)
def test_options_that_exclude_each_other_are_refused(options):
    with pytest.raises(PlanError, match="word_problems: "):
        word_problems_task(**options)


@pytest.mark.parametrize("make", [word_problems.word_problems_perplexity, _passkey.passkey_short])
def test_at_least_one_sample_is_asked(make):
    with pytest.raises(PlanError, match="1 or more"):
        make(num_samples=0)


def _told(*values):
    return Response(text="", finish_reason="length", prompt_logprobs=PromptLogprobs(values=values))


def test_the_value_is_the_mean_of_the_texts_and_all_tokens_stand_beside_it():
    made = perplexity_task()
    short, long = Sample(id="a", prompt="p", target=""), Sample(id="b", prompt="p", target="")
    scored = [
        (short, made.score(short, _told(-1.0))),
        (long, made.score(long, _told(-2.0, -2.0, -2.0))),
    ]
    assert made.aggregation.of(scored) == pytest.approx((math.e + math.e**2) / 2)
    assert made.secondary(scored) == {"perplexity of all tokens": pytest.approx(math.exp(7 / 4))}


def test_short_texts_are_left_out_and_long_ones_are_cut(data_root):
    dataset = perplexity_task().load(DataRoots(roots=(data_root,)), 86)
    assert len(dataset.samples) == 86
    assert dataset.total > 86
    assert {len(sample.prompt) for sample in dataset.samples} <= {*range(40001, 65536 + 1)}
    assert max(len(sample.prompt) for sample in dataset.samples) == 65536
    kept = {f"test-{i}" for i in shuffle(dataset.total, 0)} & {
        sample.id for sample in dataset.samples
    }
    assert [s.id for s in dataset.samples] == [
        f"test-{i}" for i in shuffle(dataset.total, 0) if f"test-{i}" in kept
    ]


def test_texts_are_shuffled_and_mended_as_the_suite_does(tmp_path):
    rows = [{"text": f" {i}: it did n't. " + "x" * 40} for i in range(11)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = perplexity_task(min_tokens=1, max_input_tokens=3)
    dataset = made.load(DataRoots(roots=(tmp_path,)), 4)
    assert [s.id for s in dataset.samples] == [f"test-{i}" for i in shuffle(11, 0)[:4]]
    assert dataset.samples[0].prompt == f"{shuffle(11, 0)[0]}: it didn't. "[:12]
    other = perplexity_task(min_tokens=1, max_input_tokens=3, random_seed=1).load(
        DataRoots(roots=(tmp_path,)), 4
    )
    assert [s.id for s in other.samples] == [f"test-{i}" for i in shuffle(11, 1)[:4]]


def test_a_text_of_one_s_own_is_cut_into_pieces(tmp_path):
    (tmp_path / "novel.txt").write_text("x" * 1000)
    made = perplexity_task(files=["novel.txt"], min_tokens=10, max_input_tokens=100)
    dataset = made.load(DataRoots(roots=(tmp_path,)), 86)
    assert [(s.id, len(s.prompt)) for s in dataset.samples] == [
        ("novel-0", 400),
        ("novel-1", 400),
        ("novel-2", 200),
    ]
    assert dataset.deviation == "your own texts"
    with pytest.raises(DatasetError, match=r"missing\.txt was not found"):
        perplexity_task(files=["missing.txt"]).load(DataRoots(roots=(tmp_path,)), 86)
    with pytest.raises(DatasetError, match="0 texts are longer"):
        perplexity_task(files=["novel.txt"]).load(DataRoots(roots=(tmp_path,)), 86)
    with pytest.raises(PlanError, match="below max_input_tokens"):
        perplexity_task(min_tokens=5, max_input_tokens=5)


def test_a_real_novel_is_asked_in_pieces(shared):
    dataset = perplexity_task(files=["long_text/war_and_peace.txt"]).load(
        DataRoots(roots=(shared / "data",)), 86
    )
    assert len(dataset.samples) > 40
    assert len({sample.id for sample in dataset.samples}) == len(dataset.samples)
