"""Convert every recipe below some folders, and check each plan as a dry run does.

    python -m tests.recipes.conversion FOLDER...

prints, for each folder, how many recipes became plans, and why others did not.
"""

import sys
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

from serve_eval.cli import _dry_run
from serve_eval.errors import ServeEvalError
from serve_eval.plan.resolve import resolve
from serve_eval.workflows.init.recipe_plans import read_recipes, write_plan
from serve_eval.yaml_source import parse

NO_RECIPE = ("no form of a recipe", "cannot be read as YAML")


@dataclass
class Conversion:
    """Count the plans of a folder by the launcher that they use, and the recipes that have none.

    `refused` counts files by the reason, `failed` has the plans that a dry run refuses.
    """

    forms: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    others: int = 0

    @property
    def plans(self):
        return sum(self.forms.values())


def convert(folder):
    """Return what came of the recipes below a folder."""
    found = Conversion()
    for file in sorted(folder.rglob("*.y*ml")):
        try:
            recipes = read_recipes(file)
        except ServeEvalError as error:
            reason = str(error).removeprefix(str(file)).partition(": ")[2]
            if reason.startswith(NO_RECIPE):
                found.others += 1
            else:
                found.refused[reason] += 1
            continue
        for recipe in recipes:
            if problem := check(recipe, str(file)):
                found.failed[f"{file} {recipe.variant}"] = problem
            else:
                found.forms[f"{recipe.form}, launcher {_launcher(recipe, str(file))}"] += 1
    return found


def check(recipe, source):
    """Return why a dry run refuses the plan of a recipe; empty if it does not."""
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            code = _dry_run.show(resolve(_read(recipe, source), {}, {}).plan, as_json=False)
        return "" if code == 0 else f"exit code {code}"
    except ServeEvalError as error:
        return str(error)


def _read(recipe, source):
    text = write_plan(recipe, source, Path("plan.yaml"))
    return parse(text, "plan.yaml", ValueError).value


def _launcher(recipe, source):
    launcher = _read(recipe, source)["launcher"]
    assert isinstance(launcher, dict)
    return str(launcher["name"])


def list_lines(folder):
    """Yield the result of a folder for people."""
    began = time.monotonic()
    found = convert(folder)
    yield f"{folder}: {found.plans} plans, {len(found.failed)} refused by a dry run"
    yield from (f"  {count:5} {form}" for form, count in found.forms.most_common())
    yield from (f"  {count:5} files not converted: {why}" for why, count in found.refused.items())
    yield f"  {found.others:5} files that are no recipes"
    yield from (f"  refused: {name}: {why}" for name, why in found.failed.items())
    yield f"  {time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print("\n".join(list_lines(Path(argument))))
