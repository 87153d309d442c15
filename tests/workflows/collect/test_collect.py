"""Collect runs and logs of TensorRT-LLM's accuracy tests into one table."""

import csv
import io
import json
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest

from serve_eval.report.ci_result import CiState
from serve_eval.workflows.collect.document import COLUMNS, CollectedRow, make_document, write_csv
from serve_eval.workflows.collect.trtllm_log import read_trtllm_log
from tests.cli.command import serve_eval

RULE = "=" * 59


def _block(value, *, metric="accuracy", higher=True, before=""):
    """Return the report of a test, with `before` in front of each line."""
    lines = [
        RULE,
        f"= {metric.upper()} HYPOTHESIS TESTING",
        RULE,
        "Alpha (Type I:  False Positive): 0.050",
        "Beta  (Type II: False Negative): 0.200",
        "Sigma (Standard deviation): 50.000",
        "#Samples: 1319",
        f"Higher is better: {higher}",
        "Theta (Minimum detectable effect): 4.841",
        f"Reference {metric}: 74.200",
        "Threshold: 70.998",
        RULE,
        f"Evaluated {metric}: {value:.3f}",
        RULE,
    ]
    return [f"{before}{line}" for line in lines]


LOG = [
    "accuracy/test_llm_api_pytorch.py::TestLlama3_1_8B::test_fp8[tp1] ",
    "[11/27/2026-10:00:00] [TRT-LLM] [I] MMLU weighted average accuracy: 68.20 (4104)",
    "[11/27/2026-10:00:01] [TRT-LLM] [I] Hypothesis testing report:",
    *_block(68.204, before="10:00:01 | "),
    "[11/27/2026-10:00:02] [TRT-LLM] [I] gsm8k average accuracy: 74.00",
    *_block(74.0),
    "FAILED",
    "accuracy/test_llm_api_pytorch.py::TestQwen::test_bf16 ",
    *_block(60.0, metric="WER", higher=False),
    "PASSED",
    "________________ TestLlama3_1_8B.test_fp8[tp1] ________________",
    "E       AssertionError: Reference accuracy is 74.200, threshold is 70.998. Expected",
    *_block(68.204, before="E         "),
    *_block(61.0, before="E         ")[:-2],
]


def _read(lines):
    return list(read_trtllm_log(lines, "log"))


def test_each_value_of_a_test_log_is_a_row_with_its_test_and_task():
    rows = _read(LOG)
    told = [(row.test, row.task, row.metric, row.value, row.verdict) for row in rows]
    assert told == [
        ("TestLlama3_1_8B::test_fp8[tp1]", "mmlu", "accuracy", 68.204, "FAIL"),
        ("TestLlama3_1_8B::test_fp8[tp1]", "gsm8k", "accuracy", 74.0, "PASS"),
        ("TestQwen::test_bf16", None, "wer", 60.0, "PASS"),
    ]
    first = rows[0]
    assert (first.kind, first.num_samples, first.reference) == ("trtllm-test", 1319, 74.2)
    assert (first.threshold, first.theta) == (70.998, 4.841)
    assert (first.alpha, first.beta, first.sigma) == (0.05, 0.2, 50.0)


def test_trtllm_eval_prints_only_an_average():
    rows = _read(
        [
            "[TRT-LLM] [I] MMLU weighted average accuracy: 68.20 (4104)",
            "[TRT-LLM] [I] gpqa_diamond average accuracy: 31.31",
        ]
    )
    assert [(row.kind, row.task, row.value, row.num_samples, row.verdict) for row in rows] == [
        ("trtllm-eval", "mmlu", 68.2, 4104, None),
        ("trtllm-eval", "gpqa_diamond", 31.31, None, None),
    ]


EVAL_PREFIX = "[09/10/2026-10:00:02] [TRT-LLM] [I] [evaluate] "
TABLE = """lm-eval gsm8k results (scores normalized to range 0~100):
|Tasks|Version|     Filter     |n-shot|  Metric   |   |Value |   |Stderr|
|-----|------:|----------------|-----:|-----------|---|-----:|---|-----:|
|gsm8k|      3|flexible-extract|     5|exact_match|↑  |79.9848|±  |1.1023|
|     |       |strict-match    |     5|exact_match|↑  |76.0425|±  |1.1758|
"""
GROUP = """lm-eval mmmu_val results (scores normalized to range 0~100):
|    Tasks    |Version|Filter|n-shot|Metric|   | Value |   |Stderr|
|-------------|------:|------|-----:|------|---|------:|---|-----:|
|mmmu_val     |      0|none  |      |acc   |↑  |48.5000|±  |1.6000|
| - Business  |      0|none  |      |acc   |↑  | 0.4000|±  |0.0400|
"""
NEMO = """NeMo-Skills gpqa results:
  accuracy        = 51.52%  (102/198)
  no_answer       = 1.01%  (2/198)
"""
LEVELS = """NeMo-Skills ifbench results (294 samples):
  strict  prompt-level=30.27%  instruction-level=33.10%
  loose   prompt-level=35.03%  instruction-level=37.70%
"""
LONGBENCH = """LongBench v2 Evaluation Results
================================================================================
Overall Accuracy: 52.29% (263/503)
--------------------------------------------------------------------------------
Results by Difficulty:
  Easy: 55.00% (11/20)
"""
ROUGE = """Beam 0 rouge scores:
\trouge1: 27.420
\trouge2: 9.110
Beam 1 rouge scores:
\trouge1: 26.000
"""


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "lm-eval gsm8k exact_match,flexible-extract accuracy: 79.98",
            [("gsm8k", "exact_match,flexible-extract", 79.98, None)],
        ),
        (
            f"{TABLE}lm-eval gsm8k exact_match,flexible-extract accuracy: 79.98",
            [
                ("gsm8k", "exact_match,flexible-extract", 79.98, None),
                ("gsm8k", "exact_match,strict-match", 76.0425, None),
            ],
        ),
        (
            TABLE,
            [
                ("gsm8k", "exact_match,flexible-extract", 79.9848, None),
                ("gsm8k", "exact_match,strict-match", 76.0425, None),
            ],
        ),
        (
            f"{GROUP}lm-eval mmmu_val average accuracy: 48.50",
            [("mmmu_val", "accuracy", 48.5, None)],
        ),
        (
            "JSON Mode Eval accuracy: 73.00 (100)\nJSON Mode Eval grammar accuracy: 98.00 (100)",
            [
                ("json_mode_eval", "accuracy", 73.0, 100),
                ("json_mode_eval", "grammar accuracy", 98.0, 100),
            ],
        ),
        (
            ROUGE,
            [
                ("cnn_dailymail", "rouge1", 27.42, None),
                ("cnn_dailymail", "rouge2", 9.11, None),
                ("cnn_dailymail", "rouge1 of beam 1", 26.0, None),
            ],
        ),
        ("audio ASR WER: 6.21", [("audio_asr", "wer", 6.21, None)]),
        (
            "CoVoST2 [en_de] corpus BLEU = 35.12 (sys_len=9, ref_len=9, precisions=[61.2, 40.1])",
            [("covost2", "bleu", 35.12, None)],
        ),
        (LONGBENCH, [("longbench_v2", "accuracy", 52.29, 503)]),
        (NEMO, [("gpqa", "accuracy", 51.52, 198)]),
        (
            LEVELS,
            [
                ("ifbench", "strict prompt-level", 30.27, None),
                ("ifbench", "strict instruction-level", 33.1, None),
                ("ifbench", "loose prompt-level", 35.03, None),
                ("ifbench", "loose instruction-level", 37.7, None),
            ],
        ),
        ("Average accuracy 72.00 (100) - abstract_algebra", []),
    ],
)
@pytest.mark.parametrize("prefix", ["", EVAL_PREFIX])
def test_each_form_of_an_evaluator_is_read(prefix, text, told):
    """A value below a heading has no prefix where the evaluator prints both as one message."""
    lines = [
        line if line.startswith(("|", " ", "  ")) else f"{prefix}{line}"
        for line in text.splitlines()
    ]
    unread = []
    rows = list(read_trtllm_log(lines, "log", unread.append))
    assert [(row.task, row.metric, row.value, row.num_samples) for row in rows] == told
    assert {row.kind for row in rows} <= {"trtllm-eval"}
    assert not unread


def test_a_test_takes_the_value_that_it_judges_and_leaves_the_others():
    lines = [
        "accuracy/test_llm_api_pytorch.py::TestLlama3_1_8B::test_json ",
        "JSON Mode Eval accuracy: 73.00 (100)",
        "JSON Mode Eval grammar accuracy: 98.00 (100)",
        *_block(73.0),
        *ROUGE.splitlines()[:3],
        *_block(27.42, metric="rouge1"),
    ]
    told = [(row.kind, row.task, row.metric, row.value) for row in _read(lines)]
    assert told == [
        ("trtllm-test", "json_mode_eval", "accuracy", 73.0),
        ("trtllm-eval", "json_mode_eval", "grammar accuracy", 98.0),
        ("trtllm-test", None, "rouge1", 27.42),
        ("trtllm-eval", None, "rouge2", 9.11),
    ]


def test_lines_with_metrics_that_are_not_read_are_named(tmp_path):
    log = tmp_path / "other.log"
    log.write_text(f"{EVAL_PREFIX}Arena-Hard win rate: 61.3\nloading 12 of 13\nmy F1 score = 0.7\n")
    done = serve_eval(f"runs table {log}", exits=5)
    said = done.stderr
    assert "2 lines with a metric could not be read, such as: " in said
    assert "Arena-Hard win rate: 61.3; my F1 score = 0.7" in said
    assert "no result in a log could be read: see the warnings" in said
    log.write_text("MMLU weighted average accuracy: 72.56 (14042)\nmy F1 score = 0.7\n")
    done = serve_eval(f"runs table {log}")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2)
    assert "1 line with a metric could not be read, such as: my F1 score = 0.7" in done.stderr
    log.write_text("nothing here\n")
    assert "no result in a log was found" in serve_eval(f"runs table {log}").stderr


@pytest.mark.parametrize("cut", range(14))
def test_a_block_that_breaks_off_gives_no_row_that_is_wrong(cut):
    rows = _read([*_block(70.0)[:cut], *_block(71.0)])
    assert [row.value for row in rows] == ([70.0, 71.0] if cut == 13 else [71.0])


def test_a_reference_of_infinity_is_left_empty():
    lines = [line.replace("Reference accuracy: 74.200", "Reference accuracy: inf") for line in LOG]
    assert _read(lines)[0].reference is None


@pytest.mark.parametrize("begin", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula_and_numbers_stay_numbers(begin):
    row = CollectedRow(source=f"{begin}HYPERLINK(1)", kind="run", value=-12.5, low=-0.0, failed=3)
    [header, cells] = csv.reader(io.StringIO(write_csv([row]), newline=""))
    assert tuple(header) == COLUMNS
    told = dict(zip(header, cells, strict=True))
    assert told["source"] == f"'{begin}HYPERLINK(1)".replace("\r", " ")
    assert (float(told["value"]), int(told["failed"]), told["high"]) == (-12.5, 3, "")


@pytest.mark.usefixtures("simulated_here")
def test_runs_and_logs_of_a_folder_are_collected(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = "run --launcher simulated -m @m --no-reference --limit 5"
    serve_eval(f"{run} -t passkey_short,word_problems -o all/a --quant-algo FP8")
    serve_eval(f"{run} -t passkey_short -o all/deep/b")
    (tmp_path / "all/deep/b/report.json").unlink()
    (tmp_path / "all/ci.log").write_text("\n".join(LOG))
    (tmp_path / "all/a/logs/server.log").write_text("\n".join(LOG))
    done = serve_eval("runs table all all/a", exits=0)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["source"] for row in rows] == ["all/ci.log"] * 3 + ["all/a"] * 4
    assert {row["model"] for row in rows[3:]} == {"'@m"}
    assert [row["task"] for row in rows[3:5]] == ["passkey_short", "word_problems"]
    assert (rows[3]["verdict"], rows[3]["quant_algo"]) == ("NO REFERENCE", "FP8")
    assert "all/deep/b is not finished, and is left out" in done.stderr
    written = serve_eval("runs table all all/a -o t.csv")
    assert Path("t.csv").read_text() == done.stdout
    assert written.stdout.startswith(" WRITTEN   t.csv  7 rows of 1 run and 3 results of logs\n")
    assert "all/deep/b is not finished, and is left out" in written.stdout
    form = json.loads(serve_eval("runs table all all/a --json").stdout)
    assert [row["source"] for row in form["result"]["rows"]] == [row["source"] for row in rows]
    # As every next command, it runs as it stands.
    [table] = form["commands"]
    serve_eval(*shlex.split(table)[1:], exits=0)
    junit = serve_eval("runs table all --junit j.xml")
    assert junit.stdout.startswith("source,")
    cases = list(ElementTree.parse("j.xml").getroot().iter("testcase"))
    assert [case.get("classname") for case in cases] == ["all/ci.log"] * 3 + ["all/a"] * 2
    (tmp_path / "empty").mkdir()
    serve_eval("runs table empty", exits=5)
    serve_eval("runs table nowhere", exits=2)
    wide = serve_eval("runs export all/a --format csv").stdout  # a row for each deployment
    assert wide.startswith("model,")


def test_the_verdict_in_a_suite_counts_and_a_row_without_one_is_skipped():
    rows = [
        CollectedRow(source="s/a", kind="run", task="t", verdict="PASS", suite_verdict="FAIL"),
        CollectedRow(source="s/a", kind="run", task="u", verdict="PASS", value=1.0),
        CollectedRow(source="x.log", kind="trtllm-eval", metric="bleu", value=1.0),
    ]
    document = make_document(rows, ["warning: one was left out"], [Path("s"), Path("x.log")], None)
    [one] = document.conclusions
    assert one.figures == "3 rows of 1 run and 1 result of a log"
    assert one.statements[0].text == "1 FAIL, 1 NOT JUDGED, 1 PASS"
    states = [case.state for case in document.cases]
    assert states == [CiState.FAILURE, CiState.PASSED, CiState.SKIPPED]
    assert document.warnings == ["one was left out"]
    assert document.commands == ["serve-eval runs export s --format table"]
