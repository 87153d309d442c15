"""IFEval: 541 prompts with instructions that a program can check, such as "use no commas".

Paper: Zhou et al. 2023, "Instruction-Following Evaluation for Large Language Models". Data:
google-research (Apache-2.0). A sample asks "Write a 300+ word summary ... Do not use any commas."
The value is the share of prompts of which the answer itself follows each instruction (prompt-level
strict); the loose level, and both by instruction, are further figures. See docs/tasks.md.
"""

from __future__ import annotations

from serve_eval.datasets.known import KNOWN
from serve_eval.errors import PlanError
from serve_eval.schema import Task
from serve_eval.tasks._instructions.checks import PUNKT
from serve_eval.tasks._instructions.following import Following, build_task
from serve_eval.tasks._instructions.ifeval_checks import IFEVAL
from serve_eval.tasks._samples import NumSamples

SOURCE = KNOWN["ifeval"]
PROMPT_FROM = "ours"
ROWS = 541
FILES = ("input_data.jsonl", "ifeval_input_data.jsonl")


def task(*, num_samples: NumSamples = ROWS) -> Task:
    """Return the task, which asks the first `num_samples` prompts by chat.

    Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("ifeval: num_samples must be 1 or more")
    return build_task(
        "ifeval",
        Following(IFEVAL, "strict", archives=(PUNKT,), packages=("nltk", "langdetect")),
        SOURCE,
        FILES,
        rows=ROWS,
        num_samples=num_samples,
        max_tokens=1280,
    )
