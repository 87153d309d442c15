"""Prepare the inputs of lm-eval's tasks, and run each side of the comparison.

These are rows, tasks, a tokenizer, servers and caches.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_eval.schema import Limits, Plan, Spec
from tests.oracle.made.cases import CASES, OWN_TASKS
from tests.oracle.server import END, WAYS

ROOT = Path(__file__).parents[2]
BY_PROPS = ("blimp_wh_island", "pile_github")
"""Tasks for the server that reports its special tokens as llama.cpp does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The output folder, the rows and the number of worked examples by task, and the servers.

    Servers are keyed by how they report their special tokens.
    """

    folder: Path
    files: Mapping[str, Mapping[str, str]]
    shots: Mapping[str, int | None]
    urls: Mapping[str, str]

    def url(self, task):
        """Return the base URL of the server of a task."""
        return self.urls["props" if task in BY_PROPS else "tokenizer_info"]


def options(files, num_fewshot):
    """Return the options of our task."""
    given = {"data_files": dict(files)}
    return given if num_fewshot is None else {**given, "num_fewshot": num_fewshot}


@contextlib.contextmanager
def given(folder):
    """Write rows, tasks and a tokenizer, and serve until the block ends."""
    for place in ("rows", "own/lm_eval", "runs"):
        (folder / place).mkdir(parents=True)
    for name, text in OWN_TASKS.items():
        (folder / f"own/lm_eval/{name}.yaml").write_text(text)
    golds = {}
    files = {
        case.name: case.write(folder / "rows", place, golds) for place, case in enumerate(CASES)
    }
    (folder / "golds.json").write_text(json.dumps(golds))
    _write_tokenizer(folder / "tokenizer")
    with contextlib.ExitStack() as stack:
        urls = {way: stack.enter_context(_served(folder, way)) for way in WAYS}
        shots = {case.name: case.num_fewshot for case in CASES}
        yield Setting(folder=folder, files=files, shots=shots, urls=urls)


def _write_tokenizer(folder):
    """Write a tokenizer whose tokens are bytes, with one more token that ends a text."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    model = models.BPE(vocab={f"<0x{i:02X}>": i for i in range(256)}, merges=[], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)


@contextlib.contextmanager
def _served(folder, way):
    ready = folder / f"{way}.ready"
    command = [sys.executable, "-m", "tests.oracle.server", "--golds", str(folder / "golds.json")]
    process = subprocess.Popen([*command, "--tells", way, "--ready-file", str(ready)], cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server of tests/oracle/server.py did not start")
            time.sleep(0.05)
        yield ready.read_text()
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def cached_in(folder):
    """Keep prepared data sets in a separate folder, so that no side reads those of the other."""
    import datasets

    before, variable = datasets.config.HF_DATASETS_CACHE, os.environ.get("HF_DATASETS_CACHE")
    datasets.config.HF_DATASETS_CACHE = folder
    os.environ["HF_DATASETS_CACHE"] = str(folder)  # for the process in which answers are scored
    try:
        yield
    finally:
        datasets.config.HF_DATASETS_CACHE = before
        del os.environ["HF_DATASETS_CACHE"]
        if variable is not None:
            os.environ["HF_DATASETS_CACHE"] = variable


@contextlib.contextmanager
def quiet():
    """Silence progress bars and the output of tasks."""
    import datasets

    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(level)


LONGEST = 1_000_000
"""Context length in tokens that lm-eval assumes, so that nothing is cut."""
IN_FLIGHT = 8
AT_ONCE = 24
"""Number of tasks in one of our runs."""


def theirs(setting, names, *, our_client):
    """Return lm-eval's results by task.

    Each task has its own call, which sets its seeds.
    """
    with quiet(), cached_in(setting.folder / ("client" if our_client else "theirs")):
        from lm_eval.tasks import TaskManager

        manager = TaskManager(include_path=str(setting.folder / "own/lm_eval"))
        return {
            name: _one_of_theirs(setting, name, manager, our_client=our_client) for name in names
        }


def _one_of_theirs(setting, name, manager, *, our_client):
    """Return lm-eval's results of a task, or the error that it raised."""
    import lm_eval
    from lm_eval.tasks._yaml_loader import load_yaml

    config = load_yaml(manager.task_index[name].yaml_path, resolve_func=True)
    kwargs = {**(config.get("dataset_kwargs") or {}), "data_files": dict(setting.files[name])}
    try:
        return lm_eval.simple_evaluate(
            **(_our_client(setting, name) if our_client else _own_client(setting, name)),
            tasks=[
                {**config, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": kwargs}
            ],
            num_fewshot=setting.shots[name],
            task_manager=manager,
            bootstrap_iters=0,
        )
    except Exception as error:  # raised by any task's code
        return error


def _our_client(setting, name):
    from serve_eval.lm_eval_model import ServeEvalLM

    return {"model": ServeEvalLM(base_url=setting.url(name), model="oracle", concurrency=IN_FLIGHT)}


def _own_client(setting, name):
    told = {
        "base_url": f"{setting.url(name)}/completions",
        "model": "oracle",
        "tokenizer": str(setting.folder / "tokenizer"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": IN_FLIGHT,
        "max_length": LONGEST,
    }
    return {"model": "local-completions", "model_args": told}


def ours(setting, names):
    """Return our reports by task, or the error of a task that cannot run.

    Tasks of one server share a run, as they would for a user, and the process in which their
    answers are scored. A run that fails is halved until the task is found.
    """
    found = {}
    for url in setting.urls.values():
        mine = [name for name in names if setting.url(name) == url]
        for chunk in (mine[i : i + AT_ONCE] for i in range(0, len(mine), AT_ONCE)):
            found |= _run(setting, chunk, url)
    return found


def _run(setting, names, url):
    from serve_eval.evaluation.evaluate import evaluate

    specs = tuple(
        Spec(name=f"lm_eval:{name}", options=options(setting.files[name], setting.shots[name]))
        for name in names
    )
    plan = Plan(
        model="oracle",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=specs,
        include_path=(str(setting.folder / "own"),),
        no_reference=True,
        limits=Limits(concurrency=IN_FLIGHT),
    )
    out = setting.folder / "runs" / f"{names[0]}-{len(names)}"
    try:
        with quiet(), cached_in(setting.folder / "ours"):
            report = asyncio.run(evaluate(plan, out, environ={}))
        return dict(zip(names, report.tasks, strict=True))
    except Exception as error:  # raised by any task's code
        if len(names) == 1:
            return {names[0]: error}
        middle = len(names) // 2
        return _run(setting, names[:middle], url) | _run(setting, names[middle:], url)
