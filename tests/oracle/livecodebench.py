"""Compare LiveCodeBench's prompts, extraction, tests and outcomes with its own lcb_runner.

The environment variable LIVECODEBENCH names a checkout of it. lcb_runner runs programs without
isolation, so no answer of a model is run here.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import yaml

from serve_eval.errors import SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, Response
from serve_eval.tasks import livecodebench
from serve_eval.tasks._livecodebench_checks import read_tests
from tests.oracle._child import run
from tests.oracle.part import Compared, Skipped, checkout
from tests.tasks.made_data import contest_row, write_jsonl

FILE = Path(__file__).with_name("livecodebench_solutions.yaml")
ROWS = 200
LIMIT_S = 2
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


def compare():
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
        told = {"rows": rows, "texts": texts, "solutions": solutions, "limit_s": LIMIT_S}
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
    task = livecodebench.task(release_version="v1", num_samples=len(solutions), timeout_s=LIMIT_S)
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
