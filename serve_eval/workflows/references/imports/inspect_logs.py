"""Read logs of inspect: .eval archives and JSON files.

An archive has header.json and one part per answer; a JSON file has the same in one document. A text
that several events share stands once among the attachments of its answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from serve_eval.errors import ReferenceFileError
from serve_eval.workflows.references.imports.files import (
    Archive,
    FoundResult,
    FoundSample,
    as_count,
    as_date,
    as_number,
    as_object,
    as_text,
    digest_prompt,
    find_object,
    read_numbers,
)

NAME = "inspect"
_LETTERS = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0}
"""The scores that inspect writes as letters: correct, incorrect, partial, no answer."""
_SPREADS = ("stderr", "std", "var", "bootstrap_stderr")
_MEANS = ("accuracy", "mean")
_ATTACHED = "attachment://"


def is_log(content: Mapping[str, Any]) -> bool:
    """Return True for the content of a log in JSON."""
    return isinstance(content.get("eval"), dict) and "status" in content and "plan" in content


def read_archive(file: Path) -> Iterator[FoundResult]:
    """Yield the result of an .eval archive."""
    archive = Archive(file)
    try:
        if "header.json" not in archive.names:
            raise ReferenceFileError(
                f"{file}: has no header.json: the run did not finish, or this is no log of inspect"
            )
        header = as_object(archive.read("header.json"), f"{file}: header.json")
        parts = sorted(name for name in archive.names if name.startswith("samples/"))
        answers = (as_object(archive.read(part), f"{file}: {part}") for part in parts)
        yield _read(file, header, answers)
    finally:
        archive.close()


def read_log(file: Path, content: Mapping[str, Any]) -> Iterator[FoundResult]:
    """Yield the result of a log in JSON."""
    given = content.get("samples")
    answers = given if isinstance(given, list) else []
    yield _read(file, content, (as_object(one, f"{file}: samples") for one in answers))


def _read(
    file: Path, header: Mapping[str, Any], answers: Iterable[Mapping[str, Any]]
) -> FoundResult:
    if header.get("status") != "success":
        raise ReferenceFileError(
            f"{file}: the run ended with status {header.get('status')!r}, so it is no reference"
        )
    run = find_object(header, "eval")
    scores = _list_scores(header, file)
    samples = [_read_answer(one, scores) for one in answers]
    epochs = as_count(find_object(run, "config").get("epochs")) or 1
    done = as_count(find_object(header, "results").get("completed_samples"))
    version = as_text(find_object(run, "packages").get("inspect_ai"))
    return FoundResult(
        family=NAME,
        tool=f"{NAME} {version or 'of unknown version'}",
        file=file,
        task=str(run.get("task")).rsplit("/", 1)[-1],
        model=_name_model(as_text(run.get("model"))),
        scores=scores,
        count=None if done is None else max(1, done // epochs),
        date=as_date(run.get("created")),
        told=_list_told(header, run),
        samples=samples or None,
    )


def _list_scores(header: Mapping[str, Any], file: Path) -> dict[str, float]:
    """Return the values as SCORER/METRIC, those of means first."""
    results = find_object(header, "results")
    given = results.get("scores")
    found: dict[str, float] = {}
    for one in map(find_object, given if isinstance(given, list) else []):
        for name, metric in find_object(one, "metrics").items():
            if name.rsplit("/", 1)[-1] in _SPREADS:
                continue
            raw = metric.get("value") if isinstance(metric, dict) else metric
            value = as_number(raw)
            if value is None:
                raise ReferenceFileError(
                    f"{file}: {one.get('name')}/{name} is {raw!r}, no finite number"
                )
            found[f"{one.get('name')}/{name}"] = value
    if not found:
        raise ReferenceFileError(f"{file}: its results have no score")
    return dict(sorted(found.items(), key=lambda pair: not pair[0].endswith(_MEANS)))


def _read_answer(answer: Mapping[str, Any], named: Mapping[str, float]) -> FoundSample:
    scores = {}
    for scorer, score in find_object(answer, "scores").items():
        value = find_object(score).get("value")
        number = _LETTERS.get(value) if isinstance(value, str) else as_number(value)
        if number is not None:
            for name in named:
                if name.startswith(f"{scorer}/") and name.endswith(_MEANS):
                    scores[name] = number
    return FoundSample(prompt=_digest(answer), scores=scores)


def _digest(answer: Mapping[str, Any]) -> bytes | None:
    """Return the digest of the turns before the first one that the model generated."""
    attached = find_object(answer, "attachments")
    given = answer.get("messages")
    turns: list[tuple[str, str]] = []
    for one in map(find_object, given if isinstance(given, list) else []):
        if one.get("role") == "assistant" and one.get("source") != "input":
            return digest_prompt(turns) if turns else None
        said = _read_text(one.get("content"), attached)
        if said is None or not isinstance(one.get("role"), str):
            return None
        turns.append((one["role"], said))
    return None


def _read_text(content: Any, attached: Mapping[str, Any]) -> str | None:
    """Return the text of a turn; None if it has other parts, or an attachment that lacks."""
    if isinstance(content, list):
        parts = [find_object(one) for one in content]
        texts = [one.get("text") for one in parts if one.get("type") == "text"]
        if len(texts) < len(parts) or len(texts) != 1:
            return None
        content = texts[0]
    if isinstance(content, str) and content.startswith(_ATTACHED):
        content = attached.get(content.removeprefix(_ATTACHED))
    return content if isinstance(content, str) else None


def _name_model(model: str | None) -> str | None:
    """Return the name of a model without its provider: openai/gpt-4o is gpt-4o."""
    parts = (model or "").split("/")
    skipped = 2 if parts[0] == "openai-api" and len(parts) > 2 else 1
    return "/".join(parts[skipped:]) or model


def _list_told(header: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol, by the names of our options. What is not set is the provider's own."""
    plan = find_object(header, "plan")
    steps = plan.get("steps")
    told: dict[str, Any] = {"apply_chat_template": True}
    for step in map(find_object, steps if isinstance(steps, list) else []):
        given = find_object(step, "params")
        if (limit := as_count(given.get("max_tokens"))) is not None:
            told["max_tokens"] = limit
        if step.get("solver") == "system_message" and as_text(given.get("template")):
            told["system_prompt"] = given["template"]
    shots = find_object(run, "task_args").get("fewshot")
    if isinstance(shots, int) and not isinstance(shots, bool):
        told["num_fewshot"] = shots
    config = {**find_object(run, "model_generate_config"), **find_object(plan, "config")}
    return {**told, **_list_sampling(config)}


def _list_sampling(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a configuration of the generation sets."""
    told: dict[str, Any] = {}
    if (limit := as_count(config.get("max_tokens"))) is not None:
        told["max_tokens"] = limit
    told |= read_numbers(config, "temperature", "top_p")
    if isinstance(config.get("seed"), int):
        told["seed"] = config["seed"]
    if as_text(config.get("system_message")):
        told["system_prompt"] = config["system_message"]
    if isinstance(config.get("stop_seqs"), list):
        told["stop"] = [str(one) for one in config["stop_seqs"]]
    return told
