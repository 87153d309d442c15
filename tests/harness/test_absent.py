"""Test the messages without the optional extra."""

from __future__ import annotations

import subprocess
import sys

import pytest

from serve_eval.errors import PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Spec


def test_without_lm_eval_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(PlanError, match=r"lm-eval is not installed") as caught:
        build_task(Spec(name="lm_eval:gsm8k"))
    assert "[lm-eval]" in caught.value.hint


def test_a_task_of_ours_imports_nothing_of_it() -> None:
    code = (
        "import sys, serve_eval.tasks.lm_eval; print({'lm_eval', 'datasets', 'torch'} &"
        " sys.modules.keys())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "set()"
