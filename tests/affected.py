"""Find the tests that a change can affect: those that import what has changed, the nearest first.

The imports are those of grimp, which import-linter brings. A tool that records which test runs
which line (pytest-testmon) needs the records of an earlier run, which a clean clone lacks.

Three kinds of use are no imports, and are taken from the text of a test: a command, launcher, task,
scorer or rule, which is found by its name; a file that is no module, such as a page of the
documentation; and conftest.py of the folders above.
"""

from __future__ import annotations

import re
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).resolve().parents[1]
BY_NAME = (
    *("checks.kinds", "cli", "launchers", "report.results_table", "scorers", "tasks"),
    "verdicts.rules",
)
"""Packages whose modules are found by their names."""
FOR_ALL = ("constraints.txt", "pyproject.toml", "tests/conftest.py")
"""Files that can affect every test."""
OF_MODULES = ("launchers/", "serve_eval/", "tests/")
FAR = 99
"""The distance of a test that only such a file affects."""
DAY_S = 86_400


def changes(base: str | None) -> list[list[str]]:
    """Return groups of changed files, the most recent first.

    With a `base`, there is one: all that has changed since. Without one, there are the last commit
    (all of its branch, if it is a merge) with what is not committed, and the commits of the day
    before it: what is pushed together is seldom older. Without git, there are none.
    """
    if base:
        return [_git("diff", "--name-only", base)]
    here = _git("diff", "--name-only", "HEAD") + _git("ls-files", "--others", "--exclude-standard")
    last = _git("diff", "--name-only", "HEAD^1", "HEAD")
    when = _git("log", "-1", "--format=%ct")
    if not when:
        return []
    since = f"--since=@{int(when[0]) - DAY_S}"
    day = _git("log", since, "--name-only", "--format=", "HEAD")
    return [sorted({*here, *last}), sorted({*day} - {""})]


def _git(*arguments: str) -> list[str]:
    command = ["git", "-c", "core.quotePath=off", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else []


def module_of(file: str) -> str:
    """Return the name of the module of a Python file of this repository."""
    path = PurePosixPath(file)
    if path.parts[0] == "launchers":  # serve_eval/launchers is a link to it
        path = "serve_eval" / path
    named = path.with_suffix("")
    return ".".join(named.parent.parts if named.name == "__init__" else named.parts)


def file_of(module: str) -> Path:
    """Return the file of a module, or of a package's __init__."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return for each module of the product and of its tests the modules that use it."""
    graph = grimp.build_graph("serve_eval", "tests", cache_dir=None)
    used_by = {one: set(graph.find_modules_that_directly_import(one)) for one in graph.modules}
    for test, text in texts().items():
        for module in _named_in(text, used_by):
            used_by[module].add(test)
        for above in PurePosixPath(test.replace(".", "/")).parents:
            conftest = ".".join((*above.parts, "conftest"))
            if conftest in used_by and conftest not in (test, "tests.conftest"):
                used_by[conftest].add(test)
    return {module: frozenset(users) for module, users in used_by.items()}


@cache
def texts() -> Mapping[str, str]:
    """Return the text of each module of the tests."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    return {module_of(file.relative_to(ROOT).as_posix()): file.read_text("utf-8") for file in files}


@cache
def _by_name() -> Mapping[str, tuple[str, ...]]:
    """Return the modules that are found by their names, by the last part of their names."""
    graph: dict[str, list[str]] = {}
    for package in BY_NAME:
        for file in sorted(ROOT.joinpath("serve_eval", *package.split(".")).glob("[a-z]*.py")):
            graph.setdefault(file.stem, []).append(f"serve_eval.{package}.{file.stem}")
    return {stem: tuple(modules) for stem, modules in graph.items()}


def _named_in(text: str, known: Mapping[str, object]) -> Iterator[str]:
    """Yield the modules that a text names: commands in quotes or behind serve-eval, others so."""
    words = set(re.findall(r"[a-z_0-9]+", text.replace("-", "_")))
    commands = {one or other for one, other in re.findall(r'"([a-z]+)"|serve-eval ([a-z]+)', text)}
    for stem in words & _by_name().keys():
        for module in _by_name()[stem]:
            if module in known and (stem in commands or not module.startswith("serve_eval.cli.")):
                yield module


def distances(files: Iterable[str]) -> dict[str, int]:
    """Return the tests that changed files can affect, with the imports between them.

    The tests are files, such as tests/test_masking.py.
    """
    start: dict[str, int] = {}
    for file in files:
        if file in FOR_ALL:
            start.update(dict.fromkeys(texts(), FAR) | start)
        elif file.endswith(".py") and file.startswith(OF_MODULES):
            start[module_of(file)] = 0
        else:
            start.update(dict.fromkeys(_mentioning(file), 1) | start)
    found = _spread(start, imports())
    return {
        file_of(module).relative_to(ROOT).as_posix(): distance
        for module, distance in found.items()
        if module.split(".")[0] == "tests" and module.split(".")[-1].startswith("test_")
    }


def _mentioning(file: str) -> Iterator[str]:
    """Yield the modules of tests that name a file, or that stand in its folder."""
    name, folder = PurePosixPath(file).name, PurePosixPath(file).parent.as_posix()
    for module, text in texts().items():
        beside = folder.startswith("tests/") and module.startswith(folder.replace("/", ".") + ".")
        if beside or name in text:
            yield module


def _spread(start: Mapping[str, int], used_by: Mapping[str, frozenset[str]]) -> dict[str, int]:
    """Return the least distance of every module that uses one of `start`, directly or not."""
    found = dict(start)
    queue: deque[str] = deque(sorted(found, key=lambda module: found[module]))
    while queue:
        module = queue.popleft()
        for user in used_by.get(module, ()):
            if found[module] + 1 < found.get(user, FAR + 1):
                found[user] = found[module] + 1
                queue.append(user)
    return found


def rank(groups: Sequence[Sequence[str]]) -> dict[str, tuple[int, int]]:
    """Return the affected test files with the group of the change and the distance from it."""
    ranked: dict[str, tuple[int, int]] = {}
    for number, files in enumerate(groups):
        for test, distance in distances(files).items():
            ranked.setdefault(test, (number, distance))
    return ranked
