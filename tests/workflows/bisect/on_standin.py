"""Searches between two plans of trtllm-serve, whose stand-in answers worse with some options."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from serve_eval.launchers import simulated
from serve_eval.launchers._machine import lock_files
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.bisect.configurations import Configurations, between_plans, list_changes
from tests.launchers.smi import Smi
from tests.standin.answers import write_answers
from tests.standin.process import FOLDER

MODEL = "my-org/my-model"
GOOD: Mapping[str, Any] = {
    "kv_cache_config": {"dtype": "auto", "tokens_per_block": 32},
    "enable_chunked_prefill": False,
    "disable_overlap_scheduler": True,
}
BAD: Mapping[str, Any] = {
    "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64},
    "enable_chunked_prefill": True,
    "disable_overlap_scheduler": False,
    "cuda_graph_config": {"enable_padding": True},
    "quant_config": {"quant_algo": "FP8"},
}
BROKEN: Mapping[str, Mapping[str, Any]] = {
    "config.kv_cache_config.dtype": {"kv_cache_config.dtype": "fp8"},
    "config.kv_cache_config.tokens_per_block": {"kv_cache_config.tokens_per_block": 64},
    "config.enable_chunked_prefill": {"enable_chunked_prefill": True},
    "config.disable_overlap_scheduler": {"disable_overlap_scheduler": False},
    "config.cuda_graph_config": {"cuda_graph_config.enable_padding": True},
    "config.quant_config": {"quant_config.quant_algo": "FP8"},
}
"""The arguments of the model that the bad value of each option gives the server."""


def build(
    folder: Path,
    breaks: Sequence[str],
    *,
    samples: int,
    damage: float,
    accuracy: float = 0.8,
    flip_rate: float | None = None,
    order_seed: int | None = None,
    tp: int = 1,
    more_env: Mapping[str, str] | None = None,
) -> Configurations:
    """Return the search; with all options in `breaks`, a share `damage` of the answers is wrong.

    `tp` is that of the bad plan.
    """
    when = {key: value for name in breaks for key, value in BROKEN[name].items()}
    fault = {"corrupt_after": 0, "share": damage, "when": when}
    env = {
        "STANDIN_PYTHON": sys.executable,
        "STANDIN_ANSWERS": str(folder / "answers.jsonl"),
        "STANDIN_RUN": "new",
        **({"STANDIN_FAULTS": json.dumps(fault)} if breaks else {}),
        **(more_env or {}),
    }
    command = str(FOLDER / "trtllm-serve")
    options = {"command": command, "config": {**GOOD}, "env": env, "tp": 1}
    good = Plan(
        model=MODEL,
        launcher=Spec(name="trtllm", options=options),
        tasks=(Spec(name="word_problems", options={"num_samples": samples}),),
        no_reference=True,
        limits=Limits(concurrency=16, order_seed=order_seed),
    )
    chance = simulated.probability(accuracy, flip_rate, 0)
    write_answers(good, folder / "answers.jsonl", chance)
    changed = {**options, "config": {**BAD}, "tp": tp}
    bad = replace(good, launcher=Spec(name="trtllm", options=changed))
    return between_plans(good, list_changes(good, bad))


@contextmanager
def two_gpus(folder: Path) -> Iterator[None]:
    """Give the launcher two GPUs, which a fake nvidia-smi shows, and locks of its own."""
    smi = Smi(folder / "bin")
    smi.tells("0, GPU-a, 0", "1, GPU-b, 0")
    found = {
        "PATH": f"{smi.folder}{os.pathsep}{os.environ['PATH']}",
        lock_files.VARIABLE: str(folder / "locks"),
    }
    with mock.patch.dict(os.environ, found):
        yield
