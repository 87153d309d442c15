"""Apply --set KEY=VALUE: to keys of a plan, or to options of tasks, launcher and verdict rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.plan.flag_values import absolute_all
from serve_eval.plan.options import PROTOCOL, ProtocolOptions, keys_in_file
from serve_eval.plan.parse import SECTIONS, Problems
from serve_eval.plugins import registry
from serve_eval.plugins.setting import SAME, Declared, list_declared
from serve_eval.schema import Spec

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
