"""Test tasks with long published texts: their prompts, order, cuts and scores."""

import importlib
import json
import sys

import pytest

from serve_eval.errors import DatasetError, PlanError
from serve_eval.plan.prepared_task import request_of
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Outcome, Response, Sample, Score, Spec
from serve_eval.tasks import cnn_dailymail, longbench_v2, zero_scrolls
from serve_eval.tasks.longbench_v1 import CHINESE, ROWS, SETS, find_installed, read, task
from tests.tasks.made_data import (
    PROMPTS,
    write_cnn_dailymail,
    write_jsonl,
    write_longbench_prompts,
    write_longbench_v1,
)


def test_an_article_ends_in_its_cue():
    assert cnn_dailymail.prompt_text(" He did n't go. ") == "Hedidn't go.  TL;DR:".replace(
        "Hedid", "He did"
    )
    assert cnn_dailymail.prompt_text("") == "TL;DR:"


def test_articles_are_asked_in_the_shuffled_order_with_their_end_kept(data_root):
    made = cnn_dailymail.task()
    dataset = made.load(DataRoots(roots=(data_root,)), 512)
    assert dataset.deviation == "512 rows, where CNN/DailyMail has 11490"
    assert made.extra == {"truncate_prompt_tokens": 924}
    assert (made.sampling.max_tokens, made.hypothesis.sigma, made.hypothesis.alpha) == (
        100,
        11.06,
        0.002,
    )
    sample = dataset.samples[0]
    score = made.score(sample, Response(text=sample.target.split()[0], finish_reason="stop"))
    assert 0.0 < score.value < 1.0
    assert score.parts["rouge1"] == score.value


def test_the_order_of_all_articles_is_the_golden_one(tmp_path):
    from serve_eval.tasks._samples import shuffle

    assert shuffle(11490, 0)[:6] == [10265, 3688, 8611, 1624, 9217, 604]
    assert shuffle(100, 0)[:4] == [82, 36, 20, 5]


def test_fewer_articles_than_are_wanted_are_an_error(tmp_path):
    write_cnn_dailymail(tmp_path, 5)
    with pytest.raises(DatasetError, match="has 5 rows; 512 are needed"):
        cnn_dailymail.task().load(DataRoots(roots=(tmp_path,)), 512)


def test_only_the_medium_questions_are_asked_in_the_order_of_the_file(data_root):
    dataset = longbench_v2.task().load(DataRoots(roots=(data_root,)), 215)
    assert [s.id for s in dataset.samples[:2]] == ["id4", "id5"]
    assert (len(dataset.samples), dataset.total) == (215, 215)
    [message] = dataset.samples[0].prompt
    rows = json.loads((data_root / "longbench_v2/data.json").read_text())
    row = rows[4]
    assert message.content == (
        "Please read the following text and answer the question below.\n\n<text>\n"
        + row["context"].strip()
        + "\n</text>\n\nWhat is the correct answer to this question: "
        + row["question"]
        + "".join(f"\n({x}) {row[f'choice_{x}'].strip()}" for x in "ABCD").join(
            ["\nChoices:", "\n\n"]
        )
        + 'Format your response as follows: "The correct answer is (insert answer here)".'
    )
    table = longbench_v2.task().breakdown((s, 1.0) for s in dataset.samples)
    assert set(table) == {"domain", "difficulty"}


def test_the_context_that_is_needed_is_that_of_the_length_that_is_asked():
    needed = {
        length: longbench_v2.task(length=length).context_tokens
        for length in ("short", "medium", "long")
    }
    assert needed == {
        "short": 48_000 + 32_000,
        "medium": 120_000 + 32_000,
        "long": 120_000 + 32_000,
    }
    assert longbench_v2.task(length="short", max_input_chars=4000).context_tokens == 33_000
    assert longbench_v2.task(length="short", max_input_chars=None).context_tokens == 80_000
    assert longbench_v2.task(max_input_chars=None).context_tokens is None


def test_a_long_prompt_loses_its_middle():
    assert longbench_v2.middle_cut("abcdefgh", 4) == "abgh"
    assert longbench_v2.middle_cut("abcdefgh", 5) == "abgh"
    assert longbench_v2.middle_cut("abcd", 4) == longbench_v2.middle_cut("abcd", None) == "abcd"
    with pytest.raises(PlanError):
        longbench_v2.task(max_input_chars=1)


def test_a_question_without_a_letter_is_an_error_of_the_data(tmp_path):
    columns = dict.fromkeys(longbench_v2.COLUMNS, "x")
    (tmp_path / "data.json").write_text(
        json.dumps([{**columns, "length": "medium", "answer": "E"}])
    )
    with pytest.raises(DatasetError, match="answer than A to D"):
        longbench_v2.task().load(DataRoots(roots=(tmp_path,)), 1)
    (tmp_path / "data.json").write_text("{}")
    with pytest.raises(DatasetError, match="not a JSON list"):
        longbench_v2.task().load(DataRoots(roots=(tmp_path,)), 1)


def test_a_story_is_asked_as_its_input_says(data_root, tmp_path):
    made = zero_scrolls.task()
    dataset = made.load(DataRoots(roots=(data_root,)), 80)
    assert dataset.deviation is None
    assert len({s.id for s in dataset.samples}) == 80
    assert all(str(s.prompt).endswith(".n't") for s in dataset.samples)
    write_jsonl(tmp_path / "validation.jsonl", [{"id": "0", "input": "q", "output": "a"}])
    assert zero_scrolls.task().load(DataRoots(roots=(tmp_path,)), 1).samples[0].target == "a"


def test_there_are_21_sets_in_6_groups_with_4750_rows():
    assert (len(SETS), ROWS) == (21, 4750)
    assert len({one.group for one in SETS.values()}) == 6
    assert {"multifieldqa_zh", "dureader", "vcsum"} == CHINESE
    assert task().hypothesis.num_samples == ROWS


def test_every_set_has_its_own_length_and_stop(data_root):
    made = task(prompts=str(data_root / PROMPTS))
    dataset = made.load(DataRoots(roots=(data_root,)), ROWS)
    assert (dataset.total, len(dataset.samples)) == (ROWS, ROWS)
    first = {sample.metadata["set"]: sample for sample in reversed(dataset.samples)}
    sent = {name: request_of(made, sample).sampling for name, sample in first.items()}
    assert {name for name, s in sent.items() if s.stop} == {"trec", "triviaqa", "samsum", "lsht"}
    assert {name: s.max_tokens for name, s in sent.items()} == {
        name: 32 + len(name) for name in SETS
    }
    assert {s.temperature for s in sent.values()} == {0.0}


def test_the_suite_s_accident_is_an_option():
    assert task(suite_exact=True).sampling.temperature == 1.0
    made = build_task(Spec(name="longbench_v1", options={"suite_exact": True}))
    assert made.protocol["temperature"] == 1.0
    assert build_task(Spec(name="longbench_v1")).protocol["temperature"] == 0.0


def test_a_text_that_looks_like_a_place_of_the_prompt_stays_text(data_root):
    asked = read(data_root / PROMPTS, ("hotpotqa",))["hotpotqa"]
    text = asked.text("a {{question}} {{context}}", "why?")
    assert text == "hotpotqa\na {{question}} {{context}}\nAbout: why?\nReply:"


def test_other_prompts_are_another_protocol_and_no_published_set(data_root, tmp_path):
    folder = write_longbench_prompts(tmp_path / "prompts")
    made = task(prompts=str(folder))
    assert made.protocol["prompts"] == task(prompts=str(data_root / PROMPTS)).protocol["prompts"]
    deviation = made.load(DataRoots(roots=(data_root,)), ROWS).deviation
    assert deviation.startswith("the prompts of narrativeqa, qasper,")
    other = write_longbench_prompts(tmp_path / "other")
    (other / "trec.yaml").write_text((folder / "trec.yaml").read_text().replace("Reply", "Say"))
    assert task(prompts=str(other)).protocol["prompts"] != made.protocol["prompts"]


def test_the_prompts_of_the_installed_lm_eval_are_found_without_importing_it(tmp_path, monkeypatch):
    write_longbench_prompts(tmp_path / "lm_eval/tasks/longbench")
    (tmp_path / "lm_eval/__init__.py").write_text(
        "raise RuntimeError('it is large, and not imported')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert find_installed() == tmp_path / "lm_eval/tasks/longbench"
    assert (
        task().protocol["prompts"]
        == task(prompts=str(tmp_path / "lm_eval/tasks/longbench")).protocol["prompts"]
    )


def test_without_prompts_the_task_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    made = task()
    assert "prompts" not in made.protocol
    with pytest.raises(DatasetError, match="lm-eval, which is not installed") as raised:
        made.load(DataRoots(roots=(tmp_path,)), ROWS)
    assert "pip install" in raised.value.hint
    assert "longbench_v1.prompts=DIR" in raised.value.hint


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file"),
        ("doc_to_text: hi", "KeyError: 'generation_kwargs'"),
        ("[", "not a task of LongBench"),
        (
            (
                "{doc_to_text: '{{context}}{{input}}', generation_kwargs: {max_gen_toks: 3, until:"
                " []}}"
            ),
            "has the places context, input",
        ),
        (
            "{doc_to_text: '{{question}}', generation_kwargs: {max_gen_toks: 3, until: []}}",
            "expected context once",
        ),
    ],
)
def test_files_that_are_not_understood_are_named(tmp_path, content, what):
    if content is not None:
        (tmp_path / "trec.yaml").write_text(content)
    with pytest.raises(DatasetError, match=what) as raised:
        task(sets=["trec"], prompts=str(tmp_path)).load(DataRoots(roots=(tmp_path,)), 1)
    assert str(tmp_path / "trec.yaml") in str(raised.value)


def test_the_value_weighs_groups_and_sets_alike():
    made = task(sets=["trec", "triviaqa", "lcc"])

    def scored(name, *values):
        sample = Sample(id="x", prompt="p", target="[]", metadata={"set": name})
        return [(sample, Score(value=value, outcome=Outcome.PARTIAL)) for value in values]

    scores = [*scored("trec", 1.0, 1.0, 1.0, 0.0), *scored("triviaqa", 0.25), *scored("lcc", 0.9)]
    assert made.aggregation.of(scores) == pytest.approx((0.5 + 0.9) / 2)
    assert made.aggregation.name == "mean of 2 groups"
    table = made.breakdown((sample, score.value) for sample, score in scores)
    assert table["group"] == {
        "fewshot": {"value": pytest.approx(50.0), "sets": 2},
        "code": {"value": pytest.approx(90.0), "sets": 1},
    }


def test_fewer_samples_are_as_many_of_each_set(data_root):
    made = task(num_samples=42, prompts=str(data_root / PROMPTS))
    dataset = made.load(DataRoots(roots=(data_root,)), 42)
    assert len(dataset.samples) == 42
    assert {sum(s.metadata["set"] == name for s in dataset.samples) for name in SETS} == {2}


def test_one_set_is_read_alone(tmp_path, data_root):
    prompts = str(data_root / PROMPTS)
    write_longbench_v1(tmp_path / "LongBench" / "data", {"trec": 9})
    made = task(sets=["trec"], num_samples=9, prompts=prompts)
    dataset = made.load(DataRoots(roots=(tmp_path / "LongBench",)), 9)
    assert dataset.deviation.startswith(
        "9 rows, where these sets have 200; the prompts of trec are not"
    )
    sample = dataset.samples[0]
    both = made.score(sample, Response(text="Food type, Colour of a thing", finish_reason="stop"))
    assert both.value == 0.5 or both.value == pytest.approx(1 / 3)
    with pytest.raises(DatasetError, match="incomplete"):
        task(sets=["trec"], prompts=prompts).load(DataRoots(roots=(tmp_path / "LongBench",)), 200)


def test_unknown_sets_and_malformed_rows_are_named(tmp_path, data_root):
    with pytest.raises(PlanError, match=r"'trecc'.*'trec'"):
        task(sets=["trecc"])
    with pytest.raises(PlanError, match="must not be empty"):
        task(sets=[])
    for bad in ({"answers": "x"}, {"answers": []}, {"answers": ["x"], "all_classes": None}):
        write_jsonl(tmp_path / "trec/test.jsonl", [{"context": "c", "question": "q", **bad}])
        with pytest.raises(DatasetError, match=r"row 1: answers or all_classes"):
            task(sets=["trec"], num_samples=1, prompts=str(data_root / PROMPTS)).load(
                DataRoots(roots=(tmp_path,)), 1
            )
