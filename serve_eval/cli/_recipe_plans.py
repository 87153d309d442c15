"""Write a plan for each recipe of a file, and say what is left to do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from serve_eval.cli._launch_preview import describe_size
from serve_eval.cli._streams import emit, say
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.endpoint.launch import check_launcher
from serve_eval.evaluation.plan.resolve import resolve
from serve_eval.report.text import clean
from serve_eval.shell_words import quote_path
from serve_eval.workflows.init import starter_plan
from serve_eval.workflows.init.recipes.plan_text import write_plan
from serve_eval.workflows.init.recipes.reading import read_recipes, split_selector
from serve_eval.workflows.init.recipes.recipe import DeploymentRecipe
from serve_eval.yaml_source import parse

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


def write_recipe_plans(given: str, output: Path, *, model: str | None, force: bool) -> None:
    """Write the plan of each recipe that FILE or FILE:VARIANT names.

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
    for recipe, file in zip(recipes, files, strict=True):
        text = write_plan(recipe, str(source), file)
        starter_plan.save_starter_plan(file, text, force=force)
        _show(text, file)
        for line in _check(text, file, recipe.nodes):
            say(line)
    emit(clean("\n".join(_list_next(files))) + "\n")


def _name_files(output: Path, recipes: list[DeploymentRecipe]) -> list[Path]:
    if len(recipes) == 1:
        return [output]
    names = [_NOT_IN_NAMES.sub("-", one.variant) or str(i) for i, one in enumerate(recipes)]
    return [output.with_stem(f"{output.stem}-{name}") for name in names]


def _show(text: str, file: Path) -> None:
    """Say what the comments at the top of a plan say."""
    head = text.partition("\n\n")[0].splitlines()
    lines = [line.removeprefix("#").strip() for line in head]
    say(*(line for line in (f"{file}:", *lines) if line and "--dry-run" not in line))


def _check(text: str, file: Path, nodes: int | None) -> Iterator[str]:
    """Yield why the launcher would refuse the plan, else the nodes that it needs."""
    try:
        plan = resolve(parse(text, str(file), PlanError).value, {}, os.environ).plan
        check_launcher(plan)
        if need := describe_size(plan, nodes):
            yield f"note: {file}: {need}"
    except ServeEvalError as error:
        yield f"warning: {file}: a run would be refused: {error}"


def _list_next(files: list[Path]) -> list[str]:
    """Return the commands that come next."""
    first = quote_path(files[0])
    return [
        f"{', '.join(map(str, files))} written. Next:",
        f"  serve-eval run {first} --dry-run",
        f"  serve-eval run {first} --rehearse   # with stand-ins for the servers",
        f"  serve-eval run {first}",
    ]
