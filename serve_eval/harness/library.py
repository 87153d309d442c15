"""Find and load a task of lm-evaluation-harness, with its data or with local files.

A folder of tasks is code: functions that its YAML files name with `!function` run here, as in
lm-eval.
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

from serve_eval.datasets import local
from serve_eval.errors import DatasetError, PlanError, install_hint
from serve_eval.harness import seeds
from serve_eval.plugins.registry import nearest
from serve_eval.plugins.scope import keep_in_scope
from serve_eval.schema import DataRoots, SourceFile

FEWSHOT_SEED = 1234
"""The seed of lm-eval's worked examples, unless its command line names another."""
NAMED = 3
"""Number of times that lm-eval reads a task's name between loading and building it. Each time it
draws an unused name, and the later draws for the prompts depend on that."""
OTHER_WAY = (
    "Run it in lm-eval itself with our client: python -P -m serve_eval.lm_eval_model run"
    " --model serve-eval --tasks {}"
)
KINDS = ("generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling")
"""The output types that our engine supports."""
_SHOWN = 80
_STRUCTURE = frozenset({"tag", "group", "task_list"})
"""Keys of a file that are not part of a task's configuration."""


def version() -> str:
    """Return the version of the installed package. Raises PlanError if there is no usable one."""
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
    """Return the result of `read`, cached in the scope: to describe a task, not to load it."""
    version()
    with seeds.as_in_a_run():
        return read(name, own)


def read(name: str, own: tuple[str, ...]) -> Mapping[str, Any]:
    """Return what the YAML files say of a task, with its functions imported.

    The folders `own` are searched first. Raises PlanError for an unknown name, with suggestions,
    and for a file that cannot be loaded.
    """
    version()
    from lm_eval.tasks._yaml_loader import load_yaml

    found = place(name, own)
    if "class" in load_yaml(found, resolve_func=False):
        raise PlanError(
            f"lm_eval:{name} is a Python class, and its configuration is not in a file",
            hint=OTHER_WAY.format(name),
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
    """Return lm-eval's TaskConfig of a task's file, with its defaults.

    Raises PlanError for an invalid one.
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
            f"lm_eval:{given.get('task')}: lm-eval rejects its file:"
            f" {type(error).__name__}: {_first_line(error)}",
            hint="docs/task_guide.md of lm-eval describes the keys and their values.",
        ) from error


def load(name: str, settings: Mapping[str, Any], *, online: bool) -> Any:
    """Return lm-eval's task object for these settings, with its data.

    Raises DatasetError if the data cannot be loaded.
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
    except Exception as error:  # from data sets, templates and functions of the task
        raise DatasetError(
            f"lm_eval:{name}: lm-eval cannot load it: {type(error).__name__}: {_first_line(error)}",
            hint=(
                "Name local files in the option data_files, put a copy into the cache of"
                " Hugging Face's datasets, or download the data with --allow-hub."
            ),
        ) from error


def build(task: Any, *, multiturn: bool, as_text: Any) -> list[Any]:
    """Return lm-eval's own requests of all documents, with contexts and worked examples.

    Raises DatasetError if that fails.
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
    """Silence lm-eval in this block."""
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
    """Allow or forbid requests to the hub of data sets; HF_HUB_OFFLINE stays in force."""
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
    """Return the file of a task, from the folders `own` first.

    The files are searched as text, since lm-eval takes many seconds to read them all as YAML; that
    happens only for a name that is not a task. Raises PlanError for such a name, and for one that
    two files of `own` have.
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
            f"two files offer the task 'lm_eval:{name}': {' and '.join(map(str, mine))}",
            hint="Rename one of them, or remove the folder that it comes from.",
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
        f"lm_eval:{name} is a group of {len(members)} tasks; name them one by one: {shown}{more}"
    )


def _map_names(folder: Path) -> Mapping[str, Sequence[Path]]:
    """Return the files below a folder by the task that their text names."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.rglob("*.yaml")):
        for name in dict.fromkeys(_NAMES.findall(file.read_bytes())):
            found.setdefault(name.decode(errors="replace"), []).append(file)
    return found


_NAMES = re.compile(rb"^['\"]?task['\"]? *: *['\"]?(.*?)['\"]?\s*$", re.MULTILINE)
_named_in_lm_eval = cache(_map_names)
"""The cached result for lm-eval's own folder, which has thousands of files that do not change."""
_LISTED = (
    "lm-eval ls tasks lists all. For your own tasks give --include-path DIR, with their"
    " files below DIR/lm_eval."
)


def _folders(own: tuple[str, ...]) -> list[Path]:
    tasks = importlib.import_module("lm_eval.tasks")
    assert tasks.__file__ is not None
    return [*map(Path, own), Path(tasks.__file__).parent]


def _members(one: Any, index: Mapping[str, Any], seen: set[str]) -> set[str]:
    """Return the tasks of a group or tag, at any depth.

    `one` is a name, or the entry of a file in its place.
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


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:400]


READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet", ".txt": "text"}
"""The loader of Hugging Face's datasets for a file, by its suffix."""


def with_local_files(
    name: str,
    config: Mapping[str, Any],
    data_files: Mapping[str, str] | None,
    roots: DataRoots,
    own: Sequence[str],
) -> tuple[dict[str, Any], tuple[SourceFile, ...]]:
    """Return the settings that name a task's local files, and those files.

    Raises DatasetError for a missing file.
    """
    kwargs = dict(config.get("dataset_kwargs") or {})
    given: Any = kwargs.get("data_files") if data_files is None else dict(data_files)
    if given is None:
        return {}, ()
    places = [*roots.roots, Path(), *map(Path, own)]
    sources: list[SourceFile] = []

    def find_data(text: Any) -> Any:
        if isinstance(text, Mapping):
            return {split: find_data(one) for split, one in text.items()}
        if not isinstance(text, str):
            return [find_data(one) for one in text]
        if "://" in text or "*" in text:
            return text
        path = next((place / text for place in places if (place / text).is_file()), None)
        if path is None:
            raise DatasetError(
                f"lm_eval:{name}: {text} is not in"
                f" {', '.join(str(place.absolute()) for place in places)}",
                hint="Give its folder as --dataset-root, or its full path.",
            )
        sources.append(local.read_file(path).source)
        return str(path)

    changed: dict[str, Any] = {"dataset_kwargs": {**kwargs, "data_files": find_data(given)}}
    if data_files is not None:
        kinds = {READERS.get(Path(file).suffix) for file in data_files.values()}
        if len(kinds) != 1 or None in kinds:
            raise DatasetError(
                f"lm_eval:{name}: data_files must all have the same suffix, one of"
                f" {', '.join(READERS)}"
            )
        changed |= {"dataset_path": kinds.pop(), "dataset_name": None}
    return changed, tuple(sources)
