"""The modules that a command has imported when it ends.

Times would say little on a shared machine.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys

from tests.cli.command import environment, in_a_process
from tests.scripted_server import ScriptedServer, answer

PRELUDE = """
import sys
from serve_eval.cli import main
try:
    main()
finally:
    print("imported:", *sys.modules, file=sys.stderr)
"""
TOLD_BY_A_SIGNAL = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("imported:", *sys.modules, file=sys.stderr))
from serve_eval.cli import main
main()
"""
HEAVY = {
    "scipy",
    "aiohttp",
    "openai",
    "lm_eval",
    "datasets",
    "torch",
    "jinja2",
    "jsonschema",
    "pyarrow",
    "tokenizers",
    "pydantic",
}
"""Modules that a run with the default verdict does not need."""


def _imported(told):
    [line] = re.findall(r"^imported: (.*)$", told, re.MULTILINE)
    return set(line.split())


async def _start(code, *arguments):
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        code,
        *arguments,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def _run(*arguments):
    """Run a command; return its exit code, its imported modules and its output."""
    process = await _start(PRELUDE, *arguments)
    out, err = await process.communicate()
    return process.returncode, _imported(err.decode()), out.decode() + err.decode()


def test_help_imports_no_command_and_nothing_that_only_a_run_needs():
    code, modules, told = asyncio.run(_run("--help"))
    assert code == 0
    assert "Judge an endpoint, by flags, a plan or a suite of plans." in told
    assert not modules & (HEAVY | {"numpy", "msgspec", "yaml", "asyncio"})
    ours = {name for name in modules if name.startswith("serve_eval")}
    assert ours == {
        "serve_eval",
        "serve_eval.cli",
        "serve_eval.cli.app",
        "serve_eval.cli._clear_values",
        "serve_eval.cli._commands",
        "serve_eval.cli._examples",
        "serve_eval.cli._interrupts",
        "serve_eval.cli._streams",
        "serve_eval.errors",
        "serve_eval.pace",
        "serve_eval.processes",
        "serve_eval.processes.import_path",
        "serve_eval.processes.rare_collections",
    }


def test_a_command_imports_no_other():
    code, modules, _ = asyncio.run(_run("references", "power", "--help"))
    assert code == 0
    assert {
        name for name in modules if name.startswith("serve_eval.cli.") and "._" not in name
    } == {"serve_eval.cli.app", "serve_eval.cli.references"}


def test_a_run_with_the_default_verdict_does_without_what_is_heavy(data_root, tmp_path):
    server = ScriptedServer(
        lambda request: answer("#### 42", usage=(9, min(request.max_tokens, 9)))
    )

    async def go():
        async with server.serve() as url:
            given = {
                "base-url": url,
                "model": "meta-llama/Llama-3.1-8B-Instruct",
                "tasks": "gsm8k",
                "limit": "20",
            }
            given["allow-mismatch"] = "dataset"
            flags = [f"--{name}={value}" for name, value in given.items()]
            return await _run(
                "run", *flags, f"--dataset-root={data_root}", f"--output-dir={tmp_path / 'run'}"
            )

    code, modules, told = asyncio.run(go())
    assert code in (0, 1), told
    assert modules & HEAVY == {"jinja2"}, "the page needs it, after the last answer"
    assert "numpy" in modules  # the alarm needs it: imports do show up in `modules`


END = (
    "serve_eval.evaluation.task_report",
    "serve_eval.report.ci",
    "serve_eval.report.lines",
    "serve_eval.report.page",
    "serve_eval.report.summary",
    "serve_eval.sandbox",
    "serve_eval.schema.comparison",
    "serve_eval.schema.suite",
    "serve_eval.schema.verification",
    "serve_eval.stats.permutation",
    "urllib.request",
)
"""Modules that a run needs at its end, or not at all."""
MOST_OF_OURS = 236
"""Our modules before the first request: 234; 381 before their files were merged."""


def test_before_its_first_request_a_run_imports_nothing_for_its_end(data_root, tmp_path):
    pids = []

    def reply(request):
        if pids:
            os.kill(pids.pop(), signal.SIGUSR1)
        return answer("#### 42", usage=(9, min(request.max_tokens, 9)))

    async def go():
        async with ScriptedServer(reply).serve() as url:
            given = ["run", "--base-url", url, "--model", "m", "--tasks", "gsm8k", "--limit", "4"]
            given += ["--dataset-root", str(data_root), "-o", str(tmp_path / "run")]
            process = await _start(TOLD_BY_A_SIGNAL, *given, "--no-reference")
            pids.append(process.pid)
            _, err = await process.communicate()
            return err, process.returncode

    told, code = asyncio.run(go())
    assert code == 3, told.decode()
    modules = _imported(told.decode())
    assert {"numpy", "serve_eval.client.client"} <= modules
    assert sorted(modules.intersection(END)) == []
    ours = [name for name in modules if name.partition(".")[0] == "serve_eval"]
    assert len(ours) <= MOST_OF_OURS, f"{len(ours)} modules of serve-eval"


OTHER_STORIES = (
    "http.client",
    "serve_eval.schema.comparison",
    "serve_eval.schema.suite",
    "serve_eval.workflows.diagnose.story",
)
"""Modules that a run without a red result does not import, of those that it once did."""


def test_a_run_that_is_not_red_imports_no_other_story(data_root, tmp_path):
    server = ScriptedServer(
        lambda request: answer("#### 42", usage=(9, min(request.max_tokens, 9)))
    )

    async def go():
        async with server.serve() as url:
            given = ["run", "--base-url", url, "--model", "m", "--tasks", "gsm8k", "--limit", "4"]
            given += ["--dataset-root", str(data_root), "-o", str(tmp_path / "run")]
            return await _run(*given, "--no-reference")

    code, modules, told = asyncio.run(go())
    assert code == 3, told
    assert "serve_eval.report.run.page_blocks" in modules
    assert sorted(modules.intersection(OTHER_STORIES)) == []


def test_a_command_collects_garbage_rarely():
    code = "import gc\ncount = lambda: sum(one['collections'] for one in gc.get_stats())\n"
    code += "from serve_eval.cli import main\nbefore = count()\ntry:\n    main()\nfinally:\n"
    code += "    print(count() - before, len(gc.get_objects()))"
    told = subprocess.run(
        [sys.executable, "-c", code, "run", "--help"], env=environment(), capture_output=True
    ).stdout.split()
    collections, objects = int(told[-2]), int(told[-1])
    assert objects > 10_000, "this many are walked"
    assert collections <= 8, "the usual thresholds collect every 700 objects: 45 times"


def test_without_a_command_the_commands_are_listed():
    in_a_process(exits=2, tells="Judge an endpoint, by flags, a plan or a suite of plans.")
