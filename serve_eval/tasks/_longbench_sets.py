"""List the 21 sets of LongBench v1 with group, rows and metric.

They are those of the group `longbench` of lm-evaluation-harness. That package has the prompts: see
_longbench_prompts.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.scorers import longbench
from serve_eval.scorers.longbench import Metric


@dataclass(frozen=True, slots=True)
class Set:
    """One set of LongBench v1.

    `metric` None means classification, with the classes in each row. `asked` is the start of the
    checksum of its prompt, answer length and stop strings in lm-eval 0.4.9.2 to 0.4.13.
    """

    group: str
    rows: int
    metric: Metric | None
    asked: str


SETS = {
    "narrativeqa": Set("single", 200, longbench.qa_f1, "417f80d8134f"),
    "qasper": Set("single", 200, longbench.qa_f1, "df1fc670296d"),
    "multifieldqa_en": Set("single", 150, longbench.qa_f1, "7358063558ae"),
    "multifieldqa_zh": Set("single", 200, longbench.qa_f1_zh, "274f8f5889ce"),
    "hotpotqa": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "2wikimqa": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "musique": Set("multi", 200, longbench.qa_f1, "a08c1c9e0362"),
    "dureader": Set("multi", 200, longbench.rouge_l_zh, "1d3d97acbf90"),
    "gov_report": Set("summarization", 200, longbench.rouge_l, "f3e721ff5ff4"),
    "qmsum": Set("summarization", 200, longbench.rouge_l, "0b97323e7058"),
    "multi_news": Set("summarization", 200, longbench.rouge_l, "509afe3808b9"),
    "vcsum": Set("summarization", 200, longbench.rouge_l_zh, "c4a74d67d2a9"),
    "trec": Set("fewshot", 200, None, "d36ebc110ee2"),
    "triviaqa": Set("fewshot", 200, longbench.qa_f1, "31981b039a84"),
    "samsum": Set("fewshot", 200, longbench.rouge_l, "819ea0370d31"),
    "lsht": Set("fewshot", 200, None, "598d265a77a5"),
    "passage_count": Set("synthetic", 200, longbench.count, "25f3aa99cd3f"),
    "passage_retrieval_en": Set("synthetic", 200, longbench.retrieval, "4374f77df965"),
    "passage_retrieval_zh": Set("synthetic", 200, longbench.retrieval_zh, "ba0e62e4ed1d"),
    "lcc": Set("code", 500, longbench.code_similarity, "d61789f52c8b"),
    "repobench-p": Set("code", 500, longbench.code_similarity, "f0d96b771f20"),
}
"""By name, in the order in which they are asked."""

ROWS = sum(one.rows for one in SETS.values())
CHINESE = frozenset(
    name for name, one in SETS.items() if one.metric in (longbench.qa_f1_zh, longbench.rouge_l_zh)
)
"""Sets whose texts jieba splits into words."""
