"""Compare MMLU's prompts and letters with TensorRT-LLM's own evaluator.

The environment variable TRTLLM names a checkout of it.
"""

import json
import tempfile
from pathlib import Path

from serve_eval.datasets.generated import write_mmlu
from serve_eval.schema import DataRoots
from serve_eval.tasks.mmlu import SUBJECTS, task
from tests.oracle._child import run
from tests.oracle._suite_mmlu import NUM_SAMPLES
from tests.oracle.part import SHARED, Compared, checkout


def compare():
    """Compare every question that both ask, in order.

    Raises Skipped without a checkout.
    """
    suite = checkout("TRTLLM", "github.com/NVIDIA/TensorRT-LLM", "tensorrt_llm/evaluate/mmlu.py")
    compared = Compared(
        what="prompts, letters and subjects of mmlu, against TensorRT-LLM's evaluate/mmlu.py"
    )
    with tempfile.TemporaryDirectory() as folder:
        data = SHARED / "mmlu"
        if not data.is_dir():
            data = Path(folder, "mmlu")
            write_mmlu(data, SUBJECTS)
            compared.notes.append(f"generated questions: {SHARED / 'mmlu'} is not there")
        theirs = _asked(suite, data, Path(folder, "asked.json"))
        samples = task(num_samples=NUM_SAMPLES).load(DataRoots(roots=(data,)), NUM_SAMPLES).samples
    if len(samples) != len(theirs):
        compared.add("questions", len(samples), len(theirs))
    for sample, wanted in zip(samples, theirs, strict=False):
        compared.add(sample.id, [sample.prompt, sample.target, sample.metadata["subject"]], wanted)
    return [compared]


def _asked(suite, data, out):
    run("tests.oracle._suite_mmlu", suite, data, out)
    return json.loads(out.read_text())
