"""Test that tasks ask what lm-eval asks, and score GSM8K as it does.

The answers are recorded ones of models, or made-up ones if those are missing.

This holds in every process and for any content of a cache.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

from serve_eval.harness.measures import measure_document
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Response, Spec
from serve_eval.scorers.numeric import FLEXIBLE, STRICT
from serve_eval.tasks.lm_eval import load_parts
from tests.conftest import ROOT
from tests.harness.made_tasks import DRAWN, write_drawn_tasks

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


lm_eval = pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")


def _asked(way: str, folder: Path, names: list[str], cache: Path | None = None) -> dict[str, Any]:
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **quiet, **({} if cache is None else {"HF_DATASETS_CACHE": str(cache)})}
    command = [sys.executable, "-m", "tests.harness.asked", way, str(folder), *names]
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=ROOT)
    assert told.returncode == 0, told.stderr[-2000:]
    return dict(json.loads(line) for line in told.stdout.splitlines())


def test_what_is_asked_is_what_lm_eval_asks_on_a_fresh_machine(tmp_path: Path) -> None:
    names = write_drawn_tasks(tmp_path, Path(lm_eval.__file__).parent / "tasks/gpqa")
    theirs = _asked("theirs", tmp_path, names)
    cache = tmp_path / "cache"
    _asked("unseeded", tmp_path, names, cache)
    spoilt = _asked("theirs", tmp_path, names, cache)
    assert {name for name in names if spoilt[name] != theirs[name]} >= {
        "drawn_python",
        "made_gpqa_zeroshot",
    }
    for order in (names, names[::-1]):
        ours = _asked("ours", tmp_path, order, cache)
        assert {name for name in names if ours[name] != theirs[name]} == set()


def test_a_document_scores_the_same_whenever_it_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from serve_eval.plugins import extensions
    from serve_eval.protocol.shared import build_task
    from serve_eval.schema import DataRoots, Response, Spec

    write_drawn_tasks(tmp_path)
    extensions.include((str(tmp_path),))
    task = build_task(Spec(name="lm_eval:drawn_score"))
    samples = task.load(DataRoots(), 1).samples
    response = Response(text="", finish_reason=None, choice_logprobs=((-1.0,),) * 4)
    random.seed(5)
    python, numbers = random.getstate(), numpy.random.get_state()[1].tolist()
    values = [task.score(sample, response).value for sample in samples]
    assert [task.score(sample, response).value for sample in reversed(samples)] == values[::-1]
    assert len(set(values)) == len(values) == 20
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == (python, numbers)


def test_what_a_task_registers_in_lm_eval_stays_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second import of its module must not be refused as a second registration."""
    from serve_eval.plugins import extensions
    from serve_eval.protocol.shared import build_task
    from serve_eval.schema import DataRoots, Spec

    write_drawn_tasks(tmp_path)
    folder = tmp_path / "lm_eval"
    lines = (
        "from lm_eval.api.registry import"
        " register_aggregation\n@register_aggregation('drawn_last')\n"
    )
    (folder / "registering.py").write_text(
        f"{lines}def last(items):\n    return items[-1]\n\ndef same(docs):\n    return docs\n"
    )
    listed = "metric_list: [{metric: acc, aggregation: drawn_last, higher_is_better: true}]\n"
    text = (
        "include: _drawn_yaml\ntask: drawn_registers\nprocess_docs: !function"
        f" registering.same\n{listed}"
    )
    (folder / "drawn_registers.yaml").write_text(text)
    extensions.include((str(tmp_path),))
    for shots in (0, 1):
        for name in ("drawn_registers", *list(DRAWN)[:1]):
            task = build_task(Spec(name=f"lm_eval:{name}", options={"num_fewshot": shots}))
            assert len(task.load(DataRoots(), 1).samples) == 20
