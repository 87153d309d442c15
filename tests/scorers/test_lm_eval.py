"""Compare our scorers with those of the installed lm-evaluation-harness on generated texts.

Needs the optional extra lm-eval.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from serve_eval.schema import Response, Sample
from serve_eval.scorers import longbench, mmmu
from serve_eval.scorers.boxed import integer_answer
from serve_eval.scorers.numeric import FLEXIBLE, STRICT
from serve_eval.tasks import longbench_v1
from serve_eval.tasks.gsm8k import task
from serve_eval.tasks.longbench_v1 import SETS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

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


def strict_texts(count: int = 400, seed: int = 0) -> list[str]:
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


def test_both_gsm8k_filters_say_what_the_installed_lm_eval_says() -> None:
    pytest.importorskip("lm_eval", reason="needs the optional extra lm-eval")
    import yaml
    from lm_eval import filters, tasks
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import exact_match_fn

    config: dict[str, Any] = yaml.safe_load(
        (Path(tasks.__file__).parent / "gsm8k/gsm8k.yaml").read_text()
    )
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


def test_aime_answers_are_judged_as_the_installed_lm_eval_judges_them() -> None:
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


def test_the_metrics_of_longbench_are_those_of_the_installed_lm_eval() -> None:
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

    def text(least: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(least, 14)))

    for _ in range(1000):
        found, wanted = text(0), text(1)
        pairs: list[tuple[Callable[[str, str], float], Callable[[str, str], float], str]] = [
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


def test_the_sets_of_longbench_are_asked_as_the_installed_lm_eval_asks_them() -> None:
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
        assert mmmu.find_given_letter(text, offered) == parsed, text
        right = theirs.eval_open(gold, theirs.parse_open_response(text))
        assert mmmu.short_answer(text, [gold]).value == right, (text, gold)


def _module(path: str) -> ModuleType:
    """Import a file of lm-eval's folder of tasks, which is not a package."""
    package = importlib.util.find_spec("lm_eval")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "tasks" / path
    spec = importlib.util.spec_from_file_location(f"lm_eval_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
