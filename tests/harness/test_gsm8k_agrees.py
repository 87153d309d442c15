"""Compare lm-eval's GSM8K with ours, sample by sample.

The answers are recorded ones of models, or made-up ones if those are missing.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serve_eval.harness.measures import measure_document
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Response, Spec
from serve_eval.scorers.numeric import FLEXIBLE, STRICT
from serve_eval.tasks.lm_eval import load_parts
from tests.conftest import ROOT

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SHARED = ROOT.parent / "shared/data"
OPTIONS = {"data_files": {"train": "train.jsonl", "test": "test.jsonl"}, "num_fewshot": 0}


def _recorded(folder: Path) -> list[tuple[int, str]]:
    """Return pairs of (row of the test set, answer)."""
    found = []
    for file in sorted(folder.glob("gsm8k_*Llama*.jsonl")):
        rows = map(json.loads, file.read_text().splitlines())
        found += [(row["idx"], row["output"]) for row in rows]
    for file in sorted(folder.glob("lmeval_logs/samples_*.jsonl")):
        rows = map(json.loads, file.read_text().splitlines())
        found += [(row["doc_id"], row["resps"][0][0]) for row in rows]
    return found


def _made_up(golds: list[str]) -> list[tuple[int, str]]:
    forms = (
        "So it is {0}.\n#### {0}",
        "#### {0}.",
        "It is ${0},000",
        "{0}",
        "#### -{0}",
        "nothing",
        "",
        "#### {0}\n#### 1",
    )
    return [(i, form.format(gold)) for i, gold in enumerate(golds[:50]) for form in forms]


def test_both_say_the_same_of_every_answer(data_root: Path) -> None:
    real = SHARED.is_dir()
    root = SHARED if real else data_root
    roots = DataRoots(roots=(root / "gsm8k", root))
    theirs, ours = (
        build_task(Spec(name="lm_eval:gsm8k", options=OPTIONS)),
        build_task(Spec(name="gsm8k")),
    )
    documents, own = theirs.load(roots, 1), ours.load(roots, 1319)
    assert len(documents.samples) == len(own.samples)
    here, _ = load_parts("gsm8k", OPTIONS)
    golds = [sample.target.rpartition("#### ")[2] for sample in documents.samples]
    answers = _recorded(SHARED / "recorded") if real else _made_up(golds)
    assert len(answers) >= (3900 if real else 400)
    right, by_id = 0, {sample.id: sample for sample in own.samples}
    for number, text in answers:
        sample, document = by_id[f"test-{number}"], documents.samples[number]
        assert document.target == sample.target
        parts = ours.score(sample, Response(text=text, finish_reason="stop")).parts
        items, _ = measure_document(here, document.id, [text])
        for name in (STRICT, FLEXIBLE):
            assert parts[name] == items["exact_match", name], (number, name, text)
            right += bool(parts[name])
    assert right > 100
    print(f"{len(answers)} answers, {right} right by one of both filters, no difference")
