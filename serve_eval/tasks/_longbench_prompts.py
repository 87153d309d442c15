"""Read the prompts of LongBench v1's sets from the files of lm-evaluation-harness.

The package itself is not imported. A file `<set>.yaml` has `doc_to_text`, with the places
{{context}} and {{question}}, and in `generation_kwargs` the maximum tokens of an answer
(`max_gen_toks`) and its stop strings (`until`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from serve_eval.errors import DatasetError, install_hint

_PLACES = {"context", "question"}


@dataclass(frozen=True, slots=True)
class LongBenchPrompt:
    """The prompt of one set, with {{context}} and {{question}}, answer length and stop strings."""

    prompt: str
    max_tokens: int
    stop: tuple[str, ...]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(
            msgspec.json.encode((self.prompt, self.max_tokens, self.stop))
        ).hexdigest()

    def text(self, context: str, question: str) -> str:
        """Return the prompt of a row. Text in the row that looks like a place stays as it is."""
        head, tail = self.prompt.split("{{context}}")
        return f"{head}{context}" + tail.replace("{{question}}", question)


def find_installed() -> Path:
    """Return the folder of the files in the installed lm-eval.

    Raises DatasetError if lm-eval is not installed.
    """
    package = importlib.util.find_spec("lm_eval")
    for place in () if package is None else package.submodule_search_locations or ():
        if (folder := Path(place, "tasks", "longbench")).is_dir():
            return folder
    raise DatasetError(
        "longbench_v1: its prompts are in the package lm-eval, which is not installed",
        hint=_hint(),
    )


def _hint() -> str:
    return f"{install_hint('lm-eval')} Or set a folder with such files: longbench_v1.prompts=DIR."


@lru_cache(maxsize=8)
def read(folder: Path, names: tuple[str, ...]) -> dict[str, LongBenchPrompt]:
    """Return the prompts of these sets.

    Raises DatasetError that names every file that is missing or invalid.
    """
    found: dict[str, LongBenchPrompt] = {}
    problems = []
    for name in names:
        file = folder / f"{name}.yaml"
        try:
            found[name] = _read_prompt(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, ValueError) as error:
            problems.append(
                f"longbench_v1: {file}: {error.strerror if isinstance(error, OSError) else error}"
            )
    if problems:
        raise DatasetError(
            "\n".join(problems), hint=f"Files of lm-eval 0.4.9.2 or later are valid. {_hint()}"
        )
    return found


def checksum(asked: Sequence[LongBenchPrompt]) -> str:
    """Return one checksum of the prompts of several sets."""
    return "sha256:" + hashlib.sha256("".join(one.sha256 for one in asked).encode()).hexdigest()


def _read_prompt(text: str) -> LongBenchPrompt:
    """Return the prompt in a file's text. Raises ValueError for an invalid text."""
    import yaml

    try:
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506  (makes only texts, lists and mappings)
        prompt, sampling = content["doc_to_text"], content["generation_kwargs"]
        asked = LongBenchPrompt(
            prompt, int(sampling["max_gen_toks"]), tuple(sampling["until"] or ())
        )
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a task of LongBench: {type(error).__name__}: {error}") from error
    places = [place.strip() for place in re.findall(r"\{\{(.*?)\}\}", prompt)]
    if places.count("context") != 1 or not set(places) <= _PLACES:
        raise ValueError(
            f"has the places {', '.join(places) or 'none'}; expected context once and question"
        )
    return asked
