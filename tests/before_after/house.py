"""Measure the structure of a checkout's code from its syntax alone.

A room is a package folder of `serve_eval` (at any depth), the top of `launchers`, a package folder
of it, or one module directly in `serve_eval`. This measures size, not quality; the order of layers
is checked elsewhere.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import zip_longest
from pathlib import Path

LONG_FILE, COMPLEX, LONGEST_CELL = 300, 10, 60
PACKAGES = ("serve_eval", "launchers")
WH_WORDS = ("what", "which", "whether", "where", "who", "whose", "when", "how", "why")


@dataclass(frozen=True, slots=True)
class Module:
    """A file: its dotted name, its syntax, and its imported modules of this repository."""

    name: str
    file: Path
    tree: ast.Module
    lines: int
    is_package: bool

    @property
    def room(self):
        """The package of the module; the module itself if it is directly in serve_eval."""
        if self.is_package:
            return self.name
        return (
            self.name
            if self.name.count(".") == 1 and self.name.startswith("serve_eval.")
            else _parent(self.name)
        )


def print_house(roots):
    """Print the figures of checkouts side by side, then the lists behind them."""
    columns = [_figures(root) for root in roots]
    width = max(map(len, columns[0]))
    print(f"{'':{width}}  " + "  ".join(f"{root.name:>14}" for root in roots))
    for name in columns[0]:
        cells = [column[name] for column in columns]
        shown = (str(len(cell)) if isinstance(cell, list) else str(cell) for cell in cells)
        print(f"{name:{width}}  " + "  ".join(f"{cell:>14}" for cell in shown))
    for name in columns[0]:
        lists = [column[name] for column in columns]
        if any(isinstance(cell, list) and cell for cell in lists):
            print(f"\n{name}:")
            for row in zip_longest(
                *(cell if isinstance(cell, list) else [] for cell in lists), fillvalue=""
            ):
                print("  " + "  ".join(f"{cell:{LONGEST_CELL}}" for cell in row).rstrip())
    return 0


def _figures(root):
    modules = {module.name: module for module in _modules(root)}
    files = {name: _imported(module, modules) for name, module in modules.items()}
    rooms = {module.room: set() for module in modules.values()}
    for name, found in files.items():
        here = modules[name].room
        rooms[here] |= {there for other in found if (there := modules[other].room) != here}
    held = defaultdict(int)
    for module in modules.values():
        if not module.is_package:
            held[_parent(module.name)] += 1
    largest = max(held, key=lambda folder: held[folder])
    docstrings = list(_docstrings(modules))
    asking = sum(
        text.split(maxsplit=1)[0].strip(".,:").lower() in WH_WORDS
        for text in docstrings
        if text.strip()
    )
    return {
        "modules": len(modules),
        "lines": sum(module.lines for module in modules.values()),
        "rooms": len(rooms),
        "arrows between rooms": sum(map(len, rooms.values())),
        "cycles among rooms": [" ".join(cycle) for cycle in _cycles(rooms)],
        "cycles among files": [" ".join(cycle) for cycle in _cycles(files)],
        "floors of rooms": _floors(rooms),
        "modules in the largest folder": held[largest],
        f"files above {LONG_FILE} lines": sorted(
            (
                f"{module.lines:5} {name}"
                for name, module in modules.items()
                if module.lines > LONG_FILE
            ),
            reverse=True,
        ),
        f"functions with McCabe above {COMPLEX}": _complex(root),
        "public class names that are not unique": _duplicates(modules),
        "docstrings": len(docstrings),
        "docstrings that open with a wh-word": (
            f"{asking} ({100 * asking / max(len(docstrings), 1):.1f} %)"
        ),
        "dependencies installed by default": _dependencies(root),
        "parameters of `serve-eval run`": _parameters(modules),
    }


def _modules(root):
    for package in PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            text = file.read_text("utf-8")
            parts = file.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            yield Module(name, file, ast.parse(text), len(text.splitlines()), is_package)


def _imported(module, modules):
    """Return the modules that a file imports at any place.

    Imports for type checkers only, and those of its own package, are left out.
    """
    base = module.name if module.is_package else _parent(module.name)
    found = set()
    for node in _running(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in modules}
        elif isinstance(node, ast.ImportFrom):
            above = base.split(".")[: base.count(".") + 2 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                found |= {
                    name
                    for name in ((inner,) if inner in modules else (source,))
                    if name in modules
                }
    return found - {module.name}


def _running(tree):
    """Return the nodes that run, without the bodies of `if TYPE_CHECKING`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for other in node.orelse:
                yield other
                yield from _running(other)
            continue
        yield node
        yield from _running(node)


def _parent(name):
    return name.rpartition(".")[0]


def _cycles(graph):
    """Return the strongly connected sets of two or more nodes, by Tarjan's algorithm."""
    index = {}
    low = {}
    stack = []
    found = []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            place = stack.index(node)
            found.append(sorted(stack[place:]))
            del stack[place:]

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return [cycle for cycle in found if len(cycle) > 1]


def _floors(graph):
    """Return the number of nodes on the longest path; a cycle counts as one node."""
    together = {node: cycle[0] for cycle in _cycles(graph) for node in cycle}
    merged = defaultdict(set)
    for node, others in graph.items():
        here = together.get(node, node)
        merged[here] |= {there for other in others if (there := together.get(other, other)) != here}
    height = {}
    for node in TopologicalSorter(merged).static_order():
        height[node] = 1 + max((height[other] for other in merged.get(node, ())), default=0)
    return max(height.values(), default=0)


def _complex(root):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select",
        "C901",
        "--exit-zero",
    ]
    command += [
        "--config",
        f"lint.mccabe.max-complexity={COMPLEX}",
        "--output-format",
        "json",
        *PACKAGES,
    ]
    said = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    rows = (
        (row["message"], Path(row["filename"]).relative_to(root.resolve()))
        for row in json.loads(said)
    )
    return sorted(f"{file}: {message.replace(' is too complex', '')}" for message, file in rows)


def _duplicates(modules):
    where = defaultdict(list)
    for name, module in modules.items():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(name)
    return [f"{name}: {' '.join(files)}" for name, files in sorted(where.items()) if len(files) > 1]


def _docstrings(modules):
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield text


def _dependencies(root):
    return len(
        tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    )


def _parameters(modules):
    """Return the number of parameters of the function behind `serve-eval run`.

    It is `run` in the module of that name.
    """
    found = []
    is_run = lambda node: getattr(node, "name", "") == "run"  # noqa: E731
    for name in ("serve_eval.cli.run", "serve_eval.cli.commands.run"):
        if name in modules:
            body = [node for node in modules[name].tree.body if is_run(node)]
            found += [
                node.args
                for node in body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            ]
    counted = [len(each.posonlyargs) + len(each.args) + len(each.kwonlyargs) for each in found]
    return counted[0] if counted else "not found"
