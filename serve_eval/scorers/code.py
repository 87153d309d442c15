"""The answer is Python code that passes given checks, which run shut off from this machine and from
the code itself.

Code out of answers by the rules of HumanEval (Chen et al. 2021, "Evaluating large language models
trained on code", arXiv 2107.03374), and what running it is worth.

A completion goes on with the prompt: it is taken up to the first stop string. A chat answer holds
whole functions: what is taken is its last fenced block that defines the function asked for, also
one that the end of the answer cuts; of an answer without any fence the whole, if it defines that
function. Either is run behind the prompt, whose imports and helpers it may use, and then the tests.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence

from serve_eval.errors import PlanError
from serve_eval.schema import ExecutionResult, ExitReason, Outcome, Program, Response, Score, Scorer
from serve_eval.scorers._expected import kind, place, value_of
from serve_eval.scorers._json import FENCE

STOP = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where a completed function is over, section 2.1 of the paper."""

_FUTURE = re.compile(r"^from __future__ import [^(\n]*(?:\n|\Z)", re.MULTILINE)


CHECKS, ENTRY_POINT, SOLUTION = "checks", "entry_point", "solution"
"""What a case may say of the code: the lines that are run behind it, the name that it has to
define, and a text that passes."""


def scorer(*, time_limit_s: float = 10.0) -> Scorer:
    """1 when the answer's code and then the checks come to their end within `time_limit_s` seconds.
    The code is the last fenced block that defines the entry point, where one is named, else the
    last one; an answer without a fence is code as a whole. Raises PlanError for a limit that is
    none.
    """
    if not 0.0 < time_limit_s <= 600.0:
        raise PlanError("code: `time_limit_s` must be above 0 and at most 600 seconds")

    def extraction(expected: object, response: Response) -> str | None:
        told = _describe(expected)
        if told.get(ENTRY_POINT):
            return find_defining_block(response.text, str(told[ENTRY_POINT]))
        blocks = [textwrap.dedent(match.group(2)) for match in FENCE.finditer(response.text)]
        return blocks[-1] if blocks else textwrap.dedent(response.text)

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
                "no code can be made up that passes the checks",
                hint=f"Write some as expected.{SOLUTION}.",
            )
        wrong = f"{told[ENTRY_POINT]} = None\n" if told.get(ENTRY_POINT) else ""
        return (
            f"```python\n{told[SOLUTION]}\n```",
            f"```python\n{wrong}raise NotImplementedError\n```",
        )

    return Scorer(
        version=2,
        score=score,
        answers=answers,
        problems=_problems,
        program=to_run,
        scoring="inline",
    )


def _describe(expected: object) -> Mapping[str, object]:
    """What a case says of the code, with bare checks under their name."""
    value = value_of(expected)
    return value if isinstance(value, Mapping) else {CHECKS: value}


def _problems(expected: object) -> list[str]:
    told, where = _describe(expected), place(expected)
    checks = told.get(CHECKS)
    if not isinstance(checks, str) or not checks.strip():
        what = kind(told if CHECKS not in told else checks)
        return [
            f"{where} must be Python that fails for wrong code, such as `assert double(2) == 4`,"
            f" and is {what}"
        ]
    unknown = [str(key) for key in told if key not in (CHECKS, ENTRY_POINT, SOLUTION)]
    wrong = [f"{where} has {', '.join(unknown)}, of which nothing is known"] if unknown else []
    name = told.get(ENTRY_POINT)
    if name is not None and not (isinstance(name, str) and name.isidentifier()):
        wrong.append(
            f"{where}.{ENTRY_POINT} must be the name that the code defines, and is {name!r}"
        )
    for key in (CHECKS, SOLUTION):
        if key in told and (error := _no_python(told[key])):
            wrong.append(f"{where}.{key} is no Python: {error}")
    return wrong


def _no_python(code: object) -> str | None:
    if not isinstance(code, str):
        return kind(code)
    try:
        ast.parse(code)
    except SyntaxError as error:
        return f"{error.msg} in its line {error.lineno}"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


def continuation(text: str, stop: Sequence[str]) -> str:
    """The text up to the first of the stop strings, for servers that do not stop or that include
    the string.
    """
    return text[
        : min((place for word in stop if (place := text.find(word)) >= 0), default=len(text))
    ]


def find_defining_block(text: str, entry_point: str) -> str | None:
    """The last fenced block that defines a function or name at its top level, or a text without
    fences that does; None where there is none.
    """
    defines = re.compile(
        rf"^(?:(?:async )?def {re.escape(entry_point)}\b|{re.escape(entry_point)}\s*[:=])",
        re.MULTILINE,
    )
    blocks = [textwrap.dedent(match.group(2)) for match in FENCE.finditer(text)] or [
        textwrap.dedent(text)
    ]
    return next((block for block in reversed(blocks) if defines.search(block)), None)


def behind(prompt: str, block: str) -> str:
    """A block behind the prompt that it answers, with its imports from __future__ where Python
    wants them.
    """
    return f"{''.join(_FUTURE.findall(block))}{prompt}\n{_FUTURE.sub('', block)}"


def program(code: str, tests: str, entry_point: str, wall_s: float) -> Program:
    """The code, then its tests, which define `check(candidate)`."""
    return Program(code=code, checks=f"{tests}\ncheck({entry_point})\n", wall_s=wall_s)


def score_run(extraction: str | None, ran: ExecutionResult | None) -> Score:
    """1 when the tests came to their end; how the program ended otherwise stands in the parts."""
    if extraction is None or ran is None:
        return Score(value=0.0, outcome=Outcome.UNPARSED, answer=extraction)
    if ran.ended is ExitReason.PASSED:
        return Score(value=1.0, outcome=Outcome.CORRECT, answer=extraction)
    return Score(value=0.0, outcome=Outcome.WRONG, answer=extraction, parts={ran.ended.value: 1.0})
