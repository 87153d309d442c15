"""Define tasks in lm-eval's format, and serve a simulated endpoint for them.

There is one of each kind, and those that cannot be asked.

They draw with the generators of Python and numpy or with their own, during import, in a prompt and
while scoring. GPQA's own configurations on made data are here too.
"""

import json
from contextlib import contextmanager

from serve_eval.launchers._simulated.simulator import STATS, SimulatorConfig, create_app
from tests.scripted_server import serve_in_thread

CAPITALS = [
    ("France", "Paris"),
    ("Italy", "Rome"),
    ("Japan", "Tokyo"),
    ("Kenya", "Nairobi"),
    ("Peru", "Lima"),
]
SUMS = """
task: made_sums
dataset_path: json
dataset_kwargs: {data_files: {train: sums_train.jsonl, test: sums_test.jsonl}}
training_split: train
test_split: test
fewshot_split: train
output_type: generate_until
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_target: "{{answer}}"
num_fewshot: 2
generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 40, top_k: 1}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["(?s).*#### "]}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "#### (\\\\-?[0-9]+)"}, {function: take_first}]
  - name: flexible-extract
    filter: [{function: regex, group_select: -1, regex_pattern: "(-?[0-9]+)"}, {function: take_first}]
metadata: {version: 2.0}
"""  # noqa: E501
CHOOSE = """
task: made_capitals
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metadata: {version: 1}
"""
TEXTS = """
task: made_texts
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity}
  - {metric: byte_perplexity}
  - {metric: bits_per_byte}
metadata: {version: 1}
"""
LAST_WORD = """
task: made_last_word
dataset_path: json
dataset_kwargs: {data_files: {test: capitals.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "The capital of {{country}} is"
doc_to_target: " {{capital}}"
metric_list: [{metric: acc}, {metric: perplexity}]
"""
CONTEXTS = """
task: made_contexts
dataset_path: json
dataset_kwargs: {data_files: {test: contexts.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{right}}"
doc_to_choice: "{{['The cup held the tea since the cup', 'The cup held the tea since the tea']}}"
doc_to_target: "was {{what}}."
metric_list: [{metric: acc}]
"""
PRIOR = """
include: made_capitals.yaml
task: made_prior
metric_list: [{metric: acc_mutual_info}, {metric: acc}]
"""
EXACT = """
include: made_capitals.yaml
task: made_exact
metric_list: [{metric: acc}, {metric: exact_match}]
"""
F1 = """
include: made_capitals.yaml
task: made_mcc
metric_list: [{metric: mcc}]
"""
VOTES = "include: made_sums.yaml\ntask: made_votes\nrepeats: 3\n"
UNSAFE = "include: made_sums.yaml\ntask: made_unsafe\nunsafe_code: true\n"
GROUP = (
    "group: made_group\ntask: [made_sums, {group: made_inner, task: [made_capitals, made_texts]}]\n"
)
CLASS = "task: made_class\nclass: !function nowhere.Class\n"
LACKS = "include: made_sums.yaml\ntask: made_lacks\nprocess_results: !function needs.score\n"
ALARM = "include: made_sums.yaml\ntask: made_alarm\nprocess_results: !function alarm.score\n"
ALARM_CODE = '''
import os
import signal

def score(doc, results):
    """As math_verify does: no thread but the main one may set a handler."""
    print("noise by print")
    os.write(1, b"noise by a descriptor\\n")
    before = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        return {"exact_match": float(doc["answer"].split()[-1] == right(results[0]))}
    except TimeoutError:
        return {"exact_match": 0.0}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

def right(text):
    if "know" in text:
        signal.pause()
    return text.split()[-1]

def too_late(number, frame):
    raise TimeoutError
'''
FILES = {
    "made_alarm": ALARM,
    "made_sums": SUMS,
    "made_capitals": CHOOSE,
    "made_texts": TEXTS,
    "made_last_word": LAST_WORD,
    "made_contexts": CONTEXTS,
    "made_prior": PRIOR,
    "made_exact": EXACT,
    "made_mcc": F1,
    "made_votes": VOTES,
    "made_unsafe": UNSAFE,
    "made_group": GROUP,
    "made_class": CLASS,
    "made_lacks": LACKS,
}


def write(folder, *, sums=8):
    """Write the files of all tasks, data included, below a folder for `--include-path`."""
    root, folder = folder, folder / "lm_eval"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "alarm.py").write_text(ALARM_CODE)
    (folder / "needs.py").write_text(
        "import a_package_that_nobody_has\n\ndef score(doc, results): ...\n"
    )
    for split, start, count in (("train", 100, 6), ("test", 0, sums)):
        _jsonl(folder / f"sums_{split}.jsonl", (_sum(start + i) for i in range(count)))
    _jsonl(folder / "capitals.jsonl", (_capital(i) for i in range(len(CAPITALS))))
    texts = (
        "A quick fox jumps over a dog.",
        "It rained\nall day,  and then  some.",
        "Lamps burn late here.",
    )
    _jsonl(folder / "texts.jsonl", ({"text": text} for text in texts))
    _jsonl(
        folder / "contexts.jsonl",
        ({"right": str(i % 2), "what": what} for i, what in enumerate(("big", "hot"))),
    )
    return root


def _sum(i):
    return {
        "question": f"What is {i} plus {2 * i + 1}?",
        "answer": f"It is {i} and {2 * i + 1}.\n#### {3 * i + 1}",
    }


def _capital(i):
    names = [capital for _, capital in CAPITALS]
    choices = sorted({names[i], names[(i + 1) % 5], names[(i + 3) % 5]})
    return {
        "country": CAPITALS[i][0],
        "capital": names[i],
        "choices": choices,
        "gold": choices.index(names[i]),
    }


def _jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


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


def write_drawn_tasks(root, gpqa=None):
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


@contextmanager
def served(**config):
    """Yield the base URL and the received requests; the endpoint ends with the block."""
    app = create_app(SimulatorConfig(record=True, **config))
    with serve_in_thread(app) as url:
        yield url, app[STATS]
