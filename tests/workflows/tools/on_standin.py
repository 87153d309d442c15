"""Check stand-ins with one fault each, and sound ones, and count what is named.

Run `python -m tests.workflows.tools.on_standin [TRIALS [NAME ...]]`; 20 trials take an hour. Each
trial has a seed of its own for the model's errors. A model errs in 6 % of the requests in which it
may choose, and half of the models think. docs/measured/check-tools.md has the table.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.generation import ToolFaults
from serve_eval.launchers._standin.model import MadeUpModel, encode
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Connection, DataRoots, Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256, uniform
from serve_eval.tasks.tool_calls import KIND, KINDS
from serve_eval.workflows.tools import ToolRules, check_tools

MODEL_ERRORS = 0.06
"""Share of the answers in which the model itself is wrong."""


class ToolModel(MadeUpModel):
    """Answers the set: as a model that sometimes errs, with or without thoughts.

    Of the answers, `noise` are drawn again for each request.
    """

    def __init__(self, file, *, seed, thinks, noise=0.0):
        super().__init__(file, seed=seed)
        self._thinks, self._noise, self._seed_of = thinks, noise, seed
        self.answered = 0

    def answer(self, ids, **more):
        self.answered += 1
        if self._noise and uniform(f"{self._seed_of}:{self.answered}") < self._noise:
            more["wrong"] = True
        found = super().answer(ids, **more)
        if not self._thinks:
            return found
        thoughts = "<think>The user asks for something, and I think about which tool fits.</think>"
        return [*encode(thoughts), *found]


def plan_of(url, kinds, limit=None, *, route="chat"):
    """Return a plan that asks the set at this address."""
    options = {} if kinds is None else {"kinds": list(kinds)}
    return Plan(
        model="M",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="tool_calls", options=options),),
        limits=Limits(),
        limit=limit,
        connection=Connection(route=route),
    )


def write_tool_answers(path, kinds, errors, seed):
    """Write the answers to the whole set, of which a share is wrong."""
    task = build_task(Spec(name="tool_calls", options={"kinds": list(kinds)}))
    lines = []
    for sample in task.load(DataRoots(), 1_000_000).samples:
        right, wrong = task.answers(sample)
        enforced = sample.metadata[KIND] not in FREE
        wrongs = uniform(f"{seed}:{sample.id}") < errors and not enforced
        told = {"right": wrong if wrongs else right, "wrong": right if enforced else wrong}
        lines.append(
            json.dumps({"sha256": prompt_sha256(sample.prompt), "probability": 1.0, **told})
        )
    path.write_text("\n".join(lines) + "\n")
    return path


FREE = ("auto", "no_tool", "parallel", "turns", "after_result", "thinking", "schemas")
"""Kinds in which the model may choose to call."""


def create_standin(model, faults=None, *, thinks=False):
    """Return a server with parsers for tool calls and, if the model thinks, for thoughts."""
    args = {
        "tool_parser": "qwen3",
        "guided_decoding_backend": "xgrammar",
        **({"reasoning_parser": "qwen3"} if thinks else {}),
    }
    config = WorkerConfig(model="M", host="127.0.0.1", port=0, args=args, tool_parser="qwen3")
    return create(config, model, Faults(tools=ToolFaults(**(faults or {}))), "main")


async def check_standin(
    out_dir,
    answers,
    faults=None,
    *,
    kinds=None,
    loads=(1, 8, 32),
    limit=None,
    seed=0,
    thinks=False,
    noise=0.0,
    reference=None,
    route="chat",
):
    """Check a server whose model gives the answers of a file, and return the result."""
    model = ToolModel(answers, seed=seed, thinks=thinks, noise=noise)
    async with serve_app(create_standin(model, faults, thinks=thinks)) as url:
        return await check_tools(
            plan_of(url, kinds, limit, route=route),
            out_dir,
            loads,
            rules=ToolRules(reference=reference),
            environ={},
        )


LOADS = (1, 16)
LIMIT = 160


class FaultTrial(NamedTuple):
    """A fault of the server, and the errors of which one must be named."""

    faults: Mapping[str, Any]
    named: tuple[str, ...]
    where: str
    thinks: bool = False
    noise: float = 0.0


TRIALS = {
    "last piece of a stream dropped": FaultTrial(
        {"drops_last_piece": True}, ("lost part",), "stream"
    ),
    "characters cut in a stream": FaultTrial(
        {"cuts_characters": True}, ("broken characters",), "stream"
    ),
    "pieces of 10 tokens become text": FaultTrial({"interval": 10}, ("markup left",), "stream"),
    "parser leaves marks": FaultTrial({"leaves_markup": True}, ("markup left",), "everywhere"),
    "JSON broken above 8 in flight": FaultTrial(
        {"breaks_json_above": 8}, ("invalid JSON",), "at 16"
    ),
    "reasoning lost before a call": FaultTrial(
        {"loses_reasoning": True}, ("lost reasoning",), "everywhere", thinks=True
    ),
    "all calls have index 0": FaultTrial({"one_index": True}, ("bad id or index",), "stream"),
    "all calls have one id": FaultTrial({"one_id": True}, ("bad id or index",), "everywhere"),
    "finish_reason stop": FaultTrial(
        {"wrong_finish": True}, ("wrong finish_reason",), "everywhere"
    ),
    "usage of streams wrong": FaultTrial(
        {"wrong_usage": True}, ("prompt tokens differ",), "stream"
    ),
    "only the first argument kept": FaultTrial(
        {"forgets_arguments": True}, ("schema mismatch",), "everywhere"
    ),
    "sound": FaultTrial({}, (), ""),
    "sound, thinks": FaultTrial({}, (), "", thinks=True),
    "sound, 4 % drawn again": FaultTrial({}, (), "", noise=0.04),
}


def run_trial(trial, seed):
    """Return the result of one check."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        answers = write_tool_answers(file, list(KINDS), MODEL_ERRORS, seed)
        return asyncio.run(
            check_standin(
                Path(folder) / "out",
                answers,
                trial.faults,
                loads=LOADS,
                limit=LIMIT,
                seed=seed,
                thinks=trial.thinks or (bool(trial.named) and seed % 2 == 1),
                noise=trial.noise,
            )
        )


def is_named(trial, found):
    """Return True if the fault is named, at its place."""
    cells = [one.cells for one in found.findings if one.fault in trial.named]
    if not cells:
        return False
    places = {name for one in cells for name in one}
    everywhere = {cell.name for cell in found.cells}
    right = {
        "everywhere": everywhere,
        "stream": {name for name in everywhere if name.startswith("stream")},
        "at 16": {name for name in everywhere if name.endswith("at 16")},
    }[trial.where]
    return places == right


def main():
    """Print a row for each kind of server."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for name, trial in TRIALS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        began = time.monotonic()
        found = [run_trial(trial, seed) for seed in range(trials)]
        named = sum(is_named(trial, one) for one in found) if trial.named else 0
        said = Counter(finding.fault for one in found for finding in one.findings)
        seconds = (time.monotonic() - began) / trials
        print(
            f"{name:<34} accused {sum(one.exit_code == 1 for one in found):>2}, named {named:>2}"
            f" of {trials}; {found[0].requests} requests, {seconds:.1f} s; {dict(said)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
