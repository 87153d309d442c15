"""Read results of evalscope: reports/MODEL/TASK.json, with the reviews and configuration of a run.

Reviews (from 1.0) have one answer per line with its prompt, in which a mark in bold begins each
turn. Predictions repeat the answers without scores and are not needed.
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
    as_number,
    as_object,
    as_text,
    digest_prompt,
    find_object,
    read_lines,
    read_numbers,
)

NAME = "evalscope"
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
    scores, count = _list_scores(content, file)
    samples, remarks = _read_reviews(file, name, next(iter(scores)))
    config = _read_config(file)
    version = as_text(config.get("evalscope_version"))
    yield FoundResult(
        family=NAME,
        tool=f"{NAME} {version or 'of unknown version'}",
        file=file,
        task=name,
        model=as_text(content.get("model_name")),
        scores=scores,
        count=count,
        date=_find_date(file),
        told=_list_told(config, name),
        samples=samples,
        remarks=remarks,
    )


def _list_scores(content: Mapping[str, Any], file: Path) -> tuple[dict[str, float], int | None]:
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


def _list_told(config: Mapping[str, Any], task: str) -> dict[str, Any]:
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
