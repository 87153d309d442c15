"""Write the data sets, plans and cases of the compared runs.

Both checkouts get the same bytes.
"""

import csv
import gzip
import json
import random

SUBJECTS = """abstract_algebra anatomy astronomy business_ethics clinical_knowledge college_biology college_chemistry
college_computer_science college_mathematics college_medicine college_physics computer_security conceptual_physics
econometrics electrical_engineering elementary_mathematics formal_logic global_facts high_school_biology
high_school_chemistry high_school_computer_science high_school_european_history high_school_geography
high_school_government_and_politics high_school_macroeconomics high_school_mathematics high_school_microeconomics
high_school_physics high_school_psychology high_school_statistics high_school_us_history high_school_world_history
human_aging human_sexuality international_law jurisprudence logical_fallacies machine_learning management marketing
medical_genetics miscellaneous moral_disputes moral_scenarios nutrition philosophy prehistory professional_accounting
professional_law professional_medicine professional_psychology public_relations security_studies sociology
us_foreign_policy virology world_religions""".split()  # noqa: E501, SIM905

CASES = """
resources:
  manner: {short: Answer with the name alone.}
capitals:
  scorer: exact
  iterations: 2
  fields: [continent, country]
  sampling: {max_tokens: 64, temperature: 0}
  system_messages: ["${manner.short}"]
  prompt: What is the capital of ${country}?
  cases:
    - case: europe:france
      input: {country: France}
      expected: {answer: Paris}
    - case: asia
      axes: [country]
      input: {country: {japan: Japan, nepal: Nepal, laos: Laos}}
      expected: {by: country, values: {japan: Tokyo, nepal: Kathmandu, laos: Vientiane}}
      scorer: {words: {whole_words: true}}
advice:
  - case: run
    join: {prompt: " "}
    input:
      system_messages: {brief: [Be brief.], long: [Be thorough.]}
      prompt:
        who: {she: I am a woman of 40., he: I am a man of 50.}
        question: Should I run?
        distractor: {cat: My cat sleeps all day., none: ""}
    expected: {by: prompt.who, values: {she: "yes", he: "no"}}
    scorer: yes_no
"""
LM_EVAL = {
    "made_sums": (
        """
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
generation_kwargs: {until: ["Question:"], do_sample: false, max_gen_toks: 40}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, regexes_to_ignore: ["(?s).*#### "]}
filter_list:
  - name: strict-match
    filter: [{function: regex, regex_pattern: "#### (\\\\-?[0-9]+)"}, {function: take_first}]
"""  # noqa: E501
    ),
    "made_choices": (
        """
task: made_choices
dataset_path: json
dataset_kwargs: {data_files: {test: choices.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "The sum of {{a}} and {{b}} is"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metadata: {version: 1}
"""
    ),
}


def write_all(folder):
    """Write `data/`, `cases.yaml` and `mine/lm_eval/` below a folder."""
    data = folder / "data"
    for split, count in (("train", 20), ("test", 400)):
        rng = random.Random(f"gsm8k {split}")
        _jsonl(data / "gsm8k" / f"{split}.jsonl", (_word_problem(rng) for _ in range(count)))
    for split, count in (("dev", 5), ("test", 4)):
        for subject in SUBJECTS:
            _mmlu(
                data / "mmlu" / split / f"{subject}_{split}.csv",
                random.Random(f"{split} {subject}"),
                count,
            )
    rng = random.Random("humaneval")
    lines = "".join(json.dumps(_function(i, rng)) + "\n" for i in range(40))
    file = data / "humaneval" / "HumanEval.jsonl.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(lines.encode(), mtime=0))
    (folder / "cases.yaml").write_text(CASES, encoding="utf-8")
    tasks = folder / "mine" / "lm_eval"
    tasks.mkdir(parents=True, exist_ok=True)
    for name, text in LM_EVAL.items():
        (tasks / f"{name}.yaml").write_text(text, encoding="utf-8")
    _jsonl(tasks / "sums_train.jsonl", (_sum(i) for i in range(100, 106)))
    _jsonl(tasks / "sums_test.jsonl", (_sum(i) for i in range(20)))
    _jsonl(tasks / "choices.jsonl", (_choice(i) for i in range(12)))


def plan(file, **fields):
    """Write a plan or a suite; JSON is YAML."""
    file.write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


def _word_problem(rng):
    name, thing = rng.choice(("Ada", "Ben", "Cleo", "Dan")), rng.choice(("pears", "pens", "stamps"))
    has, finds, days = rng.randint(5, 900), rng.randint(2, 90), rng.randint(2, 30)
    question = (
        f"{name} has {has} {thing} and finds {finds} more on each of {days} days. How many are"
        " there then?"
    )
    steps = f"{finds} * {days} = <<{finds}*{days}={finds * days}>>{finds * days}"
    return {"question": question, "answer": f"{steps}\n#### {has + finds * days}"}


def _mmlu(file, rng, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        for _ in range(rows):
            a, b = rng.randint(2, 99), rng.randint(2, 99)
            options = [a * b, *rng.sample([a * b + step for step in (-20, -10, -1, 1, 10, 20)], 3)]
            rng.shuffle(options)
            writer.writerow([f"What is {a} times {b}?", *options, "ABCD"[options.index(a * b)]])


def _function(number, rng):
    factor, shift = rng.randint(2, 9), rng.randint(1, 9)
    asserts = "".join(
        f"    assert candidate({x}) == {factor * x + shift}\n"
        for x in rng.sample(range(-20, 20), 3)
    )
    return {
        "task_id": f"Made/{number}",
        "prompt": (
            f'def line_{number}(x: int) -> int:\n    """Return {factor} times x, plus {shift}."""\n'
        ),
        "entry_point": f"line_{number}",
        "canonical_solution": f"    return {factor} * x + {shift}\n",
        "test": f"def check(candidate):\n{asserts}",
    }


def _sum(i):
    return {
        "question": f"What is {i} plus {2 * i + 1}?",
        "answer": f"It is {i} and {2 * i + 1}.\n#### {3 * i + 1}",
    }


def _choice(i):
    a, b = 3 * i + 1, 7 * i + 2
    return {"a": a, "b": b, "choices": [str(a + b + step) for step in (0, 1, 2)], "gold": 0}


def _jsonl(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
