"""Write a plan for each recipe of a file, and say what is left to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from serve_eval.cli._dry_run import describe_size
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.launch import check_launcher
from serve_eval.plan.resolve import resolve
from serve_eval.report.document import Document
from serve_eval.workflows import init
from serve_eval.workflows.init import RecipePlan, make_recipe_document
from serve_eval.workflows.init.recipe import DeploymentRecipe
from serve_eval.workflows.init.recipe_plans import read_recipes, split_selector, write_plan
from serve_eval.yaml_source import parse

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def write_recipe_plans(given: str, output: Path, *, model: str | None, force: bool) -> Document:
    """Write the plan of each recipe that FILE or FILE:VARIANT names, and return the document.

    `output` is the file of a single one; several have the names of their variants in theirs. Raises
    PlanError for a recipe that cannot be converted, and for files that exist, before any is
    written.
    """
    source, variant = split_selector(given)
    recipes = read_recipes(source, variant)
    if model is not None:
        recipes = [one.with_model(model) for one in recipes]
    files = _name_files(output, recipes)
    if not force and (taken := [str(file) for file in files if file.exists()]):
        raise PlanError(
            f"{', '.join(taken)} already exists",
            hint="Choose another name with -o, or replace it with --force.",
        )
    written = []
    for recipe, file in zip(recipes, files, strict=True):
        text = write_plan(recipe, str(source), file)
        init.save_starter_plan(file, text, force=force)
        needs, refused = _check(text, file, recipe.nodes)
        written.append(
            RecipePlan(file=file, comments=_list_comments(text), needs=needs, refused=refused)
        )
    return make_recipe_document(source, written)


def _name_files(output: Path, recipes: list[DeploymentRecipe]) -> list[Path]:
    if len(recipes) == 1:
        return [output]
    names = [_NOT_IN_NAMES.sub("-", one.variant) or str(i) for i, one in enumerate(recipes)]
    return [output.with_stem(f"{output.stem}-{name}") for name in names]


def _list_comments(text: str) -> list[str]:
    """Return the comments at the top of a plan, without the command that shows it."""
    head = text.partition("\n\n")[0].splitlines()
    lines = (line.removeprefix("#").strip() for line in head)
    return [line for line in lines if line and "--dry-run" not in line]


def _check(text: str, file: Path, nodes: int | None) -> tuple[str, str]:
    """Return the nodes that a plan needs, and why the launcher would refuse it."""
    try:
        plan = resolve(parse(text, str(file), PlanError).value, {}, os.environ).plan
        check_launcher(plan)
        return describe_size(plan, nodes) or "", ""
    except ServeEvalError as error:
        return "", str(error)
