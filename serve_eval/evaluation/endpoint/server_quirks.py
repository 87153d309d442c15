"""Warn of known servers' hidden behaviour that affects a run. Pure.

The behaviour was found with the servers themselves; docs/endpoints.md has the table. Behaviour that
shows in an answer is probed instead, for any server.
"""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.client.questions.self_description import LLAMA_CPP_PYTHON
from serve_eval.schema import Endpoint, Plan, Task

TRANSFORMERS = "transformers_serve"
"""Our launcher for transformers, the only sign of it: the server reports nothing about itself."""


def quirks(plan: Plan, endpoint: Endpoint, tasks: Sequence[Task]) -> list[str]:
    """Return what a reader of the numbers should know about the server, and what to do."""
    asked = [task for task in tasks if not task.prompt_logprobs]
    found = []
    if endpoint.info.server == LLAMA_CPP_PYTHON and (
        plan.limits.stream and plan.limits.concurrency != 1 and plan.launcher.name != "llama_cpp"
    ):
        found.append(
            f"the endpoint is {LLAMA_CPP_PYTHON}, which cuts off streams when a newer request"
            " arrives, unless it runs with --interrupt_requests false. Start it with that"
            " option, or run without --set limits.stream=true or with --concurrency 1"
        )
    sampled = [
        task.name for task in asked if task.sampling.temperature or plan.times(task.name) > 1
    ]
    if plan.launcher.name == TRANSFORMERS and sampled:
        found.append(
            "transformers serve ignores the temperature of a request: unless generation_config.json"
            f" sets do_sample, every answer to a prompt is the same ({', '.join(sampled)})"
        )
    return found
