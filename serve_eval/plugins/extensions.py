"""Find and load tasks, scorers, launchers and verdict rules that are not part of serve-eval.

They come from folders that the user names, and from installed packages with the entry points
`serve_eval.tasks`, `.scorers`, `.launchers` and `.verdicts`. Listing them reads folders and package
metadata only; code runs when its name is used.

A folder becomes a package with a unique name, so that its files can import each other (`from ._x
import y`) and `sys.path` stays unchanged. The name is a hash of the path and the content: a later
run in this process uses the code as it is then, and an earlier run keeps the code with which it
began.

Included folders and loaded code belong to a scope (`scope.py`).
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.machinery
import importlib.util
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.scope import Loaded, current, keep_in_scope, open_scope

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

KINDS = {
    "serve_eval.tasks": "tasks",
    "serve_eval.scorers": "scorers",
    "serve_eval.launchers": "launchers",
    "serve_eval.verdicts.rules": "verdicts",
}
"""Our packages, and their names as subfolders of a user's folder and in entry points."""
LM_EVAL = "lm_eval"
"""The subfolder of a user's folder with tasks in the format of lm-evaluation-harness."""
_OURS = ("serve_eval.tasks.", "serve_eval.scorers.", "serve_eval.verdicts.rules.")
_PREFIX = "_serve_eval_included_"
_CHECKSUM = "__serve_eval_sha256__"
"""The attribute of a module with the checksum of its file and the files next to it, taken at its
import."""


@freeze
class Origin:
    """One origin of a name. `place` is its description for people; `get` imports it."""

    place: str
    get: Callable[[], Any]


def _folders() -> list[Path]:
    found = current()
    return [] if found is None else found.folders


def include(folders: Iterable[str]) -> None:
    """Add folders to the scope, without running their code.

    Raises PlanError for a folder that cannot be read or has none of the known subfolders.
    """
    problems, included = [], open_scope().folders
    for given in folders:
        try:
            folder = Path(given).expanduser().resolve()
            there, ours = (
                folder.is_dir(),
                any((folder / kind).is_dir() for kind in (*KINDS.values(), LM_EVAL)),
            )
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a loop of links
            problems.append(f"include_path: {given!r} cannot be read: {error}")
            continue
        if not there:
            problems.append(f"include_path: {folder} is not a folder")
        elif not ours:
            problems.append(
                f"include_path: {given} has none of the subfolders"
                f" {', '.join((*KINDS.values(), LM_EVAL))}"
            )
        elif folder not in included:
            included.append(folder)
    if problems:
        raise PlanError(problems)


def list_included() -> tuple[str, ...]:
    """Return the folders that were included."""
    return tuple(map(str, _folders()))


def lm_eval_folders() -> tuple[str, ...]:
    """Return the user's folders with tasks in lm-eval's format."""
    return tuple(str(folder / LM_EVAL) for folder in _folders() if (folder / LM_EVAL).is_dir())


def lm_eval_tasks() -> list[tuple[str, Path]]:
    """Return the tasks in those folders with their files, without groups.

    Their YAML is searched as text, so that no code runs.
    """
    found = []
    for file in (
        file for folder in lm_eval_folders() for file in sorted(Path(folder).rglob("*.yaml"))
    ):
        text = file.read_text(errors="replace")
        named = re.search(
            r"^(['\"]?)task\1 *: *(['\"]?)([^\s'\"\[{].*?)\2 *(?:#.*)?$", text, re.MULTILINE
        )
        if named is not None and not re.search(r"^['\"]?group['\"]? *:", text, re.MULTILINE):
            found.append((named[3], file))
    return sorted(found)


def names(folder: str) -> list[str]:
    """Return the names that users and packages add to one of our packages."""
    return [*(name for name, _ in _files(folder)), *(point.name for point in _points(folder))]


def find(folder: str, name: str) -> list[Origin]:
    """Return the places outside serve-eval that offer a name."""
    files = [_file(folder, place, name) for found, place in _files(folder) if found == name]
    return [*files, *(_package(point) for point in _points(folder) if point.name == name)]


def list_loaded() -> dict[str, Loaded]:
    """Return the external code loaded so far, by kind and name: `tasks.capitals`."""
    found = current()
    return {} if found is None else dict(sorted(found.loaded.items()))


def note(folder: str, name: str, place: str, module: ModuleType) -> None:
    """Record that external code is used, with its checksum when it was first loaded."""
    loaded = open_scope().loaded
    if (key := f"{KINDS[folder]}.{name}") not in loaded:
        if not hasattr(module, _CHECKSUM):
            setattr(module, _CHECKSUM, _checksum(module))
        loaded[key] = Loaded(origin=place, sha256=getattr(module, _CHECKSUM))


def note_file(folder: str, name: str, file: Path) -> None:
    """Record that a file in a user's folder is used, with the code next to it.

    Files elsewhere are ignored.
    """
    loaded = open_scope().loaded
    if (
        any(file.is_relative_to(place) for place in lm_eval_folders())
        and (key := f"{KINDS[folder]}.{name}") not in loaded
    ):
        loaded[key] = Loaded(
            origin=str(file), sha256=_digest((file, *sorted(file.parent.glob("*.py"))))
        )


def defect(error: BaseException) -> str:
    """Return whose defect an unexpected error is.

    It is that of the external code through which the error passed last, else of serve-eval, with
    the line of its task, scorer or rule that the error passed last.
    """
    own = _find_ours(error)
    whose = find_external(error) or (f"serve-eval, at {own}" if own else "serve-eval")
    return f"This is a defect of {whose}. Set SERVE_EVAL_TRACEBACK=1 to see the traceback."


def find_external(error: BaseException) -> str | None:
    """Return FILE:LINE of the external code through which an error passed last."""
    others = {module.partition(".")[0] for module in sys.modules if module.startswith(_PREFIX)}
    others |= {
        point.value.partition(":")[0].partition(".")[0]
        for folder in KINDS
        for point in _points(folder)
    }
    return _find_last(error, lambda module: module.partition(".")[0] in others)


def find_offered(error: BaseException) -> str | None:
    """Return FILE:LINE of the external code, else of our task, scorer or rule, passed last."""
    return find_external(error) or _find_ours(error)


def _find_ours(error: BaseException) -> str | None:
    return _find_last(error, lambda module: module.startswith(_OURS))


def _find_last(error: BaseException, chosen: Callable[[str], bool]) -> str | None:
    """Return FILE:LINE of the last frame of an error whose module is chosen."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if chosen(str(frame.f_globals.get("__name__", ""))):
            found = f"{frame.f_code.co_filename}:{line}"
    return found


# ------------------------------------------------------------------------------------------------
# folders


def _files(folder: str) -> list[tuple[str, Path]]:
    """Return the names that the user's folders offer, each with its folder."""
    places = [path / KINDS[folder] for path in _folders()]
    found = (
        (module.name, place) for place in places for module in pkgutil.iter_modules([str(place)])
    )
    return [(name, place) for name, place in found if not name.startswith("_")]


@keep_in_scope
def _package_of(folder: Path) -> str:
    """Return the package name of a folder, by its content when a scope first asks."""
    found = [
        *folder.glob("*.py"),
        *(file for kind in KINDS.values() for file in (folder / kind).rglob("*.py")),
    ]
    named = hashlib.sha256(str(folder).encode())
    for file in sorted(found):
        named.update(f"\0{file}\0{_digest((file,))}".encode())
    return _PREFIX + named.hexdigest()[:12]


def _file(folder: str, place: Path, name: str) -> Origin:
    path = place / name / "__init__.py" if (place / name).is_dir() else place / f"{name}.py"

    def get() -> ModuleType:
        outer = _package_of(place.parent)
        inner = f"{outer}.{KINDS[folder]}"
        for package, where in ((outer, place.parent), (inner, place)):
            if package not in sys.modules:
                spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
                spec.submodule_search_locations = [str(where)]
                sys.modules[package] = importlib.util.module_from_spec(spec)
        return importlib.import_module(f"{inner}.{name}")

    return Origin(place=str(path), get=lambda: _import(get, str(path)))


# ------------------------------------------------------------------------------------------------
# packages


def _points(folder: str) -> tuple[EntryPoint, ...]:
    return _find_installed()[folder]


@functools.cache
def _find_installed() -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points by package, read once per process: it takes about 50 ms."""
    from importlib import metadata

    found = metadata.entry_points()
    return {
        folder: tuple(found.select(group=f"serve_eval.{kind}")) for folder, kind in KINDS.items()
    }


def _package(point: EntryPoint) -> Origin:
    package = (
        "an unknown package" if point.dist is None else f"{point.dist.name} {point.dist.version}"
    )
    place = f"{point.value} of {package}"
    return Origin(place=place, get=lambda: _import(point.load, place))


def _import(get: Callable[[], Any], place: str) -> Any:
    """Import external code. Raises PlanError with file, line and exception if that fails."""
    try:
        return get()
    except (Exception, SystemExit) as error:
        raise PlanError(
            f"{_where(error) or place}: {type(error).__name__}: {describe(error)}"
        ) from error


def _where(error: BaseException) -> str | None:
    """Return FILE:LINE of an error.

    For a syntax error it is its own line, else the deepest line in the file or in a file next to
    it.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    files = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith("<")
        and not _is_machinery(frame.f_code.co_filename)
    ]
    beside = [f"{file}:{line}" for file, line in files if file.is_relative_to(files[0][0].parent)]
    return beside[-1] if beside else None


def _is_machinery(file: str) -> bool:
    return file == __file__ or "importlib" in Path(file).parts[-3:-1]


def describe(error: BaseException) -> str:
    """Return the message of an error of external code."""
    try:
        said = error.msg if isinstance(error, SyntaxError) else str(error)
    except Exception:
        return "(its message cannot be read)"
    return said.encode(errors="backslashreplace").decode() or "no reason given"


def _checksum(module: ModuleType) -> str:
    file = Path(module.__file__ or "")
    return _digest((file, *sorted(file.parent.glob("_*.py"))))


def _digest(files: Iterable[Path]) -> str:
    content = hashlib.sha256()
    for path in files:
        if path.is_file():
            content.update(path.read_bytes())
    return content.hexdigest()
