"""Build the files and the log that lm-evaluation-harness writes of a run.

They are results_<time>.json and samples_<task>_<time>.jsonl, in the layout of lm-eval 0.4.9 to
0.4.13: `results` has `METRIC,FILTER` and `METRIC_stderr,FILTER` per task, on lm-eval's own scale; a
line of samples is one document under one filter. Nothing is read or written here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from serve_eval.errors import ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.harness import seeds
from serve_eval.harness.library import quiet
from serve_eval.harness.measures import Documents, Key, Measure, aggregate, mean_of, number

NO_FILTER = "none"
MOST_BYTES = 160
"""Most bytes of a name in a file name: file systems allow 255, with the time and the suffix."""
Row = dict[str, Any]


@freeze
class Logged:
    """One task.

    `values` and `stderrs` are by (metric, filter), on the scale of one document; None means an
    unknown spread. `planned` counts the documents, `rows_hash` is that of the rows of the answered
    ones.
    """

    task: str
    version: object
    num_fewshot: int
    config: Mapping[str, Any]
    values: Mapping[tuple[str, str], float]
    stderrs: Mapping[tuple[str, str], float | None]
    higher_is_better: Mapping[str, bool]
    planned: int
    answered: int
    rows_hash: str


def write_json(value: Any, **how: Any) -> str:
    """Return JSON as lm-eval writes it."""
    return json.dumps(value, default=str, ensure_ascii=False, **how)


def sanitize(model: str) -> str:
    """Return a model's name as a folder name, as lm-eval does."""
    return re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model)


def file_name(name: str) -> str:
    """Return a model's or task's name as part of a file name, as lm-eval does if possible.

    In addition, control characters, surrogates and names of dots only are replaced. A long name is
    cut, with its hash appended.
    """
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]+", "__", sanitize(name))
    if not text.strip("."):
        text = "__"
    encoded = text.encode()
    if len(encoded) <= MOST_BYTES:
        return text
    return f"{encoded[:MOST_BYTES].decode(errors='ignore')}-{_hash(name)[:8]}"


def stamp(at: datetime) -> str:
    """Return the time as in the names of the files."""
    return at.replace(tzinfo=None).isoformat(timespec="microseconds").replace(":", "-")


def row(
    doc_id: int,
    doc: Mapping[str, Any],
    target: str,
    arguments: Sequence[Sequence[Any]],
    resps: Sequence[Sequence[Any]],
    filtered: Sequence[Any],
    name: str,
    metrics: Mapping[str, Any],
) -> Row:
    """Return a line of the samples.

    `arguments` and `resps` are per request; `filtered` is the output of the filter `name`.
    """
    prompt = arguments[0][0]
    return {
        "doc_id": doc_id,
        "doc": doc,
        "target": target,
        "arguments": {
            f"gen_args_{i}": {f"arg_{j}": part for j, part in enumerate(given)}
            for i, given in enumerate(arguments)
        },
        "resps": _texts(resps),
        "filtered_resps": _texts(filtered),
        "filter": name,
        "metrics": list(metrics),
        "doc_hash": _hash(json.dumps(doc, indent=2, default=str, ensure_ascii=False)),
        "prompt_hash": _hash(
            prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
        ),
        "target_hash": _hash(target),
        **metrics,
    }


class RowsHash:
    """The hash of all rows of a task, in the order of the file."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, line: Row) -> None:
        """Take the next row."""
        for part in ("doc_hash", "prompt_hash", "target_hash"):
            self._hash.update(line[part].encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()


def results(
    logged: Sequence[Logged],
    *,
    model: str,
    model_args: str,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of results_<time>.json; `about` overrides all other keys.

    `model_args` is NAME=VALUE,NAME=VALUE: scripts of older versions of lm-eval read no object.
    """
    return {
        "results": {one.task: _values(one) for one in logged},
        "group_subtasks": {one.task: [] for one in logged},
        "configs": {one.task: dict(one.config) for one in logged},
        "versions": {one.task: one.version for one in logged},
        "n-shot": {one.task: one.num_fewshot for one in logged},
        "higher_is_better": {one.task: dict(one.higher_is_better) for one in logged},
        "n-samples": {
            one.task: {"original": one.planned, "effective": one.answered} for one in logged
        },
        "config": {
            "model": "serve-eval",
            "model_args": model_args,
            "batch_size": 1,
            "batch_sizes": [],
            "device": None,
            "use_cache": None,
            "limit": None,
            "bootstrap_iters": 0,
            "gen_kwargs": None,
        },
        "git_hash": None,
        "upper_git_hash": None,
        "task_hashes": {one.task: one.rows_hash for one in logged},
        "model_source": "serve-eval",
        "model_name": model,
        "model_name_sanitized": file_name(model),
        "system_instruction": None,
        "system_instruction_sha": None,
        "fewshot_as_multiturn": None,
        "chat_template": None,
        "chat_template_sha": None,
        **about,
    }


def mean_stderr(values: Sequence[float]) -> float | None:
    """Return the standard error of a mean, from the sample standard deviation as in lm-eval.

    Returns None for fewer than two values.
    """
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def _values(one: Logged) -> dict[str, Any]:
    told: dict[str, Any] = {"name": one.task, "alias": one.task, "sample_len": one.answered}
    for (metric, name), value in one.values.items():
        told[f"{metric},{name}"] = value
        spread = one.stderrs.get((metric, name))
        told[f"{metric}_stderr,{name}"] = "N/A" if spread is None else spread
    return told


def _texts(value: Any) -> Any:
    """Return responses as texts, as lm-eval does so that a column has one type."""
    return [_texts(one) for one in value] if isinstance(value, list | tuple) else str(value)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@freeze
class Judged:
    """An answered document: `results` of the model, `found` and `filtered` as of lm-eval."""

    results: Sequence[Any]
    found: Mapping[Key, Any]
    filtered: Mapping[str, Sequence[Any]]


def build_log(
    name: str,
    here: Documents,
    measures: Mapping[str, Measure],
    judged: Mapping[str, Judged],
    *,
    planned: int,
    write: Callable[[Iterable[Row]], str],
) -> Logged:
    """Return the log of a task, for the documents in `judged`, by their number.

    `write` takes the rows and returns their hash.
    """
    items: dict[Key, list[Any]] = {}
    for one in judged.values():
        for key, item in one.found.items():
            items.setdefault(key, []).append(item)
    values: dict[Key, float] = {}
    spreads: dict[Key, float | None] = {}
    for key, given in items.items():
        measure = measures.get(key[0]) or mean_of(key[0])
        try:
            values[key] = aggregate(measure, given)
        except ServeEvalError:
            continue  # lm-eval cannot compute it either
        numbers = [value for value in map(number, given) if value is not None]
        plain = len(numbers) == len(given) and measure.is_mean
        spreads[key] = mean_stderr(numbers) if plain else None
    with quiet():
        config, better = here.task.dump_config(), dict(here.task.higher_is_better())
    return Logged(
        task=name,
        version=here.task.VERSION,
        num_fewshot=config.get("num_fewshot") or 0,
        config=config,
        values=values,
        stderrs=spreads,
        higher_is_better=better,
        planned=planned,
        answered=len(judged),
        rows_hash=write(_list_rows(here, judged)),
    )


def _list_rows(here: Documents, judged: Mapping[str, Judged]) -> Iterator[Row]:
    """Yield the rows of all documents for each filter, one filter after the other."""
    for used in dict.fromkeys(name for one in judged.values() for name in one.filtered):
        for doc, one in judged.items():
            if used in one.filtered:
                yield _make_row(here, doc, one, used)


def _make_row(here: Documents, doc: str, one: Judged, used: str) -> Row:
    instances = here.instances[doc]
    metrics = {metric: _plain(item) for (metric, under), item in one.found.items() if under == used}
    with seeds.of_document(doc):
        target = str(here.task.doc_to_target(instances[0].doc))
    return row(
        int(doc),
        dict(instances[0].doc),
        target,
        [list(instance.args) for instance in instances],
        [[result] for result in one.results],
        list(one.filtered[used]),
        used,
        metrics,
    )


def _plain(item: Any) -> Any:
    """Return a figure without numpy types."""
    if isinstance(item, list | tuple):
        return [_plain(one) for one in item]
    return item.tolist() if hasattr(item, "tolist") else item
