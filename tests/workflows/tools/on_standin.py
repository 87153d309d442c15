"""Check the tool calls of a stand-in of trtllm-serve, sound or with one fault."""

import json

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.generation import ToolFaults
from serve_eval.launchers._standin.model import MadeUpModel, encode
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256, uniform
from serve_eval.tasks._tool_requests import KIND
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


def plan_of(url, kinds, limit=None):
    """Return a plan that asks the set at this address."""
    options = {} if kinds is None else {"kinds": list(kinds)}
    return Plan(
        model="M",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="tool_calls", options=options),),
        limits=Limits(),
        limit=limit,
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
):
    """Check a server whose model gives the answers of a file, and return the result."""
    model = ToolModel(answers, seed=seed, thinks=thinks, noise=noise)
    async with serve_app(create_standin(model, faults, thinks=thinks)) as url:
        return await check_tools(
            plan_of(url, kinds, limit),
            out_dir,
            loads,
            rules=ToolRules(reference=reference),
            environ={},
        )
