"""Compare LongBench v1 with lm-eval's own task code: prompts, scores and a run.

Answers are recorded and changed ones. The rows are those of ../shared/data/longbench_answers. Code
is compared by RapidFuzz's `ratio`, which NVIDIA's suite uses instead of fuzzywuzzy's; the
difference is printed. LONGBENCH=DIR, a checkout of THUDM/LongBench, adds a comparison with its
authors' metrics.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import json
import logging
import random
import warnings
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import DataRoots, Message, Plan, Response, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.tasks import longbench_v1
from serve_eval.tasks.longbench_v1 import SETS
from tests.harness.made_tasks import served
from tests.oracle.part import Compared, Skipped, checkout, require, shared

CONTEXT, QUESTION = "{{context}}", "{{question}}"
BEGINNINGS = {
    "trec": "Question:",
    "triviaqa": "Passage:",
    "samsum": "Dialogue:",
    "lsht": "新闻内容：",
}
"""First words of the question, for sets with worked examples of the same form before it."""
CAUSES = {
    "narrativeqa": "lm-eval, as its authors, asks to answer asconcisely, in one word",
    "qasper": "recorded with the prompt of hotpotqa",
    "triviaqa": "lm-eval has one line break before the question and not two",
    "samsum": "lm-eval has one line break before the question and not two, and no space at the end",
}
"""Reasons why a recorded prompt differs from lm-eval's.

In other sets only the white space at its end differs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A row in LongBench's form, the recorded prompt, and the model's answer."""

    row: Mapping[str, Any]
    prompt: str
    answer: str


def recorded(folder):
    """Return the rows of each set."""
    asked = longbench_v1.read(longbench_v1.find_installed(), tuple(SETS))
    return {
        name: [
            _row(name, _template(name, asked), found)
            for found in json.loads((folder / f"{name}.json").read_text(encoding="utf-8")).values()
        ]
        for name in SETS
    }


def write(folder, rows):
    """Write <set>/test.jsonl in LongBench's layout."""
    for name, found in rows.items():
        (folder / name).mkdir(parents=True)
        text = "".join(json.dumps(one.row, ensure_ascii=False) + "\n" for one in found)
        (folder / name / "test.jsonl").write_text(text, encoding="utf-8", newline="")


def _template(name, asked):
    """Return the recorded prompt template of a set, without the white space at its end."""
    prompt = asked["hotpotqa" if name == "qasper" else name].prompt
    if name == "narrativeqa":
        prompt = prompt.replace("asconcisely", "as concisely")
    if name in ("triviaqa", "samsum"):
        prompt = prompt.replace(f"{CONTEXT}\n{QUESTION}", f"{CONTEXT}\n\n{QUESTION}")
    return prompt


def _row(name, template, found):
    prompt, gold = found["origin_prompt"], found["gold"]
    head, rest = template.split(CONTEXT)
    between, _, tail = rest.partition(QUESTION) if QUESTION in rest else ("", "", rest)
    body = prompt if not tail else prompt.rstrip()
    assert body.startswith(head), (name, body[:100])
    assert body.endswith(tail), (name, body[-100:])
    context, question = _parted(
        name, body[len(head) : len(body) - len(tail)], between, with_question=QUESTION in rest
    )
    answers, classes = (
        (gold["answers"], gold["all_classes"]) if isinstance(gold, dict) else (gold, None)
    )
    row = {"context": context, "question": question, "answers": answers, "all_classes": classes}
    return Recorded(row=row, prompt=prompt, answer=found["prediction"])


def _parted(name, text, between, *, with_question):
    """Return the context and the question, which comes last."""
    if not with_question:
        return text, ""
    if not between:  # code, which may be divided at any place
        place = text.rindex("\n", 0, -1) + 1
        return text[:place], text[place:]
    place = text.rindex(between + BEGINNINGS.get(name, ""))
    return text[:place], text[place + len(between) :]


PIECES = (
    "", "\n", "\n\n", " \n\t\n", ".", "...", "。", "，", "！？", "¤", "§", "the", "A", "an the a",
    "Paragraph 3", "段落3", "段落 3", "3", "0003", "1.5", "1,234", "１２", "٣", "½", "北京 天气 很好。", "是 yes",  # noqa: E501
    "# no", "// no", "`x`", "```python\nx = 1\n```", "İstanbul ﬁn ß", "\u200b", "\u2028", "\x85", "\r\n",  # noqa: E501
    "\x00", "e\u0301", "😀", "</s>",
)  # fmt: skip
"""Texts that are inserted into an answer or replace it."""
MARKS = str.maketrans(
    {".": "。", ",": "，", "。": ".", "，": ",", "!": "！", "?": "？", "：": ":", "(": "（"}
)


def mutated(text, golds, classes, rng, most):
    """Yield some thirty variants of an answer of at most `most` characters."""
    start = rng.randrange(max(1, len(text) - most))
    seen, gold = text[start : start + most], rng.choice(golds)[:most]
    here = rng.randrange(len(seen) + 1)
    words, parts = seen.split(" "), gold.split(" ")
    yield seen[:here]
    yield seen[here:]
    yield (seen[:here] + "\n") * 2
    yield seen.translate(MARKS)
    yield "".join(character for character in seen if character.isalnum() or character.isspace())
    yield seen.swapcase()
    yield "\n".join(words)
    yield "\n \n" + seen.replace("\n", "\n\n")
    yield seen + gold
    yield gold + seen
    yield gold
    yield f"  {gold}\n"
    yield gold.upper()
    yield gold.translate(MARKS)
    yield gold[: rng.randrange(len(gold) + 1)]
    yield gold[:here] + "x" + gold[here + 1 :]
    yield " ".join(rng.sample(parts, len(parts)))
    yield " ".join(part for part in parts if rng.random() < 0.7)
    yield ". ".join(parts)
    yield "".join(rng.sample(gold, len(gold)))
    yield " ".join(str(rng.randrange(40)) for _ in range(rng.randrange(6))) + f" {gold}"
    yield ", ".join(rng.sample(classes, min(3, len(classes)))) or "3, 4"
    yield " / ".join([*rng.sample(classes, min(2, len(classes))), gold])
    for _ in range(8):
        piece = rng.choice(PIECES)
        yield rng.choice((piece, seen[:here] + piece + seen[here:], gold + piece, piece + gold))


METRICS = "LongBench/metrics.py"
NEEDED = ("lm_eval", "jieba", "rouge", "fuzzywuzzy", "rapidfuzz")
ROUGE_TOLERANCE = 5.001e-9
"""Tolerance for ROUGE.

The package `rouge` adds 1e-8 to a denominator, which we leave out: this lowers F by at most half of
it.
"""
CHANGED_LENGTH = {"summarization": 250, "multi": 400}
"""Characters of changed answers by group.

`rouge` takes quadratic time in them and gives up at some thousand words.
"""


def compare():
    """Compare everything.

    Raises Skipped without the recorded rows or a package.
    """
    require(*NEEDED)
    rows = recorded(shared("longbench_answers"))
    importlib.import_module("jieba").setLogLevel(logging.WARNING)
    with TemporaryDirectory() as folder:
        root = Path(folder)
        write(root / "data", rows)
        theirs = {name: _lm_eval_task(name, root) for name in SETS}
        ours = longbench_v1.task()
        samples = {name: _samples(name, root / "data", len(found)) for name, found in rows.items()}
        found = [
            _prompts(rows, samples, theirs),
            _recorded_answers(rows, samples, ours, theirs),
            _changed_answers(rows, samples, ours, theirs),
            _run(root, rows, theirs),
        ]
    return [*found, *_authors(rows, samples, ours)]


def _samples(name, data, count):
    """Return our samples of one set, in the order of its rows."""
    loaded = (
        longbench_v1.task(sets=[name], num_samples=count)
        .load(DataRoots(roots=(data,)), count)
        .samples
    )
    return sorted(loaded, key=lambda sample: int(sample.id.rpartition("-")[2]))


def _lm_eval_task(name, root):
    """Return lm-eval's task object of one set, on our rows."""
    import datasets
    from lm_eval import tasks
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    datasets.disable_progress_bars()
    warnings.filterwarnings("ignore", module="fuzzywuzzy")  # it recommends a faster package
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    config = load_yaml(Path(tasks.__file__).parent / f"longbench/{name}.yaml", resolve_func=True)
    files = {
        "data_files": {"test": str(root / "data" / name / "test.jsonl")},
        "cache_dir": str(root / "cache"),
    }
    local = {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}
    return ConfigurableTask(
        config={key: value for key, value in {**config, **local}.items() if key != "tag"}
    )


def _prompts(
    rows,
    samples,
    theirs,
):
    result = Compared(what="prompts of longbench_v1 and lm-eval's, character by character")
    same, others = 0, []
    for name, found in rows.items():
        texts = [theirs[name].doc_to_text(doc) for doc in theirs[name].test_docs()]
        for i, (sample, text) in enumerate(zip(samples[name], texts, strict=True)):
            result.add(f"{name} {i}", sample.prompt, (Message(role="user", content=text),))
        alike = sum(text == one.prompt for text, one in zip(texts, found, strict=True))
        ends = sum(text == one.prompt.rstrip() for text, one in zip(texts, found, strict=True))
        same += alike
        if alike < len(found):
            cause = (
                CAUSES.get(name)
                or "white space at the end of the recorded one, which lm-eval has not"
            )
            others.append(
                f"recorded otherwise: {name}, {len(found) - alike} of {len(found)}: {cause}"
            )
            assert name in CAUSES or ends == len(found), name
    result.notes.append(f"{same} equal the recorded prompt too")
    result.notes += others
    return result


def _recorded_answers(
    rows,
    samples,
    ours,
    theirs,
):
    result = Compared(what="scores of recorded answers and the means of their sets")
    stock = []
    for name, found in rows.items():
        pairs = []
        for i, (sample, one) in enumerate(zip(samples[name], found, strict=True)):
            pairs.append(
                (_score(ours, sample, one.answer), _their_score(theirs[name], one.row, one.answer))
            )
            result.add_number(f"{name} {i}", *pairs[-1], _tolerance(name))
            if SETS[name].group == "code":
                stock.append(
                    pairs[-1][0] - theirs[name].process_results(one.row, [one.answer])["score"]
                )
        result.add_number(
            f"mean of {name}", *(fmean(side) for side in zip(*pairs, strict=True)), _tolerance(name)
        )
    differing = sum(abs(one) > 1e-9 for one in stock)
    result.notes.append(
        f"by fuzzywuzzy, which lm-eval calls, {differing} of {len(stock)} answers of code differ,"
        f" by {max(map(abs, stock)):.3f} at most and {fmean(stock):.3f} in the mean"
    )
    return result


def _changed_answers(
    rows,
    samples,
    ours,
    theirs,
):
    result, rng, partly = Compared(what="scores of changed answers"), random.Random(6), 0
    for name, found in rows.items():
        most = CHANGED_LENGTH.get(SETS[name].group, 600)
        for sample, one in zip(samples[name], found, strict=True):
            for text in mutated(
                one.answer, one.row["answers"], one.row["all_classes"] or (), rng, most
            ):
                score = _score(ours, sample, text)
                result.add_number(
                    f"{name} {text[:60]!r}",
                    score,
                    _their_score(theirs[name], one.row, text),
                    _tolerance(name),
                )
                partly += 0.0 < score < 1.0
    result.notes.append(f"{partly} of them score between 0 and 1")
    return result


def _run(root, rows, theirs):
    """Compare a run of all sets on a server that knows the recorded answers.

    lm-eval's prompts select the answers. A run takes the same number of rows of each set, so each
    set is asked for as many as the longest has.
    """
    result = Compared(what="figures of a run of all sets over HTTP")
    most = max(map(len, rows.values()))
    repeated = {
        name: list(itertools.islice(itertools.cycle(found), most)) for name, found in rows.items()
    }
    write(root / "repeated", repeated)
    answers = root / "answers.jsonl"
    with answers.open("w", encoding="utf-8") as file:
        for name, found in rows.items():
            for doc, one in zip(theirs[name].test_docs(), found, strict=True):
                key = prompt_sha256((Message(role="user", content=theirs[name].doc_to_text(doc)),))
                line = {"sha256": key, "right": one.answer, "wrong": "", "probability": 1.0}
                file.write(json.dumps(line) + "\n")
    with served(answers=answers) as (url, _):
        plan = Plan(
            model="simulated",
            launcher=Spec(name="external", options={"base_url": url}),
            tasks=(Spec(name="longbench_v1", options={"num_samples": most * len(rows)}),),
            dataset_roots=(str(root / "repeated"),),
            no_reference=True,
        )
        report = asyncio.run(evaluate(plan, root / "run", environ={}))
    [task] = report.tasks
    said = dict(_stored(root / "run/samples/longbench_v1.jsonl", "response"))
    scores = dict(_stored(root / "run/scores/longbench_v1.jsonl", "value"))
    result.add("answers scored", task.result.scored, most * len(rows))
    means = {one.group: [] for one in SETS.values()}
    for name, found in repeated.items():
        figures = []
        for i, one in enumerate(found):
            key = f"{name}-{i}"
            figures.append(_their_score(theirs[name], one.row, said[key]["text"]))
            result.add_number(key, scores[key], figures[-1], _tolerance(name))
        means[SETS[name].group].append(fmean(figures))
    value = 100 * fmean(fmean(group) for group in means.values())
    assert task.result.value is not None
    result.add_number("value", task.result.value, value, ROUGE_TOLERANCE)
    kept = sum(
        said[f"{name}-{i}"]["text"] == one.answer
        for name, found in rows.items()
        for i, one in enumerate(found)
    )
    total = sum(map(len, rows.values()))
    result.notes.append(
        f"value {value:.4f}; {kept} of {total} answers came whole, others ended at a limit or stop"
        " string"
    )
    return result


def _stored(file, field):
    for line in file.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        yield record["id"], record[field]


def _authors(rows, samples, ours):
    """Compare with the metrics of LongBench's authors.

    They take the first line of answers in sets with worked examples.
    """
    result, stripped = Compared(what="scores of recorded answers by LongBench's authors"), 0
    try:
        metrics = _module(checkout("LONGBENCH", "github.com/THUDM/LongBench", METRICS) / METRICS)
    except Skipped as skipped:
        result.notes.append(f"not compared: {skipped}")
        yield result
        return
    from rapidfuzz import fuzz

    metrics.fuzz = fuzz
    by_name = {
        "qa_f1": metrics.qa_f1_score,
        "qa_f1_zh": metrics.qa_f1_zh_score,
        "rouge_l": metrics.rouge_score,
        "rouge_l_zh": metrics.rouge_zh_score,
        "count": metrics.count_score,
        "retrieval": metrics.retrieval_score,
        "retrieval_zh": metrics.retrieval_zh_score,
        "code_similarity": metrics.code_sim_score,
    }
    for name, found in rows.items():
        metric = SETS[name].metric
        theirs = metrics.classification_score if metric is None else by_name[metric.__name__]
        for i, (sample, one) in enumerate(zip(samples[name], found, strict=True)):
            text = (
                one.answer.lstrip("\n").split("\n")[0]
                if SETS[name].group == "fewshot"
                else one.answer
            )
            seen = text if SETS[name].group == "code" else text.strip()
            best, as_it_is = (
                max(
                    theirs(told, gold, all_classes=one.row["all_classes"])
                    for gold in one.row["answers"]
                )
                for told in (seen, text)
            )
            result.add_number(f"{name} {i}", _score(ours, sample, text), best, _tolerance(name))
            stripped += abs(best - as_it_is) > _tolerance(name)
    result.notes.append(
        f"lm-eval strips the white space around an answer; without that {stripped} would differ"
    )
    yield result


def _module(file):
    spec = importlib.util.spec_from_file_location("longbench_metrics", file)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _score(task, sample, text):
    return task.score(sample, Response(text=text, finish_reason="stop")).value


def _their_score(task, row, text):
    with _rapidfuzz(task):
        return float(task.process_results(row, [text])["score"])


@contextmanager
def _rapidfuzz(task):
    """Use RapidFuzz instead of fuzzywuzzy in a task's metrics."""
    from rapidfuzz import fuzz

    names = task.config.process_results.__globals__
    before = names["fuzz"]
    names["fuzz"] = fuzz
    try:
        yield
    finally:
        names["fuzz"] = before


def _tolerance(name):
    metric = SETS[name].metric
    return ROUGE_TOLERANCE if metric is not None and metric.__name__.startswith("rouge") else 1e-9
