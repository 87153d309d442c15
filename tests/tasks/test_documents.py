"""Questions on one document, one story or one video are a group."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.evaluation.preflight import warn_of_shared_texts
from serve_eval.plugins import registry
from serve_eval.schema import DataRoots
from serve_eval.tasks import longbench_v2, videomme, zero_scrolls
from serve_eval.tasks._samples import LONG, find_document_field, name_document
from tests.tasks.made_data import write_jsonl, write_longbench_v2, write_videomme

TEXTS = ["one " * LONG, "two " * LONG]


def test_a_document_is_named_by_its_text_without_white_space_around_it() -> None:
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
def test_the_field_of_a_document_is_long_and_shared_by_some(
    rows: list[dict[str, object]], field: str | None
) -> None:
    assert find_document_field(rows) == field


def test_questions_of_longbench_v2_on_one_text_are_a_group(tmp_path: Path) -> None:
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


def test_questions_on_a_story_of_zero_scrolls_are_a_group(tmp_path: Path) -> None:
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


def test_questions_on_a_video_are_a_group(tmp_path: Path) -> None:
    write_videomme(tmp_path / "videomme", 6)
    task = videomme.task(num_samples=6, num_frames=1)
    samples = task.load(DataRoots(roots=(tmp_path,)), 6).samples
    assert [one.group for one in samples] == ["0.avi", "1.avi", "2.avi"] * 2


def test_no_task_of_ours_warns_of_its_instruction_or_shots(data_root: Path) -> None:
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
