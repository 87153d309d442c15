"""Test that the verdict and its output survive failing pages, and other code that prints.

All commands run in processes of their own: some under a limit of addresses, others with a library
for pictures that ends its process, and remembers which files were there.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.command import environment, in_a_process, serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, models
from tests.workflows.verify.model_server import ModelServer

GIB = 2**30
LIMITS = [
    pytest.param(size, marks=[] if size == 4 else pytest.mark.slow) for size in (4, 8, 16, 64)
]
RUN = ("--launcher", "simulated", "-m", "embedded", "--tasks", "word_problems", "--limit", "40")
NO_PICTURES, PICTURES = ({"SERVE_EVAL_NO_PICTURES": one} for one in ("1", ""))


@dataclass(frozen=True)
class Made:
    """The inputs of the commands: two finished runs, a suite, and the addresses of two servers."""

    folder: Path
    pair: tuple[str, str]
    answers: str


@dataclass(frozen=True)
class Asked:
    """A command: its arguments, exit code, printed verdict, and the files of its folder."""

    arguments: Sequence[str]
    code: int
    said: str
    files: tuple[str, ...]


CI = ("junit.xml", "summary.md")
MAIN = ("run", "compare", "suite", "verify", "load")
ALL = [*MAIN, *(pytest.param(one, marks=pytest.mark.slow) for one in ("merge", "watch", "smoke"))]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdicts")
    for name, accuracy in (("a", "0.9"), ("b", "0.4")):
        flags = ("--set", f"launcher.accuracy={accuracy}", "--no-reference", "-o", folder / name)
        serve_eval("run", *RUN, *flags, exits=3)
    for part in (1, 2):
        flags = ("--shard", f"{part}/2", "--no-reference", "-o", folder / f"shard{part}")
        serve_eval("run", *RUN, *flags, exits=0)
    (folder / "refs").mkdir()
    references = "embedded:\n  - accuracy: 90.0\n    source: declared\n"
    (folder / "refs/word_problems.yaml").write_text(references)
    (folder / "suite.yaml").write_text(
        f"defaults: {{references_dir: {folder}/refs, model: embedded, limit: 40}}\n"
        "plans:\n"
        "  - {name: bad, tasks: [word_problems], launcher: {name: simulated, accuracy: 0.2}}\n"
        "  - {name: good, tasks: [word_problems], launcher: {name: simulated, accuracy: 1.0}}\n"
    )
    server = ScriptedServer([answer("#### 1")], routes={"/v1/models": models("m")})
    with ExitStack() as stack:
        pair = [
            stack.enter_context(ModelServer(name=name).server.serve_in_thread()) for name in "ab"
        ]
        yield Made(folder, (pair[0], pair[1]), stack.enter_context(server.serve_in_thread()))


def _ask(command, made, out):
    top, small = made.folder, ("--limit", "24", "--concurrency", "1,8")
    asked = {
        "run": Asked(
            (*RUN, "--set", "launcher.accuracy=0.2", "--references-dir", str(top / "refs")),
            1,
            " FAIL   word_problems",
            ("report.json", *CI),
        ),
        "compare": Asked(
            (str(top / "a"), str(top / "b")), 1, " FAIL   word_problems", ("comparison.json", *CI)
        ),
        "suite": Asked((str(top / "suite.yaml"),), 1, " FAIL ", ("suite_report.json", *CI)),
        "verify": Asked(
            (*made.pair, "--model", "m", "--floor", "0.08", "--probes", "60"),
            0,
            "IDENTICAL",
            ("verification.json", *CI),
        ),
        "load": Asked(
            (made.answers, "--tasks", "word_problems", *small),
            3,
            " INCONCLUSIVE   word_problems",
            ("load.json",),
        ),
        "merge": Asked(
            (str(top / "shard1"), str(top / "shard2")), 3, " NO REFERENCE ", ("report.json",)
        ),
        "watch": Asked(
            (
                made.answers,
                "--every",
                "0s",
                "--rounds",
                "3",
                "--set",
                "watch.smoke=false",
                "--limit",
                "20",
            ),
            0,
            "",
            CI,
        ),
        "smoke": Asked((made.answers,), 1, " FAIL", CI),
    }[command]
    words = {"suite": ("run",), "load": ("check", "load"), "merge": ("runs", "merge")}
    return Asked(
        (*words.get(command, (command,)), *asked.arguments, "-o", str(out)),
        asked.code,
        asked.said,
        asked.files,
    )


def _run(
    arguments,
    folder,
    *,
    gib=None,
    file_bytes=None,
    **environ,
):
    """Run a command in `folder` and return what it printed, which is also in files there."""

    def limit():
        if gib is not None:
            resource.setrlimit(resource.RLIMIT_AS, (gib * GIB, gib * GIB))
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    folder.mkdir(exist_ok=True)
    streams = [folder / name for name in ("stdout", "stderr")]
    with streams[0].open("wb") as out, streams[1].open("wb") as err:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "serve_eval", *arguments],
            stdout=out,
            stderr=err,
            cwd=folder,
            env=environment(**{**PICTURES, **environ}),
            preexec_fn=limit,
            timeout=120,
            check=False,
        )
    said = [one.read_text(errors="replace") for one in streams]
    return subprocess.CompletedProcess(arguments, done.returncode, *said)


@pytest.mark.parametrize("gib", LIMITS)
@pytest.mark.parametrize("command", ALL)
def test_a_limit_of_addresses_costs_pictures_and_nothing_else(command, gib, made, tmp_path):
    asked = _ask(command, made, tmp_path / "out")
    done = _run(asked.arguments, tmp_path / "here", gib=gib)
    assert done.returncode == asked.code, done.stderr
    assert asked.said in done.stdout
    for name in (*asked.files, "report.html"):
        assert (tmp_path / "out" / name).stat().st_size > 100, name
    warned = [line for line in done.stderr.splitlines() if "pictures" in line]
    page = (tmp_path / "out/report.html").read_text()
    assert len(warned) == int("<figure>" in page), done.stderr
    if warned:
        assert "ended by SIGTRAP" in warned[0]
        assert f"ulimit -v allows {gib} GiB" in warned[0]
        assert 'class="ruler"' in page


ENDS = {
    "exception": "raise RuntimeError('no picture')",
    "exit": "os._exit(7)",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "segfault": "os.kill(os.getpid(), signal.SIGSEGV)",
    "memory": "blocks = [bytearray(2**28) for _ in range(64)]",
    "nonsense": "os.write(1, b'\\x00[{' * 9)",
}


def _write_library(folder, end, seen, out):
    """Write a library for pictures that keeps what it sees of the result, and ends its process.

    It does so at the first picture of a page; a run may load it and draw an empty one while answers
    still come. Return the folder to import it from.
    """
    package = folder / "library"
    package.mkdir()
    lines = [
        "import json, os, pathlib, signal",
        f"out, here = pathlib.Path({str(out)!r}), pathlib.Path({str(folder / 'here')!r})",
        "def vegalite_to_svg(spec, **more):",
        "    if '\"config\"' not in spec: return '<svg></svg>'",
        "    found = {p.name: p.read_text() for top in (out, here) for p in top.iterdir()"
        " if p.is_file()}",
        f"    seen = pathlib.Path({str(seen)!r})",
        "    seen.exists() or seen.write_text(json.dumps(found))",
        f"    {end}",
    ]
    (package / "vl_convert.py").write_text("\n".join(lines))
    return str(package)


@pytest.mark.parametrize("end", ENDS)
def test_all_is_complete_before_a_picture_is_begun(end, made, tmp_path):
    out, seen = tmp_path / "out", tmp_path / "seen.json"
    asked = _ask("run", made, out)
    told = {
        "PYTHONPATH": _write_library(tmp_path, ENDS[end], seen, out),
        "GITHUB_ACTIONS": "true",
        "GITHUB_STEP_SUMMARY": str(tmp_path / "here/step.md"),
    }
    done = _run(asked.arguments, tmp_path / "here", **told)
    before = read_json(seen)
    assert done.returncode == 1, done.stderr
    assert "report.html" not in before
    assert before["stdout"] == done.stdout
    assert "::error title=serve-eval" in before["stderr"]
    assert done.stderr.startswith(before["stderr"])
    for name in ("report.json", *CI):
        assert before[name] == (out / name).read_text(), name
    assert before["step.md"].startswith("FAIL word_problems ")
    assert done.stderr[len(before["stderr"]) :].count("warning: ") == 1, done.stderr
    assert 'class="ruler"' in (out / "report.html").read_text()


@pytest.mark.parametrize("command", ALL[1:5] + ALL[6:7])
def test_every_story_is_complete_before_a_picture_is_begun(command, made, tmp_path):
    out, seen = tmp_path / "out", tmp_path / "seen.json"
    asked = _ask(command, made, out)
    library = _write_library(tmp_path, ENDS["segfault"], seen, out)
    done = _run(asked.arguments, tmp_path / "here", PYTHONPATH=library)
    before = read_json(seen)
    assert done.returncode == asked.code, done.stderr
    assert "report.html" not in before
    assert before["stdout"] == done.stdout
    for name in asked.files:
        assert before[name] == (out / name).read_text(), name


@pytest.mark.parametrize("command", ["run", pytest.param("compare", marks=pytest.mark.slow)])
def test_a_page_that_does_not_fit_the_disk_costs_one_warning(command, made, tmp_path):
    asked = _ask(command, made, tmp_path / "out")
    done = _run(asked.arguments, tmp_path / "here", file_bytes=28_000, **NO_PICTURES)
    assert done.returncode == asked.code, done.stderr
    assert asked.said in done.stdout
    for name in asked.files:
        assert (tmp_path / "out" / name).stat().st_size > 100, name
    assert not (tmp_path / "out/report.html").exists()
    assert done.stderr.count("warning: the page could not be written: ") == 1, done.stderr


def test_code_in_the_current_folder_draws_nothing(made, tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    for name in ("vl_convert", "json", "random", "serve_eval", "runpy", "resource"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    asked = _ask("compare", made, tmp_path / "out")
    done = _run(asked.arguments, here)
    assert (done.returncode, done.stderr.count("warning: ")) == (1, 0), done.stderr
    assert not (tmp_path / "ran").exists()
    assert "<desc" in (tmp_path / "out/report.html").read_text()


NOISE = '''"""Writes to standard output by every way there is."""

import ctypes
import os
import subprocess

def noise(where):
    print("noise by print,", where)
    os.write(1, f"noise by a descriptor, {where}\\n".encode())
    ctypes.CDLL(None).puts(f"noise by C, {where}".encode())  # C buffers this until the end
    subprocess.run(["echo", f"noise by a child, {where}"], check=True)
'''
TASK = '''"""Writes to standard output wherever it is called."""


from serve_eval.schema import Aggregation, DataRoots, Dataset, Hypothesis, Metric, Outcome
from serve_eval.schema import Response, Sample
from serve_eval.schema import SamplingParams, Score, Task

from ._noise import noise

noise("import")


def of(scored):
    noise("aggregation")
    return sum(score.value for _, score in scored) / 3


def task() -> Task:
    noise("task")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        noise("load")
        samples = [Sample(id=str(i), prompt=f"Town {i} is", target=f"town{i}") for i in range(3)]
        return Dataset(samples=samples, files=(), total=3)

    def score(sample: Sample, response: Response) -> Score:
        noise("score")
        right = response.text.strip() == sample.target
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)

    return Task(
        name="loud",
        version=1,
        reference_file="loud",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=3),
        sampling=SamplingParams(max_tokens=8),
        protocol={},
        load=load,
        score=score,
        answers=lambda sample: (sample.target, "nowhere"),
        aggregation=Aggregation(name="loud mean", of=of),
    )
'''


@pytest.fixture
def code(tmp_path):
    folder = tmp_path / "code/tasks"
    folder.mkdir(parents=True)
    (folder / "_noise.py").write_text(NOISE)
    (folder / "loud.py").write_text(TASK)
    return folder.parent


def _flags(code):
    asked = ["--launcher", "simulated", "--model", "m", "--tasks", "loud", "--no-reference"]
    return [*asked, "--include-path", code]


def _parsed(*arguments, codes=(0, 3)):
    done = in_a_process(*arguments)
    assert done.returncode in codes, done.stderr
    for way in ("print", "a descriptor", "C", "a child"):
        assert f"noise by {way}" in done.stderr, "the output of other code must not be lost"
    assert "noise by" not in done.stdout
    return json.loads(done.stdout)


def test_a_task_that_writes_to_standard_output_leaves_json_what_it_is(code):
    told = _parsed("run", *_flags(code), "--dry-run", "--json")
    assert [task["task"] for task in told["tasks"]] == ["loud"]


@pytest.mark.slow
def test_no_command_mixes_its_output_with_that_of_others(code, tmp_path):
    out, include = tmp_path / "out", ("--include-path", code)
    for command in (
        ("run", *_flags(code), "-o", out),
        ("run", "--resume", out, *include),
        ("judge", out, *include),
    ):
        [task] = _parsed(*command, "--json")["result"]["tasks"]
        assert task["result"]["scored"] == 3
    assert (
        _parsed("judge", "--rescore", out, *include, "--json")["result"]["tasks"][0]["answered"]
        == 3
    )
    plan = {
        "model": "m",
        "launcher": "simulated",
        "tasks": ["loud"],
        "no_reference": True,
        "include_path": [str(code)],
    }
    for name in ("a", "b"):
        (tmp_path / f"{name}.yaml").write_text(json.dumps(plan))
    compared = (
        "compare",
        tmp_path / "a.yaml",
        tmp_path / "b.yaml",
        "-o",
        tmp_path / "both",
        "--json",
    )
    assert _parsed(*compared, codes=(0, 1, 3))["result"]["tasks"]
    (tmp_path / "suite.yaml").write_text(json.dumps({"plans": [{"name": "one", **plan}]}))
    suite = ("run", tmp_path / "suite.yaml", "-o", tmp_path / "suite")
    assert _parsed(*suite, "--json")["result"]["rows"]
    listed = in_a_process("data list tasks", *include)
    assert "  loud" in listed.stdout
    assert "noise by" not in listed.stdout
    files = _parsed("runs", "export", out, *include, "-o", tmp_path / "exported", "--json")
    assert all(Path(one["file"]).is_file() for one in files["result"]["files"])


@pytest.mark.slow
def test_prompts_that_are_dumped_to_standard_output_get_there(code):
    done = in_a_process("run --dump-prompts /dev/stdout", *_flags(code))
    assert [json.loads(line)["id"] for line in done.stdout.splitlines()] == ["0", "1", "2"], (
        done.stderr
    )


@pytest.mark.slow
def test_help_still_goes_to_standard_output():
    done = in_a_process("references register --help")
    assert "--include-path" in done.stdout
    assert done.stderr == ""


def test_a_program_that_is_started_finds_its_standard_streams_open():
    """The caller may have closed its own."""
    code = (
        "import subprocess; from serve_eval.cli._streams import prepare_streams; prepare_streams();"
        " subprocess.run('cat && echo a && echo b >&2', shell=True, check=True)"
    )
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code],
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
