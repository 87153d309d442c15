"""Define tasks in lm-eval's format whose code draws random numbers.

They draw with the generators of Python and numpy or with their own, during import, in a prompt and
while scoring. GPQA's own configurations on made data are here too.
"""

from __future__ import annotations

import json
from pathlib import Path

BASE = """
dataset_path: json
dataset_kwargs: {data_files: {train: drawn_train.jsonl, test: drawn_test.jsonl}}
training_split: train
test_split: test
fewshot_split: train
output_type: multiple_choice
doc_to_text: "Question: {{question}} {{choices|join(', ')}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{choices.index(right)}}"
metric_list: [{metric: acc}]
"""
CODE = """
import random

import numpy

own = random.Random(42)

def by_python(docs):
    return docs.map(lambda doc: {"choices": random.sample(doc["choices"], 4)})

def by_numpy(docs):
    return docs.map(lambda doc: {"choices": [str(one) for one in numpy.random.permutation(doc["choices"])]})

def by_own(docs):
    return docs.map(lambda doc: {"choices": own.sample(doc["choices"], 4)})

def text(doc):
    return f"{doc['question']} {random.random()} {numpy.random.random()}"

def guess(doc, results):
    return {"acc": random.random()}
"""  # noqa: E501
DRAWN = {
    "drawn_python": "process_docs: !function drawing.by_python",
    "drawn_shots": "process_docs: !function drawing.by_python\nnum_fewshot: 2",
    "drawn_numpy": "process_docs: !function drawing.by_numpy",
    "drawn_own": "process_docs: !function drawing.by_own",
    "drawn_import": "process_docs: !function seeding.by_python",
    "drawn_text": "doc_to_text: !function drawing.text",
    "drawn_score": "process_results: !function drawing.guess",
}
GPQA = {
    "zeroshot/_gpqa_zeroshot_yaml": "",
    "n_shot/_gpqa_n_shot_yaml": "num_fewshot: 2",
    "generative/_gpqa_generative_n_shot_yaml": "",
    "cot_zeroshot/_gpqa_cot_zeroshot_yaml": "",
    "cot_n_shot/_gpqa_cot_n_shot_yaml": "num_fewshot: 1",
}
"""Files that lm-eval's tasks of GPQA include, below its folder, with their content here."""


def write(root: Path, gpqa: Path | None = None) -> list[str]:
    """Write the tasks and their data below a folder for `--include-path`, and return their names.

    Those of GPQA are included if lm-eval's folder of them is given.
    """
    folder = root / "lm_eval"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "drawing.py").write_text(CODE)
    (folder / "seeding.py").write_text(CODE + "\nrandom.seed(7)\n")
    (folder / "_drawn_yaml").write_text(BASE)
    for split, count in (("train", 6), ("test", 20)):
        rows = (
            {"question": f"{split} {i}?", "choices": [f"{i}{c}" for c in "abcd"], "right": f"{i}a"}
            for i in range(count)
        )
        (folder / f"drawn_{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    for name, text in DRAWN.items():
        (folder / f"{name}.yaml").write_text(f"include: _drawn_yaml\ntask: {name}\n{text}\n")
    if gpqa is None:
        return list(DRAWN)
    wrong = "Incorrect Answer"
    made = (
        {
            "Question": f"Q{i}?",
            "Correct Answer": f"right {i}",
            **{f"{wrong} {k}": f"wrong {k}" for k in (1, 2, 3)},
        }
        for i in range(20)
    )
    (folder / "gpqa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    data = (
        "dataset_path: json\ndataset_name: null\ndataset_kwargs: {data_files: {train:"
        " gpqa.jsonl}}\n"
    )
    names = []
    for file, more in GPQA.items():
        names.append(f"made_gpqa_{file.partition('/')[0]}")
        (folder / f"{names[-1]}.yaml").write_text(
            f"include: {gpqa / file}\ntask: {names[-1]}\n{data}{more}\n"
        )
    return [*DRAWN, *names]
