"""Read the table of presets: sampling and thinking of models that people serve, by family.

presets.yaml has a row for each way in which a model's card says to ask it, with the address of the
card and the day on which it was read. A value that a card does not state is not in its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import HistoryThoughts
from serve_eval.yaml_parsing import parse_text

FILE = Path(__file__).with_name("presets.yaml")
ALL = "All with their values: serve-eval data list presets"
EFFORTS = ("none", "low", "medium", "high", "max")
EffortName = Literal["none", "low", "medium", "high", "max"]
TEMPLATE_FIELDS = "chat_template_kwargs"
"""Field of a request with the variables of the server's chat template."""
BASE = "-base"
"""Part of the names of models that were not trained for chats, of which cards do not speak."""
SWITCHES = ("enable_thinking", "thinking")
"""Variables of chat templates that turn thinking on or off."""


class Effort(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that ask the models of a family for an effort.

    `thinking` is the option of that name, `system_prompt` a text that the template reads, `body`
    more fields of each request. `row` names the row with the sampling for this effort (None: the
    same).
    """

    thinking: bool | None = None
    system_prompt: str | None = None
    body: Mapping[str, Any] = {}
    row: str | None = None


class PresetRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the table: one way in which a model's card says to ask it.

    `models` are patterns of the last part of a model's id, in lower case. `source` is the address
    of the card, and `switch_source` that of the page that states how thinking is switched, if that
    is another one. `body` has the fields of each request beyond the options of a task. A value of
    None is not stated by the card.
    """

    name: str
    family: str
    models: tuple[str, ...] = ()
    source: str
    read: str
    switch_source: str = ""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    thinking: bool | None = None
    system_prompt: str | None = None
    history_thoughts: HistoryThoughts | None = None
    body: Mapping[str, Any] = {}
    effort: Mapping[EffortName, Effort] = {}

    def fits(self, model: str) -> bool:
        """Return True if the row is for the model with this id or path."""
        name = model.rstrip("/").rsplit("/", 1)[-1].lower()
        return BASE not in name and any(fnmatchcase(name, pattern) for pattern in self.models)

    @property
    def options(self) -> dict[str, Any]:
        """The options of a task that the row sets; fields of the request are in extra_body."""
        named = (
            "temperature",
            "top_p",
            "max_tokens",
            "thinking",
            "system_prompt",
            "history_thoughts",
        )
        found = {name: value for name in named if (value := getattr(self, name)) is not None}
        return {**found, **({"extra_body": dict(self.body)} if self.body else {})}


class PresetTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table; `version` is the day of its last change. The first row that fits a model wins."""

    version: str
    presets: tuple[PresetRow, ...]

    def find(self, name: str) -> PresetRow:
        """Return the row with a name. Raises PlanError that names the nearest ones."""
        found = next((row for row in self.presets if row.name == name), None)
        if found is None:
            known = [row.name for row in self.presets]
            raise PlanError(f"unknown preset {name!r}.{nearest(name, known)}", hint=f"{ALL}.")
        return found

    def find_for(self, models: Sequence[str]) -> PresetRow | None:
        """Return the row for the first of these ids that has one, or None."""
        return next((row for model in models for row in self.presets if row.fits(model)), None)


@cache
def read_presets() -> PresetTable:
    """Return the table."""
    text = FILE.read_text(encoding="utf-8")
    content = parse_text(text, str(FILE), PlanError, text_keys=False)[0]
    return msgspec.convert(content, PresetTable)


def choose_options(
    row: PresetRow | None, effort: str, family: PresetRow, table: PresetTable
) -> dict[str, Any]:
    """Return the options of a row (None: no preset is wanted) with those of an effort over them.

    `family` is the row that says how the effort is asked for. Raises PlanError for an effort that
    the family does not have.
    """
    if not effort:
        return {} if row is None else row.options
    if effort not in EFFORTS:
        raise PlanError(f"unknown effort {effort!r}.{nearest(effort, EFFORTS)}")
    wanted = dict(family.effort).get(effort)  # type: ignore[call-overload]
    if wanted is None:
        known = ", ".join(one for one in EFFORTS if one in family.effort)
        has = f"its efforts are {known}" if known else "it has no efforts"
        raise PlanError(f"the preset {family.name} has no effort {effort}: {has}")
    if row is not None and wanted.row is not None:
        row = table.find(wanted.row)
    options = {} if row is None else row.options
    over: dict[str, Any] = {"thinking": wanted.thinking, "system_prompt": wanted.system_prompt}
    options |= {name: value for name, value in over.items() if value is not None}
    if wanted.body:
        options["extra_body"] = merge_bodies(options.get("extra_body") or {}, wanted.body)
    return options


def merge_bodies(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of two requests; those of `upper` win, variables of templates one by one.

    A switch for thinking in `upper` replaces the other one too.
    """
    merged = {**lower, **upper}
    below, above = lower.get(TEMPLATE_FIELDS), upper.get(TEMPLATE_FIELDS)
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        switched = any(name in above for name in SWITCHES)
        kept = {k: v for k, v in below.items() if not (switched and k in SWITCHES)}
        merged[TEMPLATE_FIELDS] = {**kept, **above}
    return merged


def describe_options(options: Mapping[str, Any]) -> str:
    """Return options in one line: temperature 0.6, top_k 20, thinking on."""
    return ", ".join(_list_words(options))


def _list_words(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            inner = "" if name == "extra_body" else f"{name}."
            yield from (f"{inner}{one}" for one in _list_words(value))
        elif isinstance(value, bool):
            yield (
                f"{name} {'on' if value else 'off'}"
                if name == "thinking"
                else (f"{name} {str(value).lower()}")
            )
        elif isinstance(value, str) and name == "system_prompt":
            yield f"{name} {shorten(value)!r}"
        else:
            yield f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def shorten(text: str, most: int = 40) -> str:
    """Return a text in one line of at most `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
