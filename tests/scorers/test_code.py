"""Test which code is taken from an answer and how its result is scored."""

from __future__ import annotations

import pytest

from serve_eval.schema import ExecutionResult, ExitReason, Outcome
from serve_eval.scorers.code import (
    STOP,
    behind,
    continuation,
    find_defining_block,
    program,
    score_run,
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("    return 1\n", "    return 1\n"),
        ("    return 1\n\ndef other():\n    pass\n", "    return 1\n"),
        ("    return 1\n\n\nclass A: pass\n# x\n", "    return 1\n\n"),
        (
            "    x = 1\n    # within\n    return x\n\nprint(f(1))",
            "    x = 1\n    # within\n    return x\n",
        ),
        (
            "    if x:\n        return 1\n\nif __name__ == '__main__':\n",
            "    if x:\n        return 1\n",
        ),
        ("", ""),
    ],
)
def test_a_completion_ends_at_the_first_stop_string(text: str, kept: str) -> None:
    assert continuation(text, STOP) == kept


BLOCK = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"Here:\n```python\n{BLOCK}```\nDone.", BLOCK),
        (f"```\n{BLOCK}```", BLOCK),
        (f"~~~py\n{BLOCK}~~~", BLOCK),
        (f"````python\n{BLOCK}````", BLOCK),
        (f"```python\ndef f(x): return 0\n```\nBetter:\n```python\n{BLOCK}```", BLOCK),
        (f"```python\n{BLOCK}```\nTry it:\n```python\nprint(f(1))\n```", BLOCK),
        (f"```python\n{BLOCK}", BLOCK),
        (f"1. So:\n   ```python\n   def f(x):\n       return x\n   ```\n{'text'}", BLOCK),
        (BLOCK, BLOCK),
        ("```python\nf = lambda x: x\n```", "f = lambda x: x\n"),
        ("```python\nasync def f(x): return x\n```", "async def f(x): return x\n"),
        ("```python\ndef f2(x): return x\n```", None),
        ("```python\n    def f(x): return x\n  x\n```", None),
        ("```python\nclass A:\n    def f(x): return x\n```", None),
        ("```python\n    return x\n```", None),
        (
            f"The function def f(x) is easy.\n\n{BLOCK}",
            f"The function def f(x) is easy.\n\n{BLOCK}",
        ),
        ("I cannot do that.", None),
    ],
)
def test_of_a_chat_answer_the_last_block_that_defines_the_function_is_taken(
    text: str, found: str | None
) -> None:
    assert find_defining_block(text, "f") == found


def test_a_block_comes_behind_its_prompt_and_future_imports_before_it() -> None:
    block = "from __future__ import annotations\nimport math\ndef f(x: T): return math.pi\n"
    code = behind("def f(x):\n    'doc'\n", block)
    compile(code, "code", "exec")
    assert code.index("from __future__") < code.index("'doc'") < code.index("import math")


def test_the_tests_call_the_function_that_was_asked_for() -> None:
    made = program(
        "def f(x): return x", "def check(candidate):\n    assert candidate(1) == 1", "f", 3.0
    )
    names: dict[str, object] = {}
    exec(made.code, names)
    exec(made.checks, names)
    assert made.wall_s == 3.0
    with pytest.raises(NameError):
        exec(made.checks, {})


def test_only_the_end_of_the_tests_is_worth_a_point() -> None:
    assert score_run("code", ExecutionResult(ended=ExitReason.PASSED, exit=0)).value == 1.0
    for ended in set(ExitReason) - {ExitReason.PASSED}:
        score = score_run("code", ExecutionResult(ended=ended, exit=0, stdout="passed"))
        assert (score.value, score.outcome, score.answer) == (0.0, Outcome.WRONG, "code")
        assert score.parts == {ended.value: 1.0}
    assert score_run(None, None).outcome is Outcome.UNPARSED
