"""Test the architecture rules that import contracts (pyproject.toml) cannot express."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALTERNATIVES = ("serve_eval/tasks", "serve_eval/scorers", "serve_eval/verdicts/rules", "launchers")


def _imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", ALTERNATIVES)
def test_alternatives_share_only_what_begins_with_an_underscore(folder: str) -> None:
    files = [file for file in (ROOT / folder).glob("*.py") if file.stem != "__init__"]
    public = {
        f"{folder.replace('/', '.')}.{file.stem}" for file in files if not file.stem.startswith("_")
    }
    assert public
    for file in files:
        assert not _imported(file) & public, file


def test_the_page_names_every_package_and_nothing_that_is_not_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    packages = [path.parent for path in ROOT.glob("serve_eval/**/__init__.py")]
    for package in packages:
        assert f"{package.name}/" in page, package
    for name in re.findall(
        r"`((?:[a-z_0-9]+/)+[a-z_0-9]*(?:\.py)?)`", page.partition("## What comes")[0]
    ):
        places = [
            ROOT / name,
            ROOT / "serve_eval" / name,
            ROOT / "serve_eval/evaluation" / name,
            *ROOT.glob(f"serve_eval/*/{name}"),
        ]
        assert any(place.exists() for place in places), name


def test_forty_behaviours_are_where_newcomers_are_sent() -> None:
    behaviours = tomllib.loads((ROOT / "tests/forty_behaviours.toml").read_text())
    assert len(behaviours) == 40
    assert not [file for file in behaviours.values() if not (ROOT / file).exists()]


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for folder in ("serve_eval", "launchers"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_nothing_reads_the_names_of_its_locals() -> None:
    files = (
        file for folder in ("serve_eval", "launchers") for file in (ROOT / folder).rglob("*.py")
    )
    assert [
        str(file) for file in files if re.search(r"\b(locals|vars)\(\)", file.read_text())
    ] == []


def test_every_package_says_what_it_holds() -> None:
    for init in (*ROOT.glob("serve_eval/**/__init__.py"), *ROOT.glob("launchers/**/__init__.py")):
        tree = ast.parse(init.read_text())
        assert ast.get_docstring(tree), init
        targets = [
            *(node.targets[0] for node in tree.body if isinstance(node, ast.Assign)),
            *(node.target for node in tree.body if isinstance(node, ast.AnnAssign)),
        ]
        assert "__all__" in map(ast.unparse, targets), init


Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def _list_functions() -> list[tuple[str, Function]]:
    """Return every function of the product with its location."""
    return [
        (f"{file.relative_to(ROOT)}:{node.lineno}", node)
        for folder in ("serve_eval", "launchers")
        for file in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, Function)
    ]


IRREGULAR = """begun built chosen done drawn found given gone got grown had held hidden kept known left lost made meant
met said seen sent shown spoken sworn taken thought told torn understood won written"""  # noqa: E501
NO_PARTICIPLE = frozenset(
    ("embed", "exceed", "feed", "need", "paired_t", "proceed", "seed", "shed", "succeed")
)


def _begins_with_participle(name: str) -> bool:
    word = name.strip("_").partition("_")[0]
    return not {name, word} & NO_PARTICIPLE and (
        word in IRREGULAR.split() or (len(word) > 3 and word.endswith("ed"))
    )


def test_functions_are_verbs_and_never_participles() -> None:
    assert all(map(_begins_with_participle, ("told_so_far", "_aggregated")))
    assert not any(map(_begins_with_participle, ("seed", "_find_known")))
    named = [
        f"{place} {function.name}"
        for place, function in _list_functions()
        if not any("property" in ast.unparse(one) for one in function.decorator_list)
        and _begins_with_participle(function.name)
    ]
    assert named == []


def test_parameters_of_one_letter_are_those_of_the_field() -> None:
    letters = {
        f"{place} {parameter.arg}"
        for place, function in _list_functions()
        for parameter in (
            *function.args.posonlyargs,
            *function.args.args,
            *function.args.kwonlyargs,
        )
        if len(parameter.arg) == 1 and parameter.arg not in "nkpiab_"
    }
    assert letters == set()
