"""The answer is Python code that passes given checks, which run isolated from the code.

Both run isolated from this machine. Code is taken from answers by the rules of HumanEval (Chen et
al. 2021, "Evaluating large language models trained on code", arXiv 2107.03374), and scored by
running it.

A completion continues the prompt and is used up to the first stop string. A chat answer contains
whole functions. Its last fenced block that defines the requested function is used, even if the end
of the answer cuts the block. An answer without fences is used as a whole, if it defines that
function. The program is the prompt, whose imports and helpers the code may use, then the code, then
the tests.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence

from serve_eval.errors import PlanError
from serve_eval.schema import ExecutionResult, ExitReason, Outcome, Program, Response, Score, Scorer
from serve_eval.scorers._blocks import find_blocks, last_code
from serve_eval.scorers._expected import kind, place, value_of

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Strings that end a completed function, section 2.1 of the paper."""

_FUTURE = re.compile(r"^from __future__ import [^(\n]*(?:\n|\Z)", re.MULTILINE)


BLOCKS_VERSION = 2
"""Increases when blocks of code are found otherwise in chat answers."""
CHECKS, ENTRY_POINT, SOLUTION = "checks", "entry_point", "solution"
"""Keys of a case: the lines to run after the code, the name that it must define, and a text that
passes."""


def scorer(*, time_limit_s: float = 10.0) -> Scorer:
    """Return a scorer that gives 1 if the code and then the checks complete in time.

    The limit is `time_limit_s` seconds. The code is the last block of Python, else the last block;
    if the case names an entry point, the last block that defines it. An answer without blocks
    counts as one. Raises PlanError for an invalid limit.
    """
    if not 0.0 < time_limit_s <= 600.0:
        raise PlanError("code: `time_limit_s` must be above 0 and at most 600 seconds")

    def extraction(expected: object, response: Response) -> str | None:
        told = _describe(expected)
        if told.get(ENTRY_POINT):
            return find_defining_block(response.text, str(told[ENTRY_POINT]))
        found = last_code(find_blocks(response.text))
        return textwrap.dedent(response.text) if found is None else found

    def to_run(expected: object, response: Response) -> Program | None:
        found = extraction(expected, response)
        return (
            None
            if found is None
            else Program(code=found, checks=str(_describe(expected)[CHECKS]), wall_s=time_limit_s)
        )

    def score(expected: object, response: Response) -> Score:
        return score_run(extraction(expected, response), response.ran)

    def answers(expected: object) -> tuple[str, str]:
        told = _describe(expected)
        if SOLUTION not in told:
            raise PlanError(
                "code that passes the checks cannot be generated",
                hint=f"Write some as expected.{SOLUTION}.",
            )
        wrong = f"{told[ENTRY_POINT]} = None\n" if told.get(ENTRY_POINT) else ""
        return (
            f"```python\n{told[SOLUTION]}\n```",
            f"```python\n{wrong}raise NotImplementedError\n```",
        )

    return Scorer(
        version=3,
        score=score,
        answers=answers,
        problems=_problems,
        program=to_run,
        scoring="inline",
    )


def _describe(expected: object) -> Mapping[str, object]:
    """Return the keys of a case; an expectation that is only checks gets the key CHECKS."""
    value = value_of(expected)
    return value if isinstance(value, Mapping) else {CHECKS: value}


def _problems(expected: object) -> list[str]:
    told, where = _describe(expected), place(expected)
    checks = told.get(CHECKS)
    if not isinstance(checks, str) or not checks.strip():
        what = kind(told if CHECKS not in told else checks)
        return [
            f"{where} must be Python that fails for wrong code, such as `assert double(2) == 4`,"
            f" not {what}"
        ]
    unknown = [str(key) for key in told if key not in (CHECKS, ENTRY_POINT, SOLUTION)]
    wrong = [f"{where} has unknown keys: {', '.join(unknown)}"] if unknown else []
    name = told.get(ENTRY_POINT)
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        wrong.append(f"{where}.{ENTRY_POINT} must be the name that the code defines, not {name!r}")
    for key in (CHECKS, SOLUTION):
        if key in told and (error := _no_python(told[key])):
            wrong.append(f"{where}.{key} is not Python: {error}")
    return wrong


def _no_python(code: object) -> str | None:
    if not isinstance(code, str):
        return kind(code)
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"{error.msg} on line {error.lineno}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


def continuation(text: str, stop: Sequence[str]) -> str:
    """Return the text up to the first of the stop strings.

    It is for servers that do not stop or that include the string.
    """
    return text[
        : min((place for word in stop if (place := text.find(word)) >= 0), default=len(text))
    ]


def find_defining_block(text: str, entry_point: str) -> str | None:
    """Return the last block of code that defines a name at its top level, or None.

    A text without blocks counts as one.
    """
    defines = re.compile(
        rf"^(?:(?:async )?def {re.escape(entry_point)}\b|{re.escape(entry_point)}\s*[:=])",
        re.MULTILINE,
    )
    blocks = [block.code for block in find_blocks(text)] or [textwrap.dedent(text)]
    return next((block for block in reversed(blocks) if defines.search(block)), None)


def behind(prompt: str, block: str) -> str:
    """Return the prompt followed by the block that answers it.

    Imports of the block from __future__ come first, where Python requires them.
    """
    return f"{''.join(_FUTURE.findall(block))}{prompt}\n{_FUTURE.sub('', block)}"


def program(code: str, tests: str, entry_point: str, wall_s: float) -> Program:
    """Return the program of the code and its tests, which define `check(candidate)`."""
    return Program(code=code, checks=f"{tests}\ncheck({entry_point})\n", wall_s=wall_s)


def score_run(extraction: str | None, ran: ExecutionResult | None) -> Score:
    """Return a score of 1 if the tests passed, else 0 with the way the program ended as a part."""
    if extraction is None or ran is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED, answer=extraction)
    if ran.ended is ExitReason.PASSED:
        return Score(value=1.0, outcome=Outcome.CORRECT, answer=extraction)
    return Score(value=0.0, outcome=Outcome.WRONG, answer=extraction, parts={ran.ended.value: 1.0})
