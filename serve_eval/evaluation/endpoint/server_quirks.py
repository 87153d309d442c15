"""What known servers do behind a client's back, said by name when it bears on a run. Pure.

Found with the servers themselves; docs/endpoints.md has the table. What shows in an answer is found
out by probing instead, whatever the server is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.client.questions.self_description import LLAMA_CPP_PYTHON
from serve_eval.schema import Endpoint, Plan, Task

TRANSFORMERS = "transformers_serve"
"""Our launcher of it, which is all that it is known by: it tells nothing of itself."""


def quirks(plan: Plan, endpoint: Endpoint, tasks: Sequence[Task]) -> list[str]:
    """What a reader of the numbers should know of the server, and what to do about it."""
    asked = [task for task in tasks if not task.prompt_logprobs]
    found = []
    if endpoint.info.server == LLAMA_CPP_PYTHON:
        if unset := [task.name for task in asked if "repeat_penalty" not in task.extra]:
            found.append(
                f"the endpoint is {LLAMA_CPP_PYTHON}, which punishes repetition (repeat_penalty"
                " 1.1) unless it is told not to, at temperature 0 too: --extra-body"
                f" '{{\"repeat_penalty\": 1.0}}' for {', '.join(unset)}"
            )
        if (
            plan.limits.stream
            and plan.limits.concurrency != 1
            and plan.launcher.name != "llama_cpp"
        ):
            found.append(
                f"the endpoint is {LLAMA_CPP_PYTHON}, which cuts streams off when a newer request"
                " comes unless it was started with --interrupt_requests false. Start it so, or ask"
                " without --stream or with --concurrency 1"
            )
    sampled = [
        task.name for task in asked if task.sampling.temperature or plan.times(task.name) > 1
    ]
    if plan.launcher.name == TRANSFORMERS and sampled:
        found.append(
            "transformers serve takes no temperature from a request: unless generation_config.json"
            f" says do_sample, every answer to a prompt is the same ({', '.join(sampled)})"
        )
    return found
