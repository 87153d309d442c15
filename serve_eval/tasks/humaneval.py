"""HumanEval: Python functions from their docstrings, by ROUGE-1 or tests (pass@1, pass@k).

Paper: Chen et al. 2021, "Evaluating large language models trained on code". Data: openai/human-eval
(MIT), 164 problems. A sample is `def incr(x):` with the docstring "Return x plus one." The model
writes the body, and `check(incr)` of the problem's tests calls it. TensorRT-LLM's suite scores by
ROUGE-1. For pass@1, answers run on this machine; see docs/own-questions.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Program,
    Prompt,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.code import (
    BLOCKS_VERSION,
    STOP,
    behind,
    continuation,
    find_defining_block,
    program,
    score_run,
)
from serve_eval.scorers.rouge import clean, package, rouge1
from serve_eval.tasks._samples import ByChat, NumSamples

SOURCE = KNOWN["humaneval"]
ROWS = 164
COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
INSTRUCTION = "Complete this Python function. Answer with the whole function in one code block.\n\n"


ROUGE, PASS = "rouge", "pass@1"
WRONG = "    unanswered\n"
"""A body that shares no word with any solution and fails when it runs."""


def task(
    *,
    metric: Annotated[
        Literal["rouge", "pass@1"],
        Setting(
            "Figure that is the value: rouge compares words with the published solution; pass@1 "
            "runs the problem's tests."
        ),
    ] = "rouge",
    num_samples: NumSamples = ROWS,
    apply_chat_template: ByChat = False,
    stop: Annotated[
        list[str] | None,
        Setting("Stop strings. Not set: none for rouge, the paper's five for pass@1."),
    ] = None,
    timeout_s: Annotated[float, Setting("Seconds that the tests of one answer may run.")] = 10.0,
) -> Task:
    """Return the task with its options.

    The `metric` rouge compares words with the published solution, as the suite does, and runs
    nothing. pass@1 runs every answer against the problem's tests, for at most `timeout_s` seconds;
    several repeats at a temperature above 0 give pass@k. By default `max_tokens` is 100 for rouge
    and 512 for pass@1; `stop` is empty for rouge and the five strings of the paper for pass@1. With
    `apply_chat_template` the chat endpoint is asked for the whole function, without stop strings.
    Raises PlanError for invalid values.
    """
    if num_samples < 1 or not 0.0 < timeout_s <= 600.0:
        raise PlanError(
            "humaneval: num_samples must be 1 or more, timeout_s above 0 and at most 600"
        )
    runs = metric == PASS
    if apply_chat_template and not runs:
        raise PlanError(
            "humaneval: rouge compares completions; apply_chat_template needs the metric pass@1"
        )
    stops = tuple(stop) if stop is not None else STOP if runs and not apply_chat_template else ()
    manner = _Manner(metric=metric, chat=apply_chat_template, stops=stops, timeout_s=timeout_s)
    return Task(
        name="humaneval",
        version=1,
        datasets=("humaneval",),
        reference_file="humaneval_pass_at_1" if runs else "humaneval",
        metric=Metric(name="pass_at_1" if runs else "rouge1"),
        hypothesis=Hypothesis(num_samples=num_samples) if runs else _suite_hypothesis(num_samples),
        sampling=SamplingParams(max_tokens=512 if runs else 100, stop=stops),
        extra={"truncate_prompt_tokens": 924},
        chat=apply_chat_template,
        protocol={
            "metric": metric,
            "timeout_s": timeout_s if runs else None,
            **({"code_reading": BLOCKS_VERSION} if apply_chat_template else {}),
        },
        load=manner.load,
        score=manner.score if runs else _rouge,
        answers=manner.answers,
        program=manner.program if runs else None,
        scoring="inline",
    )


@freeze
class _Manner:
    """Ask for a body or, by chat, for the whole function.

    `timeout_s` limits the run of an answer.
    """

    metric: str
    chat: bool
    stops: tuple[str, ...]
    timeout_s: float

    def load(self, roots: DataRoots, wanted: int) -> Dataset:
        if self.metric == ROUGE:
            # Fail before any request if it is missing. Its import takes a second.
            package()
        file, rows = _rows(roots)
        told = f"HumanEval is incomplete: {file.path} has {len(rows)} problems"
        local.check_rows(roots, len(rows), wanted, told, SOURCE)
        return Dataset(
            samples=[
                Sample(
                    id=row["task_id"].replace("/", "-"),
                    prompt=_prompt(row, self.metric, self.chat),
                    target=row["test"],
                    metadata={
                        "prompt": row["prompt"],
                        "entry_point": row["entry_point"],
                        "solution": row["canonical_solution"],
                    },
                )
                for row in rows[:wanted]
            ],
            files=(file.source,),
            total=len(rows),
            deviation=(
                None if len(rows) == ROWS else f"{len(rows)} problems, where HumanEval has {ROWS}"
            ),
        )

    def program(self, sample: Sample, response: Response) -> Program | None:
        """Return the program that judges an answer; None for an answer without code."""
        found = self._extract(sample, response)
        if found is None:
            return None
        prompt = sample.metadata["prompt"]
        code = behind(prompt, found) if self.chat else prompt + found
        return program(code, sample.target, sample.metadata["entry_point"], self.timeout_s)

    def score(self, sample: Sample, response: Response) -> Score:
        """Return full marks for an answer whose run passed the tests."""
        return score_run(self._extract(sample, response), response.ran)

    def answers(self, sample: Sample) -> tuple[str, str]:
        bodies = sample.metadata["solution"], WRONG
        if not self.chat:
            return bodies
        right, wrong = (f"```python\n{sample.metadata['prompt']}{body}\n```" for body in bodies)
        return right, wrong

    def _extract(self, sample: Sample, response: Response) -> str | None:
        if self.chat:
            return find_defining_block(response.text, sample.metadata["entry_point"])
        return continuation(response.text, self.stops)


def _rouge(sample: Sample, response: Response) -> Score:
    """Compare the words of an answer with the published solution."""
    return rouge1(response.text, sample.metadata["solution"])


def _suite_hypothesis(num_samples: int) -> Hypothesis:
    return Hypothesis(num_samples=num_samples, sigma=15.08, alpha=0.002, beta=0.2)


def _rows(roots: DataRoots) -> tuple[local.DataFile, list[dict[str, Any]]]:
    markers = local.split_markers(("HumanEval", "test"), ("", "openai_humaneval/"))
    folder = local.find_folder(SOURCE, roots, markers)
    file = local.read_file(next(path for marker in markers for path in sorted(folder.glob(marker))))
    return file, local.rows(file, COLUMNS)


def _prompt(row: dict[str, Any], metric: str, chat: bool) -> Prompt:
    if not chat:
        return clean(row["prompt"]) if metric == ROUGE else str(row["prompt"])
    question = f"{INSTRUCTION}```python\n{row['prompt'].strip()}\n```"
    return (Message(role="user", content=question),)
