"""Compare two run folders field by field.

Fields that differ between any two runs of the same code are left out.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

FILES = (
    "*.json",
    "*.yaml",
    "samples/*.jsonl",
    "scores/*.jsonl",
    "executions/*.jsonl",
    "judgements/*.jsonl",
    "cases/*.jsonl",
)
"""Files of a run folder that hold results."""
FOLDERS = ("", "a/", "b/", "self/", "*/", "runs/*/", "lm-eval/", "lm-eval/*/")
"""Folders of a comparison, of a suite and of an export that hold such files."""

MASKED = {
    "started_at": "when the run began",
    "wall_s": "duration",
    "served_s": "duration",
    "latency_s": "duration",
    "ttft_s": "duration",
    "tpot_s": "duration",
    "loop_lag_s": "duration",
    "apart_s": "duration between the two requests of a pair",
    "per_second": "rate",
    "start_s": "moment",
    "end_s": "moment",
    "rows/*/time_s": "duration of a check of smoke",
    "out/tables/*/rows/*/2": "the same in a table of a document",
    "seconds": "duration of smoke",
    "results_<time>.json/start_time": "moment, in an export",
    "results_<time>.json/end_time": "moment, in an export",
    "results_<time>.json/date": "moment, in an export",
    "results_<time>.json/total_evaluation_time_seconds": "duration, in an export",
    "pid": "process id",
    "isolation/uid": "user that the sandbox has drawn",
    "isolations/*/uid": "the same, in the report",
    "signature": "drawn per user and folder",
    "request_id": "drawn per session",
    "answer_id": "numbered as requests arrive",
}
"""Paths of fields that may differ, with everything below them, and why. `*` is one component."""
OPTIONAL = {
    "attempts/*/connection": "which of the open connections was free, unless it was new",
    "attempts/*/turn": "number of the request on that connection",
}
"""Fields that may exist on only one side."""


def _pattern(names):
    parts = (re.escape(name).replace(r"\*", "[^/]+") for name in names)
    return re.compile("|".join(f"/{part}(?:/|$)" for part in parts))


_MASKED, _OPTIONAL = _pattern(MASKED), _pattern(OPTIONAL)
_TEXTS = (
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:<port>"),
    (re.compile(r"-\d{8}T\d{12}(?=\.json)"), "-<time>"),  # name of a reference's samples
    (
        re.compile(r'(created\\*": ?)\d+'),
        r"\1<time>",
    ),  # within an answer that a message quotes
    (re.compile(r"\b[\d,]+\.?\d*(/s\b| answers per second)"), "<rate>"),
    (re.compile(r"[^\s\"]*/bin/python\S*(?= -P|$)"), "<python>"),
    (re.compile(r"(scored again at )[\dT:+-]+"), r"\1<time>"),
    (re.compile(r"\b(lie) \d+ s (apart)"), r"\1 <time> \2"),
    (re.compile(r"\b\d+\.?\d* (s|ms|minutes|times as long)\b"), r"<time> \1"),
)
"""Parts of texts that may differ."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """An intended change of a key or of a whole value."""

    old: str
    new: str

    @classmethod
    def parse(cls, text):
        """Parse OLD=NEW.

        Raises ValueError.
        """
        old, equals, new = text.partition("=")
        if not equals or not old:
            raise ValueError(f"{text!r} is not OLD=NEW")
        return cls(old, new)


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that differs; `...` marks a side without it."""

    path: str
    before: str
    after: str

    def __str__(self):
        return f"{self.path}: {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Compared:
    """The compared fields and their differences."""

    files: int
    fields: int
    masked: int
    differences: tuple[Difference, ...]


ABSENT = "..."


def masked(path):
    """Return True if a field may differ between two runs of the same code."""
    return bool(_MASKED.search(path) or _OPTIONAL.search(path))


def leaves(value, path=""):
    """Return every scalar of a JSON value with its path.

    An empty list or mapping counts as a scalar.
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}/{str(key).replace('/', '|')}")
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{place}")
    else:
        yield path, value


def neutral(text, places):
    """Return a text without the parts that depend on the place and time of a run."""
    for place in places:
        text = text.replace(place, "<here>")
    for pattern, said in _TEXTS:
        text = pattern.sub(said, text)
    return text


def records(text, *, ordered):
    """Return the records of a journal by sample; `ordered` also keeps the order of the ids.

    Repeats of a sample, and attempts of several sessions, are distinguished by their number within
    the sample's records, after sorting these by their content without masked fields.
    """
    found = {}
    ids = []
    for line in text.splitlines():
        record = json.loads(line)
        name = str(record.get("id") if isinstance(record, dict) else line)
        ids.append(name)
        found.setdefault(name, []).append(record)
    by_sample = {name: sorted(rows, key=_sort_key) for name, rows in found.items()}
    return {"records": by_sample, "order": ids if ordered else [], "count": len(ids)}


def _sort_key(record):
    return json.dumps(
        [(path, leaf) for path, leaf in leaves(record) if not masked(path)], sort_keys=True
    )


def read(folder, places, *, ordered):
    """Return the leaves of every result file below a folder, by the file's relative name."""
    found = {}
    for where in FOLDERS:
        for pattern in FILES:
            for file in sorted(folder.glob(where + pattern)):
                if file.is_file():
                    text = neutral(file.read_text("utf-8"), places)
                    found[_stable_name(file.relative_to(folder))] = dict(
                        leaves(_parsed(file.suffix, text, ordered))
                    )
    return found


def _parsed(suffix, text, ordered):
    if suffix == ".jsonl":
        return records(text, ordered=ordered)
    return json.loads(text) if suffix == ".json" else text.splitlines()


def _stable_name(file):
    """Return a name without the time of an export or of a set of reference samples."""
    return re.sub(r"\d{4}-?\d\d-?\d\dT[\d.:-]*\d", "<time>", str(file))


def compare(before, after, renamed=()):
    """Compare two sides: leaves by file and path.

    Renames apply to keys and to whole values of the first side.
    """
    old = {_renamed_path(file, renamed): _rename(side, renamed) for file, side in before.items()}
    count = Counter(files=len(old.keys() | after.keys()))
    found = []
    for file in sorted(old.keys() | after.keys()):
        if file not in old or file not in after:
            found.append(
                Difference(file, *("a file" if file in side else ABSENT for side in (old, after)))
            )
            continue
        one, two = old[file], after[file]
        for path in sorted(one.keys() | two.keys()):
            if masked(f"/{file}{path}") and (
                (path in one and path in two) or _OPTIONAL.search(path)
            ):
                count["masked"] += 1
                continue
            count["fields"] += 1
            said = [_said(side, path) for side in (one, two)]
            if said[0] != said[1]:
                found.append(Difference(f"{file}{path}", *said))
    return Compared(count["files"], count["fields"], count["masked"], tuple(found))


def _said(side, path):
    return json.dumps(side[path], ensure_ascii=False) if path in side else ABSENT


def _rename(side, renamed):
    return {
        _renamed_path(path, renamed): _renamed_value(value, renamed) for path, value in side.items()
    }


def _renamed_path(path, renamed):
    parts = path.split("/")
    for one in renamed:
        parts = [one.new if part == one.old else part for part in parts]
    return "/".join(parts)


def _renamed_value(value, renamed):
    for one in renamed:
        value = one.new if value == one.old else value
    return value
