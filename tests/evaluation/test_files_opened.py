"""Count with an audit hook of Python the times that a run opens the files of its folder."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

from tests.cli.command import environment
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail

COUNTED = """
import json, os, sys
from serve_eval.cli import main
opened = []
def hook(event, given):
    if event == "open" and str(given[0]).startswith(sys.argv[-1] + os.sep):
        path, mode, flags = given
        reads = mode == "r" if mode is not None else not flags & (os.O_WRONLY | os.O_RDWR)
        opened.append((os.path.relpath(path, sys.argv[-1]), reads))
sys.addaudithook(hook)
try:
    main()
finally:
    print("opened:", json.dumps(opened), file=sys.stderr)
"""
Opened = Counter[tuple[str, bool]]
"""The number of times that each file was opened, by its name and whether it was read."""


async def _run(url: str, folder: Path, data_root: Path) -> tuple[int | None, Opened]:
    given = ["run", "--base-url", url, "--model", "m", "--tasks", "gsm8k", "--limit", "40"]
    given += ["--dataset-root", str(data_root), "--no-reference", "--concurrency", "8"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COUNTED, *given, "-o", str(folder)),
        env=environment(),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await process.communicate()
    [line] = [one for one in told.decode().splitlines() if one.startswith("opened: ")]
    opened = json.loads(line.removeprefix("opened: "))
    return process.returncode, Counter((name, reads) for name, reads in opened)


def test_a_run_and_its_continuation_open_each_file_once(data_root: Path, tmp_path: Path) -> None:
    folder, refused = tmp_path / "run", [True]

    def reply(request: HttpRequest) -> Reply:
        if refused[0] and len(request.prompt) % 5 == 0:
            return fail(400)
        return answer("#### 42", usage=(9, min(request.max_tokens, 9)))

    async def go() -> list[tuple[int | None, Opened]]:
        async with ScriptedServer(reply).serve() as url:
            first = await _run(url, folder, data_root)
            refused[0] = False
            return [first, await _run(url, folder, data_root)]

    (code, first), (code_again, second) = asyncio.run(go())
    assert (code, code_again) == (3, 3), (first, second)
    asked, read = ("steps.jsonl", False), ("environment.json", True)
    assert second[asked] == 1, "the second run asked what the first one had not received"
    assert (first[asked], first["steps.jsonl", True]) == (1, 0)
    assert (first[read], second[read], second["steps.jsonl", True]) == (0, 1, 1)
    assert first["prompts/gsm8k.jsonl", True] == second["prompts/gsm8k.jsonl", True] == 1
    assert first["samples/gsm8k.jsonl", True] == 2, "all of it, then the answers that a page shows"
    assert first["scores/gsm8k.jsonl", True] == 3, "those, and the wrong answer of the summary"
