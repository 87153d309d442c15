"""Build the plan of a test from the plan file, its class, its markers and its arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.frozen import freeze

if TYPE_CHECKING:
    from serve_eval.schema import Plan


TaskOption = str | Mapping[str, object]
LauncherOption = str | Mapping[str, object]
_NOT_IN_A_PLAN = ("launcher_options", "gpus")
CLASS_ATTRIBUTES = ("MODEL_NAME", "MODEL_PATH", "LAUNCHER", "OPTIONS")
_ONLY_IN_TESTS = (*_NOT_IN_A_PLAN, "model_name", "model_path", "rehearse")
_OTHER_NAMES = {"shots": "num_fewshot", "n_samples": "num_samples"}
"""Names that other frameworks and people give to options of tasks."""
Options = Mapping[str, Any]


@freeze
class AskedEvaluation:
    """Everything that a test says about its evaluation.

    `tasks` are names, or names with options as in a plan file. `options` are keys of a plan file,
    and those of its sections. `launcher` names one, alone or with options; `launcher_options` are
    added to them, and `model_path` is its option `model`. `model_name` names the reference. `unset`
    are the keys that a level took back with None, also from the plan file of all tests. `rehearse`
    puts the stand-in of a rehearsal in the place of the launcher's servers.
    """

    tasks: Sequence[TaskOption] = ()
    launcher: LauncherOption | None = None
    launcher_options: Mapping[str, object] = field(default_factory=dict)
    model_name: str | None = None
    model_path: str | None = None
    options: Options = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    rehearse: bool = False

    @property
    def judges_itself(self) -> bool:
        """True if the test wants no reference and no verdict, so that it judges the report."""
        return self.options.get("no_reference") is True and "verdict" not in self.options


def merge_levels(tasks: Sequence[TaskOption], *levels: Options) -> AskedEvaluation:
    """Return what a test asks for: options of its class, its markers and its call, in this order.

    Later levels override earlier ones, except that options of the launcher are joined. A launcher
    and an address exclude each other, so the later one counts; with the launcher go its options of
    earlier levels. None takes back what earlier levels say: `launcher=None` asks the address of the
    options of pytest.
    """
    given: dict[str, Any] = {}
    joined: dict[str, object] = {}
    for level in levels:
        was_launched = given.get("launcher") is not None
        for name, other in (("launcher", "base_url"), ("base_url", "launcher")):
            if level.get(name) is not None:
                given.pop(other, None)
        given |= level
        if was_launched and given.get("launcher") is None:
            joined = {}
        joined |= level.get("launcher_options") or {}
    unset = frozenset(name for name, value in given.items() if value is None)
    given = {name: value for name, value in given.items() if name not in unset}
    rehearse = given.pop("rehearse", False)
    return AskedEvaluation(
        tasks=tasks,
        launcher=given.pop("launcher", None),
        launcher_options=joined,
        model_name=given.pop("model_name", None),
        model_path=given.pop("model_path", None),
        options={name: value for name, value in given.items() if name not in _NOT_IN_A_PLAN},
        unset=unset,
        rehearse=bool(rehearse),
    )


def build_plan(
    asked: AskedEvaluation,
    base: Mapping[str, Any],
    base_url: str | None,
    environ: Mapping[str, str] = os.environ,
    *,
    needs_tasks: bool = True,
) -> Plan:
    """Return the plan of a test. `base` is the content of the plan file of all tests.

    The test overrides its class, which overrides the file. Without `needs_tasks`, it may name none,
    since it wants the endpoint alone. Raises PlanError with every problem.
    """
    from serve_eval.plan.resolve import resolve

    file, settings = drop_unset(asked, base), dict[str, Any]()
    choices, in_sections = _list_choices(), {"base_url", *_list_in_sections()}
    asked = _drop_constants(asked, {*choices, *in_sections})
    for name, value in asked.options.items():
        if name in choices:
            settings.setdefault("choices", {})[name] = value
        elif name in in_sections:
            settings[name] = value
        else:
            file[name] = value
    if asked.tasks:
        file["tasks"] = list(asked.tasks)
    unused = place_launcher(asked, file, settings, base_url)
    if asked.model_name is not None:
        file.setdefault("reference_model", asked.model_name)
        if "launcher" in file:
            file.setdefault("model", asked.model_name)
    with _advise(asked, {*choices, *in_sections}, unused):
        return resolve(file, settings, environ, needs_tasks=needs_tasks).plan


def drop_unset(asked: AskedEvaluation, base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of the plan file without the keys that the test took back."""
    return {name: value for name, value in base.items() if name not in asked.unset}


def _drop_constants(asked: AskedEvaluation, elsewhere: set[str]) -> AskedEvaluation:
    """Leave out attributes of the class in capitals, unless one reads as an option without effect.

    It does if its name in small letters is an option that the test does not give, or if it is
    close to an attribute that is one.
    """
    constants = [name for name in asked.options if name.isupper()]
    if not constants:
        return asked
    known = set(_list_known(elsewhere)) - asked.options.keys()
    known -= {name for name in ("launcher_options", "tasks") if getattr(asked, name)}
    meant = {name for name in constants if name.lower() in known or _find_attribute(name)}
    kept = {k: v for k, v in asked.options.items() if not k.isupper() or k in meant}
    return replace(asked, options=kept)


def _find_attribute(name: str) -> str:
    """Return the attribute that a misspelt one means, or ""."""
    if name == "MODEL":
        return "MODEL_NAME"
    return next(iter(get_close_matches(name, CLASS_ATTRIBUTES, 1, 0.85)), "")


def _describe_constant(name: str) -> str:
    if close := _find_attribute(name):
        return f"{name}: no attribute of AccuracyTests. Did you mean {close}?"
    return (
        f"{name}: no attribute of AccuracyTests, so it would have no effect. Write"
        f" OPTIONS = {{{name.lower()!r}: ...}}, or rename it"
    )


@contextmanager
def _advise(asked: AskedEvaluation, elsewhere: set[str], unused: str) -> Iterator[None]:
    """Name the closest option of a test in a PlanError about one that does not exist.

    Raises PlanError also if options of a launcher are `unused`.
    """
    from serve_eval.errors import PlanError

    more = [unused] if unused else []
    try:
        yield
    except PlanError as error:
        unknown = _list_unknown(asked, elsewhere)
        told = [unknown.get(one.partition(":")[0], one) for one in error.problems]
        raise PlanError([*told, *more], hint=error.hint) from None
    if more:
        raise PlanError(
            more, hint="Name the launcher (LAUNCHER or launcher=), or leave launcher_options out."
        )


def _list_unknown(asked: AskedEvaluation, elsewhere: set[str]) -> dict[str, str]:
    """Return what is wrong with each option that none has, with the closest of all names.

    A plan file has those of its sections elsewhere than a test, so its own advice is another one.
    """
    from serve_eval.client.connection import looks_secret
    from serve_eval.plugins.closest import find_misspelt, nearest

    known = _list_known(elsewhere)
    return {
        name: _describe_constant(name)
        if name.isupper()
        else _place_in_task(asked, name, known) or f"{name}: unknown option.{nearest(name, known)}"
        for name in asked.options
        if name not in known and (not looks_secret(name) or find_misspelt(name, known))
    }


def _list_known(elsewhere: set[str]) -> list[str]:
    """Return the names of all options of an evaluation."""
    from serve_eval.plan.plan_file import KEYS

    return sorted({*KEYS, *elsewhere, *_ONLY_IN_TESTS})


def _place_in_task(asked: AskedEvaluation, name: str, elsewhere: Sequence[str]) -> str:
    """Return how to write an option of a task, if it is one of a task that is asked.

    It may be misspelt, unless it is closer to an option `elsewhere`.
    """
    from serve_eval.errors import PlanError
    from serve_eval.plan.plan_file import TASKS
    from serve_eval.plugins.closest import find_misspelt
    from serve_eval.plugins.registry import load, options_of

    meant = _OTHER_NAMES.get(name) or name
    for one in asked.tasks:
        task = one if isinstance(one, str) else str(one.get("name", next(iter(one), "")))
        try:
            known = options_of(load(TASKS, task))
        except PlanError:
            continue
        found = meant if meant in known else find_misspelt(name, (*elsewhere, *known))
        if found in known:
            form = json.dumps({task: {found: asked.options[name]}}, default=str)
            less = " or limit=N" if found == "num_samples" else ""
            other = "" if found == name else f"unknown option. Did you mean {found!r}, "
            end = "?" if other else ""
            return f"{name}: {other}an option of the task: evaluate({form}){less}{end}"
    return ""


def read_base(file: Path | None) -> Mapping[str, Any]:
    """Return the content of the plan file of all tests. Raises PlanError."""
    from serve_eval.errors import PlanError
    from serve_eval.yaml_source import read

    if file is None:
        return {}
    content = read(file, PlanError).value
    if not isinstance(content, dict):
        raise PlanError(f"{file}: expected a mapping of keys such as dataset_root")
    return content


def _list_choices() -> set[str]:
    """Return the names of the options of every task's protocol."""
    from serve_eval.plan.options import ProtocolOptions
    from serve_eval.plugins.setting import list_declared

    return {option.key for option in list_declared(ProtocolOptions)}


def _list_in_sections() -> set[str]:
    """Return the fields of the sections of a plan, such as quant_algo and concurrency."""
    import typing

    from serve_eval.plan.plan_file import SECTIONS

    return {name for kind in SECTIONS.values() for name in typing.get_type_hints(kind)}


def place_launcher(
    asked: AskedEvaluation,
    file: MutableMapping[str, Any],
    settings: MutableMapping[str, Any],
    base_url: str | None,
) -> str:
    """Set what answers in `file`, the keys of the plan, and in `settings`, which override them.

    `base_url` is asked if nothing else is named. Returns the problem with options that no launcher
    takes, or "". Raises PlanError if the checkpoint has no place.
    """
    if asked.launcher is not None:
        file["launcher"] = _add_options(asked)
        file.pop("base_url", None)
    elif "base_url" in settings:
        file.pop("launcher", None)
    elif base_url is not None and "launcher" not in file:
        settings["base_url"] = base_url
    if asked.launcher is not None or not asked.launcher_options:
        return ""
    if "launcher" not in file:
        address = settings.get("base_url") or file.get("base_url")
        if unused := _describe_unused(asked, address):
            return unused
    given = _read_launcher(file.get("launcher", "external"))
    file["launcher"] = {**given, **asked.launcher_options}
    return ""


def _add_options(asked: AskedEvaluation) -> dict[str, object]:
    """Return the launcher with its options in the form of a plan file.

    Raises PlanError if the checkpoint has no place among them.
    """
    from serve_eval.errors import PlanError
    from serve_eval.plugins.values import load_launcher

    assert asked.launcher is not None
    launcher = {**_read_launcher(asked.launcher), **asked.launcher_options}
    if asked.model_path is None or "model" in launcher:
        return launcher
    if "model" not in load_launcher(str(launcher.get("name"))).options:
        raise PlanError(
            f"MODEL_PATH: the launcher {launcher.get('name')} has no option `model`",
            hint="Put the path into LAUNCHER, where this launcher has it."
            if launcher.get("name") != "rehearsal"
            else "Name the launcher itself, with rehearse=True.",
        )
    return {**launcher, "model": asked.model_path}


def _read_launcher(given: LauncherOption) -> dict[str, object]:
    """Return a launcher in the form of a plan file that has its name under `name`."""
    if isinstance(given, str):
        return {"name": given}
    if len(given) == 1 and "name" not in given:
        [(name, options)] = given.items()
        if options is None or isinstance(options, Mapping):
            return {"name": name, **(options or {})}
    return dict(given)


def _describe_unused(asked: AskedEvaluation, address: object) -> str:
    """Return which options of a launcher would have no effect, since a test names none."""
    from serve_eval.plugins.values import load_launcher

    known = load_launcher("external").options
    names = ", ".join(name for name in asked.launcher_options if name not in known)
    if not names:
        return ""
    asks = "" if address is None else f": the address {address} decides what is asked"
    return f"launcher_options: no launcher is named that takes {names}{asks}"
