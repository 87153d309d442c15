"""Recognise the form of a recipe file, and read its recipes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.workflows.init.recipes import (
    dynamo,
    orchestrator_file,
    srt_slurm,
    trtllm_benchmark,
)
from serve_eval.workflows.init.recipes.recipe import DeploymentRecipe
from serve_eval.workflows.init.recipes.srt_schema import BASE

MOST_BYTES = 8 * 1024 * 1024
KNOWN = (
    "Known are recipes of srt-slurm and InferenceX, TensorRT-LLM's disaggregated configurations,"
    " its SLURM benchmark files, a config of LlmArgs, and Dynamo's deployments."
)


def split_selector(given: str) -> tuple[Path, str]:
    """Return the file and the variant of FILE or FILE:VARIANT; an existing file is not split."""
    file, colon, variant = given.rpartition(":")
    if not colon or Path(given).exists():
        return Path(given), ""
    return Path(file), variant


def read_recipes(file: Path, variant: str = "") -> list[DeploymentRecipe]:
    """Return the recipes of a file, or those of its variants that a name or a pattern selects.

    The variant base is what the others override. Raises PlanError for a file that cannot be read,
    of no known form, or for another engine.
    """
    if variant == BASE and (bases := list(_read_bases(file))):
        return bases
    recipes = list(_read(file))
    if not variant:
        return recipes
    name = variant.removeprefix("zip_override_").removeprefix("override_")
    name = name.replace("[", "_").rstrip("]")
    chosen = [
        one
        for one in recipes
        if fnmatchcase(one.variant, name) or one.variant.startswith(f"{name}_")
    ]
    if not chosen:
        known = ", ".join(one.variant for one in recipes if one.variant) or "none"
        raise PlanError(f"{file}: no variant {variant}", hint=f"Its variants: {known}.")
    return chosen


def _read_bases(file: Path) -> Iterator[DeploymentRecipe]:
    for content in _load(file):
        if srt_slurm.recognises(content):
            yield from srt_slurm.read(content, str(file), base=True)


def _read(file: Path) -> Iterator[DeploymentRecipe]:
    documents = _load(file)
    name = str(file)
    if dynamo.recognises(documents):
        yield from dynamo.read(documents, name, file.parent)
        return
    found = False
    for content in documents:
        if srt_slurm.recognises(content):
            found = True
            yield from srt_slurm.read(content, name)
        elif trtllm_benchmark.recognises(content):
            found = True
            yield trtllm_benchmark.read(content, name)
        elif orchestrator_file.recognises(content):
            found = True
            yield orchestrator_file.read(content, name, _list_siblings(file))
        elif orchestrator_file.is_llm_args(content):
            found = True
            yield orchestrator_file.read_llm_args(content, name)
    if not found:
        raise PlanError(f"{file}: no form of a recipe that is known", hint=KNOWN)


def _load(file: Path) -> list[Mapping[str, Any]]:
    """Return the mappings among the documents of a YAML file."""
    import yaml

    try:
        if file.stat().st_size > MOST_BYTES:
            raise PlanError(f"{file}: more than {MOST_BYTES} bytes: this is no recipe")
        documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except (UnicodeError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise PlanError(f"{file}: cannot be read as YAML: {reason}", hint=KNOWN) from error
    return [one for one in documents if isinstance(one, Mapping)]


def _list_siblings(file: Path) -> dict[str, Mapping[str, Any]]:
    """Return the YAML files next to a recipe, which may hold the configs of its servers."""
    found = {}
    for path in sorted(file.parent.glob("*.y*ml")):
        if path != file and path.is_file():
            try:
                documents = _load(path)
            except PlanError:
                continue
            if len(documents) == 1:
                found[path.name] = documents[0]
    return found
