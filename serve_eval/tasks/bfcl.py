"""BFCL v4: the leaderboard's function calls of one turn, checked by name and arguments.

Berkeley Function Calling Leaderboard, gorilla (Apache-2.0). Paper: Patil et al. 2025, "The Berkeley
Function Calling Leaderboard (BFCL)". A sample offers functions, such as
calculate_triangle_area(base, height, unit), and asks "Find the area of a triangle with a base of 10
units and height of 5 units." It is right if the calls are the expected ones, in any order, each
argument with one of its allowed values. In the categories of irrelevance, no call is right. The
value is the mean of the parts of the leaderboard's score that have one turn: non-live, live and
irrelevance.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Need,
    Outcome,
    Override,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.tool_call import as_text
from serve_eval.tasks._bfcl import asking, expected, reading, rows
from serve_eval.tasks._bfcl.categories import (
    CATEGORIES,
    CORRECT,
    IRRELEVANCE,
    LEADERBOARD,
    LIVE,
    NON_LIVE,
    WEIGHT,
    interleave,
    mean_of_part,
    of_names,
    weigh,
    weight_of,
)
from serve_eval.tasks._bfcl.checking import CallError, MadeCall, check_calls
from serve_eval.tasks._bfcl.expected import Expectation
from serve_eval.tasks._documents import name_document
from serve_eval.tasks._options import RandomSeed
from serve_eval.tasks._order import shuffle

COMMIT = "6ea57973c7a6097fd7c5915698c54c17c5b1b6c8"
_SHA256 = {
    "BFCL_v4_simple_python.json": (
        "82dd63ba502eb2520c6b5d1d9a5c4b590e03ff261565175561f6228a367d1991"
    ),
    "possible_answer/BFCL_v4_simple_python.json": (
        "90cd5bc653690ee8e459b5b3f3fc9458606f7f3fcbf795bb51b7dc581f8c86dc"
    ),
    "BFCL_v4_simple_java.json": (
        "13d2303a125b08754f0e41995b9273b5005fa8ed8ebfaa24ef53b4d83c4b5c6e"
    ),
    "possible_answer/BFCL_v4_simple_java.json": (
        "78f25616084044fa05bbfcee68e03f6ececb222bdd5cb3b7783a675fb3366e35"
    ),
    "BFCL_v4_simple_javascript.json": (
        "329e67fedf79a6243d93dbda4b388d12bd2d31f1f2163d92cb6ef676d1764f44"
    ),
    "possible_answer/BFCL_v4_simple_javascript.json": (
        "e2f9f2e51d88e0c8056ffbf1a3dd3d02eb032532d2b5d98c9cc9003385bdd56b"
    ),
    "BFCL_v4_multiple.json": ("aef168155ebd74b7ac2401198b201343bc7d16d7a3d7e0d4e6d8ee82c6969b2a"),
    "possible_answer/BFCL_v4_multiple.json": (
        "244e00ce9395df948bcafc7bee64e8f9c87ef70887587d83cae45b13699f3047"
    ),
    "BFCL_v4_parallel.json": ("19f51a82eff42e5d62541aa500115a056eb78f437c2ba1f10415fd7c8e5dda84"),
    "possible_answer/BFCL_v4_parallel.json": (
        "8a6aa19c1adddc6a5a2f7e40f9dbf30cc7e95815e7b830c90589ab318229e0f0"
    ),
    "BFCL_v4_parallel_multiple.json": (
        "8863ea8433239f55c5f016154cf0830853c89f693c6ea270396a2fa121960579"
    ),
    "possible_answer/BFCL_v4_parallel_multiple.json": (
        "5ebf24f458c1f16300c05505d83d6f0a1b68b79be273a033febd0d4f840507e3"
    ),
    "BFCL_v4_live_simple.json": (
        "1af2ac87dca47556db7b7e37e51e28b459a38b594e3c7b3c792b4903598ca0c4"
    ),
    "possible_answer/BFCL_v4_live_simple.json": (
        "fec9cfa9744a936f9126981e85a2023da1e63e273eafebc81923a1162fad70ce"
    ),
    "BFCL_v4_live_multiple.json": (
        "fd8ccfad4d911420d0e3341dbe2fff77d1d341da934248b9bb2bda24ab3a10c8"
    ),
    "possible_answer/BFCL_v4_live_multiple.json": (
        "97e90d59c5bd76c55a2920ce93e5566e9046307d3f558578f085f9d3a56c3084"
    ),
    "BFCL_v4_live_parallel.json": (
        "6c26e9fdc3350cf596e6d1ea9c179cbff834761bccf562f4141ed29a839ca421"
    ),
    "possible_answer/BFCL_v4_live_parallel.json": (
        "8a9f189ff0e832ebbbbdade1fd95a7dbcc67406e9177df3f0aad76f59ab00350"
    ),
    "BFCL_v4_live_parallel_multiple.json": (
        "21d4b9319c1faac431e22757b367ea28917fe467364c3a4b17f16ec06d4f6e79"
    ),
    "possible_answer/BFCL_v4_live_parallel_multiple.json": (
        "f5b5f360556c5feb51db46fb9f56ee4b304f4b45b161599bbb14161c98a2873f"
    ),
    "BFCL_v4_irrelevance.json": (
        "2b6ed4c2e992cdcf5f1678a701851f944bef7550ee026ed1ddb89efed5be01a6"
    ),
    "BFCL_v4_live_irrelevance.json": (
        "6559fda2beaceb609a2cd2e504c65b4a56cb448e1ef88fddfd199e163d163349"
    ),
    "BFCL_v4_live_relevance.json": (
        "e03f9e241657a137cba48a89ee12f47bf3fcb7e4f6274263e9c699a0c974203a"
    ),
}
SOURCE = Source(
    name="BFCL v4",
    folders=("bfcl_eval/data", "bfcl"),
    homepage="https://github.com/ShishirPatil/gorilla/tree/main/berkeley-function-call-leaderboard",
    licence="Apache-2.0",
    rows="3641 with one turn, 13 categories",
    revision=COMMIT,
    urls={
        name: (
            f"https://raw.githubusercontent.com/ShishirPatil/gorilla/{COMMIT}/"
            f"berkeley-function-call-leaderboard/bfcl_eval/data/{name}"
        )
        for name in _SHA256
    },
    sha256=_SHA256,
    note="the files are also in PyPI's bfcl-eval 2026.3.23, below bfcl_eval/data",
)
PROMPT_FROM = "gorilla (https://github.com/ShishirPatil/gorilla, Apache-2.0)"
CATEGORY = "category"
"""Key of the metadata of a sample."""

Mode = Literal["fc", "prompt"]


def task(
    *,
    mode: Annotated[
        Mode,
        Setting(
            "fc: the request offers tools and the server parses the calls; prompt: a system prompt"
            " lists the functions and the calls are read from the text."
        ),
    ] = "fc",
    categories: Annotated[
        list[str] | None,
        Setting("Some of the 13 categories. Not set: all, in mode prompt those in Python."),
    ] = None,
    num_samples: Annotated[
        int | None,
        Setting("Number of samples, from all categories by their size. Not set: all."),
    ] = None,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `mode` is one of the two of the leaderboard. Raises PlanError for unknown categories and for
    numbers out of range.
    """
    chosen = _choose(categories, mode)
    total = sum(CATEGORIES[name].rows for name in chosen)
    count = total if num_samples is None else num_samples
    if not chosen or count < 1:
        raise PlanError("bfcl: num_samples must be 1 or more, categories must not be empty")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        marks = [rows.name_file(name) for name in chosen]
        folder = local.find_folder(SOURCE, roots, marks)
        read = {name: rows.read_category(SOURCE, folder, name) for name in chosen}
        found = sum(len(one.rows) for one in read.values())
        told = f"BFCL v4 is incomplete: {folder} has {found} rows of these categories"
        local.check_rows(roots, found, min(wanted, total), told, SOURCE)
        samples = _build_samples(read, mode, wanted, random_seed)
        return Dataset(
            samples=samples,
            files=tuple(file.source for one in read.values() for file in one.files),
            total=found,
            deviation=(
                None
                if all(len(read[name].rows) == CATEGORIES[name].rows for name in chosen)
                else f"{found} rows, where these categories have {total}"
            ),
            notes=_note_hopeless(samples),
        )

    def score(sample: Sample, response: Response) -> Score:
        return _score(sample, response, mode)

    return Task(
        name="bfcl",
        version=1,
        datasets=("bfcl",),
        reference_file="bfcl" if mode == "fc" else "bfcl_prompt",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=4096),
        chat=True,
        protocol={
            "mode": mode,
            "categories": None if categories is None else chosen,
            "random_seed": random_seed,
        },
        load=load,
        score=score,
        answers=lambda sample: _answers(sample, mode),
        aggregation=LEADERBOARD,
        breakdown=_break_down,
        failure_mode=_name_failure,
        requires=frozenset({Need.TOOLS}) if mode == "fc" else frozenset(),
        judges_empty=True,
        scoring="apart",
    )


def _choose(names: list[str] | None, mode: Mode) -> list[str]:
    known = [
        name
        for name, category in CATEGORIES.items()
        if mode == "fc" or category.language == "python"
    ]
    problems = [
        f"bfcl.categories: unknown category {name!r}.{registry.nearest(name, CATEGORIES)}"
        for name in names or ()
        if name not in CATEGORIES
    ] + [
        f"bfcl.categories: {name} is for mode fc: the mode prompt reads calls as Python"
        for name in names or ()
        if name in CATEGORIES and name not in known
    ]
    if problems:
        raise PlanError(problems)
    return known if names is None else of_names(names)


def _build_samples(
    read: Mapping[str, rows.ReadCategory], mode: Mode, wanted: int, seed: int
) -> list[Sample]:
    orders = {name: shuffle(len(one.rows), seed) for name, one in read.items()}
    asked = interleave({name: len(one.rows) for name, one in read.items()})[:wanted]
    weights = weigh([name for name, _ in asked])
    return [
        _build_sample(read[name], orders[name][place], name, mode, repr(weights[name]))
        for name, place in asked
    ]


def _build_sample(
    read: rows.ReadCategory, place: int, category: str, mode: Mode, weight: str
) -> Sample:
    row = read.rows[place]
    turns = [Message(role=turn.role, content=turn.content) for turn in row.question[0]]
    wanted = CATEGORIES[category].wanted
    extra: dict[str, Any] = {}
    try:
        calls = tuple(
            expected.expect_call(row.function, answer, category, dots=mode == "prompt")
            for answer in read.answers.get(row.id, ())
        )
        if mode == "prompt":
            turns = _describe(turns, asking.describe(row.function))
        elif row.function:
            tools = [asking.offer(one, CATEGORIES[category].language) for one in row.function]
            extra = {"tools": tools, "tool_choice": "auto"}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DatasetError(
            f"{read.files[0].path}: {row.id}: the functions or the answer lack {error}",
            hint=local.advice(SOURCE),
        ) from error
    return Sample(
        id=row.id,
        prompt=tuple(turns),
        target=msgspec.json.encode(Expectation(wanted, calls)).decode(),
        metadata={CATEGORY: category, WEIGHT: weight},
        override=Override(extra=extra) if extra else None,
        group=name_document(json.dumps(row.function)),
    )


def _note_hopeless(samples: list[Sample]) -> tuple[str, ...]:
    """Name the samples whose own answer breaks the rules, so that every answer is wrong.

    The leaderboard counts them too.
    """
    found = []
    for sample in samples:
        calls = expected.read_expectation(sample).calls
        if check_calls(calls, [MadeCall(call.name, expected.fill(call)) for call in calls]):
            found.append(sample.id)
    if not found:
        return ()
    are = f"{len(found)} sample{'s' if len(found) > 1 else ''}"
    return (f"no answer to {are} can be right, as on the leaderboard: {', '.join(found)}",)


def _describe(turns: list[Message], system: str) -> list[Message]:
    """Return the messages with the system prompt, before the row's own."""
    if turns[0].role == "system":
        return [Message(role="system", content=f"{system}\n\n{turns[0].text}"), *turns[1:]]
    return [Message(role="system", content=system), *turns]


def _score(sample: Sample, response: Response, mode: Mode) -> Score:
    wanted = expected.read_expectation(sample)
    answer = _show(response)
    try:
        made = reading.read_served(response) if mode == "fc" else reading.read_text(response.text)
        error = _judge(wanted, made)
    except reading.UnreadableError:
        error = None if wanted.wanted == "no call" else CallError.UNREADABLE
        error = CallError.NONE if error and mode == "fc" and not response.tool_calls else error
    weight, value = weight_of(sample), float(error is None)
    return Score(
        value=value,
        outcome=_OUTCOMES.get(error, Outcome.WRONG),
        answer=answer,
        parts={CORRECT: weight * value, WEIGHT: weight},
        mode=None if error is None else error.value,
    )


_OUTCOMES: Mapping[CallError | None, Outcome] = {
    None: Outcome.CORRECT,
    CallError.UNREADABLE: Outcome.UNPARSED,
}


def _judge(wanted: Expectation, made: list[Any]) -> CallError | None:
    if wanted.wanted == "calls":
        return check_calls(wanted.calls, made)
    if wanted.wanted == "any call":
        return None if made else CallError.NONE
    return CallError.NEEDLESS if made else None


def _show(response: Response) -> str:
    calls = [{"name": call.name, "arguments": call.arguments} for call in response.tool_calls]
    return json.dumps(calls, ensure_ascii=False) if calls else response.text


def _answers(sample: Sample, mode: Mode) -> tuple[str, str]:
    wanted = expected.read_expectation(sample)
    calls = [(call.name, expected.fill(call)) for call in wanted.calls] or [("any_function", {})]
    if mode == "fc":
        called = as_text([{"name": name, "arguments": filled} for name, filled in calls])
    else:
        called = f"[{', '.join(_write(name, filled) for name, filled in calls)}]"
    declined = "None of the functions can be used."
    return (declined, called) if wanted.wanted == "no call" else (called, declined)


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _name_failure(sample: Sample, response: Response, score: Score) -> str:
    return score.mode or score.outcome.value


def _break_down(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the accuracy in percent by category, and that of the parts that make the value."""
    found: dict[str, list[float]] = defaultdict(list)
    for sample, value in scored:
        found[sample.metadata[CATEGORY]].append(value)
    names = [name for name in CATEGORIES if name in found]
    means = {name: 100.0 * sum(found[name]) / len(found[name]) for name in names}
    parts: dict[str, object] = {}
    for part in (NON_LIVE, LIVE, IRRELEVANCE):
        inside = [name for name in names if CATEGORIES[name].part == part]
        if inside:
            parts[part] = mean_of_part(
                part, {name: (means[name], len(found[name])) for name in inside}
            )
    return {
        "part": parts,
        CATEGORY: {name: {"value": means[name], "scored": len(found[name])} for name in names},
    }
