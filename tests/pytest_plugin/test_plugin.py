"""Test the plug-in in pytest processes of their own, with the embedded model and the stand-in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped

from serve_eval.pytest_plugin.options import NO_ADDRESS
from serve_eval.schema import Plan, Spec
from serve_eval.storage.reports.report_file import read_report
from tests.pytest_plugin.run_pytest import ROOT, build_command, build_environment, run_pytest
from tests.standin.answers import write_answers
from tests.standin.process import environment as standin_environment

PAGE = (ROOT / "docs/pytest.md").read_text()
MOVING = (ROOT / "docs/moving-a-test.md").read_text()
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _find_block(page: str, start: str) -> str:
    [found] = [text for _, text in BLOCKS.findall(page) if text.startswith(start)]
    return str(found)


def test_nothing_is_imported_before_a_test_asks_for_an_evaluation() -> None:
    code = "import sys, pytest; before = set(sys.modules)\n"
    code += "import serve_eval.pytest_plugin.plugin; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == [
        "serve_eval",
        "serve_eval.pytest_plugin",
        "serve_eval.pytest_plugin.endings",
        "serve_eval.pytest_plugin.options",
        "serve_eval.pytest_plugin.plugin",
        "serve_eval.pytest_plugin.plugin",
        "serve_eval.pytest_plugin.plugin",
    ]


def test_tests_that_cannot_run_here_are_skipped_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "test_here.py").write_text(
        """
import pytest

@pytest.mark.serve_eval(gpus=3)
class TestGpus:
    @pytest.mark.serve_eval(gpus=2)
    def test_two(self): pass
    def test_three(self, serve_eval): raise AssertionError
def test_endpoint(serve_eval_endpoint): raise AssertionError
def test_evaluate(serve_eval): serve_eval.evaluate("gsm8k")
@pytest.mark.parametrize("n", [1, 2])
def test_waived(n): assert n == 1
"""
    )
    (tmp_path / "waives.txt").write_text(
        "test_here.py::test_waived[2] SKIP (https://example.org/1)\n"
        "full:NO_SUCH_GPU/test_here.py::test_waived[1] SKIP (elsewhere)\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nserve_eval_waivers = waives.txt\n")
    done = run_pytest(
        tmp_path, "-rs", "-W", "error", "--strict-markers", CUDA_VISIBLE_DEVICES="0,1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 4 skipped" in done.stdout
    skipped = re.findall(r"^SKIPPED \[1\] test_here.py[\d:]*: (.*)$", done.stdout, re.MULTILINE)
    assert sorted(skipped) == [
        "needs 3 GPUs, and this machine has 2",
        NO_ADDRESS,
        NO_ADDRESS,
        "waived: https://example.org/1",
    ]


@pytest.mark.slow
def test_a_wrong_waiver_is_a_wrong_use_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_a(): pass")
    (tmp_path / "waives.txt").write_text("test_a.py::test_a SKIPPED\n")
    done = run_pytest(tmp_path, "--serve-eval-waivers", "waives.txt")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "waives.txt:1: expected TEST SKIP (reason)" in done.stderr


@pytest.mark.slow
def test_the_example_of_the_page_ends_in_every_way(tmp_path: Path) -> None:
    first = "from serve_eval.pytest_plugin import AccuracyTests\n\n\nclass TestEmbedded"
    (tmp_path / "test_embedded.py").write_text(_find_block(PAGE, first))
    done = run_pytest(tmp_path, "-ra", "--junitxml", "junit.xml", "--serve-eval-output", "runs")
    assert done.returncode == 1, done.stdout + done.stderr
    shown = _find_block(PAGE, "===")
    for line in shown.splitlines():
        if not re.search(r"/s,|latency|20\d{6}|http|\d s\b", line):
            assert re.sub(r"^=+ (?=\d)| in \d+\.\d+s.*|\s+$", "", line) in done.stdout, line
    cases = {case.name: case for case in next(iter(JUnitXml.fromfile(str(tmp_path / "junit.xml"))))}
    kinds = {name: [type(one) for one in case.result] for name, case in cases.items()}
    assert kinds == {
        "test_bf16": [],
        "test_int3": [Failure],
        "test_unreachable": [Error],
        "test_two_gpus": [Skipped],
    }
    figures = {
        one.get("name"): one.get("value") for one in cases["test_int3"]._elem.iter("property")
    }
    assert float(figures["word_problems.value"]) < float(figures["word_problems.threshold"])
    assert figures["word_problems.samples"] == "100"
    assert float(figures["word_problems.p"]) < 0.001
    [bf16] = (tmp_path / "runs/test_embedded.py/TestEmbedded/test_bf16").iterdir()
    assert read_report(bf16).exit_code == 0
    assert figures["run_folder"].startswith(str(tmp_path / "runs/test_embedded.py"))
    _check_gone([int(pid) for pid in _list_pids(tmp_path)])


def _list_pids(folder: Path) -> list[str]:
    """Return the process ids of the servers of all runs."""
    told = (file.read_text() for file in folder.rglob("report.json"))
    return [pid for text in told for pid in re.findall(r'"pid": ?(\d+)', text)]


def _check_gone(pids: list[int]) -> None:
    assert pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists(), pid


@pytest.mark.slow
def test_workers_have_a_server_each_that_their_tests_share(tmp_path: Path) -> None:
    (tmp_path / "test_many.py").write_text(
        """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestMany(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 20}

    @pytest.mark.parametrize("n", [1, 2, 3, 4])
    def test_concurrency(self, n):
        assert self.evaluate("word_problems", concurrency=n).tasks[0].result.failed == 0
"""
    )
    (tmp_path / "test_page.py").write_text(_find_block(PAGE, "import pytest\n"))
    done = run_pytest(
        tmp_path,
        "-n",
        "2",
        "--serve-eval-output",
        "runs",
        "-W",
        "error",
        "-W",
        "default::serve_eval.pytest_plugin.AccuracyWarning",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 passed, 1 skipped" in done.stdout
    many = tmp_path / "runs/test_many.py"
    told = [file.read_text() for file in many.rglob("report.json")]
    assert len(told) == 4
    urls = {re.findall(r'"base_url": ?"([^"]+)"', text)[0] for text in told}
    assert len(urls) == len(set(_list_pids(many))) in (1, 2)
    _check_gone([int(pid) for pid in _list_pids(tmp_path)])


@pytest.mark.slow
def test_ctrl_c_ends_the_servers_and_keeps_the_answers(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        """
import pytest

@pytest.mark.serve_eval("word_problems", launcher="embedded", repeats=50, no_reference=True)
def test_long(serve_eval):
    serve_eval.evaluate()
"""
    )
    process = subprocess.Popen(
        build_command("-s", "--serve-eval-output", "runs"),
        cwd=tmp_path,
        env=build_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any(file.stat().st_size for file in (tmp_path / "runs").rglob("samples/*.jsonl")):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    servers = _list_children(process.pid)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, out
    assert "KeyboardInterrupt" in out
    _check_gone(servers)


def _list_children(pid: int) -> list[int]:
    """Return the processes below one, without its helpers that are gone by then."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_list_children(int(child))]
    return found


@pytest.mark.slow
def test_a_moved_class_launches_trtllm_serve_and_names_a_regression(
    tmp_path: Path, data_root: Path
) -> None:
    text = _find_block(MOVING, "import pytest\nfrom serve_eval.pytest_plugin")
    (tmp_path / "test_llama.py").write_text(text)
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/gsm8k.yaml").write_text(
        "meta-llama/Llama-3.1-8B-Instruct:\n  - accuracy: 75\n"
        "  - {quant_algo: FP8, accuracy: 75}\n"
        "  - {quant_algo: FP8, kv_cache_quant_algo: FP8, accuracy: 99}\n"
    )
    (tmp_path / "all.yaml").write_text(
        f"dataset_root: {data_root}\nreferences_dir: {tmp_path}/refs\nlimit: 60\n"
    )
    plan = Plan(model="m", launcher=Spec(name="simulated"), tasks=(Spec(name="gsm8k"),), limit=60,
                dataset_roots=(str(data_root),), no_reference=True)  # fmt: skip
    answers = write_answers(plan, tmp_path / "answers.jsonl")
    standin = standin_environment("v12", answers=answers)
    kept = {name: standin[name] for name in standin if name.startswith(("STANDIN", "SERVE_EVAL_P"))}
    done = run_pytest(
        tmp_path, "-ra", "--serve-eval-plan", "all.yaml", "-k", "not mmlu",
        **kept, PATH=standin["PATH"], CUDA_VISIBLE_DEVICES="0,1", LLM_MODELS_ROOT="/models",
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"^FAIL gsm8k \S+: 75\.\d against 99\.\d ", done.stdout, re.MULTILINE)
    outcome = done.stdout.splitlines()[-1]
    assert re.search(r"1 failed, \d+ passed, \d+ skipped", outcome), done.stdout
    assert os.fspath(ROOT) not in text
