"""Apply single settings to a plan: those of --set, or of the user's defaults file.

It is ~/.config/serve-eval/config.yaml (below XDG_CONFIG_HOME if that is set). Flags, variables and
the plan override it. It holds where data and references are and how requests are sent, but nothing
that decides what is asked, how it is judged, what runs or what is reached: a run must mean the same
for another user, and a file that someone else placed must not change that.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.options import IN_A_PLAN, PROTOCOL, ProtocolOptions, keys_in_file
from serve_eval.plan.plan_file import KEYS, SECTIONS, Problems, scalars, section
from serve_eval.plan.shared_options import absolute_all
from serve_eval.plugins import registry
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.setting import SAME, Declared, list_declared
from serve_eval.schema import Limits, Spec
from serve_eval.yaml_source import parse, read_text

CHOICES = "choices"
"""The name of `protocol`, with the options of all tasks, among the settings of a command."""
_SPECS = ("tasks", "launcher", "verdict")
_KEYS: Mapping[str, Declared] = {
    **{key: one for key, one in keys_in_file() if key not in _SPECS},
    **{one.place: one for one in list_declared(ProtocolOptions)},
}
"""Each key of a plan that --set takes, with its option."""
_MAPPINGS = ("expect",)
_PLACES = (*SECTIONS, PROTOCOL, *_MAPPINGS)


def list_plan_keys() -> Iterator[str]:
    """Yield each key of a plan that --set takes, such as `limits.order`."""
    return iter(_KEYS)


def spread_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a command with each plan key that --set names as a setting.

    `limits.max_attempts=5` becomes what a flag would be, `protocol.top_p=.9` is below `choices`,
    and `expect.kv_transfer=true` sets one entry of a mapping. A key with a list takes a list or one
    text, and the texts of all uses are joined. Names of tasks, the launcher and the rule stay in
    `set`. Raises PlanError for a field that its section does not have.
    """
    found, rest = dict(settings), []
    named: set[str] = set()
    for text in settings.get("set", ()):
        if not _take_key(str(text), found, named):
            rest.append(text)
    if rest:
        return {**found, "set": rest}
    return {key: value for key, value in found.items() if key != "set"}


def list_keys(texts: Iterable[str]) -> set[str]:
    """Return the keys of a plan that values of --set name."""
    found = set()
    for text in texts:
        target = text.partition("=")[0]
        above = target.partition(".")[0]
        found.add(above if above in _MAPPINGS else target)
    return found & {*_KEYS, *_MAPPINGS}


def _take_key(text: str, found: dict[str, Any], named: set[str]) -> bool:
    """Set the key of a plan that a text names. Return False if it names none.

    `named` are the keys that earlier texts name; that of this one is added.
    """
    target, equals, raw = text.partition("=")
    above, _, field = target.partition(".")
    if not equals or "." in field or (above not in _PLACES and target not in _KEYS):
        return False
    if target in _KEYS:
        option = _KEYS[target]
        name = target.rpartition(".")[2]
        within = found.setdefault(CHOICES, {}) if above == PROTOCOL else found
        value = _read_value(option, raw)
        joined = target in named and isinstance(value, list) and isinstance(within[name], list)
        within[name] = [*within[name], *value] if joined else value
        named.add(target)
    elif above in _MAPPINGS:
        found[above] = {**(found.get(above) or {}), field: _read_yaml(raw)}
    else:
        near = registry.nearest(target, _KEYS)
        raise PlanError(f"--set {text}: {above} has no key {field!r}.{near}")
    return True


def _read_value(option: Declared, raw: str) -> Any:
    """Return a value as a plan file has it; a text needs no quotes."""
    value = _read_yaml(raw)
    if option.setting.parse is absolute_all:
        return absolute_all(value if isinstance(value, list) else [raw])
    if option.repeated and option.setting.in_file is SAME and option.setting.parse is None:
        return value if value is None or isinstance(value, list) else [raw]
    if option.kind is float and isinstance(value, str):
        return _read_number(value)
    if option.kind is str and option.setting.parse is not None:
        return option.setting.parse(value) if isinstance(value, str) else value
    if option.kind is not str or option.setting.in_file is not SAME:
        return value
    return value if isinstance(value, str) else raw


def _read_number(text: str) -> float | str:
    """Return the number that a text is, else the text: to YAML, `1e-3` and `inf` are texts."""
    try:
        return float(text)
    except ValueError:
        return text


def _read_yaml(raw: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError:
        return raw


def apply_setting(
    text: str, tasks: list[Spec], launcher: Spec, verdict: Spec, problems: Problems
) -> tuple[list[Spec], Spec, Spec]:
    """Apply one NAME.OPTION=VALUE.

    The value is YAML, so `null`, numbers and [lists] have their usual meaning.
    """
    target, _, raw = text.partition("=")
    name, _, option = target.rpartition(".")  # names may contain dots, options of tasks do not
    if target.startswith("launcher."):
        name, _, option = target.partition(".")
    value = _read_yaml(raw)
    if not name or not all(option.split(".")) or "=" not in text:
        problems.add(
            ("set",),
            f"expected NAME.OPTION=VALUE such as gsm8k.num_samples=100, not {text!r}; NAME is a"
            " task of this run, launcher or verdict",
        )
    elif name == "launcher":
        launcher = Spec(
            name=launcher.name,
            options=_with_set(launcher.options, option.split("."), value, problems),
        )
    elif name == "verdict":
        verdict = Spec(name=verdict.name, options={**verdict.options, option: value})
    elif name in {task.name for task in tasks}:
        tasks = [
            (
                Spec(name=task.name, options={**task.options, option: value})
                if task.name == name
                else task
            )
            for task in tasks
        ]
    else:
        known = [*(task.name for task in tasks), "launcher", "verdict"]
        problems.add(
            ("set",), f"{name!r} is not a task of this run.{registry.nearest(name, known)}"
        )
    return tasks, launcher, verdict


def _with_set(
    options: Mapping[str, object],
    path: Sequence[str],
    value: object,
    problems: Problems,
    before: str = "launcher",
) -> dict[str, object]:
    """Return the options with one of them set. `path` may lead into nested options."""
    name, *below = path
    if not below:
        return {**options, name: value}
    found = options.get(name)
    if found is not None and not isinstance(found, Mapping):
        problems.add(
            ("set",), f"{before}.{name} is {found!r} in this plan, and has no options to set"
        )
        return dict(options)
    return {**options, name: _with_set(found or {}, below, value, problems, f"{before}.{name}")}


ALLOWED = ("dataset_root", "limits", "no_prompts", "references_dir")
"""The keys of a plan that the file may have."""
_FOLDERS = ("dataset_root", "references_dir")
_OTHERS_MAY_WRITE = 0o022


@freeze
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
    set_keys: Collection[str],
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
