"""Write files in the layout of BFCL v4, with questions and answers of our own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve_eval.tasks._bfcl.rows import CATEGORIES

Answer = dict[str, dict[str, list[Any]]]

FUNCTIONS: list[dict[str, Any]] = [
    {
        "name": "shape.area",
        "description": "Compute the area of a shape.",
        "parameters": {
            "type": "dict",
            "properties": {
                "width": {"type": "integer", "description": "The width."},
                "height": {"type": "float", "description": "The height."},
                "unit": {"type": "string", "description": "The unit.", "default": "cm"},
            },
            "required": ["width", "height"],
        },
    },
    {
        "name": "paint",
        "description": "Paint places.",
        "parameters": {
            "type": "dict",
            "properties": {
                "places": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "The places.",
                },
                "at": {"type": "tuple", "items": {"type": "float"}, "description": "A point."},
                "style": {
                    "type": "dict",
                    "description": "The style.",
                    "properties": {
                        "glossy": {"type": "boolean", "description": "True if it shines."},
                        "strength": {"type": "float", "description": "How strong it is."},
                    },
                },
                "steps": {
                    "type": "array",
                    "items": {
                        "type": "dict",
                        "properties": {"tool": {"type": "any", "description": "A tool."}},
                    },
                    "description": "The steps.",
                },
            },
            "required": ["places"],
        },
    },
]
"""Functions with all the types of BFCL, as the files write them."""


JAVA: dict[str, Any] = {
    "name": "Store.put",
    "description": "Put things into a store.",
    "parameters": {
        "type": "dict",
        "properties": {
            "store": {"type": "any", "description": "The store."},
            "number": {"type": "long", "description": "The number."},
            "names": {
                "type": "ArrayList",
                "items": {"type": "String"},
                "description": "The names.",
            },
            "flags": {"type": "HashMap", "description": "The flags."},
            "quick": {"type": "boolean", "description": "True if it is quick."},
        },
        "required": ["store", "number"],
    },
}
JAVASCRIPT: dict[str, Any] = {
    "name": "drawLine",
    "description": "Draw a line.",
    "parameters": {
        "type": "dict",
        "properties": {
            "points": {
                "type": "array",
                "items": {"type": "float"},
                "description": "The points.",
            },
            "pen": {
                "type": "dict",
                "properties": {"colour": {"type": "String", "description": "Its colour."}},
                "description": "The pen.",
            },
            "closed": {"type": "Boolean", "description": "True if it ends where it began."},
            "done": {"type": "any", "description": "Called at the end."},
        },
        "required": ["points"],
    },
}


def right_java(i: int) -> Answer:
    """Return the expected call of the function in Java for the row with a number."""
    values: dict[str, list[Any]] = {
        "store": ["mainStore"],
        "number": [i],
        "names": [["a b", f"c{i}"]],
        "flags": [{"on": [True], "size": [2]}],
        "quick": [False],
    }
    return {"Store.put": values}


def right_javascript(i: int) -> Answer:
    """Return the expected call of the function in JavaScript for the row with a number."""
    values: dict[str, list[Any]] = {
        "points": [[1.5, float(i)]],
        "pen": [{"colour": ["red"]}],
        "closed": [True, ""],
        "done": ["onDone"],
    }
    return {"drawLine": values}


def right_area(i: int) -> Answer:
    """Return the expected call of the first function for the row with a number."""
    return {"shape.area": {"width": [i], "height": [2.5, i + 1], "unit": ["", "cm"]}}


def right_paint(i: int) -> Answer:
    """Return the expected call of the second function for the row with a number."""
    values: dict[str, list[Any]] = {
        "places": [["Oslo, Norway", f"Road {i}"]],
        "at": [[1.5, i], ""],
        "style": [{"glossy": [True], "strength": [0.5, ""]}],
        "steps": [[{"tool": ["brush", "roller"]}]],
    }
    return {"paint": values}


def row_of(category: str, i: int) -> tuple[dict[str, Any], list[Answer]]:
    """Return the question of a category with a number, and its answer (empty: it has none)."""
    multiple = "multiple" in category or category.endswith("relevance")
    answer = [right_area(i), right_paint(i)] if "multiple" in category else [right_area(i)]
    if "parallel" in category and not multiple:
        answer = [right_area(i), right_area(i + 7)]
    if category in ("multiple", "live_multiple"):
        answer = answer[i % 2 :][:1]
    functions = FUNCTIONS if multiple else FUNCTIONS[:1]
    if CATEGORIES[category].language == "java":
        functions, answer = [JAVA], [right_java(i)]
    elif CATEGORIES[category].language == "javascript":
        functions, answer = [JAVASCRIPT], [right_javascript(i)]
    turns = [{"role": "user", "content": f"Question {i} of {category}."}]
    if category.startswith("live") and i % 5 == 0:
        turns.insert(0, {"role": "system", "content": "You are brief."})
    row = {
        "id": f"{category}_{i}" + (f"-{i}-0" if category.startswith("live") else ""),
        "question": [turns],
        "function": functions,
    }
    return row, answer if CATEGORIES[category].wanted == "calls" else []


def write_bfcl(folder: Path, rows: Mapping[str, int] | None = None) -> None:
    """Write the files of all categories, or of some with their numbers of rows."""
    counts = rows or {name: category.rows for name, category in CATEGORIES.items()}
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    for name, count in counts.items():
        made = [row_of(name, i) for i in range(count)]
        (folder / f"BFCL_v4_{name}.json").write_text(
            "\n".join(json.dumps(row) for row, _ in made), encoding="utf-8"
        )
        if CATEGORIES[name].wanted == "calls":
            answers = [{"id": row["id"], "ground_truth": answer} for row, answer in made]
            (folder / f"possible_answer/BFCL_v4_{name}.json").write_text(
                "\n".join(map(json.dumps, answers)), encoding="utf-8"
            )
