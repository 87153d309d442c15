"""Read results of sgl-eval or of srt-slurm's accuracy benchmarks.

The answers hold the question and not the prompt around it.

SGLang's evaluations (gpqa, mmlu, longbench_v2) write a flat object with `score` into a file that is
named after the task and the model. A run of lm-eval there has lm-eval's own files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references.imports.files import (
    FoundResult,
    as_count,
    as_date,
    as_number,
    as_text,
    find_object,
    read_numbers,
)

NAME = "sgl-eval"
_MAIN = ("pass@1", "score")


def is_metrics(content: Mapping[str, Any]) -> bool:
    """Return True for the content of metrics.json."""
    return isinstance(content.get("aggregate"), dict) and "n_repeats" in content


def read_metrics(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of a run. Raises ReferenceFileError for one that was broken off."""
    if content.get("partial"):
        raise ReferenceFileError(f"{file}: the run was broken off, so it is no reference")
    aggregate = find_object(content, "aggregate")
    main = next((name for name in _MAIN if name in aggregate), None)
    if main is None:
        raise ReferenceFileError(f"{file}: aggregate has neither {' nor '.join(_MAIN)}")
    value = as_number(aggregate[main])
    if value is None:
        raise ReferenceFileError(f"{file}: {main} is {aggregate[main]!r}, no finite number")
    stamp = as_text(content.get("timestamp")) or ""
    yield FoundResult(
        family=NAME,
        tool=f"{NAME} {as_text(content.get('sgl_eval_version')) or 'of unknown version'}",
        file=file,
        task=str(content.get("name")),
        model=as_text(content.get("model")),
        scores={main: value},
        count=as_count(content.get("num_examples")),
        date=as_date("-".join((stamp[:4], stamp[4:6], stamp[6:8]))),
        told=_list_told(find_object(content, "gen")),
        remarks=["its files hold no prompts, so no scores of single answers are kept"],
    )


def _list_told(gen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol, by the names of our options."""
    told: dict[str, Any] = {"apply_chat_template": True}
    told |= read_numbers(gen, "temperature", "top_p")
    if (limit := as_count(gen.get("max_tokens"))) is not None:
        told["max_tokens"] = limit
    thinking = find_object(gen, "chat_template_kwargs").get("thinking")
    if isinstance(thinking, bool):
        told["thinking"] = thinking
    return told


SRT_SLURM = "srt-slurm"
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
        family=SRT_SLURM,
        tool=f"{SRT_SLURM}, version not recorded",
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
        family=SRT_SLURM,
        tool=f"{SRT_SLURM}, SGLang's evaluation, version not recorded",
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
