"""Read results of evalscope, of NeMo Evaluator, of sgl-eval and of srt-slurm's benchmarks.

evalscope writes reports/MODEL/TASK.json, with the reviews and configuration of a run. Reviews (from
1.0) have one answer per line with its prompt, in which a mark in bold begins each turn. Predictions
repeat the answers without scores and are not needed.

results.yml of NeMo Evaluator's containers has values by task or group, metric and score. A bundle
of its own runs is a JSON document with the scores of one benchmark, next to results.jsonl with one
answer per line.

The answers of sgl-eval hold the question and not the prompt around it. SGLang's evaluations (gpqa,
mmlu, longbench_v2) write a flat object with `score` into a file that is named after the task and
the model. A run of lm-eval there has lm-eval's own files.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_eval import yaml_source
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

EVALSCOPE = "evalscope"
_TURN = re.compile(r"(?:\A|\n\n)\*\*(System|User|Assistant)\*\*: ?\n")


def is_report(content: Mapping[str, Any]) -> bool:
    """Return True for the content of a report."""
    return {"dataset_name", "model_name", "metrics"} <= content.keys()


def is_review(line: Mapping[str, Any]) -> bool:
    """Return True for a line of reviews or of predictions, which are read with their report."""
    return "index" in line and ("sample_score" in line or "model_output" in line)


def read_report(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of a report."""
    name = as_text(content.get("dataset_name")) or file.stem
    scores, count = _list_evalscope_scores(content, file)
    samples, remarks = _read_reviews(file, name, next(iter(scores)))
    config = _read_config(file)
    version = as_text(config.get("evalscope_version"))
    yield FoundResult(
        family=EVALSCOPE,
        tool=f"{EVALSCOPE} {version or 'of unknown version'}",
        file=file,
        task=name,
        model=as_text(content.get("model_name")),
        scores=scores,
        count=count,
        date=_find_date(file),
        told=_list_evalscope_told(config, name),
        samples=samples,
        remarks=remarks,
    )


def _list_evalscope_scores(
    content: Mapping[str, Any], file: Path
) -> tuple[dict[str, float], int | None]:
    given = content.get("metrics")
    metrics = (
        [as_object(one, f"{file}: metrics") for one in given] if isinstance(given, list) else []
    )
    found: dict[str, float] = {}
    for one in metrics:
        value = as_number(one.get("score"))
        if value is None:
            raise ReferenceFileError(
                f"{file}: {one.get('name')} is {one.get('score')!r}, no finite number"
            )
        found[str(one.get("name"))] = value
    if not found:
        raise ReferenceFileError(f"{file}: metrics has no score")
    return found, as_count(metrics[0].get("num"))


def _read_reviews(report: Path, task: str, main: str) -> tuple[list[FoundSample] | None, list[str]]:
    """Return the answers of all subsets, and remarks about those that cannot be read."""
    folder = report.parents[1].parent / "reviews" / report.parent.name
    files = sorted(folder.glob(f"{glob.escape(task)}_*.jsonl"))
    metric = main.removeprefix("mean_")
    found: list[FoundSample] = []
    for file in files:
        try:
            found += [_read_review(line, metric, main) for _, line in read_lines(file)]
        except ReferenceFileError as error:
            return None, [f"no scores of single answers: {error}"]
    return found or None, []


def _read_review(line: Mapping[str, Any], metric: str, main: str) -> FoundSample:
    value = find_object(line, "sample_score", "score", "value").get(metric)
    score = as_number(value)
    text = line.get("input")
    turns = _read_turns(text) if isinstance(text, str) else None
    return FoundSample(
        prompt=None if turns is None else digest_prompt(turns),
        scores={} if score is None else {main: score},
    )


def _read_turns(text: str) -> list[tuple[str, str]] | None:
    marks = list(_TURN.finditer(text))
    if not marks or marks[0].start():
        return None
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [
        (mark[1].lower(), text[mark.end() : end]) for mark, end in zip(marks, ends, strict=True)
    ]


def _read_config(report: Path) -> dict[str, Any]:
    """Return the configuration of the run, empty if it is missing or cannot be read."""
    for file in sorted((report.parents[1].parent / "configs").glob("*.yaml")):
        try:
            return find_object(yaml_source.read(file, ReferenceFileError).value)
        except ReferenceFileError:
            continue
    return {}


def _find_date(report: Path) -> str | None:
    """Return the day in the name of the folder of the run, such as 20251124_143025."""
    named = re.fullmatch(r"(\d{4})(\d\d)(\d\d)_\d{6}", report.parents[1].parent.name)
    return "-".join(named.groups()) if named else None


def _list_evalscope_told(config: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return the protocol, by the names of our options."""
    told: dict[str, Any] = {"apply_chat_template": True}
    given = find_object(config, "generation_config")
    told |= read_numbers(given, "temperature", "top_p")
    if (limit := as_count(given.get("max_tokens"))) is not None:
        told["max_tokens"] = limit
    if isinstance(given.get("seed"), int):
        told["seed"] = given["seed"]
    shots = find_object(config, "dataset_args", task).get("few_shot_num")
    if isinstance(shots, int) and not isinstance(shots, bool):
        told["num_fewshot"] = shots
    return told


NEMO_EVALUATOR = "NeMo Evaluator"
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
        scores, counts = _list_nemo_scores(as_object(values, where), where)
        if not scores:
            raise ReferenceFileError(f"{where}: has no score")
        yield FoundResult(
            family=FAMILY,
            tool=f"{NEMO_EVALUATOR} of unknown version",
            file=file,
            task=as_text(config.get("type")) or str(name) if len(tasks) == 1 else str(name),
            model=as_text(find_object(target, "api_endpoint").get("model_id")),
            scores=scores,
            count=next(iter(counts), None),
            told=_list_nemo_told(config, target),
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
        tool=f"{NEMO_EVALUATOR} {version or 'of unknown version'}",
        file=file,
        task=str(about.get("name")),
        model=as_text(config.get("model")),
        scores=scores,
        count=as_count(about.get("samples")),
        date=as_date(content.get("timestamp")),
        told=_list_sampling(config),
        samples=samples,
    )


def _list_nemo_scores(values: Mapping[str, Any], where: str) -> tuple[dict[str, float], list[int]]:
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


def _list_nemo_told(config: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
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


SGL_EVAL = "sgl-eval"
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
        family=SGL_EVAL,
        tool=f"{SGL_EVAL} {as_text(content.get('sgl_eval_version')) or 'of unknown version'}",
        file=file,
        task=str(content.get("name")),
        model=as_text(content.get("model")),
        scores={main: value},
        count=as_count(content.get("num_examples")),
        date=as_date("-".join((stamp[:4], stamp[4:6], stamp[6:8]))),
        told=_list_sglang_told(find_object(content, "gen")),
        remarks=["its files hold no prompts, so no scores of single answers are kept"],
    )


def _list_sglang_told(gen: Mapping[str, Any]) -> dict[str, Any]:
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
