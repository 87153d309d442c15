"""Add and replace entries of reference files, which people edit too.

The files map names to lists of entries. PyYAML reports where the nodes of a text begin and end. The
text between those places is replaced or extended, and the file as a whole is never rewritten. After
an edit the text is parsed again and must hold the intended content, so a layout that this module
does not understand is refused and never damaged.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from serve_eval import yaml_source
from serve_eval.errors import ReferenceFileError, ServeEvalError
from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import AccuracySpec, Sample, Task
from serve_eval.verdicts import reference_samples, references
from serve_eval.verdicts.reference_samples import SampleScores
from serve_eval.whole_file import write_named_file
from serve_eval.yaml_parsing import Dumper

PROBE_KEYS = ("probes", "probes_sha256")
_OTHER_FOLDER = "Name another folder."


def make_folder(folder: Path) -> None:
    """Make the folder of a user's references, and those around it, if it is missing.

    Raises ReferenceFileError if something else is there or if it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        taken = next(one for one in (folder, *folder.parents) if os.path.lexists(one))
        raise ReferenceFileError(
            f"{folder}: references belong in a folder, and {taken} is a file", hint=_OTHER_FOLDER
        ) from error
    except OSError as error:
        raise ReferenceFileError(
            f"{folder}: cannot be made: {error.strerror}", hint=_OTHER_FOLDER
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ReferenceFileError(f"{folder}: cannot be written", hint=_OTHER_FOLDER)


def write_entry(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str | None:
    """Add an entry to a file, or replace the entry with the same specification.

    Everything else in the file stays as it is, including comments and order. An entry of the same
    scores stays too, since this command wrote it before: then the file of its scores is returned.
    """
    text = None
    if (scores := _find_written(file, model, spec, entry, reason)) is not None:
        text = _add_probes(file, model, spec, entry)
        if text is None:
            return scores
    text = text or _edit(file, model, spec, entry, reason)
    make_folder(file.parent)
    try:
        write_named_file(file, text.encode())
    except OSError as error:
        raise ReferenceFileError(f"{file}: cannot be written: {error.strerror}") from error
    return scores


def _add_probes(
    file: Path, model: str, spec: Mapping[str, Any], entry: Mapping[str, Any]
) -> str | None:
    """Return the text of a file with other probes in an entry of the same scores.

    None if the entry has none, or the same ones.
    """
    text = yaml_source.read_text(file, ReferenceFileError)
    entries = yaml_source.parse(text, str(file), ReferenceFileError).value[model]
    place = next(i for i, one in enumerate(entries) if _list_spec(one) == spec)
    old = entries[place]
    given = {key: entry["runs"][key] for key in PROBE_KEYS if key in entry["runs"]}
    if not given or all(old["runs"].get(key) == value for key, value in given.items()):
        return None
    new = {**old, "runs": {**old["runs"], **given}}
    return replace_entry(text, str(file), model, place, new, ReferenceFileError)


def _find_written(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str | None:
    """Return the scores of an entry of the same scores of single samples, and its reason."""
    if not file.exists():
        return None
    text = yaml_source.read_text(file, ReferenceFileError)
    entries = yaml_source.parse(text, str(file), ReferenceFileError).value.get(model, [])
    digest = entry.get("runs", {}).get("sha256")
    same = [one for one in entries if _list_spec(one) == spec]
    written = [one for one in same if digest and one.get("runs", {}).get("sha256") == digest]
    reasons = {one.get("replaced", [{}])[-1].get("reason") for one in written}
    if not written or (reason is not None and reason not in reasons):
        return None
    return str(written[0]["runs"].get("samples", ""))


def check_entry(file: Path, model: str, spec: AccuracySpec, reason: str | None) -> None:
    """Raise ReferenceFileError if `write_entry` would refuse an entry of this specification."""
    given = {
        key: value
        for key in references.SPEC_KEYS
        if (value := getattr(spec, key)) not in (None, "auto")
    }
    _edit(file, model, given, {**given, "accuracy": 0.0}, reason)


def _edit(
    file: Path, model: str, spec: Mapping[str, Any], entry: dict[str, Any], reason: str | None
) -> str:
    """Return the text of a file with an entry added or replaced."""
    text = "{}\n"
    if file.exists():
        text = yaml_source.read_text(file, ReferenceFileError)
        references.parse(text, str(file))  # A file with a mistake is not changed.
    entries = yaml_source.parse(text, str(file), ReferenceFileError).value.get(model, [])
    same = [i for i, old in enumerate(entries) if _list_spec(old) == spec]
    if same and not reason:
        raise build_taken_error(file, model, AccuracySpec(**spec))
    if same:
        old = dict(entries[same[0]])
        kept = old.pop("replaced", [])
        entry["replaced"] = [*kept, {**old, "reason": reason}]
        text = replace_entry(text, str(file), model, same[0], entry, ReferenceFileError)
    else:
        text = append_entry(text, str(file), model, entry, ReferenceFileError)
    references.parse(text, str(file))  # The new text must be readable.
    return text


def build_taken_error(file: Path, model: str, spec: AccuracySpec) -> ReferenceFileError:
    """Return the error for an entry that already exists."""
    return ReferenceFileError(
        f"{file}: {model} already has a reference for {references.spec_text(spec)}",
        hint="To replace it, give --reason 'why'. The old entry is kept in the new one.",
    )


def _list_spec(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry's specification that are set."""
    return {k: entry[k] for k in references.SPEC_KEYS if entry.get(k) not in (None, "auto")}


def write_runs(
    task: Task,
    samples: Sequence[Sample],
    model: str,
    runs: Sequence[array[float]],
    references_dir: Path,
) -> dict[str, Any]:
    """Return the field `runs` of an entry, and write the scores to a file next to it.

    The scores are between 0 and 1. The name of the file follows from its content.
    """
    scale, n = task.metric.scale, len(samples)
    means = [math.fsum(run) / n for run in runs]
    variance = math.fsum(
        (value - mean) ** 2 for run, mean in zip(runs, means, strict=True) for value in run
    )
    slug = "".join(c if c.isalnum() or c in "-." else "-" for c in model)[:60]
    keys = b"".join(map(sample_key, samples))
    scores = SampleScores(task=task.name, lo=0.0, hi=1.0, keys=keys, runs=tuple(runs))
    own = hashlib.sha256(
        b"".join([model.encode(), keys, *(run.tobytes() for run in runs)])
    ).hexdigest()[:8]
    place = Path("samples") / f"{task.reference_file}-{slug}-{own}-imported.json"
    return {
        "values": [round(scale * mean, 6) for mean in means],
        "n": n,
        "sigma": round(scale * math.sqrt(variance / (n * len(runs))), 3),
        "samples": place.as_posix(),
        "sha256": reference_samples.write(references_dir / place, scores),
    }


_HINT = (
    "Write each name on a separate line, and each entry below it, on lines that start with '- '."
)


class _Layout(Dumper):
    """A dumper that indents lists below their key, and writes each text on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
        )


_Layout.add_representer(str, _Layout.represent_text)


def append_entry(
    text: str, name: str, key: str, entry: Mapping[str, Any], error: type[ServeEvalError]
) -> str:
    """Return the text with one more entry at the end of the list of `key`.

    The key is added if it is missing. `name` stands for the file in messages. Raises `error`, with
    the line, for an invalid text and for a style that cannot be edited.
    """
    content = _content(text, name, error)
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if key in content:
        edited = _with_item(
            text, _list_of(root, name, key, error), root.start_mark.column + 2, entry
        )
    elif content:
        _refuse_flow(root, name, key, error)
        edited = _with_key(text, root, {key: [entry]})
    else:
        start, end = (
            (len(text),) * 2 if root is None else (root.start_mark.index, root.end_mark.index)
        )
        edited = _insert(text[:start], {key: [entry]}, 0, text[end:].lstrip(" "))
    return _verify(edited, name, {**content, key: [*content.get(key, ()), entry]}, error)


def replace_entry(
    text: str,
    name: str,
    key: str,
    index: int,
    entry: Mapping[str, Any],
    error: type[ServeEvalError],
) -> str:
    """Return the text with the entry at `index` of the list of `key` replaced.

    Comments between the lines of the old entry are lost. Raises as `append_entry` does.
    """
    content = _content(text, name, error)
    old = _list_of(yaml.compose(text, Loader=yaml.SafeLoader), name, key, error).value[index]
    start = old.start_mark.index
    # A text block ends after the empty lines that follow it.
    end = start + len(text[start : _end(old)].rstrip())
    new = _line_break(text).join(_lines(entry, old.start_mark.column)).lstrip(" ")
    edited = text[:start] + new + text[end:]
    entries = [entry if i == index else one for i, one in enumerate(content[key])]
    return _verify(edited, name, {**content, key: entries}, error)


def _content(text: str, name: str, error: type[ServeEvalError]) -> dict[str, Any]:
    """Return the mapping of the text; empty for an empty text."""
    content = yaml_source.parse(text, name, error).value
    if content is not None and not isinstance(content, dict):
        raise error(f"{name}:1: must map names to lists", hint=_HINT)
    return content or {}


def _list_of(root: Any, name: str, key: str, error: type[ServeEvalError]) -> Any:
    """Return the list of a key. Raises `error` if it is within brackets or is not a list."""
    _refuse_flow(root, name, key, error)
    found = next(value for of, value in root.value if of.value == key)
    if not isinstance(found, yaml.SequenceNode):
        raise error(
            f"{name}:{found.start_mark.line + 1}: {key} must be a list of entries", hint=_HINT
        )
    if found.value:
        _refuse_flow(found, name, key, error)
    return found


def _refuse_flow(node: Any, name: str, key: str, error: type[ServeEvalError]) -> None:
    if node.flow_style:
        raise error(
            f"{name}:{node.start_mark.line + 1}: an entry of {key} cannot be added or replaced"
            " within brackets",
            hint=_HINT,
        )


def _with_key(text: str, root: Any, data: Mapping[str, Any]) -> str:
    """Add a key at the end of the document, after its comments and before a line of three dots."""
    start = _line_end(text, _end(root))
    while start < len(text) and not text.startswith("...", start):
        start = _line_end(text, start + 1)
    return _insert(text[:start], data, root.start_mark.column, text[start:])


def _with_item(text: str, items: Any, below: int, entry: Mapping[str, Any]) -> str:
    """Add an item to a list, after the comments with the indentation of its items.

    The item of an empty list goes to the column `below`.
    """
    if not items.value:  # []
        start, end = items.start_mark.index, items.end_mark.index
        return _insert(text[:start].rstrip(" "), [entry], below, text[end:])
    column: int = items.start_mark.column
    start = _line_end(text, _end(items))
    while column and re.match(f" {{{column},}}#", text[start:]):
        start = _line_end(text, start + 1)
    return _insert(text[:start], [entry], column, text[start:])


def _insert(before: str, data: Any, column: int, after: str) -> str:
    """Put lines between two parts of a text; the first part may end within a line."""
    break_ = _line_break(before + after)
    gap = "" if not before.strip("\ufeff") or before.endswith("\n") else break_
    end = "" if after[:1] in ("\n", "\r") else break_
    return before + gap + break_.join(_lines(data, column)) + end + after


def _lines(data: Any, column: int) -> list[str]:
    dumped = yaml.dump(data, Dumper=_Layout, sort_keys=False, allow_unicode=True, width=math.inf)
    return [" " * column + line for line in dumped.removesuffix("\n").split("\n")]


def _line_break(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _line_end(text: str, index: int) -> int:
    """Return the start of the next line, or `index` if a line has just ended."""
    if index and text[index - 1] == "\n":
        return index
    return text.find("\n", index) + 1 or len(text)


def _end(node: Any) -> int:
    """Return the end of the last value within a node.

    The end mark of a block lies after the comments that follow it.
    """
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _verify(text: str, name: str, meant: dict[str, Any], error: type[ServeEvalError]) -> str:
    """Return the text if it holds exactly the intended content, in this order."""
    problem = ""
    try:
        found = yaml_source.parse(text, name, error).value
    except error as one:
        problem = f" ({one})"
    else:
        if json.dumps(found) == json.dumps(meant):
            return text
    raise error(
        f"{name}: its layout cannot be edited without changing other entries{problem}",
        hint=f"Nothing was written. {_HINT}",
    )
