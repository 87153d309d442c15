"""Test the rules of the architecture that import contracts cannot express, also of storage.

Other modules use its readers and writers.
"""

from __future__ import annotations

import ast
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
from serve_eval.storage import file_names
from tests.root import ROOT

ALTERNATIVES = ("serve_eval/tasks", "serve_eval/scorers", "serve_eval/verdicts/rules", "launchers")


def _imported(file):
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("folder", ALTERNATIVES)
def test_alternatives_share_only_what_begins_with_an_underscore(folder):
    files = [file for file in (ROOT / folder).glob("*.py") if file.stem != "__init__"]
    public = {
        f"{folder.replace('/', '.')}.{file.stem}" for file in files if not file.stem.startswith("_")
    }
    assert public
    for file in files:
        assert not _imported(file) & public, file


def test_the_page_names_every_package_and_nothing_that_is_not_there():
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


def test_forty_behaviours_are_where_newcomers_are_sent():
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
def _survey():
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


def _describe(place, node):
    given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    return Function(
        place=f"{place}:{node.lineno}",
        name=node.name,
        is_property=any("property" in ast.unparse(one) for one in node.decorator_list),
        parameters=tuple(parameter.arg for parameter in given),
    )


def test_public_class_names_are_unique():
    places = {}
    for place, name in _survey().classes:
        places.setdefault(name, []).append(place)
    assert not {name: files for name, files in places.items() if len(files) > 1}


def test_nothing_reads_the_names_of_its_locals():
    files = (
        file for folder in ("serve_eval", "launchers") for file in (ROOT / folder).rglob("*.py")
    )
    assert [
        str(file) for file in files if re.search(r"\b(locals|vars)\(\)", file.read_text())
    ] == []


def test_every_package_says_what_it_holds():
    for init in (*ROOT.glob("serve_eval/**/__init__.py"), *ROOT.glob("launchers/**/__init__.py")):
        assert ast.get_docstring(ast.parse(init.read_text())), init


IRREGULAR = """begun built chosen done drawn found given gone got grown had held hidden kept known left lost made meant
met said seen sent shown spoken sworn taken thought told torn understood won written"""  # noqa: E501
NO_PARTICIPLE = frozenset(
    ("embed", "exceed", "feed", "need", "paired_t", "proceed", "seed", "shed", "succeed")
)


def _begins_with_participle(name):
    word = name.strip("_").partition("_")[0]
    return not {name, word} & NO_PARTICIPLE and (
        word in IRREGULAR.split() or (len(word) > 3 and word.endswith("ed"))
    )


def test_functions_are_verbs_and_never_participles():
    assert all(map(_begins_with_participle, ("told_so_far", "_aggregated")))
    assert not any(map(_begins_with_participle, ("seed", "_find_known")))
    named = [
        f"{function.place} {function.name}"
        for function in _survey().functions
        if not function.is_property and _begins_with_participle(function.name)
    ]
    assert named == []


def test_parameters_of_one_letter_are_those_of_the_field():
    letters = {
        f"{function.place} {parameter}"
        for function in _survey().functions
        for parameter in function.parameters
        if len(parameter) == 1 and parameter not in "nkpiab_"
    }
    assert letters == set()


PAGE = (ROOT / "docs/extending.md").read_text().partition("\n## From Python\n")[2]
PAGE = PAGE.partition("\n## ")[0]
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
PRINTED = re.findall(r"^It prints `([^`]+)`", PAGE, re.MULTILINE)


def test_the_list_is_sorted_and_every_name_is_there():
    assert serve_eval.__all__ == sorted(serve_eval.__all__)
    assert all(getattr(serve_eval, name) is not None for name in serve_eval.__all__)
    with pytest.raises(AttributeError, match="no attribute 'evaluated'"):
        _ = serve_eval.evaluated


def test_importing_it_imports_nothing_else():
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


def test_the_examples_print_what_the_page_says(tmp_path):
    script = tmp_path / "example.py"
    script.write_text("".join(EXAMPLES[:3]))
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.stdout.splitlines() == PRINTED[:3], done.stderr


def test_the_smoke_example_checks_an_endpoint(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[3])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert done.returncode == 4, done.stderr
    assert "FAIL reachable" in done.stdout


async def test_one_server_is_not_compared_with_itself(tmp_path):
    launcher = serve_eval.Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    plan = serve_eval.Plan(model="m", launcher=launcher, tasks=(serve_eval.Spec(name="aime"),))
    with pytest.raises(serve_eval.ServeEvalError, match="A and B are the same server"):
        await serve_eval.compare(plan, plan, tmp_path / "compared")
    assert not list(tmp_path.iterdir())


async def test_the_text_of_a_report_is_one_line_with_its_folder(tmp_path):
    plan = serve_eval.Plan(
        model="m",
        launcher=serve_eval.Spec(name="simulated", options={"accuracy": 1.0}),
        tasks=(serve_eval.Spec(name="word_problems", options={"num_samples": 5}),),
        no_reference=True,
    )
    folder = tmp_path / "run"
    report = await serve_eval.evaluate(plan, folder)
    assert str(report).startswith("NO REFERENCE word_problems m: 100.0; 5 asked, 0 failed")
    assert str(report).endswith(f"; {folder}")
    assert "\n" not in str(report)
    assert str(replace(report, warnings=("more",))).startswith("NO REFERENCE word_problems m")


@pytest.mark.slow
def test_the_verify_example_finds_other_weights(tmp_path):
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[4])
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.stdout.splitlines() == PRINTED[3:], done.stderr


@pytest.mark.slow
def test_mypy_knows_the_types_of_the_examples(tmp_path):
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


PACKAGE = Path(serve_eval.__file__).parent
STORAGE = PACKAGE / "storage"
NAMES = {
    name: value
    for name, value in vars(file_names).items()
    if name.isupper() and isinstance(value, str)
}
FILES = {value for value in NAMES.values() if "." in value}
FOLDERS = set(NAMES.values()) - FILES - {file_names.SIDE_A, file_names.SIDE_B, file_names.LOCK_FILE}
FUNCTIONS = {
    name
    for name, value in vars(file_names).items()
    if callable(value) and name.endswith(("_file", "_samples"))
}
OPENING = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "unlink"}
PATHS = {"Path", "glob", "rglob", "joinpath", "with_name"}
IN_TEXT = re.compile(rf"[\"'/}}](?:{'|'.join(map(re.escape, FILES | FOLDERS))})[\"'/{{]")
"""A name between quotes, slashes and braces, as all parts of a path are."""
OTHERS = {
    ("workflows/servers", "servers"): "the folder of a user's state for held servers",
    (
        "workflows/references",
        "samples",
    ): "the folder of a collection of references, next to its YAML files",
    ("workflows/capsule", "logs"): "the folder of a capsule",
}
"""Paths that share the name of a folder of a run."""


def _modules():
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not path.is_relative_to(STORAGE)]


def _named(text):
    """Return the files and folders of a run that a piece of a path names."""
    return (FILES | FOLDERS) & set(re.split(r"[/{}]", text))


def _texts(node):
    """Yield the constant texts of a path operand, but not those of calls and look-ups."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _texts(part)


def _literals(tree):
    """Yield the places that build a path from a name that only storage should know.

    Names of files count anywhere.
    """
    for node in ast.walk(tree):
        operands = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            operands = node.args if called in PATHS else []
        found = {name for operand in operands for text in _texts(operand) for name in _named(text)}
        if isinstance(node, ast.Constant) and node.value in FILES:
            found.add(str(node.value))
        yield from ((getattr(node, "lineno", 0), name) for name in sorted(found))


def _opened(tree):
    """Yield the places that open a path built from names of storage.

    The path may be in a variable.
    """
    known = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == file_names.__name__
        for alias in node.names
    }
    if not known:  # then no variable of the module is a path of a known name
        return
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        tainted = set(known)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _is_path(node.value, tainted):
                tainted |= {
                    name.id
                    for target in node.targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if (
                attribute in OPENING
                and isinstance(node.func, ast.Attribute)
                and _is_path(node.func.value, tainted)
            ):
                yield node.lineno, f".{attribute}()"
            if (
                node.args
                and _is_path(node.args[0], tainted)
                and ast.unparse(node.func) in ("open", "os.open")
            ):
                yield node.lineno, "open()"


def _is_path(node, tainted):
    """Return True if an expression is a path of a known name.

    It is a division, a call of a path function, or a variable.
    """
    if isinstance(node, ast.Name):
        return node.id in tainted
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_path(node.left, tainted) or _is_path(node.right, tainted)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in tainted & FUNCTIONS
    )


def _excused(module, name):
    return any(
        folder in module.relative_to(PACKAGE).as_posix() and name == other
        for folder, other in OTHERS
    )


@cache
def _scan():
    """Return the places of the package that name, and those that open, the files of a run."""
    named = []
    opened = []
    for module in _modules():
        text = module.read_text()
        if not IN_TEXT.search(text) and file_names.__name__ not in text:
            continue  # most modules need no tree
        tree = ast.parse(text)
        place = module.relative_to(PACKAGE)
        named += [
            f"{place}:{line}: {name}"
            for line, name in _literals(tree)
            if not _excused(module, name)
        ]
        opened += [f"{place}:{line}: {how}" for line, how in _opened(tree)]
    return named, opened


def test_only_storage_knows_the_names_of_the_files_of_a_run():
    found, _ = _scan()
    assert not found, "take them from storage/file_names.py:\n" + "\n".join(found)


def test_only_storage_opens_the_files_of_a_run():
    _, found = _scan()
    assert not found, "read and write them by a function of storage/:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('run / "scores" / f"{stem}.jsonl"', ["scores"]),
        ('run / f"samples/{stem}.jsonl"', ["samples"]),
        ('Path("executions")', ["executions"]),
        ('out.glob("*/judgements/*.jsonl")', ["judgements"]),
        ('names = ("report.json", other)', ["report.json"]),
        ('fingerprint["samples"], told.get("logs")', []),
        ('print(f"see {run}: report.json names the files")', []),
    ],
)
def test_the_scan_sees_names_in_paths_and_nowhere_else(source, seen):
    assert [name for _, name in _literals(ast.parse(source))] == seen


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("scores_file(run, task).read_bytes()", [".read_bytes()"]),
        ("file = run / REPORT_FILE\n    file.unlink()", [".unlink()"]),
        ("file = run / REPORT_FILE\n    with open(file) as it: pass", ["open()"]),
        ("Journal(scores_file(run, task))\n    other.read_text()", []),
    ],
)
def test_the_scan_sees_files_that_are_opened_past_storage(body, seen):
    source = (
        f"from {file_names.__name__} import REPORT_FILE, scores_file\ndef f(run, task):\n   "
        f" {body}\n"
    )
    assert [how for _, how in _opened(ast.parse(source))] == seen


def test_the_road_is_ten_files_that_are_read_in_an_hour():
    page = (ROOT / "docs/architecture.md").read_text()
    road = re.findall(r"^\| `(serve_eval/[\w/]+\.py)` \|", page, re.MULTILINE)
    assert len(road) == 10
    assert sum(len((ROOT / file).read_text().splitlines()) for file in road) <= 4000


MOST_LINES = 440
"""A tenth more than docs/architecture.md names, so that a mended fault splits no file."""


def test_a_file_is_one_idea():
    files = (
        file for folder in ("serve_eval", "launchers") for file in (ROOT / folder).rglob("*.py")
    )
    long = {file: n for file in files if (n := len(file.read_text().splitlines())) > MOST_LINES}
    assert long.keys() == {ROOT / "serve_eval/schema/__init__.py"}, "it only lists names"
