"""Compare prompts and scores with those of the installed lm-evaluation-harness.

The answers are recorded ones of models, or made-up ones if those are missing.

This holds in every process and for any content of a cache.

Needs the optional extra lm-eval.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from serve_eval.harness.measures import measure_document
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Response, Sample, Spec
from serve_eval.scorers import _mmmu, longbench
from serve_eval.scorers.boxed import integer_answer
from serve_eval.scorers.numeric import FLEXIBLE, STRICT
from serve_eval.tasks import longbench_v1
from serve_eval.tasks.gsm8k import task
from serve_eval.tasks.lm_eval import load_parts
from serve_eval.tasks.longbench_v1 import SETS
from tests.conftest import ROOT
from tests.harness.made_tasks import DRAWN, write_drawn_tasks

pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SHARED = ROOT.parent / "shared/data"
OPTIONS = {"data_files": {"train": "train.jsonl", "test": "test.jsonl"}, "num_fewshot": 0}


def _recorded(folder):
    """Return pairs of (row of the test set, answer)."""
    found = []
    for file in sorted(folder.glob("gsm8k_*Llama*.jsonl")):
        rows = map(json.loads, file.read_text().splitlines())
        found += [(row["idx"], row["output"]) for row in rows]
    for file in sorted(folder.glob("lmeval_logs/samples_*.jsonl")):
        rows = map(json.loads, file.read_text().splitlines())
        found += [(row["doc_id"], row["resps"][0][0]) for row in rows]
    return found


def _made_up(golds):
    forms = (
        "So it is {0}.\n#### {0}",
        "#### {0}.",
        "It is ${0},000",
        "{0}",
        "#### -{0}",
        "nothing",
        "",
        "#### {0}\n#### 1",
    )
    return [(i, form.format(gold)) for i, gold in enumerate(golds[:50]) for form in forms]


def test_both_say_the_same_of_every_answer(data_root):
    real = SHARED.is_dir()
    root = SHARED if real else data_root
    roots = DataRoots(roots=(root / "gsm8k", root))
    theirs, ours = (
        build_task(Spec(name="lm_eval:gsm8k", options=OPTIONS)),
        build_task(Spec(name="gsm8k")),
    )
    documents, own = theirs.load(roots, 1), ours.load(roots, 1319)
    assert len(documents.samples) == len(own.samples)
    here, _ = load_parts("gsm8k", OPTIONS)
    golds = [sample.target.rpartition("#### ")[2] for sample in documents.samples]
    answers = _recorded(SHARED / "recorded") if real else _made_up(golds)
    assert len(answers) >= (3900 if real else 400)
    right, by_id = 0, {sample.id: sample for sample in own.samples}
    for number, text in answers:
        sample, document = by_id[f"test-{number}"], documents.samples[number]
        assert document.target == sample.target
        parts = ours.score(sample, Response(text=text, finish_reason="stop")).parts
        items, _ = measure_document(here, document.id, [text])
        for name in (STRICT, FLEXIBLE):
            assert parts[name] == items["exact_match", name], (number, name, text)
            right += bool(parts[name])
    assert right > 100
    print(f"{len(answers)} answers, {right} right by one of both filters, no difference")


lm_eval = pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")


def _asked(way, folder, names, cache=None):
    quiet = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    env = {**os.environ, **quiet, **({} if cache is None else {"HF_DATASETS_CACHE": str(cache)})}
    command = [sys.executable, "-m", "tests.harness.asked", way, str(folder), *names]
    told = subprocess.run(command, capture_output=True, text=True, env=env, check=False, cwd=ROOT)
    assert told.returncode == 0, told.stderr[-2000:]
    return dict(json.loads(line) for line in told.stdout.splitlines())


def test_what_is_asked_is_what_lm_eval_asks_on_a_fresh_machine(tmp_path):
    names = write_drawn_tasks(tmp_path, Path(lm_eval.__file__).parent / "tasks/gpqa")
    theirs = _asked("theirs", tmp_path, names)
    cache = tmp_path / "cache"
    _asked("unseeded", tmp_path, names, cache)
    spoilt = _asked("theirs", tmp_path, names, cache)
    assert {name for name in names if spoilt[name] != theirs[name]} >= {
        "drawn_python",
        "made_gpqa_zeroshot",
    }
    for order in (names, names[::-1]):
        ours = _asked("ours", tmp_path, order, cache)
        assert {name for name in names if ours[name] != theirs[name]} == set()


def test_a_document_scores_the_same_whenever_it_is_scored(tmp_path, monkeypatch):
    from serve_eval.plugins import extensions
    from serve_eval.protocol.shared import build_task
    from serve_eval.schema import DataRoots, Response, Spec

    write_drawn_tasks(tmp_path)
    extensions.include((str(tmp_path),))
    task = build_task(Spec(name="lm_eval:drawn_score"))
    samples = task.load(DataRoots(), 1).samples
    response = Response(text="", finish_reason=None, choice_logprobs=((-1.0,),) * 4)
    random.seed(5)
    python, numbers = random.getstate(), numpy.random.get_state()[1].tolist()
    values = [task.score(sample, response).value for sample in samples]
    assert [task.score(sample, response).value for sample in reversed(samples)] == values[::-1]
    assert len(set(values)) == len(values) == 20
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == (python, numbers)


def test_what_a_task_registers_in_lm_eval_stays_registered(tmp_path, monkeypatch):
    """A second import of its module must not be refused as a second registration."""
    from serve_eval.plugins import extensions
    from serve_eval.protocol.shared import build_task
    from serve_eval.schema import DataRoots, Spec

    write_drawn_tasks(tmp_path)
    folder = tmp_path / "lm_eval"
    lines = (
        "from lm_eval.api.registry import"
        " register_aggregation\n@register_aggregation('drawn_last')\n"
    )
    (folder / "registering.py").write_text(
        f"{lines}def last(items):\n    return items[-1]\n\ndef same(docs):\n    return docs\n"
    )
    listed = "metric_list: [{metric: acc, aggregation: drawn_last, higher_is_better: true}]\n"
    text = (
        "include: _drawn_yaml\ntask: drawn_registers\nprocess_docs: !function"
        f" registering.same\n{listed}"
    )
    (folder / "drawn_registers.yaml").write_text(text)
    extensions.include((str(tmp_path),))
    for shots in (0, 1):
        for name in ("drawn_registers", *list(DRAWN)[:1]):
            task = build_task(Spec(name=f"lm_eval:{name}", options={"num_fewshot": shots}))
            assert len(task.load(DataRoots(), 1).samples) == 20


NUMBERS = (
    "7",
    "-7",
    "1,234",
    "12.50",
    "$18",
    "-$3.00",
    "0",
    "1,000,000.",
    "3.",
    "007",
    ".5",
    "1e5",
    "½",
    "$",
    "-",
)
BOXES = (
    r"\boxed{_\boxed{70}_\boxed _{_\fbox{_\left(_\right)_^\circ_\text{"
    r" _k=_n_=_$_$_}_70_070_7_0_\%_%_\!_,_._ "
)
PHRASES = (
    "(A)_(B)_A_B_C_D_(D)_answer_is_so_red cat_x_Red Cat_\n_._,_!_'_;_:_=_final_result_could"
    " be_12_1,234_3.5_1e5_-7"
)
ENGLISH = "the a an cat dog. sat on. Mat, end.\n river Paragraph 3 12 5 . #c // `"
WORDS = [
    "so",
    "the",
    "total",
    "is",
    "apples",
    "and",
    "then",
    "=",
    "+",
    "Question",
    "Answer:",
    "costs",
    "€",
]


def strict_texts(count=400, seed=0):
    """Return solutions with `####` at any place, several times or not at all.

    It comes before numbers of every form and before none.
    """
    rng = random.Random(seed)
    texts = []
    for i in range(count):
        pieces = [
            " ".join(rng.choices(WORDS + list(NUMBERS), k=rng.randint(0, 8))) for _ in range(4)
        ]
        marks = [
            rng.choice(("#### ", "####", "###", "#### #### ", "####\n")) + rng.choice(NUMBERS)
            for _ in range(3)
        ]
        wanted = (i // 4) % 4
        for mark in marks[:wanted]:
            pieces.insert(rng.randint(0, len(pieces)), mark)
        texts.append(
            rng.choice(("\n", " ", "")).join(pieces) + rng.choice(("", "\n", ".", " </s>"))
        )
    return texts


def test_both_gsm8k_filters_say_what_the_installed_lm_eval_says():
    pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
    import yaml
    from lm_eval import filters, tasks
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import exact_match_fn

    config = yaml.safe_load((Path(tasks.__file__).parent / "gsm8k/gsm8k.yaml").read_text())
    metric = {
        k: v for k, v in config["metric_list"][0].items() if k.startswith(("ignore", "regexes"))
    }
    texts, golds = (
        strict_texts(),
        [f"steps\n#### {n}" for n in ("7", "-7", "1,234", "18", "0", "12.50", "3")],
    )
    marked = [text for text in texts if "####" in text]
    assert len(marked) >= 200
    ours = task()
    for gold in golds:
        sample = Sample(id="x", prompt="p", target=gold)
        scores = [
            ours.score(sample, Response(text=text, finish_reason="stop")).parts for text in texts
        ]
        for wanted in config["filter_list"]:
            steps = [
                (f["function"], {k: v for k, v in f.items() if k != "function"})
                for f in wanted["filter"]
            ]
            asked = [
                Instance(
                    request_type="generate_until", doc={}, arguments=("", {}), idx=i, resps=[text]
                )
                for i, text in enumerate(texts)
            ]
            filters.build_filter_ensemble(wanted["name"], steps).apply(asked)
            for text, instance, parts in zip(texts, asked, scores, strict=True):
                found = instance.filtered_resps[wanted["name"]]
                theirs = exact_match_fn(predictions=[found], references=[gold], **metric)[
                    "exact_match"
                ]
                assert parts[wanted["name"]] == theirs, (wanted["name"], text, gold)
    assert {STRICT, FLEXIBLE} == {wanted["name"] for wanted in config["filter_list"]}


def test_aime_answers_are_judged_as_the_installed_lm_eval_judges_them():
    pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
    theirs = _module("aime/utils.py")
    rng = random.Random(1)
    bits = BOXES.split("_")
    right = 0
    for _ in range(4000):
        text = "".join(rng.choices(bits, k=rng.randint(1, 7)))
        wanted = theirs.process_results({"answer": "70"}, [text])["exact_match"]
        right += wanted
        assert integer_answer(text, "70").value == wanted, text
    assert right > 100


def test_the_metrics_of_longbench_are_those_of_the_installed_lm_eval():
    for name in ("lm_eval", "jieba", "rouge", "fuzzywuzzy", "rapidfuzz"):
        pytest.importorskip(
            name,
            reason="needs lm-eval with the packages of its own LongBench metrics, and rapidfuzz",
        )
    from rapidfuzz import fuzz

    theirs = _module("longbench/metrics.py")
    theirs.fuzz = fuzz  # fuzzywuzzy, its predecessor, rounds to whole percents
    words = f"{ENGLISH} 北京 天气 很好。 我们 段落3".split(" ")
    rng = random.Random(3)

    def text(least):
        return " ".join(rng.choices(words, k=rng.randint(least, 14)))

    for _ in range(1000):
        found, wanted = text(0), text(1)
        pairs = [
            (longbench.qa_f1, theirs.qa_f1_score, wanted),
            (longbench.qa_f1_zh, theirs.qa_f1_zh_score, wanted),
            (longbench.rouge_l, theirs.rouge_score, wanted),
            (longbench.rouge_l_zh, theirs.rouge_zh_score, wanted),
            (longbench.code_similarity, theirs.code_sim_score, wanted),
            (longbench.count, theirs.count_score, "3"),
            (longbench.retrieval, theirs.retrieval_score, "Paragraph 3"),
            (longbench.retrieval_zh, theirs.retrieval_zh_score, "段落3"),
        ]
        for ours, metric, gold in pairs:
            assert ours(found, gold) == pytest.approx(metric(found, gold), abs=1e-8), (
                ours,
                found,
                gold,
            )
        classes = rng.sample(
            ["Color", "Color of x", "x", "of", "a", "ab", "abc", "Food", "Foodie"], 6
        )
        named, gold = " ".join(rng.choices(classes, k=3)), rng.choice(classes)
        score = theirs.classification_score(named, gold, all_classes=classes)
        assert longbench.classification(classes)(named, gold) == score, (named, gold, classes)


def test_the_sets_of_longbench_are_asked_as_the_installed_lm_eval_asks_them():
    pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
    import yaml

    metrics = {
        None: "classification",
        longbench.qa_f1: "qa_f1",
        longbench.qa_f1_zh: "qa_f1_zh",
        longbench.rouge_l: "rouge",
        longbench.rouge_l_zh: "rouge_zh",
        longbench.count: "count",
        longbench.retrieval: "retrieval",
        longbench.retrieval_zh: "retrieval_zh",
        longbench.code_similarity: "code_sim",
    }
    folder = longbench_v1.find_installed()
    asked = longbench_v1.read(folder, tuple(SETS))
    for name, ours in SETS.items():
        assert asked[name].sha256.startswith(ours.asked), name
        assert asked[name].stop == (("\n",) if ours.group == "fewshot" else ()), name
        theirs = yaml.load((folder / f"{name}.yaml").read_text(), Loader=yaml.BaseLoader)
        assert theirs["process_results"] == f"metrics.get_{metrics[ours.metric]}_with_score", name
        group = yaml.load(
            (folder / f"_longbench_{ours.group}.yaml").read_text(), Loader=yaml.BaseLoader
        )
        assert f"longbench_{name}" in group["task"]


def test_mmmu_answers_are_read_as_the_installed_lm_eval_reads_them(
    monkeypatch,
):
    pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
    theirs = _module("mmmu/utils.py")
    monkeypatch.setattr(theirs.random, "choice", lambda letters: None)  # replaces a guess
    rng = random.Random(0)
    pieces = PHRASES.split("_")
    options = ["red cat", "x", "blue", "B thing", "12"]
    golds = ["12", "3.5", "1,234", "red cat", "x", "-7", "0.5", "100000"]
    for _ in range(20_000):
        text = "".join(
            rng.choice(pieces) + rng.choice(("", " ", " ")) for _ in range(rng.randrange(14))
        )
        offered, gold = options[: rng.randrange(2, 6)], rng.choice(golds)
        letters = list("ABCDE")[: len(offered)]
        parsed = theirs.parse_multi_choice_response(
            text, letters, dict(zip(letters, offered, strict=True))
        )
        assert _mmmu.find_given_letter(text, offered) == parsed, text
        right = theirs.eval_open(gold, theirs.parse_open_response(text))
        assert _mmmu.score_short_answer(text, [gold]).value == right, (text, gold)


def _module(path):
    """Import a file of lm-eval's folder of tasks, which is not a package."""
    package = importlib.util.find_spec("lm_eval")
    assert package.origin is not None
    file = Path(package.origin).parent / "tasks" / path
    spec = importlib.util.spec_from_file_location(f"lm_eval_{file.stem}", file)
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
