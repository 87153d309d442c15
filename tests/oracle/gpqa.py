"""Compare GPQA's prompts under `suite_exact` with lm-eval's.

lm-eval runs as in TensorRT-LLM's suite, with an empty cache.
"""

import csv
import io
import random
import tempfile
from pathlib import Path
from typing import get_args

from serve_eval.schema import DataRoots
from serve_eval.tasks.gpqa import COLUMNS, INSTRUCTION, LETTERS, ROWS, Subset, task
from tests.oracle._suite_flow import Ask, prompts
from tests.oracle.part import Compared

CONFIG = {
    "task": "gpqa_made",
    "output_type": "generate_until",
    "training_split": "train",
    "validation_split": "train",
    "doc_to_text": (
        f"{INSTRUCTION}\n{{{{Question}}}}"
        + "".join(f"\n{letter}) {{{{choices[{i}]}}}}" for i, letter in enumerate(LETTERS))
    ),
    "doc_to_target": "letter",
    "num_fewshot": 0,
    "generation_kwargs": {"until": ["</s>"], "do_sample": False, "temperature": 0.0},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}
PIECES = (
    "the",
    "mass",
    "of a",
    "$x_1$",
    "kaon",
    "3.5",
    "eV",
    "é",
    "–",
    "(A)",
    '"quoted"',
    "a, b",
    "\n",
    "  ",
)


def compare():
    """Compare the prompts of every subset, on made-up rows of the same number."""
    subsets = get_args(Subset)
    with tempfile.TemporaryDirectory() as folder:
        files = {subset: _write(Path(folder), subset) for subset in subsets}
        theirs = prompts(
            [Ask(config=CONFIG, files={"train": str(files[subset])}) for subset in subsets]
        )
        compared = Compared(
            what="prompts of gpqa under suite_exact, against lm-eval with an empty cache"
        )
        agreeing = 0
        for subset, asked in zip(subsets, theirs, strict=True):
            roots = DataRoots(roots=(Path(folder),))
            ours, usual = (
                task(subset=subset, suite_exact=e).load(roots, ROWS[subset]).samples
                for e in (True, False)
            )
            compared.add(f"{subset}: rows", len(ours), len(asked))
            for sample, wanted in zip(ours, asked, strict=False):
                compared.add(sample.id, sample.prompt, wanted)
            agreeing += sum(
                sample.prompt == wanted for sample, wanted in zip(usual, asked, strict=False)
            )
    compared.notes.append(
        f"without suite_exact (choice_seed 0) {agreeing} of {sum(ROWS.values())} prompts are the"
        " same"
    )
    return [compared]


def _write(folder, subset):
    """Write as many made-up rows as the subset has."""
    rng, text = random.Random(f"gpqa {subset}"), io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    for i in range(ROWS[subset]):
        drawn = [" ".join(rng.choices(PIECES, k=rng.randint(1, 6))) for _ in COLUMNS]
        writer.writerow(
            {
                name: f"{piece} {i} {name[-1]}{piece}"
                for name, piece in zip(COLUMNS, drawn, strict=True)
            }
        )
    path = folder / f"gpqa_{subset}.csv"
    path.write_text(text.getvalue(), newline="")
    return path
