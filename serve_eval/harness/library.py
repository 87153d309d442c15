"""Finds a task of the installed lm-evaluation-harness, or of a folder in its format, and loads it
with its data.

A folder of tasks is code: what its YAML files name by `!function` runs here, as it does in lm-eval.
"""

from __future__ import annotations

import importlib
import io
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from serve_eval.errors import DatasetError, PlanError, install_hint
from serve_eval.harness import seeds
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.scope import keep_in_scope

FEWSHOT_SEED = 1234
"""With which lm-eval draws worked examples, unless its command line is told otherwise."""
NAMED = 3
"""The number of times that lm-eval reads a task's name between loading and building it. Each time
it draws a name that it does not use, and the draws of the prompts behind it depend on that."""
OTHER_WAY = (
    "Run it by lm-eval itself on our client: python -m serve_eval.lm_eval_model run --model"
    " serve-eval --tasks {}"
)
KINDS = ("generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling")
"""The output types that our engine can ask."""
_SHOWN = 80
_STRUCTURE = frozenset({"tag", "group", "task_list"})
"""Keys of a file that are no part of a task's configuration."""


def version() -> str:
    """That of the installed package. Raises PlanError where there is none that can be used."""
    try:
        with quiet():
            package = importlib.import_module("lm_eval")
            importlib.import_module("lm_eval.tasks._yaml_loader")
    except ModuleNotFoundError as error:
        found = (
            "is not installed" if error.name == "lm_eval" else f"is too old, or lacks {error.name}"
        )
        raise PlanError(
            f"lm_eval: the package lm-eval {found}", hint=install_hint("lm-eval")
        ) from error
    return str(package.__version__)


@keep_in_scope
def config(name: str, own: tuple[str, ...]) -> Mapping[str, Any]:
    """Return what `read` returns, read once in a scope: to know a task by, and never to load it
    with.
    """
    version()
    with seeds.as_in_a_run():
        return read(name, own)


def read(name: str, own: tuple[str, ...]) -> Mapping[str, Any]:
    """What the YAML files say of a task, its functions imported; the folders `own` are searched
    first.

    Raises PlanError for a name that is no task, with what to name instead, and for a file that
    cannot be loaded.
    """
    version()
    from lm_eval.tasks._yaml_loader import load_yaml

    found = place(name, own)
    if "class" in load_yaml(found, resolve_func=False):
        raise PlanError(
            f"lm_eval:{name} is written as a Python class, of which no file tells",
            hint=_other_way(name),
        )
    try:
        with quiet():
            loaded: Mapping[str, Any] = load_yaml(found, resolve_func=True)
            seeds.seed_torch()
    except (Exception, SystemExit) as error:  # a task may import anything
        raise PlanError(
            f"lm_eval:{name}: {found} cannot be loaded: {type(error).__name__}: {error}",
            hint="Some tasks need packages of their own: see the task's README in lm-eval.",
        ) from error
    return loaded


def settle_config(given: Mapping[str, Any]) -> Any:
    """lm-eval's TaskConfig of what the files say, its defaults filled in. Raises PlanError for what
    is none.
    """
    from lm_eval.config.task import TaskConfig

    try:
        with quiet():
            return TaskConfig(
                **{
                    name: value
                    for name, value in deepcopy(dict(given)).items()
                    if name not in _STRUCTURE
                }
            )
    except Exception as error:  # an unknown key, a value of another type
        raise PlanError(
            f"lm_eval:{given.get('task')}: lm-eval does not take its file: {type(error).__name__}: "
            f"{_first_line(error)}",
            hint="Its keys and their values: docs/task_guide.md of lm-eval.",
        ) from error


def load(name: str, settings: Mapping[str, Any], *, online: bool) -> Any:
    """lm-eval's task object of these settings, with its data. Raises DatasetError where the data is
    not to be had.
    """
    from lm_eval.api.task import ConfigurableTask

    try:
        with quiet(), _network(allowed=online):
            return ConfigurableTask(
                config={
                    name: value
                    for name, value in deepcopy(dict(settings)).items()
                    if name not in _STRUCTURE
                }
            )
    except Exception as error:  # of data sets, of templates, of functions of the task
        raise DatasetError(
            f"lm_eval:{name}: lm-eval cannot load it: {type(error).__name__}: {_first_line(error)}",
            hint=(
                "Its data: local files by the option data_files, a copy in the cache of Hugging"
                " Face's datasets, or --allow-hub to download it."
            ),
        ) from error


def build(task: Any, *, multiturn: bool, as_text: Any) -> list[Any]:
    """lm-eval's own requests of all documents: its contexts, its worked examples. Raises
    DatasetError.
    """
    try:
        with quiet(), redirect_stderr(io.StringIO()):  # a progress bar
            for _ in range(NAMED):
                task.task_name  # noqa: B018
            task.set_fewshot_seed(seed=FEWSHOT_SEED)
            task.build_all_requests(
                apply_chat_template=multiturn, fewshot_as_multiturn=multiturn, chat_template=as_text
            )
    except Exception as error:
        raise DatasetError(
            f"lm_eval:{task.config.task}: its prompts cannot be made: {type(error).__name__}:"
            f" {_first_line(error)}"
        ) from error
    return list(task.instances)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences lm-eval."""
    logger = logging.getLogger("lm_eval")
    with seeds.ALONE:
        before = logger.level
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(before)


@contextmanager
def _network(*, allowed: bool) -> Iterator[None]:
    """Lets the hub of data sets be asked or not; a variable that forbids it (HF_HUB_OFFLINE) stays
    in force.
    """
    import datasets
    from huggingface_hub import constants

    datasets.disable_progress_bars()
    places = [(datasets.config, "HF_HUB_OFFLINE"), (datasets.config, "HF_DATASETS_OFFLINE")]
    places.append((constants, "HF_HUB_OFFLINE"))
    before = [getattr(place, name) for place, name in places]
    for (place, name), value in zip(places, before, strict=True):
        setattr(place, name, value or not allowed)
    try:
        yield
    finally:
        for (place, name), value in zip(places, before, strict=True):
            setattr(place, name, value)


@keep_in_scope
def place(name: str, own: tuple[str, ...]) -> Path:
    """The file of a task: the folders `own` come first. Looks at the texts of the files, since
    reading them all as YAML takes lm-eval many seconds; only for a name that is no task all are
    read. Raises PlanError for a name that is none, and for one that two files of `own` have.
    """
    from lm_eval.tasks._yaml_loader import load_yaml

    folders = _folders(own)
    usual = folders[len(own)]

    def of(places: Iterable[Path]) -> Iterator[Path]:
        for folder in places:
            for file in (_named_in_lm_eval if folder == usual else _map_names)(folder).get(
                name, ()
            ):
                told = load_yaml(file, resolve_func=False)
                if told.get("task") == name and "group" not in told:
                    yield file

    mine = list(of(folders[: len(own)]))
    if len(mine) > 1:
        raise PlanError(
            f"two offer the task 'lm_eval:{name}': {' and '.join(map(str, mine))}",
            hint="Rename one of them, or leave out the folder that it comes from.",
        )
    if (found := next(of(folders[len(own) :]), None) if not mine else mine[0]) is not None:
        return found
    from lm_eval.tasks._index import TaskIndex

    with quiet():
        index = TaskIndex.build(folders)
    entry = index.get(name)
    if entry is not None and entry.kind.name in ("TASK", "PY_TASK") and entry.yaml_path is not None:
        return Path(entry.yaml_path)
    if entry is None:
        tasks = [known for known, one in index.items() if one.kind.name == "TASK"]
        raise PlanError(f"lm_eval: unknown task {name!r}.{nearest(name, tasks)}", hint=_LISTED)
    members = sorted(_members(name, index, set()))
    shown = ",".join(f"lm_eval:{member}" for member in members[:_SHOWN])
    more = f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else ""
    raise PlanError(
        f"lm_eval:{name} is a group of {len(members)} tasks, which are named one by one:"
        f" {shown}{more}"
    )


def _map_names(folder: Path) -> Mapping[str, Sequence[Path]]:
    """The files below a folder by the task that their text names."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        for name in dict.fromkeys(_NAMES.findall(file.read_bytes())):
            found.setdefault(name.decode(errors="replace"), []).append(file)
    return found


_NAMES = re.compile(rb"^['\"]?task['\"]? *: *['\"]?(.*?)['\"]?\s*$", re.MULTILINE)
_named_in_lm_eval = cache(_map_names)
"""The result for lm-eval's own folder, which has many thousand files and is as it was installed."""
_LISTED = (
    "lm-eval ls tasks shows them all; tasks of your own: --include-path DIR, with their files below"
    " DIR/lm_eval."
)


def _folders(own: tuple[str, ...]) -> list[Path]:
    tasks = importlib.import_module("lm_eval.tasks")
    assert tasks.__file__ is not None
    return [*map(Path, own), Path(tasks.__file__).parent]


def _members(one: Any, index: Mapping[str, Any], seen: set[str]) -> set[str]:
    """The tasks of a group or a tag, down to the last: a name, or what a file says in the place of
    one.
    """
    if isinstance(one, Mapping):
        inner = one.get("task") or one.get("group")
        parts = [inner] if isinstance(inner, str) else inner or ()
        return {member for part in parts for member in _members(part, index, seen)}
    entry = index.get(one)
    if entry is None or one in seen:
        return set()
    seen.add(one)
    if entry.kind.name in ("TASK", "PY_TASK"):
        return {one}
    parts = entry.tags if entry.kind.name == "TAG" else (entry.cfg or {}).get("task") or ()
    return {member for part in parts for member in _members(part, index, seen)}


def _other_way(name: str) -> str:
    return OTHER_WAY.format(name)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:400]
