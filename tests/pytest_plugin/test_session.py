"""Test which endpoint the tests of a session ask, and what it tells at its end."""

import asyncio
import re
from contextlib import asynccontextmanager

import pytest

from serve_eval.errors import NoRoomError
from serve_eval.pytest_plugin.options import NO_ADDRESS
from serve_eval.pytest_plugin.plugin import UNUSED_ADDRESS
from serve_eval.pytest_plugin.workbench import KeptServers
from serve_eval.schema import Endpoint, Limits, Plan, Spec
from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.scripted_server import ScriptedServer, answer, models
from tests.standin.deployments import free_port

TESTS = """
import urllib.request
import pytest
from serve_eval.pytest_plugin import AccuracyTests

embedded = pytest.mark.serve_eval(launcher="embedded", model_name="embedded")


def check(endpoint):
    with urllib.request.urlopen(f"{endpoint.base_url}/models", timeout=20) as answer:
        assert answer.status == 200
    with open("asked", "a") as file:
        print(endpoint.base_url, endpoint.model, file=file)


@embedded
def test_marker(serve_eval_endpoint):
    check(serve_eval_endpoint)

class TestOfAClass(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_attributes(self, serve_eval_endpoint):
        check(serve_eval_endpoint)
        report = self.evaluate("word_problems", limit=20)
        assert report.endpoint.base_url == serve_eval_endpoint.base_url
    @pytest.mark.serve_eval(launcher="simulated")
    def test_of_one_run(self, serve_eval_endpoint): pass

def test_of_the_plan(serve_eval_endpoint):
    check(serve_eval_endpoint)

@pytest.mark.serve_eval(base_url="localhost:DEAD")
def test_dead(serve_eval_endpoint): pass

@pytest.mark.serve_eval(launcher="embeded")
def test_typo(serve_eval_endpoint): pass

@pytest.mark.serve_eval(gpu=1)
def test_unknown(serve_eval_endpoint): pass

@pytest.mark.serve_eval("word_problems", gpu=1)
def test_unknown_of_serve_eval(serve_eval): serve_eval.evaluate()
"""


def _write(folder):
    port = free_port()
    (folder / "test_it.py").write_text(TESTS.replace("DEAD", str(port)))
    return port


def _explain(out, test):
    """Return what pytest printed about the error of one test."""
    found = re.search(rf"_ ERROR at setup of {test} _+\n(.*?)\n(?:_{{9}}|={{9}})", out, re.DOTALL)
    assert found is not None, out
    return found[1]


@pytest.mark.slow
def test_it_is_the_endpoint_that_an_evaluation_would_ask(tmp_path):
    port = _write(tmp_path)
    (tmp_path / "all.yaml").write_text("launcher: embedded\nmodel: embedded\n")
    done = run_pytest(tmp_path, "--serve-eval-plan", "all.yaml")
    assert re.search(r"3 passed, \d+ warnings, 5 errors", done.stdout), done.stdout + done.stderr
    [one] = set((tmp_path / "asked").read_text().splitlines())
    assert re.fullmatch(r"http://127.0.0.1:\d+/v1 embedded", one)
    told = _explain(done.stdout, "test_dead")
    assert told.startswith(f"EndpointError: http://localhost:{port}/v1/models does not answer")
    assert "launcher: unknown launcher 'embeded'" in _explain(done.stdout, "test_typo")
    unknown = _explain(done.stdout, "test_unknown")
    assert unknown == _explain(done.stdout, "test_unknown_of_serve_eval")
    assert "gpu" in unknown
    told = _explain(done.stdout, "TestOfAClass.test_of_one_run")
    assert "launcher simulated" in told
    assert "base_url" in told


@pytest.mark.slow
def test_a_wrong_option_is_an_error_whatever_else_is_given(tmp_path):
    port = _write(tmp_path)
    names = "test_dead or test_typo or test_unknown or test_of_the_plan"
    done = run_pytest(tmp_path, "-k", names)
    assert "1 skipped, 3 deselected, 4 errors" in done.stdout, done.stdout + done.stderr
    done = run_pytest(tmp_path, "-k", names, "--serve-eval-base-url", f"localhost:{port}")
    assert "3 deselected, 5 errors" in done.stdout, done.stdout + done.stderr


TESTS_ADDRESSES = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    def test_call(self): self.evaluate("word_problems", launcher=None)
    @pytest.mark.serve_eval(launcher=None)
    def test_marker(self): self.evaluate("word_problems")
    def test_own(self): self.evaluate("word_problems", base_url="localhost:PORT")
def test_other(): pass
"""
NO_VARIABLES = {"SERVE_EVAL_BASE_URL": "", "OPENAI_BASE_URL": ""}


def _write_addresses(folder):
    port = free_port()
    (folder / "test_it.py").write_text(TESTS_ADDRESSES.replace("PORT", str(port)))
    return port


@pytest.mark.parametrize(("strict", "ended"), [((), "skipped"), (("--serve-eval-strict",), "err")])
def test_a_test_that_takes_back_its_launcher_needs_an_address(tmp_path, strict, ended):
    _write_addresses(tmp_path)
    done = run_pytest(tmp_path, *strict, "-ra", "-k", "call or marker", **NO_VARIABLES)
    assert f"2 {ended}" in done.stdout.splitlines()[-1], done.stdout
    assert NO_ADDRESS.partition(":")[0] in done.stdout


@pytest.mark.parametrize("flags", [(), pytest.param(("-n", "2"), marks=pytest.mark.slow)])
def test_an_address_of_the_command_line_that_no_test_asked_is_told(tmp_path, flags):
    port = _write_addresses(tmp_path)
    address = ("--serve-eval-base-url", f"localhost:{port}")
    done = run_pytest(tmp_path, *flags, *address, "-k", "own", **NO_VARIABLES)
    assert done.stdout.splitlines().count(UNUSED_ADDRESS) == 1, done.stdout
    done = run_pytest(tmp_path, *flags, *address, "-k", "call or own", **NO_VARIABLES)
    assert UNUSED_ADDRESS not in done.stdout
    assert f"localhost:{port}" in done.stdout  # both tests asked it
    assert "2 errors" in done.stdout.splitlines()[-1], done.stdout
    done = run_pytest(tmp_path, *flags, "-k", "own", **NO_VARIABLES)
    assert UNUSED_ADDRESS not in done.stdout


SEVERAL = """
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = "sound"
    OPTIONS = {"limit": 5, "no_reference": True}
    def test_name(self):
        assert self.evaluate("word_problems").plan.model == "sound"
    def test_endpoint(self, serve_eval_endpoint):
        assert serve_eval_endpoint.model == "sound"
    def test_other(self): self.evaluate("word_problems", model_name="other")
    def test_chosen(self):
        assert self.evaluate("word_problems", model="bad").plan.model == "bad"
"""


def test_of_several_models_that_of_the_class_is_asked(tmp_path):
    (tmp_path / "test_it.py").write_text(SEVERAL)
    server = ScriptedServer(
        lambda request: answer("4"), routes={"/v1/models": models("sound", "bad")}
    )
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, **{**NO_VARIABLES, "SERVE_EVAL_BASE_URL": url})
    assert "3 passed, 4 warnings, 1 error" in done.stdout, done.stdout
    assert "EndpointError: the endpoint serves 2 models: sound, bad" in done.stdout
    assert "Choose one with model=." in done.stdout


class Machine:
    """A machine with room for some servers. `running` are the names of those that run."""

    def __init__(self, room):
        self.room = room
        self.running = []
        self.started = []

    @asynccontextmanager
    async def launch(self, plan, prepared, folder):
        name = str(plan.model)
        if len(self.running) == self.room:
            raise NoRoomError("all GPUs are in use")
        self.running.append(name)
        self.started.append(name)
        try:
            yield Endpoint(base_url=f"http://{name}/v1")
        finally:
            self.running.remove(name)


def _plan(model, timeout_s=60.0):
    limits = Limits(sample_timeout_s=timeout_s)
    return Plan(model=model, launcher=Spec(name="embedded"), tasks=(), limits=limits)


def _run(tmp_path, room, plans):
    machine = Machine(room)

    async def main():
        servers = KeptServers(tmp_path, lambda line: None, machine.launch)
        try:
            for plan in plans:
                endpoint = await servers.start(plan)
                assert endpoint.base_url == f"http://{plan.model}/v1"
                assert plan.model in machine.running
        finally:
            await servers.stop()

    try:
        asyncio.run(main())
    finally:
        assert machine.running == []
    return machine


def test_the_same_server_is_started_once_and_ends_with_the_session(tmp_path):
    machine = _run(tmp_path, 9, [_plan("a"), _plan("b"), _plan("a"), _plan("a", 90.0)])
    assert machine.started == ["a", "b", "a"]  # an orchestrator follows the time limit


def test_idle_servers_make_room(tmp_path):
    machine = _run(tmp_path, 1, [_plan("a"), _plan("b"), _plan("a")])
    assert machine.started == ["a", "b", "a"]


def test_a_server_without_room_on_an_idle_machine_is_an_error_at_once(tmp_path):
    with pytest.raises(NoRoomError):
        _run(tmp_path, 0, [_plan("a")])


def test_an_endpoint_elsewhere_or_for_one_run_is_not_kept(tmp_path):
    servers = KeptServers(tmp_path, lambda line: None)
    for name in ("external", "simulated"):
        assert servers.choose_launching(Plan(model="m", launcher=Spec(name=name), tasks=())) is None
    assert servers.choose_launching(_plan("a")) is not None


LINE_TESTS = """
import pytest
from serve_eval.pytest_plugin import AccuracyTests

class TestLine(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 30}

    def test_sound(self): self.evaluate("word_problems")
    def test_damaged(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    def test_dead(self): self.evaluate("word_problems", base_url="localhost:DEAD")
    @pytest.mark.serve_eval(base_url="localhost:DEAD")
    def test_dead_endpoint(self, serve_eval_endpoint): pass
    @pytest.mark.xfail
    def test_known(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    @pytest.mark.skip(reason="not today")
    def test_skipped(self): self.evaluate("word_problems")
    def test_own_check(self):
        report = self.evaluate("word_problems")
        assert report.tasks[0].result.planned == 31, "too few"

def test_other(): assert True
"""
DROP = r"\d+\.\d against \d+\.\d \((drop|gain) \d+\.\d \[-?\d+\.\d, -?\d+\.\d\]\)"
NAME = r"test_it\.py::TestLine::test_"
COUNTS = "30 asked, 0 failed, 0 repaired"


def _run_session(folder, *arguments, **variables):
    """Return the line of a session; its variables have no address of a CI job."""
    (folder / "test_it.py").write_text(LINE_TESTS.replace("DEAD", str(free_port())))
    none = dict.fromkeys(("GITHUB_ACTIONS", "CI_JOB_URL", "BUILD_URL"), "")
    given = ("--serve-eval-output", "runs", "--serve-eval-notify", "line.txt", *arguments)
    done = run_pytest(folder, *given, **{**none, **variables})
    line = (folder / "line.txt").read_text()
    assert line.endswith("\n"), done.stdout + done.stderr
    assert line.count("\n") == 1
    return line.strip()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_the_worst_test_speaks_with_the_counts_of_all(tmp_path, workers):
    line = _run_session(tmp_path, *workers, "--junitxml", "junit.xml", "-k", "not own_check")
    counts = "of 6 tests: 1 FAIL, 2 ERROR, 1 PASS, 1 XFAIL, 1 SKIPPED"
    told = rf"FAIL word_problems embedded \({NAME}damaged\): {DROP}; {COUNTS}(; likely: .+)?"
    assert re.fullmatch(rf"{told}; {counts}; runs/test_it.py/TestLine/test_damaged/\S+", line), line
    run = line.rpartition("; ")[2]
    alone = serve_eval(f"judge {tmp_path}/{run} --notify-text -").stdout.splitlines()[-1]
    said = alone.rpartition("; ")[0]
    assert line.startswith(
        said.replace("embedded:", "embedded (test_it.py::TestLine::test_damaged):", 1)
    )
    junit = (tmp_path / "junit.xml").read_text()
    assert f'<failure message="{said}"' in junit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ("dead", r"ERROR test_it.py::TestLine::test_dead: no result; EndpointError: http://localhost:\d+/v1/models"
         r" does not answer: .*; of 2 tests: 2 ERROR"),
        ("own_check or sound", rf"FAIL word_problems embedded \({NAME}own_check\): {DROP};"
         rf" {COUNTS}; AssertionError: too few; of 2 tests: 1 FAIL, 1 PASS; runs/\S+"),
        ("sound", rf"PASS word_problems embedded \({NAME}sound\): {DROP}; {COUNTS}; runs/\S+"),
        ("skipped", rf"no accuracy test measured anything: SKIPPED {NAME}skipped: no result;"
         r" not today"),
        ("other", "ERROR pytest: no result; no test of accuracy ran"),
    ],
)  # fmt: skip
def test_each_ending_has_a_line(tmp_path, chosen, line):
    said = _run_session(tmp_path, "-k", chosen)
    assert re.fullmatch(line, said), said


@pytest.mark.slow
def test_a_file_that_is_not_collected_is_an_error_and_the_job_is_named(tmp_path):
    (tmp_path / "test_broken.py").write_text("import no_such_module")
    said = _run_session(
        tmp_path, "--continue-on-collection-errors", "-k", "sound", CI_JOB_URL="https://ci/job/7"
    )
    told = r"ERROR test_broken.py: no result; .*no_such_module.*; of 2 tests: 1 ERROR, 1 PASS"
    assert re.fullmatch(told, said), said
    assert re.search("; https://ci/job/7$", _run_session(tmp_path, "-k", "sound", "test_it.py",
                                                 CI_JOB_URL="https://ci/job/7"))  # fmt: skip


@pytest.mark.parametrize("file", ["-", "absent/line.txt", "."])
def test_a_file_that_cannot_be_written_is_a_wrong_use(tmp_path, file):
    done = run_pytest(tmp_path, "--serve-eval-notify", file)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--serve-eval-notify" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_what_a_bare_xfail_hides_is_counted(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import pytest\nfrom serve_eval.pytest_plugin import AccuracyTests\n"
        "class TestHidden(AccuracyTests):\n"
        "    MODEL_NAME = LAUNCHER = 'simulated'\n"
        "    OPTIONS = {'limit': 5, 'no_reference': True}\n"
        "    @pytest.mark.xfail\n"
        "    def test_dead(self):\n"
        f"        self.evaluate('word_problems', base_url='localhost:{free_port()}')\n"
        "    @pytest.mark.xfail\n"
        "    def test_typo(self): self.evaluate('word_problems', limti=3)\n"
        "    @pytest.mark.xfail\n"
        "    def test_own(self): assert self.evaluate('word_problems') is None\n"
    )
    done = run_pytest(tmp_path, "-q")
    assert "3 xfailed" in done.stdout, done.stdout
    [line] = [one for one in done.stdout.splitlines() if "measured nothing" in one]
    assert line.startswith("serve-eval: warning: 2 xfailed tests measured nothing: ")
    assert line.endswith(
        ", and 1 more reason; xfail(raises=AccuracyRegression) makes that an error"
    )


TESTS_GITHUB = """
from serve_eval.pytest_plugin import AccuracyTests

class TestIt(AccuracyTests):
    MODEL_NAME = LAUNCHER = "embedded"
    OPTIONS = {"limit": 30}
    def test_sound(self): self.evaluate("word_problems")
    def test_damaged(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
    def test_dead(self): self.evaluate("word_problems", base_url="localhost:DEAD")
    def test_known(self): self.evaluate("word_problems", launcher_options={"damage": "int3"})
def test_other(): raise AssertionError
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), ("-n", "2", "-q")])
def test_annotations_and_the_summary_are_written_once(tmp_path, flags):
    (tmp_path / "test_it.py").write_text(TESTS_GITHUB.replace("DEAD", str(free_port())))
    (tmp_path / "waives.txt").write_text("test_it.py::TestIt::test_known XFAIL (bug 7)\n")
    summary = tmp_path / "summary.md"
    summary.write_text("of another step\n")
    done = run_pytest(
        tmp_path, *flags, "--serve-eval-waivers", "waives.txt", "--serve-eval-notify", "line.txt",
        GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary), GITHUB_SERVER_URL="https://gh",
        GITHUB_REPOSITORY="o/r", GITHUB_RUN_ID="5",
    )  # fmt: skip
    line = (tmp_path / "line.txt").read_text().strip()
    assert line.startswith("FAIL word_problems embedded (test_it.py::TestIt::test_damaged): ")
    assert line.endswith("; of 4 tests: 1 FAIL, 1 ERROR, 1 PASS, 1 XFAIL;"
                         " https://gh/o/r/actions/runs/5")  # fmt: skip
    told = [one for one in done.stdout.splitlines() if one.startswith("::")]
    escaped = line.replace("%", "%25")
    assert (
        told[0]
        == f"::error title=serve-eval%3A test_it.py%3A%3ATestIt%3A%3Atest_damaged::{escaped}"
    )
    assert len(told) == 2, told
    assert "::ERROR test_it.py::TestIt::test_dead: no result; EndpointError: " in told[1]
    text = summary.read_text()
    assert text.startswith("of another step\nFAIL word_problems embedded ")
    assert text.count("### FAIL: pytest") == 1
    for outcome, test in (
        ("PASS", "sound"),
        ("FAIL", "damaged"),
        ("ERROR", "dead"),
        ("XFAIL", "known"),
    ):
        assert f"| **{outcome}** | test\\_it.py::TestIt::test\\_{test} |" in text, text


def test_a_session_without_tests_of_accuracy_tells_nothing(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_a(): raise AssertionError\n")
    done = run_pytest(tmp_path, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(tmp_path / "s.md"))
    assert "::" not in done.stdout.replace("test_it.py::test_a", "")
    assert not (tmp_path / "s.md").exists()


def test_a_summary_that_cannot_be_written_is_a_warning(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_a(serve_eval): pass\n")
    done = run_pytest(tmp_path, GITHUB_STEP_SUMMARY=str(tmp_path))
    assert done.returncode == 0
    assert "warning: GITHUB_STEP_SUMMARY could not be written" in done.stdout
