"""Test the rules of the architecture and the public API that import contracts cannot express."""

from __future__ import annotations

import ast
import asyncio
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import serve_eval

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


class Function(NamedTuple):
    """A function of the product."""

    place: str
    name: str
    is_property: bool
    parameters: tuple[str, ...]


class Survey(NamedTuple):
    """The functions of the product, and its public classes with their files."""

    functions: list[Function]
    classes: list[tuple[str, str]]


@cache
def _survey() -> Survey:
    """Parse the product once for all tests."""
    survey = Survey([], [])
    for folder in ("serve_eval", "launchers"):
        for file in (ROOT / folder).rglob("*.py"):
            place, tree = str(file.relative_to(ROOT)), ast.parse(file.read_text())
            survey.classes.extend(
                (place, node.name)
                for node in tree.body
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
            )
            survey.functions.extend(
                _describe(place, node)
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            )
    return survey


def _describe(place: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Function:
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return Function(
        place=f"{place}:{node.lineno}",
        name=node.name,
        is_property=any("property" in ast.unparse(one) for one in node.decorator_list),
        parameters=tuple(parameter.arg for parameter in given),
    )


def test_public_class_names_are_unique() -> None:
    places: dict[str, list[str]] = {}
    for place, name in _survey().classes:
        places.setdefault(name, []).append(place)
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
        f"{function.place} {function.name}"
        for function in _survey().functions
        if not function.is_property and _begins_with_participle(function.name)
    ]
    assert named == []


def test_parameters_of_one_letter_are_those_of_the_field() -> None:
    letters = {
        f"{function.place} {parameter}"
        for function in _survey().functions
        for parameter in function.parameters
        if len(parameter) == 1 and parameter not in "nkpiab_"
    }
    assert letters == set()


PAGE = (ROOT / "docs/python-api.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = re.findall(r"^It prints `([^`]+)`", PAGE, re.MULTILINE)


def test_the_list_is_sorted_and_every_name_is_there() -> None:
    assert serve_eval.__all__ == sorted(serve_eval.__all__)
    assert all(getattr(serve_eval, name) is not None for name in serve_eval.__all__)
    with pytest.raises(AttributeError, match="no attribute 'evaluated'"):
        _ = serve_eval.evaluated  # type: ignore[attr-defined]


def test_importing_it_imports_nothing_else() -> None:
    code = (
        "import sys; before = set(sys.modules); import serve_eval; print(*sorted(set(sys.modules) -"
        " before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    others = {name.partition(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert others == {"serve_eval"}
    assert "serve_eval." not in done.stdout


def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("".join(EXAMPLES[:3]))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.stdout.splitlines() == PRINTED[:3], done.stderr


def test_the_smoke_example_checks_an_endpoint(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[3])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 4, done.stderr
    assert "FAIL reachable" in done.stdout


def test_one_server_is_not_compared_with_itself(tmp_path: Path) -> None:
    launcher = serve_eval.Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    plan = serve_eval.Plan(model="m", launcher=launcher, tasks=(serve_eval.Spec(name="aime"),))
    with pytest.raises(serve_eval.ServeEvalError, match="A and B are the same server"):
        asyncio.run(serve_eval.compare(plan, plan, tmp_path / "compared"))
    assert not list(tmp_path.iterdir())


def test_the_text_of_a_report_is_one_line_with_its_folder(tmp_path: Path) -> None:
    plan = serve_eval.Plan(
        model="m",
        launcher=serve_eval.Spec(name="simulated", options={"accuracy": 1.0}),
        tasks=(serve_eval.Spec(name="word_problems", options={"num_samples": 5}),),
        no_reference=True,
    )
    folder = tmp_path / "run"
    report = asyncio.run(serve_eval.evaluate(plan, folder))
    assert str(report).startswith("NO REFERENCE word_problems m: 100.0; 5 asked, 0 failed")
    assert str(report).endswith(f"; {folder}")
    assert "\n" not in str(report)
    assert str(replace(report, warnings=("more",))).startswith("NO REFERENCE word_problems m")


@pytest.mark.slow
def test_the_verify_example_finds_other_weights(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[4])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.stdout.splitlines() == PRINTED[3:], done.stderr


@pytest.mark.slow
def test_mypy_knows_the_types_of_the_examples(tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text("".join(EXAMPLES))
    check = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(tmp_path / "cache"),
        str(script),
    ]
    done = subprocess.run(check, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout
