"""The demo: the main job on generated data against the simulated endpoint, once sound and once damaged.

Nothing but the model is simulated: prompts, HTTP, scoring, references and verdicts are the ones of a real run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from serve_eval.datasets.generated import write_gsm8k, write_mmlu
from serve_eval.schema import Plan, Spec
from serve_eval.tasks._mmlu_subjects import SUBJECTS

MODEL = "simulated"
ACCURACY = {"mmlu": 0.682, "gsm8k": 0.742}
"""Probability of a right answer per task, which is also the registered reference (times 100)."""
DAMAGE = 0.08
"""Share of the right answers that the damaged endpoint loses."""
LATENCY_S = 0.02


def write_inputs(folder: Path) -> None:
    """Writes the data sets and the references of the simulated model below `folder`."""
    write_gsm8k(folder / "data" / "gsm8k")
    write_mmlu(folder / "data" / "mmlu", SUBJECTS)
    (folder / "references").mkdir(parents=True, exist_ok=True)
    for task, accuracy in ACCURACY.items():
        text = (
            "# The simulated endpoint of the demo: the value is the probability that it is told to be right with.\n"
            f"{MODEL}:\n  - accuracy: {100 * accuracy:.1f}\n    source: declared by the demo\n"
        )
        (folder / "references" / f"{task}.yaml").write_text(text, encoding="utf-8")


def plans(folder: Path) -> dict[str, Plan]:
    """The two runs by the name of their run folder."""
    sound = Plan(
        model=MODEL,
        launcher=Spec(name="simulated", options={"accuracy": ACCURACY, "latency_s": LATENCY_S}),
        tasks=(Spec(name="mmlu"), Spec(name="gsm8k")),
        dataset_roots=(str((folder / "data").absolute()),),
        references_dir=str((folder / "references").absolute()),
    )
    damaged = Spec(name="simulated", options={**sound.launcher.options, "damage": DAMAGE})
    return {"sound": sound, "damaged": replace(sound, launcher=damaged)}
