"""List the sets of LongBench v1, and read their prompts.

They are those of the group `longbench` of lm-evaluation-harness. That package has the prompts: see
_longbench_prompts.py.

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
from serve_eval.scorers import longbench
from serve_eval.scorers.longbench import Metric


@dataclass(frozen=True, slots=True)
class Set:
    """One set of LongBench v1.

    `metric` None means classification, with the classes in each row. `asked` is the start of the
    checksum of its prompt, answer length and stop strings in lm-eval 0.4.9.2 to 0.4.13.
    """

    group: str
    rows: int
    metric: Metric | None
    asked: str


SETS = {
    "narrativeqa": Set("single", 200, longbench.qa_f1, "417f80d8134f"),
    "qasper": Set("single", 200, longbench.qa_f1, "df1fc670296d"),
    "multifieldqa_en": Set("single", 150, longbench.qa_f1, "7358063558ae"),
    "multifieldqa_zh": Set("single", 200, longbench.qa_f1_zh, "274f8f5889ce"),
    "hotpotqa": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "2wikimqa": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "musique": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "dureader": Set("multi", 200, longbench.rouge_l_zh, "1d3d97acbf90"),
    "gov_report": Set("summarization", 200, longbench.rouge_l, "f3e721ff5ff4"),
    "qmsum": Set("summarization", 200, longbench.rouge_l, "0b97323e7058"),
    "multi_news": Set("summarization", 200, longbench.rouge_l, "509afe3808b9"),
    "vcsum": Set("summarization", 200, longbench.rouge_l_zh, "c4a74d67d2a9"),
    "trec": Set("fewshot", 200, None, "d36ebc110ee2"),
    "triviaqa": Set("fewshot", 200, longbench.qa_f1, "31981b039a84"),
    "samsum": Set("fewshot", 200, longbench.rouge_l, "819ea0370d31"),
    "lsht": Set("fewshot", 200, None, "598d265a77a5"),
    "passage_count": Set("synthetic", 200, longbench.count, "25f3aa99cd3f"),
    "passage_retrieval_en": Set("synthetic", 200, longbench.retrieval, "4374f77df965"),
    "passage_retrieval_zh": Set("synthetic", 200, longbench.retrieval_zh, "ba0e62e4ed1d"),
    "lcc": Set("code", 500, longbench.code_similarity, "d61789f52c8b"),
    "repobench-p": Set("code", 500, longbench.code_similarity, "f0d96b771f20"),
}
"""By name, in the order in which they are asked."""

ROWS = sum(one.rows for one in SETS.values())
CHINESE = frozenset(
    name for name, one in SETS.items() if one.metric in (longbench.qa_f1_zh, longbench.rouge_l_zh)
)
"""Sets whose texts jieba splits into words."""


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
