"""Prepare the inputs of both sides of the comparison of lm-eval's tasks.

These are rows, tasks, a tokenizer, servers and caches.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

    def url(self, task: str) -> str:
        """Return the base URL of the server of a task."""
        return self.urls["props" if task in BY_PROPS else "tokenizer_info"]


def options(files: Mapping[str, str], num_fewshot: int | None) -> dict[str, Any]:
    """Return the options of our task."""
    given: dict[str, Any] = {"data_files": dict(files)}
    return given if num_fewshot is None else {**given, "num_fewshot": num_fewshot}


@contextlib.contextmanager
def given(folder: Path) -> Iterator[Setting]:
    """Write rows, tasks and a tokenizer, and serve until the block ends."""
    for place in ("rows", "own/lm_eval", "runs"):
        (folder / place).mkdir(parents=True)
    for name, text in OWN_TASKS.items():
        (folder / f"own/lm_eval/{name}.yaml").write_text(text)
    golds: dict[str, str] = {}
    files = {
        case.name: case.write(folder / "rows", place, golds) for place, case in enumerate(CASES)
    }
    (folder / "golds.json").write_text(json.dumps(golds))
    _write_tokenizer(folder / "tokenizer")
    with contextlib.ExitStack() as stack:
        urls = {way: stack.enter_context(_served(folder, way)) for way in WAYS}
        shots = {case.name: case.num_fewshot for case in CASES}
        yield Setting(folder=folder, files=files, shots=shots, urls=urls)


def _write_tokenizer(folder: Path) -> None:
    """Write a tokenizer whose tokens are bytes, with one more token that ends a text."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    model = models.BPE(vocab={f"<0x{i:02X}>": i for i in range(256)}, merges=[], byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)


@contextlib.contextmanager
def _served(folder: Path, way: str) -> Iterator[str]:
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
def cached_in(folder: Path) -> Iterator[None]:
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
def quiet() -> Iterator[None]:
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
