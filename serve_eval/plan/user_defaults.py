"""Read the user's defaults file: settings of this machine that every plan of the user shares.

It is ~/.config/serve-eval/config.yaml (below XDG_CONFIG_HOME if that is set). Flags, variables and
the plan override it. It holds where data and references are and how requests are sent, but nothing
that decides what is asked, how it is judged, what runs or what is reached: a run must mean the same
for another user, and a file that someone else placed must not change that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plan.options import IN_A_PLAN, PROTOCOL, ProtocolOptions
from serve_eval.plan.parse import KEYS, Problems, scalars, section
from serve_eval.plan.set_options import CHOICES
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.setting import list_declared
from serve_eval.schema import Limits
from serve_eval.yaml_source import parse, read_text

ALLOWED = ("dataset_root", "limits", "no_prompts", "references_dir")
"""The keys of a plan that the file may have."""
_FOLDERS = ("dataset_root", "references_dir")
_OTHERS_MAY_WRITE = 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class UserDefaults:
    """The content of the file, in the form of a plan file; empty if there is none."""

    file: Path | None = None
    content: Mapping[str, Any] = field(default_factory=dict)

    def put_below(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Return a plan file's content with these defaults for what it leaves out."""
        merged = {**self.content, **plan}
        own, given = self.content.get("limits") or {}, plan.get("limits") or {}
        if isinstance(given, Mapping) and (own or given):
            merged["limits"] = {**own, **given}
        return merged


def read_defaults(environ: Mapping[str, str] = os.environ) -> UserDefaults:
    """Return the user's defaults. Raises PlanError for a file with a mistake or of someone else."""
    given = (environ.get("XDG_CONFIG_HOME") or "", "~/.config")
    try:
        base = next(path for text in given if (path := Path(text).expanduser()).is_absolute())
        file = base / "serve-eval" / "config.yaml"
        state = file.stat()
    except (OSError, RuntimeError, StopIteration):
        return UserDefaults()
    own = state.st_uid in (os.geteuid(), 0) and not state.st_mode & _OTHERS_MAY_WRITE
    if not (own and stat.S_ISREG(state.st_mode)):
        raise PlanError(
            f"{file}: another user could have written it",
            hint=f"Own the file, and let only yourself write it: chmod go-w {file}",
        )
    return UserDefaults(file=file, content=_check(file))


def _check(file: Path) -> dict[str, Any]:
    """Return the content of the file. Raises PlanError with every problem."""
    document = parse(read_text(file, PlanError), str(file), PlanError)
    content = document.value
    if not isinstance(content, dict):
        raise PlanError(f"{file}: expected a mapping of keys such as dataset_root")
    problems = Problems(lambda *path: f"{file}:{document.line(*path)}: ")
    for key in content:
        if key not in ALLOWED:
            problems.add((key,), _refuse(str(key)))
    known = {key: value for key, value in content.items() if key in ALLOWED}
    values = scalars({key: known[key] for key in known if key != "limits"}, {}, problems)
    section("limits", Limits, known, {}, problems)
    for key in _FOLDERS:
        paths = values.get(key) or []
        for path in [paths] if isinstance(paths, str) else paths:
            if not Path(path).expanduser().is_absolute():
                problems.add((key,), f"{path} is not absolute: it would depend on the folder")
    if problems.found:
        raise PlanError(problems.found)
    return known


def _refuse(key: str) -> str:
    if key in KEYS:
        return (
            "not allowed here, since it decides what is asked, judged or reached. Write it into a"
            f" plan. Allowed: {', '.join(ALLOWED)}."
        )
    return f"unknown key.{nearest(key, ALLOWED)}"


def list_origins(
    flags: Collection[str],
    settings: Mapping[str, Any],
    plan: Mapping[str, Any],
    defaults: UserDefaults,
    *,
    set_keys: Collection[str] = (),
) -> Iterator[tuple[str, list[str]]]:
    """Yield each source of settings with the keys that it decides: flags first, then defaults.

    `flags` are the names of the given flags, `settings` those and the variables, and `set_keys` the
    keys of a plan that the flag --set names.
    """
    origins: dict[str, list[str]] = {}
    known = [(one.key, one) for structure in IN_A_PLAN for one in list_declared(structure)]
    known += [(f"{PROTOCOL}.{one.key}", one) for one in list_declared(ProtocolOptions)]
    # Several flags can write one key: a variable decides it only if none of them is given.
    flagged = {key for key, option in known if option.name in flags} | {*set_keys}
    if "set" not in settings:
        flagged.discard("set")  # each of its values names a key
    for key, _ in known:
        places = (
            ("flags", key in flagged),
            ("variables", _is_set(settings, key)),
            ("plan", _holds(plan, key)),
            (str(defaults.file), _holds(defaults.content, key)),
        )
        found = next((place for place, holds in places if holds), None)
        if found is not None and key not in origins.setdefault(found, []):
            origins[found].append(key)
    for place in ("flags", "variables", "plan", str(defaults.file)):
        if origins.get(place):
            yield place, origins[place]


def _is_set(settings: Mapping[str, Any], key: str) -> bool:
    """Return True if settings have a key; those of the protocol are below CHOICES."""
    above, _, name = key.rpartition(".")
    inner = settings.get(CHOICES, {}) if above == PROTOCOL else settings
    return name in inner


def _holds(content: Mapping[str, Any], key: str) -> bool:
    above, _, name = key.rpartition(".")
    inner = content.get(above) if above else content
    return isinstance(inner, Mapping) and name in inner
