"""Read results of NeMo Evaluator: results.yml of its containers, and bundles of its own runs.

results.yml has values by task or group, metric and score. A bundle is a JSON document with the
scores of one benchmark, next to results.jsonl with one answer per line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references.imports.files import (
    FoundResult,
    FoundSample,
    as_count,
    as_date,
    as_number,
    as_object,
    as_text,
    digest_prompt,
    find_object,
    read_lines,
    read_numbers,
)

NAME = "NeMo Evaluator"
FAMILY = "nemo"
_PERCENT = ("symbolic_correct", "judge_correct", "no_answer")
"""Scores that NeMo-Skills writes in percent."""
_LIMITS = ("max_new_tokens", "max_tokens")


def is_results(content: Mapping[str, Any]) -> bool:
    """Return True for the content of results.yml."""
    results = content.get("results")
    return isinstance(results, dict) and any(
        isinstance(results.get(name), dict) for name in ("tasks", "groups")
    )


def is_bundle(content: Mapping[str, Any]) -> bool:
    """Return True for the content of a bundle."""
    return bool(find_object(content, "benchmark", "scores"))


def read_results(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of each task of results.yml, or of each group if it has no tasks."""
    results = find_object(content, "results")
    config, target = find_object(content, "config"), find_object(content, "target")
    tasks = find_object(results, "tasks") or find_object(results, "groups")
    for name, values in tasks.items():
        where = f"{file}: {name}"
        scores, counts = _list_scores(as_object(values, where), where)
        if not scores:
            raise ReferenceFileError(f"{where}: has no score")
        yield FoundResult(
            family=FAMILY,
            tool=f"{NAME} of unknown version",
            file=file,
            task=as_text(config.get("type")) or str(name) if len(tasks) == 1 else str(name),
            model=as_text(find_object(target, "api_endpoint").get("model_id")),
            scores=scores,
            count=next(iter(counts), None),
            told=_list_told(config, target),
            remarks=["the version and the date of the run are not recorded"],
        )


def read_bundle(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of a bundle, with the answers of results.jsonl if it is next to it."""
    about, config = find_object(content, "benchmark"), find_object(content, "config")
    scores = {}
    for name, given in find_object(about, "scores").items():
        raw = given.get("value") if isinstance(given, dict) else given
        if (value := as_number(raw)) is None:
            raise ReferenceFileError(f"{file}: {name} is {raw!r}, no finite number")
        scores[str(name)] = _as_share(str(name), value)
    answers = file.with_name("results.jsonl")
    main = next(iter(scores))
    samples = list(_read_answers(answers, main)) if answers.is_file() else None
    version = as_text(content.get("nemo_evaluator_version")) or as_text(content.get("version"))
    yield FoundResult(
        family=FAMILY,
        tool=f"{NAME} {version or 'of unknown version'}",
        file=file,
        task=str(about.get("name")),
        model=as_text(config.get("model")),
        scores=scores,
        count=as_count(about.get("samples")),
        date=as_date(content.get("timestamp")),
        told=_list_sampling(config),
        samples=samples,
    )


def _list_scores(values: Mapping[str, Any], where: str) -> tuple[dict[str, float], list[int]]:
    """Return the values as METRIC/SCORE on the scale of one answer, and the numbers of answers."""
    found: dict[str, float] = {}
    counts = []
    for metric, given in find_object(values, "metrics").items():
        for score, told in find_object(find_object(given), "scores").items():
            raw = told.get("value") if isinstance(told, dict) else told
            value = as_number(raw)
            if value is None:
                raise ReferenceFileError(
                    f"{where}: {metric}/{score} is {raw!r}, no finite number",
                )
            found[f"{metric}/{score}"] = _as_share(str(score), value)
            count = as_count(find_object(find_object(told), "stats").get("count"))
            counts += [] if count is None else [count]
    return found, counts


def _as_share(score: str, value: float) -> float:
    """Return a value on the scale of one answer; one above 1 is in percent."""
    percent = value > 1 or score.rsplit("/", 1)[-1] in _PERCENT
    return value / 100 if percent else value


def _read_answers(file: Path, main: str) -> Iterator[FoundSample]:
    for _, line in read_lines(file):
        score, prompt = as_number(line.get("reward")), as_text(line.get("prompt"))
        yield FoundSample(
            prompt=None if prompt is None else digest_prompt([("user", prompt)]),
            scores={} if score is None else {main: score},
        )


def _list_told(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol, by the names of our options."""
    told: dict[str, Any] = _list_sampling(find_object(config, "params"))
    kind = find_object(target, "api_endpoint").get("type")
    if kind in ("chat", "completions"):
        told["apply_chat_template"] = kind == "chat"
    return told


def _list_sampling(params: Mapping[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    limits = [as_count(params.get(name)) for name in _LIMITS]
    if (limit := next((one for one in limits if one is not None), None)) is not None:
        told["max_tokens"] = limit
    told |= read_numbers(params, "temperature", "top_p")
    shots = find_object(params, "extra").get("num_fewshot", params.get("num_fewshot"))
    if isinstance(shots, int) and not isinstance(shots, bool):
        told["num_fewshot"] = shots
    return told
