"""IFBench: 300 prompts with 58 kinds of instructions that a program can check, new to models.

Paper: Pyatkin et al. 2025, "Generalizing Verifiable Instruction Following". Data: allenai/IFBench
(ODC-BY-1.0). A sample asks "... Include exactly 7 numbers in the response." The value is the share
of prompts of which the answer, or one of its variants, follows each instruction (prompt-level
loose, as in the paper); the strict level, and both by instruction, are further figures. See
docs/tasks.md.
"""

from __future__ import annotations

from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
from serve_eval.schema import Task
from serve_eval.tasks._ifbench_forms import FORMS
from serve_eval.tasks._ifbench_words import WORDS
from serve_eval.tasks._instructions_checks import PUNKT, STOPWORDS, TAGGER
from serve_eval.tasks._instructions_following import Following, build_task
from serve_eval.tasks._samples import NumSamples

SOURCE = KNOWN["ifbench"]
PROMPT_FROM = "ours"
ROWS = 300
FILES = ("IFBench_test.jsonl", "data/train-*.parquet")


def task(*, num_samples: NumSamples = ROWS) -> Task:
    """Return the task, which asks the first `num_samples` prompts by chat.

    Raises PlanError for fewer than one.
    """
    if num_samples < 1:
        raise PlanError("ifbench: num_samples must be 1 or more")
    return build_task(
        "ifbench",
        Following(
            {**WORDS, **FORMS},
            "loose",
            archives=(PUNKT, STOPWORDS, TAGGER),
            packages=("nltk", "emoji", "syllapy"),
        ),
        SOURCE,
        FILES,
        rows=ROWS,
        num_samples=num_samples,
        max_tokens=4096,
    )
