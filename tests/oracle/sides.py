"""Serve a deterministic model without weights: `python -m tests.oracle.sides --golds FILE`.

It runs in its own process. A token is a byte, and one more token ends a text. The log-probability
of a token depends on all tokens before it and on itself, so one token too many, too few or at
another place changes every figure. An answer depends on the prompt: it is the file's answer for the
last code (`k` and five digits) of the prompt, its answer for another code, or something else.
Prompts are texts, or lists of tokens with the same meaning.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import io
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_eval.schema import Limits, Plan, Spec
from tests.oracle.made.cases import CASES, OWN_TASKS
from tests.scripted_server import ScriptedServer, json_reply, models

MODEL = "oracle"
END = "<|endoftext|>"
"""Text of the token that ends a text and also comes before one."""
END_ID = 256
CODE = re.compile(r"k\d{5}")
WAYS = ("tokenizer_info", "props")
"""Ways in which the server reports its special tokens."""
_STEP = 1_000_003
_MASK = 0xFFFFFFFF
_VALUES = [-0.002 - 5.0 * random.Random(i).random() ** 3 for i in range(4096)]
_ONE_IN = 16
"""One token in this many is not the likeliest in its place."""
_FORMS = (
    lambda right, other: right,
    lambda right, other: f" {right}",
    lambda right, other: f" {right}\n\nQuestion: And then?\nAnswer: {other}",
    lambda right, other: f"Well. {right}\nQ: And then?\nA: {other}",
    lambda right, other: f" {right.upper()}.",
    lambda right, other: f" {other}",
    lambda right, other: f"{other}\n\n{right}",
    lambda right, other: f" I do not know, nor 3 nor $4.50. {END}{right}",
    lambda right, other: "",
)


def tokens_of(prompt):
    """Return the tokens of a text; the text of the end token becomes that token."""
    if not isinstance(prompt, str):
        return list(prompt)
    pieces = [list(piece.encode()) for piece in prompt.split(END)]
    return list(itertools.chain(pieces[0], *([END_ID, *piece] for piece in pieces[1:])))


def text_of(tokens):
    """Return the text of tokens."""
    ends = [-1, *(i for i, token in enumerate(tokens) if token == END_ID), len(tokens)]
    return END.join(
        bytes(tokens[a + 1 : b]).decode(errors="replace") for a, b in itertools.pairwise(ends)
    )


def logprobs_of(tokens):
    """Return log-probabilities in the form of /v1/completions: the first token has none."""
    states = list(
        itertools.accumulate(
            tokens, lambda state, token: (state * _STEP ^ token) & _MASK, initial=7
        )
    )[1:]
    values = [_VALUES[state >> 20] for state in states]
    texts = [
        END if token == END_ID else bytes([token]).decode(errors="replace") for token in tokens
    ]
    tops = [
        {text: value} if state >> 9 & 63 >= 64 // _ONE_IN else {text: value, "other": value / 2}
        for text, value, state in zip(texts, values, states, strict=True)
    ]
    return {
        "tokens": texts,
        "token_logprobs": [None, *values[1:]],
        "top_logprobs": [None, *tops[1:]],
        "text_offset": list(_offsets(tokens)),
    }


def answer_of(prompt, golds):
    """Return the whole answer to a prompt, before stop strings and the token limit cut it."""
    drawn = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    codes = CODE.findall(prompt)
    known = sorted(golds)
    if not codes or codes[-1] not in golds:
        return f"I do not know, say {drawn % 10}."
    at = known.index(codes[-1])
    alike = [code for code in known if code[:3] == codes[-1][:3]]
    return _FORMS[drawn % len(_FORMS)](golds[known[at]], golds[alike[drawn // 64 % len(alike)]])


def create(golds, way):
    """Return the server; `way` selects how it reports its special tokens."""

    def completions(request):
        prompt = request.body["prompt"]
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            (prompt,) = prompt
        tokens = tokens_of(prompt)
        choice, made = _choice(request.body, tokens, golds)
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": made,
            "total_tokens": len(tokens) + made,
        }
        told = {
            "id": f"cmpl-{request.number}",
            "object": "text_completion",
            "model": MODEL,
            "choices": [choice],
        }
        return json_reply({**told, "usage": usage})

    special = {
        "tokenizer_info": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END},
        "props": {"bos_token": "", "eos_token": END, "chat_template": ""},
    }
    routes = {"/v1/models": models(MODEL), f"/{way}": json_reply(special[way])}
    return ScriptedServer(completions, paths=["/v1/completions"], routes=routes)


def _offsets(tokens):
    """Yield the start of each token in characters.

    All bytes of a character start where it does.
    """
    at, ahead = 0, 0
    for token in tokens:
        if token == END_ID:
            at += ahead
            yield at
            at, ahead = at + len(END), 0
        else:
            if token & 0xC0 != 0x80:
                at, ahead = at + ahead, 1
            yield at


def _choice(body, tokens, golds):
    """Return the one choice of an answer, and the number of generated tokens."""
    most = int(body.get("max_tokens", 16))
    if body.get("echo"):
        made = tokens_of("I do not know.")[:most]
        whole = [*tokens, *made]
        told = logprobs_of(whole) if body.get("logprobs") is not None else None
        return {
            "index": 0,
            "text": text_of(whole),
            "logprobs": told,
            "finish_reason": "length",
        }, len(made)
    stops = [END, *_stops(body.get("stop"))]
    text = answer_of(text_of(tokens), golds)
    cut = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    made = tokens_of(text[:cut])
    reason = "stop" if len(made) <= most else "length"
    said = bytes(made[:most]).decode(errors="ignore")
    return {"index": 0, "text": said, "logprobs": None, "finish_reason": reason}, min(
        len(made), most
    )


def _stops(given):
    return [given] if isinstance(given, str) else [stop for stop in given or () if stop]


async def _serve(server, ready):
    async with server.serve() as url:
        part = ready.with_suffix(".part")
        part.write_text(url)
        part.rename(ready)
        await asyncio.Event().wait()


def main():
    """Serve until the process is ended; the ready file gets the base URL."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.sides", description=__doc__)
    parser.add_argument(
        "--golds", type=Path, required=True, help="a JSON object: what is right, by code"
    )
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument(
        "--tells", choices=WAYS, default=WAYS[0], help="how the special tokens are told"
    )
    given = parser.parse_args()
    asyncio.run(_serve(create(json.loads(given.golds.read_text()), given.tells), given.ready_file))


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
    command = [sys.executable, "-m", "tests.oracle.sides", "--golds", str(folder / "golds.json")]
    process = subprocess.Popen([*command, "--tells", way, "--ready-file", str(ready)], cwd=ROOT)
    try:
        until = time.monotonic() + 60
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the server of tests/oracle/sides.py did not start")
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


if __name__ == "__main__":
    main()
