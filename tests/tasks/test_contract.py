"""Test the contract of every task: its prompts, its groups and its rows in pages.

test_gold.py tests what its answers score.
"""

import asyncio
import json
import math
from collections import Counter
from dataclasses import replace

import pytest

from serve_eval.errors import SandboxError
from serve_eval.evaluation.preflight import warn_of_shared_texts
from serve_eval.plugins import registry
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Plan, Spec
from serve_eval.tasks import longbench_v2, videomme, zero_scrolls
from serve_eval.tasks._samples import LONG, find_document_field, name_document
from serve_eval.workflows.gold import GoldCheck, check_gold, use_server
from tests.root import ROOT
from tests.tasks import task_rows
from tests.tasks.golden_prompts import (
    FILE,
    OPTIONS,
    asked,
    find_untried,
    label,
    say_refused,
    tried,
    variants,
)
from tests.tasks.made_data import NAMES, spec_of, write_jsonl, write_longbench_v2, write_videomme
from tests.tasks.mistakes import Mistake
from tests.tasks.task_rows import DATA_HEAD, TASKS_HEAD, list_folders, renew_row

LIKELIHOOD = [
    Spec(name=name, options={"scoring": "loglikelihood"}) for name in ("mmlu", "word_problems")
]


@pytest.fixture(
    scope="module",
    params=[*NAMES, *LIKELIHOOD],
    ids=lambda param: getattr(param, "name", param),
)
def loaded(request, data_root):
    task = build_task(
        request.param if isinstance(request.param, Spec) else spec_of(request.param, data_root)
    )
    assert task.hypothesis.num_samples is not None, f"{task.name}: num_samples is not set"
    return task, task.load(DataRoots(roots=(data_root,)), task.hypothesis.num_samples)


def test_ids_are_unique_and_loading_twice_gives_the_same(loaded, data_root):
    task, dataset = loaded
    twice = [name for name, n in Counter(s.id for s in dataset.samples).items() if n > 1]
    assert not twice, f"{task.name}: ids of several samples: {twice[:5]}"
    assert task.hypothesis.num_samples is not None
    again = task.load(DataRoots(roots=(data_root,)), task.hypothesis.num_samples)
    assert again == dataset, f"{task.name}: load() gives another data set the second time"


def test_messages_are_of_tasks_with_chat(loaded):
    task, dataset = loaded
    for sample in dataset.samples:
        if isinstance(sample.prompt, str):
            assert not task.chat, f"{task.name}: {sample.id} is a text: leave out chat=True"
        else:
            assert task.chat, f"{task.name}: {sample.id} is messages: set chat=True"


def test_the_name_is_the_file_and_the_protocol_is_plain_data(loaded):
    task, _ = loaded
    assert task.name.partition(":")[0] in NAMES, f"the name {task.name!r} is not that of the file"
    assert task.protocol["max_tokens"] == task.sampling.max_tokens, (
        "protocol must not replace max_tokens of the sampling"
    )
    assert canonical(task.protocol), "the protocol is empty"


def test_the_breakdown_takes_any_scores(loaded):
    task, dataset = loaded
    found = canonical(task.breakdown((sample, 1.0) for sample in dataset.samples))
    assert found, f"{task.name}: breakdown() gives nothing that can be written as JSON"


def test_every_task_has_a_one_line_summary():
    for name in registry.names("serve_eval.tasks"):
        summary = registry.summary("serve_eval.tasks", name)
        assert 20 < len(summary) <= 140, (
            f"{name}: the first line of its docstring has {len(summary)} characters, not 21 to 140"
        )


TEXTS = ["one " * LONG, "two " * LONG]


def test_a_document_is_named_by_its_text_without_white_space_around_it():
    assert name_document(" a b\n") == name_document("a b") != name_document("a c")


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"context": TEXTS[i % 2], "q": f"{i}"} for i in range(6)], "context"),
        ([{"context": f"{i} {TEXTS[0]}"} for i in range(6)], None),
        ([{"rules": TEXTS[0], "q": f"{i}"} for i in range(6)], None),
        ([{"context": TEXTS[i % 2][: LONG - 1]} for i in range(6)], None),
        (
            [{"title": TEXTS[i % 2][:LONG], "text": TEXTS[i % 2], "n": i} for i in range(6)],
            "text",
        ),
        ([], None),
    ],
    ids=["shared", "each its own", "one for all", "short", "the longer of two", "no rows"],
)
def test_the_field_of_a_document_is_long_and_shared_by_some(rows, field):
    assert find_document_field(rows) == field


def test_questions_of_longbench_v2_on_one_text_are_a_group(tmp_path):
    write_longbench_v2(tmp_path / "longbench_v2", 20)
    file = tmp_path / "longbench_v2/data.json"
    rows = json.loads(file.read_text())
    for row in rows[14:]:
        row["context"] = rows[4]["context"]
    file.write_text(json.dumps(rows))
    task = longbench_v2.task(num_samples=20)
    groups = [one.group for one in task.load(DataRoots(roots=(tmp_path,)), 20).samples]
    assert len(set(groups[:10])) == 10
    assert set(groups[10:]) == {groups[0]}


def test_questions_on_a_story_of_zero_scrolls_are_a_group(tmp_path):
    pytest.importorskip("rouge_score")
    rows = [
        {
            "id": f"{i}",
            "input": f"Read. {TEXTS[i // 4]} Question {i}?",
            "output": "so",
            "document_start_index": 6,
            "document_end_index": 6 + len(TEXTS[0]),
        }
        for i in range(8)
    ]
    write_jsonl(tmp_path / "zero_scrolls/squality/validation.jsonl", rows)
    roots = DataRoots(roots=(tmp_path,), allow_fewer=True)
    samples = zero_scrolls.task(num_samples=8).load(roots, 8).samples
    groups = {one.id: one.group for one in samples}
    assert len({groups[f"validation-{i}"] for i in range(4)}) == 1
    assert len(set(groups.values())) == 2


def test_questions_on_a_video_are_a_group(tmp_path):
    write_videomme(tmp_path / "videomme", 6)
    task = videomme.task(num_samples=6, num_frames=1)
    samples = task.load(DataRoots(roots=(tmp_path,)), 6).samples
    assert [one.group for one in samples] == ["0.avi", "1.avi", "2.avi"] * 2


def test_no_task_of_ours_warns_of_its_instruction_or_shots(data_root):
    from serve_eval.errors import ServeEvalError
    from serve_eval.protocol.shared import build_task
    from tests.tasks.made_data import spec_of

    seen = 0
    for name in registry.names("serve_eval.tasks"):
        if name == "perplexity":
            continue  # its made texts repeat each other
        try:
            task = build_task(spec_of(name, data_root), name)
            samples = task.load(DataRoots(roots=(data_root,), allow_fewer=True), 100).samples
        except ServeEvalError:
            continue
        seen += 1
        assert warn_of_shared_texts(name, samples) is None, name
    assert seen > 10


TABLE = """Before.

| task | folders | files | columns |
|---|---|---|---|
| mixed_modality_* | as there | as there | as there |
| gsm8k, aime | by hand | | |

After.
"""
NOTICE = """Prompt templates
----------------

gsm8k                          theirs
judges, smoke tests, cases     ours

Extractors
"""


def test_a_row_is_the_last_of_its_table():
    page = task_rows.add_row(TABLE, DATA_HEAD, "| new | a | b | c |")
    assert page == TABLE.replace("| | |\n", "| | |\n| new | a | b | c |\n")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gsm8k", True),
        ("aime", True),
        ("mixed_modality_omni_alone", True),
        ("gsm8", False),
        ("as there", False),
        ("Before", False),
    ],
)
def test_a_row_may_name_several_tasks(name, found):
    assert task_rows.is_in_table(TABLE, DATA_HEAD, name) is found


def test_the_source_of_a_prompt_that_a_person_wrote_stays():
    assert task_rows.say_notice(NOTICE, "gsm8k") == NOTICE
    assert task_rows.say_notice(NOTICE, "gsm8k_alone") == NOTICE


def test_a_task_file_that_does_not_say_where_its_prompt_is_from_is_named():
    with pytest.raises(Mistake, match=r"serve_eval/tasks/mmlu\.py:\d+: PROMPT_FROM is"):
        task_rows.say_notice(NOTICE, "mmlu")


@pytest.mark.parametrize("name", NAMES)
def test_the_generated_columns_are_those_of_the_task(name, tmp_path):
    task = build_task(spec_of(name, tmp_path))
    page = (ROOT / "docs/tasks.md").read_text("utf-8")
    assert task_rows.is_in_table(page, TASKS_HEAD, name)
    assert task_rows.say_task(page, name, task)[1] == [], "run make task-pages"
    changed = renew_row(page, DATA_HEAD, name, list_folders(task), NAMES)
    assert changed == (page, []), "run make task-pages"


def test_a_task_that_changed_renews_its_columns_and_no_others():
    page = (ROOT / "docs/tasks.md").read_text("utf-8")
    task = build_task(Spec(name="aime"))
    changed = replace(
        task,
        chat=False,
        metric=replace(task.metric, name="wer", higher_is_better=False),
        hypothesis=replace(task.hypothesis, num_samples=31),
    )
    renewed, told = task_rows.say_task(page, "aime", changed)
    assert told == [
        "aime: value was 'accuracy', is 'wer, lower is better'",
        "aime: n was '30', is '31'",
        "aime: API was 'chat', is 'completions'",
    ]
    old, new = (
        "| aime | accuracy | 30 | chat | ",
        "| aime | wer, lower is better | 31 | completions | ",
    )
    assert old in page
    assert renewed == page.replace(old, new)
    assert task_rows.say_task(renewed, "aime", task)[0] == page


def test_a_row_written_by_hand_for_a_pattern_stays():
    assert renew_row(TABLE, DATA_HEAD, "gsm8k", ["x"], ["gsm8k"]) == (TABLE, [])
    renewed, told = renew_row(TABLE, DATA_HEAD, "gsm8k", ["x"], ["gsm8k", "aime"])
    assert renewed == TABLE.replace("by hand", "x")
    assert told == ["gsm8k: folders was 'by hand', is 'x'"]


def test_listed_options_add_to_those_that_are_found(monkeypatch):
    monkeypatch.setitem(OPTIONS, "passkey_short", [{"sentences": 5}])
    assert tried("passkey_short") == [
        {"sentences": 5},
        {"apply_chat_template": True},
        {"random_seed": 1},
    ]
    assert find_untried("passkey_short") == []
    told = say_refused("passkey_short", {"random_seed": "refused"}).splitlines()
    assert told[2].startswith("Write this line in place of its own in OPTIONS of tests/tasks/")
    assert told[3] == '    "passkey_short": [{"sentences": 5}, {"random_seed": VALUE}],'


GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
SAME_OF_MADE_DATA = ('mmlu none_cells="none"',)
"""Variants without effect on made data: none of its cells is None, unlike in the real set."""
LABELS = {label(*variant): variant for variant in variants()}


def told(name, was, now):
    return (
        f"{name} asks something else than before. If that is on purpose, its references no longer"
        " hold: raise the task's version and run make golden-prompts.\nfirst request before:"
        f" {was}\nfirst request now:    {now.first}"
    )


@pytest.mark.parametrize("name", LABELS)
def test_a_task_asks_what_it_asked(name, data_root):
    assert name in GOLDEN["made"], "a new task or option: run make task-pages"
    now, was = asked(*LABELS[name], data_root), GOLDEN["made"][name]
    assert (now.sha256, now.requests) == (was["sha256"], was["requests"]), told(
        name, was["first"], now
    )


@pytest.mark.parametrize("name", GOLDEN["real"])
def test_a_task_asks_of_the_real_set_what_it_asked(name, shared):
    now = asked(*LABELS[name], shared / "data")
    assert now.sha256 == GOLDEN["real"][name], told(name, "(a real set, not kept)", now)


def test_every_option_is_asked_or_known_to_change_nothing():
    assert not OPTIONS.keys() - set(NAMES)
    for name in NAMES:
        assert find_untried(name) == [], (
            f"{name}: list these options in OPTIONS of golden_prompts.py"
        )


def test_every_option_changes_what_is_asked():
    seen = {}
    for one, golden in GOLDEN["made"].items():
        first = seen.setdefault((LABELS[one][0], golden["sha256"]), one)
        assert first == one or one in SAME_OF_MADE_DATA, f"{one} asks what {first} asks"


LIMIT, PROGRAMS_LIMIT = 12, 6
"""Samples of each task, and of those that run answers."""
PROGRAMS = ["livecodebench"]
"""Tasks that run answers by default."""
BY_LIKELIHOOD = {"scoring": "loglikelihood"}
PERPLEXITY = (math.exp(0.5), math.exp(3.0))
"""Values of an expected and of an unexpected text, with 0.5 and 3 nats per token."""
OTHER_VALUES = {
    "perplexity": PERPLEXITY,
    "word_problems_perplexity": PERPLEXITY,
    "voxpopuli": (0.0, 100.0),
}
WAYS = {
    "defaults": [name for name in NAMES if name not in PROGRAMS],
    "likelihood": [Spec(name=name, options=BY_LIKELIHOOD) for name in ("mmlu", "word_problems")],
    "programs": [*PROGRAMS, Spec(name="humaneval", options={"metric": "pass@1"})],
}


def _check(tasks, root, limit):
    specs = tuple(one if isinstance(one, Spec) else spec_of(one, root) for one in tasks)
    plan = Plan(
        model="simulated",
        launcher=Spec(name="simulated", options={}),
        tasks=specs,
        dataset_roots=(str(root),),
        limit=limit,
        allow_code_execution=True,
    )
    return asyncio.run(check_gold(use_server(plan), {}))


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize("way", WAYS)
def test_gold_answers_score_full_marks_and_wrong_ones_nothing(way, data_root):
    try:
        limit = PROGRAMS_LIMIT if way == "programs" else LIMIT
        found = _check(WAYS[way], data_root, limit)
    except SandboxError as error:
        pytest.skip(str(error))
    assert len(found) == len(WAYS[way])
    for one in found:
        assert one.errors == (), one
        assert one.rows == (), f"{one.task}: {len(one.rows)} rows, the first {one.rows[:3]}"
        assert one.samples > 0, f"{one.task}: no sample was checked"
        assert one.values == pytest.approx(OTHER_VALUES.get(one.task, (100.0, 0.0))), one


@pytest.mark.usefixtures("simulated_here")
@pytest.mark.parametrize(
    ("gold", "zero", "no_gold", "passed"),
    [
        (20, 20, "", True),
        (19, 20, "", False),
        (20, 19, "", False),
        (18, 20, "it has none", True),
        (17, 20, "it has none", False),
        (20, 19, "it has none", False),
    ],
)
def test_of_made_up_answers_some_may_be_wrong(gold, zero, no_gold, passed):
    found = GoldCheck(
        task="t",
        samples=20,
        gold=gold,
        zero=zero,
        shared=0,
        rows=(),
        no_gold=no_gold,
        relative=False,
    )
    assert found.passed is passed
