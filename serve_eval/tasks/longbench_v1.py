"""LongBench v1: 21 sets of long texts in English, Chinese and code, as lm-eval asks them.

They are lm-evaluation-harness's group `longbench`. Paper: Bai et al. 2023, "LongBench". Data:
Xnhyacinth/LongBench, 4750 test rows of `context`, `question`, `answers` and `all_classes`. Each set
has its own prompt, answer length and metric; prompts and lengths are read from the installed
lm-eval or a folder. The value is the mean of the six groups' means of their sets' means. Layout
from documentation; tested on 237 real rows of all sets.

They are those of the group `longbench` of lm-evaluation-harness. That package has the prompts: see
_longbench_prompts.py.

The package itself is not imported. A file `<set>.yaml` has `doc_to_text`, with the places
{{context}} and {{question}}, and in `generation_kwargs` the maximum tokens of an answer
(`max_gen_toks`) and its stop strings (`until`).
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError, install_hint
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Override,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers import longbench
from serve_eval.scorers.longbench import Metric as longbench_Metric
from serve_eval.tasks._samples import RandomSeed, mean_of_means, name_document, shuffle

SOURCE = KNOWN["longbench_v1"]
WRONG = "¤"


def task(
    *,
    sets: Annotated[list[str] | None, Setting("Some of the 21 sets. Not set: all.")] = None,
    num_samples: Annotated[
        int | None, Setting("Number of samples, divided equally among the sets. Not set: all.")
    ] = None,
    prompts: Annotated[
        str | None,
        Setting(
            "Folder of <set>.yaml files in lm-eval's form. Not set: those of the installed lm-eval."
        ),
    ] = None,
    suite_exact: Annotated[
        bool, Setting("Sample at temperature 1, as TensorRT-LLM's suite did for its references.")
    ] = False,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `sets` names some of the 21 (null: all). With `num_samples` the same number of rows of each set
    is asked, at least that number in all. `prompts` is a folder with <set>.yaml files in lm-eval's
    form (null: those of the installed lm-eval). `suite_exact` samples at temperature 1, as the
    suite does by accident; its references were measured so. Raises PlanError for options out of
    range.
    """
    chosen = list(SETS) if sets is None else sets
    problems = [
        f"longbench_v1.sets: unknown set {n!r}.{registry.nearest(n, SETS)}"
        for n in chosen
        if n not in SETS
    ]
    total = sum(SETS[name].rows for name in chosen if name in SETS)
    count = total if num_samples is None else num_samples
    if problems or count < 1:
        raise PlanError(
            problems or "longbench_v1: num_samples must be 1 or more, sets must not be empty"
        )
    asked: dict[str, LongBenchPrompt] = {}
    lacking: DatasetError | None = None
    try:
        source = find_installed() if prompts is None else Path(prompts).expanduser()
        asked = read(source, tuple(chosen))
    except DatasetError as error:
        lacking = error  # the task can be listed and compared without the prompts

    def load(roots: DataRoots, wanted: int) -> Dataset:
        if lacking is not None:
            raise lacking
        if CHINESE & set(chosen):
            longbench.chinese_words()  # fail before any request
        places = [place for name in chosen for place in _places(name)]
        folder = local.find_folder(SOURCE, roots, local.split_markers(["test"], places))
        files, samples, found = [], [], 0
        for name in chosen:
            file = local.find_split(SOURCE, folder, "test", _places(name))
            rows = local.rows(file, ["context"])
            here = len(rows) if wanted >= total else min(len(rows), math.ceil(wanted / len(chosen)))
            files.append(file.source)
            found += len(rows)
            asks = Override(max_tokens=asked[name].max_tokens, stop=asked[name].stop)
            for i in shuffle(len(rows), random_seed)[:here]:
                samples.append(_sample(name, i, rows[i], asked[name], asks, file))
        told = f"LongBench v1 is incomplete: {folder} has {found} rows of these sets"
        local.check_rows(roots, len(samples), min(wanted, total), told, SOURCE)
        differs = [] if found == total else [f"{found} rows, where these sets have {total}"]
        if others := [
            name for name in chosen if not asked[name].sha256.startswith(SETS[name].asked)
        ]:
            differs.append(
                f"the prompts of {', '.join(others)} are not those of lm-eval 0.4.9.2 to 0.4.13"
            )
        return Dataset(
            samples=samples, files=tuple(files), total=found, deviation="; ".join(differs) or None
        )

    groups = {SETS[name].group for name in chosen}
    return Task(
        name="longbench_v1",
        version=1,
        datasets=("longbench_v1",),
        reference_file="longbench_v1",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=512, temperature=1.0 if suite_exact else 0.0),
        extra={"truncate_prompt_tokens": 128_000},
        chat=True,
        protocol={
            "sets": chosen if sets is not None else None,
            "random_seed": random_seed,
            **({} if lacking else {"prompts": checksum([asked[n] for n in chosen])}),
        },
        load=load,
        score=_score,
        answers=lambda sample: (msgspec.json.decode(sample.target, type=list[str])[0], WRONG),
        breakdown=_breakdown,
        aggregation=mean_of_means(f"mean of {len(groups)} groups", _group, _set),
        scoring="apart",
    )


def _places(name: str) -> tuple[str, str]:
    return f"{name}/", f"data/{name}/"


def _sample(
    name: str,
    i: int,
    row: Mapping[str, Any],
    asked: LongBenchPrompt,
    asks: Override,
    file: local.DataFile,
) -> Sample:
    answers, classes = row.get("answers"), row.get("all_classes")
    if not _texts(answers) or (SETS[name].metric is None and not _texts(classes)):
        raise DatasetError(
            f"{file.path}: row {i + 1}: answers or all_classes is not a list of texts"
        )
    return Sample(
        id=f"{name}-{i}",
        prompt=(
            Message(role="user", content=asked.text(row["context"], row.get("question") or "")),
        ),
        target=msgspec.json.encode(answers).decode(),
        metadata={"set": name, "classes": msgspec.json.encode(classes or []).decode()},
        override=asks,
        group=name_document(row["context"]),
    )


def _texts(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)


def _score(sample: Sample, response: Response) -> Score:
    metric = SETS[_set(sample)].metric
    if metric is None:
        metric = longbench.classification(_decode(sample.metadata["classes"]))
    return longbench.best(metric, response.text, _decode(sample.target))


def _decode(texts: str) -> Sequence[str]:
    return msgspec.json.decode(texts, type=list[str])


def _set(sample: Sample) -> str:
    return sample.metadata["set"]


def _group(sample: Sample) -> str:
    return SETS[_set(sample)].group


def _breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the mean in points and the scored rows by set, and the mean of the sets by group."""
    by_set: dict[str, list[float]] = defaultdict(list)
    for sample, value in scored:
        by_set[_set(sample)].append(value)
    means = {name: 100.0 * sum(values) / len(values) for name, values in by_set.items()}
    by_group: dict[str, list[float]] = defaultdict(list)
    for name, mean in means.items():
        by_group[SETS[name].group].append(mean)
    return {
        "set": {
            name: {"value": means[name], "scored": len(values)} for name, values in by_set.items()
        },
        "group": {
            group: {"value": sum(m) / len(m), "sets": len(m)} for group, m in by_group.items()
        },
    }


@dataclass(frozen=True, slots=True)
class Set:
    """One set of LongBench v1.

    `metric` None means classification, with the classes in each row. `asked` is the start of the
    checksum of its prompt, answer length and stop strings in lm-eval 0.4.9.2 to 0.4.13.
    """

    group: str
    rows: int
    metric: longbench_Metric | None
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
