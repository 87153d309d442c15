"""Test HumanEval in the real sandbox.

Solutions pass and broken ones fail; ROUGE, as in the suite, runs nothing.
"""

import asyncio
import random

import msgspec
import pytest

from serve_eval.errors import DatasetError, PlanError, SandboxError
from serve_eval.sandbox.probe import strongest
from serve_eval.schema import DataRoots, Outcome, Response
from serve_eval.tasks.humaneval import task

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
OWN = [
    {
        "task_id": "Own/0",
        "prompt": (
            'from typing import List\n\n\ndef pairs(xs: List[int]) -> int:\n    """Equal'
            ' neighbours."""\n'
        ),
        "entry_point": "pairs",
        "canonical_solution": "    return sum(a == b for a, b in zip(xs, xs[1:]))\n",
        "test": (
            "def check(candidate):\n    assert candidate([]) == 0\n    assert candidate([1, 1, 1])"
            " == 2\n"
        ),
    },
    {
        "task_id": "Own/1",
        "prompt": (
            'def half(x: float):\n    return x / 2\n\n\ndef quarter(x: float) -> float:\n    """A'
            ' fourth."""\n'
        ),
        "entry_point": "quarter",
        "canonical_solution": "    return half(half(x))\n",
        "test": "def check(candidate):\n    assert abs(candidate(2) - half(1)) < 1e-9\n",
    },
]


def _scores(made, asked):
    """Run the answers in a sandbox and return their scores."""

    async def run():
        sandbox, _ = await strongest()

        async def score(sample, text):
            response = Response(text=text, finish_reason="stop")
            program = made.program(sample, response)
            ran = None if program is None else await sandbox.run(program)
            return made.score(sample, msgspec.structs.replace(response, ran=ran))

        return await asyncio.gather(*(score(sample, text) for sample, text in asked))

    try:
        return asyncio.run(run())
    except SandboxError as error:
        pytest.skip(str(error))


@pytest.fixture
def own(tmp_path):
    (tmp_path / "humaneval").mkdir()
    (tmp_path / "humaneval/test.jsonl").write_bytes(
        b"".join(msgspec.json.encode(row) + b"\n" for row in OWN)
    )
    return lambda made: list(made.load(DataRoots(roots=(tmp_path,)), len(OWN)).samples)


@pytest.mark.parametrize(
    ("which", "text", "outcome"),
    [
        (
            0,
            "    n = 0\n    for a, b in zip(xs, xs[1:]):\n        n += a == b\n    return n\n",
            Outcome.CORRECT,
        ),
        (0, "    return 0\n\ndef unfinished(", Outcome.WRONG),
        (0, "    return sum(map(int.__eq__, xs, xs[1:]))\n\ndef unfinished(", Outcome.CORRECT),
        (0, "    import sys; sys.exit(0)\n", Outcome.WRONG),
        (0, "    print('passed'); import os; os._exit(0)\n", Outcome.WRONG),
        (0, "    while True: pass\n", Outcome.WRONG),
        (0, "return 1", Outcome.WRONG),
        (1, "    return half(x) / 2", Outcome.CORRECT),
        (1, "    return half(x)", Outcome.WRONG),
    ],
)
def test_a_completion_is_run_behind_its_prompt(own, which, text, outcome):
    made = task(metric="pass@1", timeout_s=1.5)
    assert _scores(made, [(own(made)[which], text)])[0].outcome is outcome


def test_a_chat_answer_is_run_as_its_last_block_that_defines_the_function(
    own,
):
    made = task(metric="pass@1", apply_chat_template=True)
    sample = own(made)[1]
    assert "in one code block" in str(sample.prompt)
    block = (
        "Sure:\n```python\nfrom __future__ import annotations\ndef quarter(x: T) -> T:\n    return"
        " half(x) / 2\n```\n"
    )
    asked = [
        block,
        block.replace("/ 2", "/ 3"),
        f"{block}Use it:\n```python\nquarter(1)\n```",
        "Like half, twice.",
    ]
    scores = _scores(made, [(sample, text) for text in asked])
    assert [score.outcome for score in scores] == [
        Outcome.CORRECT,
        Outcome.WRONG,
        Outcome.CORRECT,
        Outcome.UNPARSED,
    ]
    assert made.sampling.stop == ()


def test_rouge_asks_and_scores_as_the_suite_and_runs_nothing(
    own,
):
    pytest.importorskip("rouge_score")
    made = task()
    assert (made.program, made.sampling.max_tokens, made.sampling.stop) == (None, 100, ())
    assert (made.hypothesis.sigma, made.hypothesis.alpha, made.extra) == (
        15.08,
        0.002,
        {"truncate_prompt_tokens": 924},
    )
    first = own(made)[0]
    assert first.prompt == OWN[0]["prompt"].strip()
    assert made.score(
        first, Response(text="    return sum(0)", finish_reason="length")
    ).value == pytest.approx(4 / 15)


def test_pass_at_1_stops_where_the_paper_does_and_is_another_protocol():
    made = task(metric="pass@1")
    assert (made.sampling.max_tokens, made.sampling.stop) == (512, STOPS)
    assert made.reference_file != task().reference_file
    assert (made.protocol["metric"], task().protocol["metric"]) == ("pass@1", "rouge")


def test_what_makes_no_sense_is_refused(tmp_path, own):
    for options in ({"timeout_s": 0.0}, {"num_samples": 0}, {"apply_chat_template": True}):
        with pytest.raises(PlanError, match="humaneval"):
            task(**options)
    with pytest.raises(DatasetError, match="2 problems; 164 are needed"):
        task().load(DataRoots(roots=(tmp_path,)), 164)
    (tmp_path / "humaneval/test.jsonl").unlink()
    (tmp_path / "humaneval/HumanEval.jsonl.gz").write_bytes(b"not packed")
    with pytest.raises(DatasetError, match="not a gzip file"):
        task().load(DataRoots(roots=(tmp_path,)), 164)


def _published(shared, made):
    dataset = made.load(DataRoots(roots=(shared / "data",)), 164)
    assert (dataset.total, dataset.deviation) == (164, None)
    return dataset


def test_published_solutions_pass_and_broken_ones_fail(shared):
    made = task(metric="pass@1")
    chosen = random.Random(1).sample(list(_published(shared, made).samples), 5)
    right, wrong = zip(*(made.answers(sample) for sample in chosen), strict=True)
    asked = list(zip([*chosen, *chosen], [*right, *wrong], strict=True))
    assert [score.value for score in _scores(made, asked)] == [1.0] * 5 + [0.0] * 5


@pytest.mark.slow
@pytest.mark.parametrize("chat", [False, True])
def test_all_published_solutions_pass_and_fail_with_a_word_changed(shared, chat):
    made = task(metric="pass@1", apply_chat_template=chat)
    samples = _published(shared, made).samples
    right = [made.answers(sample)[0] for sample in samples]
    broken = []
    for sample, text in zip(samples, right, strict=True):
        solution = sample.metadata["solution"]
        broken.append(text.replace(solution, solution.replace("return ", "return not ")))
    for texts, outcome in ((right, Outcome.CORRECT), (broken, Outcome.WRONG)):
        scores = _scores(made, list(zip(samples, texts, strict=True)))
        assert [
            s.id for s, score in zip(samples, scores, strict=True) if score.outcome is not outcome
        ] == []
