"""Test the plug-in in pytest processes of their own, with their folders and files."""

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
from serve_eval.storage.report_file import read_report
from tests.cli.command import serve_eval
from tests.forked import run_forked
from tests.pytest_plugin.run_pytest import ROOT, build_command, build_environment, run_pytest
from tests.standin.deployments import environment as standin_environment
from tests.standin.deployments import write_answers

PAGE = (ROOT / "docs/ci.md").read_text()
BLOCKS = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _find_block(page: str, start: str) -> str:
    [found] = [text for _, text in BLOCKS.findall(page) if text.startswith(start)]
    return str(found)


def test_nothing_is_imported_before_a_test_asks_for_an_evaluation():
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
    ]


def test_tests_that_cannot_run_here_are_skipped_with_the_reason(tmp_path):
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
def test_a_wrong_waiver_is_a_wrong_use_of_pytest(tmp_path):
    (tmp_path / "test_a.py").write_text("def test_a(): pass")
    (tmp_path / "waives.txt").write_text("test_a.py::test_a SKIPPED\n")
    done = run_pytest(tmp_path, "--serve-eval-waivers", "waives.txt")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "waives.txt:1: expected TEST SKIP (reason)" in done.stderr


@pytest.mark.slow
def test_the_example_of_the_page_ends_in_every_way(tmp_path):
    first = "from serve_eval.pytest_plugin import AccuracyTests\n\n\nclass TestEmbedded"
    (tmp_path / "test_embedded.py").write_text(_find_block(PAGE, first))
    done = run_pytest(tmp_path, "-ra", "--junitxml", "junit.xml", "--serve-eval-output", "runs")
    assert done.returncode == 1, done.stdout + done.stderr
    _, *shown = _find_block(PAGE, "$ pytest -ra").splitlines()
    for line in shown:
        if line != "..." and not re.search(r"/s,|latency|20\d{6}|http|\d s\b", line):
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


def _check_gone(pids: list[int]):
    assert pids
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists(), pid


@pytest.mark.slow
def test_workers_have_a_server_each_that_their_tests_share(tmp_path):
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
    (tmp_path / "test_page.py").write_text(_find_block(PAGE, "import pytest\n\n"))
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
def test_ctrl_c_ends_the_servers_and_keeps_the_answers(tmp_path):
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
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += [int(child), *_list_children(int(child))]
    return found


@pytest.mark.slow
def test_a_moved_class_launches_trtllm_serve_and_names_a_regression(tmp_path, data_root: Path):
    text = _find_block(PAGE, "import pytest\nfrom serve_eval.pytest_plugin")
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


SHOWS = """
import atexit, os, sys
atexit.register(print, "the end")
print(sys.argv[1:], os.getcwd(), sorted(os.environ), repr(sys.stdin.read()))
print("\\u00fc", file=sys.stderr)
"""


def _run(folder: Path, program: str, *words: str, timeout_s: float = 60.0) -> tuple[object, ...]:
    (folder / "it.py").write_text(program)
    done = run_forked("it", *words, folder=folder, env={"A": "1"}, timeout_s=timeout_s)
    return (done.returncode, done.stdout, done.stderr)


def test_it_has_its_own_arguments_folder_environment_and_streams(tmp_path):
    said = f"['-x', 'y z'] {tmp_path} ['A'] ''\nthe end\n"
    assert _run(tmp_path, SHOWS, "-x", "y z") == (0, said, "\u00fc\n")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_it_has_its_own_exit_code(tmp_path, program: str, code: int):
    assert _run(tmp_path, program) == (code, "", "")


def test_an_error_leaves_the_next_program_as_it_was(tmp_path):
    code, _, said = _run(tmp_path, "import os; os.chdir('/'); import sys; sys.left = 1; 1 / 0")
    assert (code, "ZeroDivisionError" in str(said)) == (1, True)
    again = "import os, sys; print(os.getcwd(), hasattr(sys, 'left'))"
    assert _run(tmp_path, again)[1] == f"{tmp_path} False\n"


def test_one_that_takes_too_long_is_killed(tmp_path):
    text = "import pathlib, time; time.sleep(0.3); pathlib.Path('late').touch()"
    with pytest.raises(subprocess.TimeoutExpired):
        _run(tmp_path, text, timeout_s=0.1)
    assert _run(tmp_path, "import time; time.sleep(0.3)")[0] == 0
    assert not (tmp_path / "late").exists()


TESTS = """
import os
import pytest

embedded = pytest.mark.serve_eval("word_problems", launcher="embedded", model_name="embedded")

@embedded
def test_plan(serve_eval):
    here = os.getcwd()
    assert serve_eval.evaluate().tasks[0].verdict.reference == 1.0
    assert os.getcwd() == here

@pytest.mark.serve_eval(references_dir="ci/other")
@embedded
def test_marker(serve_eval):
    assert serve_eval.evaluate().tasks[0].verdict.reference == 2.0

def test_server(serve_eval_server):
    assert serve_eval_server(plan="ci/server.yaml").base_url

@embedded
def test_absent(serve_eval): serve_eval.evaluate(references_dir="references")
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", [".", "ci", "ci/tests"])
def test_paths_are_below_rootdir(tmp_path, start: str):
    for name, accuracy in (("references", 1), ("other", 2)):
        (tmp_path / "ci" / name).mkdir(parents=True)
        row = f"embedded:\n  - accuracy: {accuracy}\n"
        (tmp_path / "ci" / name / "word_problems.yaml").write_text(row)
    (tmp_path / "ci/tests").mkdir()
    (tmp_path / "ci/tests/test_it.py").write_text(TESTS)
    (tmp_path / "ci/plan.yaml").write_text("references_dir: ci/references\nlimit: 2\n")
    (tmp_path / "ci/server.yaml").write_text("launcher: embedded\nmodel: embedded\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nserve_eval_plan = ci/plan.yaml\n")
    done = run_pytest(tmp_path / start, "-W", "ignore")
    assert "3 passed, 1 error" in done.stdout.splitlines()[-1], done.stdout + done.stderr
    assert f"references_dir: {tmp_path}/references is not a folder" in done.stdout


def test_the_command_line_names_the_path_that_it_tried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = "--base-url localhost:9 -t word_problems"
    done = serve_eval(f"run --references-dir refs {asked}", exits=2)
    told = "".join(done.stderr.split())
    assert f"{os.path.realpath(tmp_path)}/refsisnotafolder" in told, done.stderr


TEST = """
def test_it(serve_eval):
    report = serve_eval.evaluate(
        "word_problems", launcher="simulated", model_name="m", limit=2, no_reference=True
    )
    assert report.tasks[0].result.scored == 2
"""


@pytest.mark.slow
def test_a_session_caches_its_own_files_only(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text(TEST)
    cache = str(tmp_path / "cache")
    variables = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    done = run_pytest(tmp_path, "-q", "tests", fork=False, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    caches = [str(file) for file in (tmp_path / "cache").rglob("*.pyc")]
    rewritten = [file for file in caches if "-pytest-" in file]
    assert [file for file in rewritten if "test_it" in file]
    assert [file for file in caches if "/serve_eval/" in file and file not in rewritten]
    assert [file for file in rewritten if "/serve_eval/" in file] == []
