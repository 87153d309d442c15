"""GSM8K: grade-school maths word problems, 5-shot, as lm-eval and TensorRT-LLM's suite ask them.

Paper: Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems". Data: openai/gsm8k,
config main (MIT), 7473 training and 1319 test questions. A sample is the question "Tom has 3 apples
and buys 4. How many has he?" with the answer "He has 3+4=<<3+4=7>>7 apples.\\n#### 7". The model
should end its solution with `#### <number>`. The value is the mean of two readings: the number
after `####`, and the last number of the answer.
"""

from __future__ import annotations

from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.numeric import FLEXIBLE, STRICT, extract_flexible, extract_strict, normalise
from serve_eval.tasks._gsm8k import (
    TEST_ROWS,
    Sampler,
    questions,
    right_and_wrong,
    sampler_in_protocol,
)
from serve_eval.tasks._samples import (
    ByChat,
    Multiturn,
    NumFewshot,
    NumSamples,
    RandomSeed,
    StopsOfSuite,
)

STOP = ("Question:", "</s>", "<|im_end|>")

Filter = Literal["mean", "strict-match", "flexible-extract"]


def task(
    *,
    num_samples: NumSamples = TEST_ROWS,
    num_fewshot: NumFewshot = 5,
    apply_chat_template: ByChat = False,
    fewshot_as_multiturn: Multiturn = False,
    fewshot_sampler: Sampler = "0.4.9",
    filter: Annotated[  # noqa: A002  (the usual word, and the name of the option)
        Filter,
        Setting(
            "Reading of the answer that is the value: strict-match reads the number after ####, "
            "flexible-extract the last number, mean averages both."
        ),
    ] = "mean",
    random_seed: RandomSeed = 0,
    suite_exact: StopsOfSuite = False,
) -> Task:
    """Return the task with its options.

    `apply_chat_template` asks by chat; `fewshot_as_multiturn` then makes each shot a pair of turns.
    The stop strings are those of a base model. By chat they are sent only with `suite_exact`,
    because the suite does so. The value is the mean of both filters, or one `filter` alone.
    `random_seed` fixes the order of the questions and the shots. `fewshot_sampler` is the version
    of lm-evaluation-harness whose shots a chat prompt in a single turn has: up to 0.4.9.2 it draws
    twice for a question and uses the second draw, from 0.4.10 on it draws once. Raises PlanError
    for options that exclude each other.
    """
    if fewshot_as_multiturn and not apply_chat_template:
        raise PlanError("gsm8k.fewshot_as_multiturn needs apply_chat_template")
    if num_fewshot < 0 or num_samples < 1:
        raise PlanError("gsm8k: num_fewshot must be 0 or more, num_samples 1 or more")
    stop = () if apply_chat_template and not suite_exact else STOP

    def load(roots: DataRoots, wanted: int) -> Dataset:
        return questions(
            roots,
            wanted,
            num_fewshot=num_fewshot,
            chat=apply_chat_template,
            multiturn=fewshot_as_multiturn,
            random_seed=random_seed,
            sampler=fewshot_sampler,
        )

    def score(sample: Sample, response: Response) -> Score:
        target = normalise(sample.target)
        strict, flexible = extract_strict(response.text), extract_flexible(response.text)
        right = float(strict is not None and normalise(strict) == target)
        parts = {
            STRICT: right,
            FLEXIBLE: (
                right
                if flexible == strict
                else float(flexible is not None and normalise(flexible) == target)
            ),
        }
        if filter == "mean":
            value, answer = (
                (parts[STRICT] + parts[FLEXIBLE]) / 2,
                flexible if strict is None else strict,
            )
        else:
            value, answer = parts[filter], strict if filter == STRICT else flexible
        if answer is None:
            outcome = Outcome.UNPARSED
        elif value == 1.0:
            outcome = Outcome.CORRECT
        else:
            outcome = Outcome.PARTIAL if value else Outcome.WRONG
        return Score(value=value, outcome=outcome, answer=answer, parts=parts)

    return Task(
        name="gsm8k",
        version=1,
        datasets=("gsm8k",),
        reference_file="gsm8k",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=256, stop=stop),
        extra={"truncate_prompt_tokens": 4096},
        chat=apply_chat_template,
        protocol={
            "fewshot_as_multiturn": fewshot_as_multiturn,
            "num_fewshot": num_fewshot,
            "filter": filter,
            "random_seed": random_seed,
            **sampler_in_protocol(
                fewshot_sampler, chat=apply_chat_template, multiturn=fewshot_as_multiturn
            ),
        },
        load=load,
        score=score,
        answers=right_and_wrong,
        scoring="inline",
    )
