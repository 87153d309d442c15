"""Test that tasks that draw ask what lm-eval asks.

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

from tests.conftest import ROOT
from tests.harness.drawn_tasks import DRAWN, write

lm_eval = pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def _asked(way: str, folder: Path, names: list[str], cache: Path | None = None) -> dict[str, Any]:
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **quiet, **({} if cache is None else {"HF_DATASETS_CACHE": str(cache)})}
    command = [sys.executable, "-m", "tests.harness.asked", way, str(folder), *names]
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=ROOT)
    assert told.returncode == 0, told.stderr[-2000:]
    return dict(json.loads(line) for line in told.stdout.splitlines())


def test_what_is_asked_is_what_lm_eval_asks_on_a_fresh_machine(tmp_path: Path) -> None:
    names = write(tmp_path, Path(lm_eval.__file__).parent / "tasks/gpqa")
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

    write(tmp_path)
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

    write(tmp_path)
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
