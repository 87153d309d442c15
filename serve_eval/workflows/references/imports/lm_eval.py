"""Read results of lm-evaluation-harness 0.4.3 to 0.4.13: results_*.json and samples_*.jsonl.

Each may come alone. Results name metrics METRIC,FILTER; a line of samples is one document under one
filter. Versions before 0.4.5 do not name the filter in a line: the lines of a document are then in
the order of the filters of the task.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
    digest_choices,
    digest_prompt,
    find_object,
    read_lines,
)

NAME = "lm-eval"
EXPORTED = "serve-eval"
"""Name of the model in a file that `runs export` wrote."""
USUAL_MAX_TOKENS = 256
"""Most tokens of an answer where neither the task nor the command line says so (max_gen_toks)."""
_OF_LIKELIHOODS = {"max_tokens": 1, "temperature": 0.0, "stop": []}
"""Sampling of tasks that generate nothing."""
_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<stamp>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl$")
_FIELDS = frozenset(
    [
        "doc_id",
        "doc",
        "target",
        "arguments",
        "resps",
        "filtered_resps",
        "filter",
        "metrics",
        "doc_hash",
        "prompt_hash",
        "target_hash",
        "fewshot_docs",
        "sample_len",
    ]
)
"""Fields of a line that are no metrics."""


def is_results(content: Mapping[str, Any]) -> bool:
    """Return True for the content of results_*.json."""
    return isinstance(content.get("results"), dict) and any(
        isinstance(content.get(name), dict) for name in ("configs", "n-shot", "versions")
    )


def is_sample(line: Mapping[str, Any]) -> bool:
    """Return True for a line of samples_*.jsonl."""
    return {"doc_id", "doc", "arguments"} <= line.keys()


def read_results(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of each task of a file of results, with the samples of files next to it."""
    samples = _list_samples(file)
    results = as_object(content["results"], f"{file}: results")
    for task, values in results.items():
        scores = _list_scores(as_object(values, f"{file}: results: {task}"), f"{file}: {task}")
        if not scores:
            continue
        config = find_object(content, "configs", task)
        rows = None
        remarks = []
        if (place := samples.get(re.sub(r"\W", "_", task))) is not None:
            try:
                turned = _asks_by_chat(content)
                rows = list(_read_samples(place, _list_filters(config), turned=turned))
            except ReferenceFileError as error:
                remarks.append(f"no scores of single answers: {error}")
        chat = (
            _asks_by_chat(content)
            or bool(content.get("chat_template"))
            or any(is_chat for _, is_chat in rows or ())
        )
        counted = find_object(content, "n-samples", task)
        exported = _is_exported(content, config)
        version = as_text(content.get("lm_eval_version")) or "of unknown version"
        yield FoundResult(
            family=EXPORTED if exported else NAME,
            tool="an export of serve-eval" if exported else f"{NAME} {version}",
            file=file,
            task=task,
            model=_find_model(content),
            scores=scores,
            count=as_count(counted.get("effective")) or _count(rows),
            date=as_date(content.get("date")),
            told=_list_exported(config) if exported else _list_told(content, task, config, chat),
            samples=None if rows is None else [row for row, _ in rows],
            remarks=remarks,
        )


def read_samples(file: Path) -> Iterator[FoundResult]:
    """Yield the result of a file of samples alone: its values are the means of its scores."""
    rows = list(_read_samples(file, ()))
    by_metric: dict[str, list[float]] = defaultdict(list)
    for row, _ in rows:
        for metric, score in row.scores.items():
            by_metric[metric].append(score)
    named = _SAMPLES.search(file.name)
    task = named["task"] if named else file.stem.removeprefix("samples_")
    if not by_metric:
        raise ReferenceFileError(f"{file}: no line has a score that is a number")
    yield FoundResult(
        family=NAME,
        tool=f"{NAME} of unknown version",
        file=file,
        task=task,
        model=None,
        scores={metric: sum(given) / len(given) for metric, given in by_metric.items()},
        count=_count(rows),
        date=as_date(named["stamp"]) if named else None,
        told={"apply_chat_template": True} if any(is_chat for _, is_chat in rows) else {},
        samples=[row for row, _ in rows],
        remarks=[f"{file.name} alone: its results_*.json is not next to it"],
    )


def find_results_of(samples: Path) -> Path | None:
    """Return the results next to a file of samples, None if they are missing."""
    named = _SAMPLES.search(samples.name)
    place = samples.with_name(f"results_{named['stamp']}.json") if named else None
    return place if place is not None and place.is_file() else None


def _list_samples(results: Path) -> dict[str, Path]:
    """Return the files of samples of the same run, by task."""
    stamp = results.stem.removeprefix("results_")
    found = {}
    for file in sorted(results.parent.glob("samples_*.jsonl")):
        named = _SAMPLES.search(file.name)
        if named and named["stamp"] == stamp:
            found[re.sub(r"\W", "_", named["task"])] = file
    return found


def _list_scores(values: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return the values of metrics without their standard errors."""
    found = {}
    for name, value in values.items():
        metric, comma, _ = name.partition(",")
        if not comma or metric.endswith("_stderr") or isinstance(value, str):
            continue
        number = as_number(value)
        if number is None:
            raise ReferenceFileError(f"{where}: {name} is {value!r}, no finite number")
        found[name] = number
    return found


def _list_filters(config: Mapping[str, Any]) -> tuple[str, ...]:
    given = config.get("filter_list")
    named = [find_object(one).get("name") for one in given] if isinstance(given, list) else []
    return tuple(str(name) for name in named) or ("none",)


def _read_samples(
    file: Path, filters: Sequence[str], *, turned: bool = False
) -> Iterator[tuple[FoundSample, bool]]:
    """Yield each document of the samples with whether its prompt is a chat.

    The scores of all filters of a document are joined, and the prompt is that of its first line.
    With `turned` a text was sent as one turn of the user.
    """
    joined: dict[object, tuple[bytes | None, bool, dict[str, float]]] = {}
    seen: dict[object, int] = defaultdict(int)
    for number, line in read_lines(file):
        where = f"{file}:{number}"
        if not is_sample(line):
            raise ReferenceFileError(f"{where}: no line of lm-eval: doc_id, doc or arguments lacks")
        doc = line["doc_id"]
        if isinstance(doc, dict | list):
            raise ReferenceFileError(f"{where}: doc_id must be a number, not {doc!r}")
        place = seen[doc]
        seen[doc] += 1
        under = as_text(line.get("filter")) or (
            filters[place] if place < len(filters) else str(place)
        )
        prompt, chat = _digest(line["arguments"], turned=turned)
        _, _, scores = joined.setdefault(doc, (prompt, chat, {}))
        told = line.get("metrics")
        names = told if isinstance(told, list) else [one for one in line if one not in _FIELDS]
        for name in map(str, names):
            score = line.get(name)
            if isinstance(score, bool | int | float) and (value := as_number(score)) is not None:
                scores[f"{name},{under}"] = value
    for prompt, chat, scores in joined.values():
        yield FoundSample(prompt=prompt, scores=scores), chat


def _digest(arguments: Any, *, turned: bool) -> tuple[bytes | None, bool]:
    """Return the digest of the requests of a document, and whether they are chats."""
    requests = list(arguments.values()) if isinstance(arguments, dict) else arguments
    if not isinstance(requests, list) or not requests:
        return None, False
    pairs = [list(one.values()) if isinstance(one, dict) else one for one in requests]
    if not all(isinstance(pair, list) and pair for pair in pairs):
        return None, False
    first = pairs[0][0]
    if len(pairs) > 1 or (len(pairs[0]) > 1 and isinstance(pairs[0][1], str)):
        texts = [part for pair in pairs for part in pair[:2]]
        plain = all(isinstance(one, str) for one in texts)
        return (
            (digest_choices(["".join(pair[:2]) for pair in pairs]), False)
            if plain
            else (
                None,
                False,
            )
        )
    if isinstance(first, list) and len(first) == 1 and isinstance(first[0], str):
        first = first[0]
    if not isinstance(first, str):
        return None, False
    turns = _read_turns(first) or ([("user", first)] if turned else None)
    return (digest_prompt(first), False) if turns is None else (digest_prompt(turns), True)


def _read_turns(text: str) -> list[tuple[str, str]] | None:
    """Return the turns of a chat that is written as JSON; None for a plain text."""
    if not text.startswith("[{"):
        return None
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    turns = [(one.get("role"), one.get("content")) for one in given if isinstance(one, dict)]
    plain = all(isinstance(part, str) for turn in turns for part in turn)
    return [(str(role), str(said)) for role, said in turns] if plain and turns else None


def _count(rows: Sequence[object] | None) -> int | None:
    return None if rows is None else len(rows) or None


def _asks_by_chat(content: Mapping[str, Any]) -> bool:
    """Return True for a client of lm-eval that sends each text as a turn."""
    return "chat-completions" in str(find_object(content, "config").get("model"))


def _is_exported(content: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return True for a task of our own that `runs export` wrote, with its protocol."""
    model = find_object(content, "config").get("model")
    return model == EXPORTED and "apply_chat_template" in config


def _list_exported(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol of a task of our own, which its configuration has as it is."""
    others = ("task", "output_type", "metric_list", "metadata")
    return {"system_prompt": None} | {k: v for k, v in config.items() if k not in others}


def _find_model(content: Mapping[str, Any]) -> str | None:
    config = find_object(content, "config")
    given = config.get("model_args")
    args = given if isinstance(given, dict) else _split(given)
    names = [args.get("model"), args.get("pretrained"), content.get("model_name")]
    return next((str(name) for name in names if as_text(name)), None)


def _split(given: Any) -> dict[str, str]:
    """Return arguments that are written as name=value, joined by commas."""
    pairs = [part.partition("=") for part in str(given or "").split(",")]
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}


def _list_told(
    content: Mapping[str, Any], task: str, config: Mapping[str, Any], chat: bool
) -> dict[str, Any]:
    """Return the protocol of a task, by the names of our options."""
    told: dict[str, Any] = {"apply_chat_template": chat}
    shots = find_object(content, "n-shot").get(task, config.get("num_fewshot"))
    if isinstance(shots, int) and not isinstance(shots, bool):
        told["num_fewshot"] = shots
    told["system_prompt"] = as_text(content.get("system_instruction"))
    if chat and isinstance(content.get("fewshot_as_multiturn"), bool):
        told["fewshot_as_multiturn"] = content["fewshot_as_multiturn"]
    setting = find_object(content, "config")
    seed = setting.get("fewshot_seed")
    if isinstance(seed, int):
        told["random_seed"] = seed
    version = find_object(content, "versions").get(task)
    if version is not None:
        told["task_version"] = str(version)
    if as_text(content.get("lm_eval_version")):
        told["lm_eval"] = content["lm_eval_version"]
    kind = config.get("output_type")
    if kind == "generate_until":
        told |= _list_sampling(setting, config)
    elif as_text(kind):
        told |= _OF_LIKELIHOODS
    return told


def _list_sampling(setting: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how answers were drawn: the task's own settings below those of the command line."""
    given = setting.get("gen_kwargs")
    changed = given if isinstance(given, dict) else _split(given)
    args = setting.get("model_args")
    model = args if isinstance(args, dict) else _split(args)
    own = find_object(config, "generation_kwargs")
    every = {**own, **changed}
    names = ("max_tokens", "max_gen_toks", "max_new_tokens")
    limits = [every.get(name) for name in names] + [model.get("max_gen_toks"), USUAL_MAX_TOKENS]
    told: dict[str, Any] = {
        "max_tokens": next(n for one in limits if (n := as_count(one)) is not None),
        "temperature": as_number(every.get("temperature", 0)),
    }
    if (top_p := as_number(every.get("top_p"))) is not None:
        told["top_p"] = top_p
    until = every.get("until")
    if isinstance(until, list) and all(isinstance(one, str) for one in until):
        told["stop"] = until
    rest = ("top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    if extra := {n: v for n in rest if (v := as_number(every.get(n))) is not None}:
        told["extra_body"] = extra
    return told
