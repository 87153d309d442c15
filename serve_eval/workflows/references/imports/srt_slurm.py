"""Read results of srt-slurm's accuracy benchmarks: its own for GSM8K, and those of SGLang.

SGLang's evaluations (gpqa, mmlu, longbench_v2) write a flat object with `score` into a file that is
named after the task and the model. A run of lm-eval there has lm-eval's own files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references.imports.files import FoundResult, as_count, as_number, as_text

NAME = "srt-slurm"
_TASKS = ("longbench_v2", "mmlu", "gpqa")


def is_gsm8k(content: Mapping[str, Any]) -> bool:
    """Return True for what srt-slurm's evaluation of GSM8K saves."""
    return {"accuracy", "num_questions", "num_shots"} <= content.keys()


def is_sglang(file: Path, content: Mapping[str, Any]) -> bool:
    """Return True for what SGLang's evaluations save."""
    known = file.name.startswith(tuple(f"{task}_" for task in _TASKS))
    return known and bool({"score", "mean_score"} & content.keys())


def read_gsm8k(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of srt-slurm's evaluation of GSM8K, which asks for completions."""
    value = _read_value(file, content, "accuracy")
    told: dict[str, Any] = {}
    shots = content.get("num_shots")
    if isinstance(shots, int):
        told["num_fewshot"] = shots
    if (limit := as_count(content.get("max_tokens"))) is not None:
        told["max_tokens"] = limit
    if (temperature := as_number(content.get("temperature"))) is not None:
        told["temperature"] = temperature
    yield FoundResult(
        family=NAME,
        tool=f"{NAME}, version not recorded",
        file=file,
        task="gsm8k",
        model=as_text(content.get("model")),
        scores={"accuracy": value},
        count=as_count(content.get("num_questions")),
        told=told,
    )


def read_sglang(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of one of SGLang's evaluations. It records no part of the protocol."""
    main = "mean_score" if "mean_score" in content else "score"
    task = next(task for task in _TASKS if file.name.startswith(f"{task}_"))
    yield FoundResult(
        family=NAME,
        tool=f"{NAME}, SGLang's evaluation, version not recorded",
        file=file,
        task=task,
        model=None,
        scores={main: _read_value(file, content, main)},
        told={"apply_chat_template": True},
    )


def _read_value(file: Path, content: Mapping[str, Any], name: str) -> float:
    value = as_number(content.get(name))
    if value is None:
        raise ReferenceFileError(f"{file}: {name} is {content.get(name)!r}, no finite number")
    return value
