"""Ask tasks of lm-eval as TensorRT-LLM's suite does, in a process with an empty data cache.

The suite seeds the global generators, builds the task, seeds its shots, shuffles its splits and
evaluates it. The order of GPQA's choices depends on the cache, and on every draw from those
generators in between. The process is `python -m tests.oracle._suite_flow ASKS PROMPTS`.
"""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tests.oracle.part import require, run

SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A task of lm-eval and the form in which it is asked.

    `config` is the path of its file below lm-eval's tasks, or its content; `files` are its data by
    split. `changed` overrides keys of that file. `drawn_twice` makes lm-eval's sampler draw twice
    and return the second draw, as versions up to 0.4.9.2 do for a chat in a single turn.
    """

    config: str | dict[str, Any]
    files: dict[str, str]
    chat: bool = False
    multiturn: bool = False
    changed: dict[str, Any] = field(default_factory=dict)
    drawn_twice: bool = False


def prompts(asks):
    """Return the prompts of each, in order: texts, or the turns of chats.

    Raises Skipped without lm-eval.
    """
    require("lm_eval")
    with tempfile.TemporaryDirectory() as folder:
        given, told = Path(folder, "asks.json"), Path(folder, "prompts.json")
        given.write_bytes(msgspec.json.encode(asks))
        offline = {"HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        run("tests.oracle._suite_flow", given, told, **offline)
        return msgspec.json.decode(told.read_bytes(), type=list[list[Any]])


def _asked(ask):
    """Return the prompts of a task that lm-eval builds in this process."""
    import lm_eval
    import lm_eval.tasks
    import numpy

    random.seed(SEED)
    numpy.random.seed(SEED)
    task = _task(ask)
    task.set_fewshot_seed(seed=SEED)
    for split in task.dataset:
        task.dataset[split] = task.dataset[split].shuffle(SEED)
    model = _recorder()
    with _drawing_twice(ask.drawn_twice):
        lm_eval.evaluate(
            lm=model,
            task_dict={"task": task},
            apply_chat_template=ask.chat,
            fewshot_as_multiturn=ask.multiturn,
            log_samples=False,
            bootstrap_iters=0,
        )
    return [msgspec.json.decode(prompt) if ask.chat else prompt for prompt in model.prompts]


def _task(ask):
    """Return the task as the suite builds it."""
    import lm_eval.api.task

    if hasattr(
        lm_eval.api.task, "random_task_id"
    ):  # 0.4.12 and 0.4.13 draw once between the two orders of GPQA
        lm_eval.api.task.random_task_id = lambda: "task"
    if isinstance(ask.config, str):
        return built(ask.config, ask.files, ask.changed)
    return _with_files({**ask.config, "process_docs": _choices_shuffled}, ask.files)


def built(name, files, changed, **loading):
    """Return lm-eval's task of a file, such as gsm8k/gsm8k.yaml, on these data files.

    `loading` is passed to `datasets`.
    """
    import lm_eval.tasks
    from lm_eval.tasks._yaml_loader import load_yaml

    own = load_yaml(Path(lm_eval.tasks.__file__).parent / name, resolve_func=True)
    return _with_files({**own, **changed}, files, **loading)


def _with_files(config, files, **loading):
    from lm_eval.api.task import ConfigurableTask

    kind = "csv" if any(file.endswith(".csv") for file in files.values()) else "json"
    local = {
        "dataset_path": kind,
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files, **loading},
    }
    return ConfigurableTask(
        config={**{key: value for key, value in config.items() if key != "tag"}, **local}
    )


def _choices_shuffled(dataset):
    """Shuffle the answers of every row by the global generator.

    The library keeps the result of this step on disk.
    """
    import random

    def shuffled(row):
        choices = [(row[f"Incorrect Answer {i}"] or " ").strip() for i in (1, 2, 3)]
        choices.append((row["Correct Answer"] or " ").strip())
        right = choices[3]
        random.shuffle(choices)
        return {"choices": choices, "letter": "ABCD"[choices.index(right)]}

    return dataset.map(shuffled)


def _recorder():
    """Return a model that records its prompts and gives empty answers."""
    from lm_eval.api.model import LM

    class Recorder(LM):
        tokenizer_name = "none"

        def __init__(self):
            super().__init__()
            self.prompts = []

        def generate_until(self, requests, **_):
            self.prompts += [request.args[0] for request in requests]
            return [""] * len(requests)

        def apply_chat_template(self, history, **_):
            return msgspec.json.encode(
                [[turn["role"], turn["content"]] for turn in history]
            ).decode()

        def loglikelihood(self, *_):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    return Recorder()


@contextmanager
def _drawing_twice(twice):
    from lm_eval.api.samplers import ContextSampler

    once = ContextSampler.sample

    def second(self, *args, **named):
        once(self, *args, **named)
        return once(self, *args, **named)

    ContextSampler.sample = second if twice else once
    try:
        yield
    finally:
        ContextSampler.sample = once


if __name__ == "__main__":
    _asks = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=list[Ask])
    Path(sys.argv[2]).write_bytes(msgspec.json.encode([_asked(ask) for ask in _asks]))
