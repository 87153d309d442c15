"""Run tasks of lm-eval with our engine and with lm-eval's own `local-completions`.

The tasks have all four output types. Both sides ask the same deterministic server (`sides.py`)
about the same made-up rows (`made`): ours by the option `data_files`, lm-eval by its configuration.
Every metric of every filter must be equal. Every prompt must be the one that lm-eval logged, also
in two other processes. lm-eval must get the same figures with our client as its model.

`python -m tests.oracle.lm_eval_tasks SETTING` writes the prompts that our engine
would send, by task.
"""

import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.plugins import extensions
from serve_eval.schema import Plan, Spec
from tests.oracle.part import Compared, require
from tests.oracle.sides import END, ROOT, options


def start(setting, cache, *, hash_seed):
    """Start a process that loads every task with our engine and writes its requests."""
    told = setting.folder / f"dump{hash_seed}.setting.json"
    into = setting.folder / f"dump{hash_seed}.json"
    own = {"own": str(setting.folder / "own"), "into": str(into)}
    told.write_text(json.dumps({"files": setting.files, "shots": setting.shots, **own}))
    environ = {
        **os.environ,
        "PYTHONHASHSEED": str(hash_seed),
        "HF_HOME": str(cache),
        "HF_DATASETS_CACHE": str(cache),
    }
    command = [sys.executable, "-m", "tests.oracle.lm_eval_tasks", str(told)]
    with into.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=log), into


def result(dump):
    """Wait for a process of `start` and return its documents by task.

    Raises RuntimeError if it fails.
    """
    process, into = dump
    if process.wait():
        raise RuntimeError(into.with_suffix(".log").read_text()[-2000:])
    return json.loads(into.read_text())


def main(setting):
    """Write the documents of every task, or why it cannot be loaded."""
    given = json.loads(setting.read_text())
    told = {}
    for name, files in given["files"].items():
        spec = Spec(name=f"lm_eval:{name}", options=options(files, given["shots"][name]))
        plan = Plan(
            model="oracle",
            launcher=Spec(name="external"),
            tasks=(spec,),
            include_path=(given["own"],),
            no_reference=True,
        )
        extensions.include(plan.include_path)
        try:
            (prepared,) = prepare(plan)
            told[name] = [_document(sample) for sample in prepared.dataset.samples]
        except ServeEvalError as error:
            told[name] = f"{type(error).__name__}: {error}"
    Path(given["into"]).write_text(json.dumps(told))


def _document(sample):
    texts = (
        [context + choice for context, choice in sample.continued]
        if sample.choices
        else [str(sample.prompt)]
    )
    return {
        "id": sample.id,
        "target": sample.target,
        "texts": [text.removeprefix(END) for text in texts],
    }


KINDS = ("generate_until", "multiple_choice", "loglikelihood", "loglikelihood_rolling")
AS_MODEL = (
    *("gsm8k", "ifeval", "nq_open", "wmt16-ro-en", "truthfulqa_gen"),
    *("blimp_adjunct_island", "arc_challenge", "winogrande", "made_every_choice_metric"),
    *("lambada_openai", "lambada_openai_mt_de", "wikitext", "pile_arxiv"),
)
"""Tasks that lm-eval asks with our client too."""
_IN_PERCENT = frozenset(
    {"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match", "em"}
) | {
    "prompt_level_strict_acc",
    "prompt_level_loose_acc",
}
"""Metrics that are shares; we show them in percent if they are means."""


def compare():
    """Compare every task.

    Returns a line per output type and the lines about prompts and about our client.
    """
    require("lm_eval", "transformers", "tokenizers", "datasets")
    from tests.oracle.sides import given

    with tempfile.TemporaryDirectory(prefix="oracle-") as name, given(Path(name)) as setting:
        return _compare(setting)


def _compare(setting):
    from tests.oracle import sides

    cold = start(setting, setting.folder / "cold", hash_seed=1)
    names = list(setting.files)
    theirs, theirs_took = _timed(lambda: sides.theirs(setting, names, our_client=False))
    warm = start(setting, setting.folder / "theirs", hash_seed=2)
    ours, ours_took = _timed(lambda: sides.ours(setting, names))
    client, client_took = _timed(lambda: sides.theirs(setting, AS_MODEL, our_client=True))
    by_kind = {
        kind: Compared(what=f"metrics of {kind} tasks, lm-eval's local-completions")
        for kind in KINDS
    }
    count = dict.fromkeys(KINDS, 0)
    values = {kind: [] for kind in KINDS}
    for name in names:
        kind = _kind(theirs[name])
        count[kind] += 1
        values[kind] += _compare_task(by_kind[kind], name, ours[name], theirs[name])
    for kind, one in by_kind.items():
        told = values[kind]
        trivial = sum(value in (0.0, 100.0) for value in told)
        one.notes.append(f"{count[kind]} tasks; {trivial} of {len(told)} values are 0 or 100")
    as_model = Compared(
        what=f"metrics of {len(AS_MODEL)} tasks by lm-eval with our client, its own client"
    )
    for name in AS_MODEL:
        _compare_results(as_model, name, client[name], theirs[name])
    as_model.notes.append(
        f"lm-eval took {theirs_took:.0f} s, our engine {ours_took:.0f} s, lm-eval with our client"
        f" {client_took:.0f} s"
    )
    return [
        *by_kind.values(),
        *_compare_prompts(result(cold), result(warm), theirs),
        as_model,
    ]


# -------------------------------------------------------------------------------------------------------  # noqa: E501
# comparing


def _compare_task(into, name, ours, theirs):
    """Add every figure of a task, and return lm-eval's numeric ones."""
    for side, result in (("ours", ours), ("theirs", theirs)):
        if isinstance(result, Exception):
            into.count += 1
            into.differences.append(
                f"{name}: {side} fails: {type(result).__name__}: {str(result)[:300]}"
            )
            return []
    figures, shown = _figures(theirs), _shown(ours)
    if ours.result.failed:
        into.differences.append(
            f"{name}: {ours.result.failed} of {ours.result.planned} failed: {ours.result.failures}"
        )
    if _draws_again(theirs):
        into.notes.append(
            f"{name}: not compared, lm-eval scores documents drawn again, with other answers than"
            " asked"
        )
        return []
    for key, value in figures.items():
        factor = 100.0 if _is_share(key, theirs) else 1.0
        if math.isnan(value):
            into.add(f"{name} {key}", shown.get(key), None)
        elif shown.get(key) is None:
            into.add(f"{name} {key}", None, value * factor)
        else:
            into.add_number(f"{name} {key}", shown[key], value * factor)
    into.differences += [
        f"{name} {key}: ours alone" for key in sorted(shown.keys() - figures.keys())
    ]
    told = [value * (100.0 if _is_share(key, theirs) else 1.0) for key, value in figures.items()]
    return [value for value in told if not math.isnan(value)]


def _compare_results(into, name, ours, theirs):
    """Add every figure of two results of lm-eval."""
    for result in (ours, theirs):
        if isinstance(result, Exception):
            into.count += 1
            into.differences.append(f"{name}: fails: {type(result).__name__}: {str(result)[:300]}")
            return
    mine = _figures(ours)
    for key, value in _figures(theirs).items():
        into.add_number(f"{name} {key}", mine.get(key, math.nan), value)


def _draws_again(results):
    """Return whether lm-eval scored other documents than it asked.

    This happens if the task's own generator continues when its data is read again. The hash is that
    of the document that was asked.
    """
    from lm_eval.utils import handle_non_serializable, hash_string

    ((rows,),) = [results["samples"].values()]
    how = {"indent": 2, "default": handle_non_serializable, "ensure_ascii": False}
    return any(hash_string(json.dumps(row["doc"], **how)) != row["doc_hash"] for row in rows)


def _kind(results):
    """Return the output type of a task that lm-eval ran.

    A task that it could not run counts as the first type.
    """
    if isinstance(results, Exception):
        return KINDS[0]
    ((config,),) = [results["configs"].values()]
    return str(config["output_type"])


def _figures(results):
    """Return lm-eval's results of its one task, by metric and filter."""
    ((told,),) = [results["results"].values()]
    return {
        key: float(value) for key, value in told.items() if "," in key and "_stderr," not in key
    }


def _shown(report):
    """Return the figures of our report, under lm-eval's names."""
    result = report.result
    first = (
        json.loads(report.fingerprint["metric"])
        if "metric" in report.fingerprint
        else result.metric.name
    )
    return {**result.secondary, **({} if result.value is None else {first: result.value})}


def _is_share(key, results):
    """Return whether we show a figure in percent: accuracies and exact matches that are means."""
    name = key.partition(",")[0]
    ((config,),) = [results["configs"].values()]
    listed = {
        str(one["metric"]): one.get("aggregation", "mean")
        for one in config.get("metric_list") or ()
    }
    return name in _IN_PERCENT and listed.get(name, "mean") == "mean"


# ---------------------------------------------------------------------------------------------------------  # noqa: E501
# prompts


def _compare_prompts(cold, warm, theirs):
    """Compare the requests of two processes, and those of the first with lm-eval's log."""
    twice = Compared(
        what=(
            "documents of two processes, one with an empty and one with lm-eval's cache of data"
            " sets"
        )
    )
    logged = Compared(what="documents as lm-eval logged them")
    for name, asked in cold.items():
        if isinstance(asked, str) or isinstance(warm[name], str):
            twice.count += 1
            twice.differences.append(f"{name}: {asked if isinstance(asked, str) else warm[name]}")
            continue
        _compare_documents(
            twice, name, [json.dumps(one) for one in asked], [json.dumps(one) for one in warm[name]]
        )
        if not isinstance(theirs[name], Exception):
            rows = sorted(theirs[name]["samples"][name], key=lambda row: int(row["doc_id"]))
            every = {row["doc_id"]: json.dumps(_asked(row)) for row in rows}  # one row per filter
            _compare_documents(
                logged, name, [json.dumps(one["texts"]) for one in asked], list(every.values())
            )
    return [twice, logged]


def _compare_documents(into, name, ours, theirs):
    """Add the documents of a task, with one line for all differences."""
    pairs = list(itertools.zip_longest(ours, theirs, fillvalue=""))
    into.count += len(pairs)
    differing = [(i, one, two) for i, (one, two) in enumerate(pairs) if one != two]
    if differing:
        i, one, two = differing[0]
        at = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), 0)
        shown = f"from character {at} on ours {one[at:][:60]!r}, theirs {two[at:][:60]!r}"
        into.differences.append(
            f"{name}: {len(differing)} of {len(pairs)} documents, the first is {i}: {shown}"
        )


def _asked(row):
    """Return the texts of the requests of a logged document.

    They are a context, or each context with its continuation.
    """
    return [
        "".join(one for one in arguments if isinstance(one, str)) for arguments in row["arguments"]
    ]


def _timed(work):
    started = time.monotonic()
    result = work()
    return result, time.monotonic() - started


if __name__ == "__main__":
    main(Path(sys.argv[1]))
