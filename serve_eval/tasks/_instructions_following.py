"""Score an answer by the instructions of its prompt, strictly and loosely, as IFEval does.

Strictly, the answer itself follows an instruction. Loosely, the answer or one of its variants
does: without its first line, its last line or both, each also without stars, so that a greeting or
marks of Markdown do not decide. A prompt is followed if each of its instructions is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Scored,
    Task,
)
from serve_eval.tasks import _instructions_checks as instructions_checks
from serve_eval.tasks._instructions_checks import English, KindCheck
from serve_eval.tasks._instructions_examples import WRONG, propose_texts
from serve_eval.tasks._samples import tabulate

INSTRUCTIONS = "instructions"
"""Key of a sample's metadata with its instructions, as JSON."""
Level = Literal["strict", "loose"]
LEVELS: tuple[Level, Level] = ("strict", "loose")


class Instruction(msgspec.Struct, frozen=True):
    """An instruction of a prompt, such as length_constraints:number_words and its arguments."""

    kind: str
    arguments: dict[str, Any]


class _Row(msgspec.Struct):
    key: int | str
    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, Any]]


class Following:
    """The scoring of one benchmark: `checks` by kind, and the level that is its value.

    `archives` are NLTK's that the checks need, and `packages` the optional ones.
    """

    def __init__(
        self,
        checks: Mapping[str, KindCheck],
        level: Level,
        archives: Sequence[str],
        packages: Sequence[str],
    ) -> None:
        self.checks, self.level = checks, level
        self._archives, self._packages = archives, packages
        self._english: English | None = None

    def load_english(self, roots: DataRoots) -> English:
        """Keep the tools for English texts, and return them.

        Raises DatasetError without an archive, PlanError without a package.
        """
        for name in self._packages:
            instructions_checks.package(name)
        self._english = instructions_checks.load(roots, *self._archives)
        return self._english

    def sample(self, row: Mapping[str, Any], file: local.DataFile, number: int) -> Sample:
        """Return the sample of a row. Raises DatasetError for an instruction without a check."""
        where = f"{file.path}: row {number}"
        try:
            read = msgspec.convert(row, _Row)
            pairs = list(zip(read.instruction_id_list, read.kwargs, strict=True))
        except (msgspec.ValidationError, ValueError) as error:
            raise DatasetError(f"{where}: {error}") from error
        instructions = [
            Instruction(kind, {name: one for name, one in kwargs.items() if one is not None})
            for kind, kwargs in pairs
        ]
        if not instructions:
            raise DatasetError(f"{where}: no instruction")
        for one in instructions:
            check = self.checks.get(one.kind)
            if check is None:
                raise DatasetError(f"{where}: unknown instruction {one.kind}")
            if missing := [name for name in check.arguments if name not in one.arguments]:
                raise DatasetError(f"{where}: {one.kind} has no {', '.join(missing)}")
        return Sample(
            id=str(read.key),
            prompt=(Message(role="user", content=read.prompt),),
            target=_name_kinds(one.kind for one in instructions),
            metadata={INSTRUCTIONS: msgspec.json.encode(instructions).decode()},
        )

    def score(self, sample: Sample, response: Response) -> Score:
        """Return 1 if the answer follows each instruction at the level of the benchmark.

        Its answer names the kinds that are followed, as the target names all. The parts are the
        other level by prompt, and at both levels the share of the prompt's instructions that are
        followed. The mode is the first kind that is not followed.
        """
        instructions = read_instructions(sample)
        followed = {
            "strict": self._judge(instructions, [response.text]),
            "loose": self._judge(instructions, variants(response.text)),
        }
        other = LEVELS[self.level == "strict"]
        both = list(zip(instructions, followed[self.level], strict=True))
        misses = [one.kind for one, right in both if not right]
        return Score(
            value=float(not misses),
            outcome=Outcome.WRONG if misses else Outcome.CORRECT,
            answer=_name_kinds(one.kind for one, right in both if right),
            parts={
                f"prompt_{other}": float(all(followed[other])),
                **{_share(name): sum(one) / len(one) for name, one in followed.items()},
            },
            mode=misses[0] if misses else None,
        )

    def answers(self, sample: Sample) -> tuple[str, str]:
        """Return a text with full marks, where the examples have one, and one with none.

        The data have no answers. The first text is the best of the examples of single kinds, and of
        these joined. Not every combination can be made that way, so that it may fail.
        """
        instructions = read_instructions(sample)
        texts = propose_texts([(one.kind, one.arguments) for one in instructions])
        right = self._best(instructions, texts, wanted=1.0)
        return right, self._best(instructions, WRONG, wanted=0.0)

    def _best(
        self, instructions: Sequence[Instruction], texts: Iterable[str], wanted: float
    ) -> str:
        """Return the first text with the wanted share of followed instructions, or the nearest."""
        best, distance = "", 2.0
        for text in texts:
            said = variants(text) if self.level == "loose" else [text]
            followed = self._judge(instructions, said)
            # A prompt counts if all are followed: for a wrong text, one that is not is enough.
            share = min(followed) if wanted == 0.0 else sum(followed) / len(followed)
            if abs(share - wanted) < distance:
                best, distance = text, abs(share - wanted)
            if distance == 0.0:
                break
        return best

    def _judge(self, instructions: Sequence[Instruction], texts: Sequence[str]) -> list[bool]:
        """Return which instructions at least one of the texts follows. A blank text follows none.

        Raises PlanError before the task was loaded.
        """
        if self._english is None:
            raise PlanError("the task is not loaded, so that its checks have no data")
        return [
            any(
                text.strip() and self.checks[one.kind].follows(text, one.arguments, self._english)
                for text in texts
            )
            for one in instructions
        ]


def build_task(
    name: str,
    following: Following,
    source: Source,
    files: Sequence[str],
    *,
    rows: int,
    num_samples: int,
    max_tokens: int,
) -> Task:
    """Return the task that asks the first `num_samples` of `rows` prompts by chat.

    `files` are glob patterns of the data's one file, in the order of preference.
    """

    def load(roots: DataRoots, wanted: int) -> Dataset:
        folder = local.find_folder(source, roots, files)
        file = local.read_file(next(p for one in files for p in sorted(folder.glob(one))))
        table = local.rows(file, ("prompt",))
        told = f"{source.name} is incomplete: {file.path} has {len(table)} prompts"
        local.check_rows(roots, len(table), wanted, told, source)
        differs = f"{len(table)} prompts, where {source.name} has {rows}"
        return Dataset(
            samples=[following.sample(row, file, i) for i, row in enumerate(table[:wanted], 1)],
            files=(file.source, *following.load_english(roots).files),
            total=len(table),
            deviation=None if len(table) == rows else differs,
        )

    return Task(
        name=name,
        version=1,
        datasets=(name, "nltk_data"),
        reference_file=name,
        metric=Metric(name=f"prompt_{following.level}"),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=max_tokens),
        chat=True,
        protocol={},
        load=load,
        score=following.score,
        no_gold="it has instructions and no answers, so a text is put together from examples",
        answers=following.answers,
        breakdown=break_down,
        secondary=measure_instructions,
        failure_mode=lambda sample, response, score: score.mode,
    )


def variants(text: str) -> list[str]:
    """Return the texts of the loose level: the answer, and without lines at its ends or stars."""
    lines = text.split("\n")
    cut = [text, *("\n".join(some).strip() for some in (lines[1:], lines[:-1], lines[1:-1]))]
    return list(dict.fromkeys([*cut, *(one.replace("*", "") for one in cut)]))


def read_instructions(sample: Sample) -> list[Instruction]:
    """Return the instructions of a sample in the order of its prompt."""
    return msgspec.json.decode(sample.metadata[INSTRUCTIONS], type=list[Instruction])


def break_down(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the value of the prompts that have an instruction of a group, such as keywords."""
    found: dict[str, list[float]] = {}
    for sample, value in scored:
        for group in {one.kind.partition(":")[0] for one in read_instructions(sample)}:
            found.setdefault(group, []).append(value)
    return tabulate({"instruction group": found})


def measure_instructions(scored: Scored) -> Mapping[str, float]:
    """Return followed instructions divided by all of them, at both levels, in points."""
    total, followed = 0, dict.fromkeys(LEVELS, 0.0)
    for sample, score in scored:
        number = len(read_instructions(sample))
        total += number
        for level in LEVELS:
            followed[level] += number * score.parts.get(_share(level), 0.0)
    return {f"instruction_{level}": 100.0 * count / total for level, count in followed.items()}


def _name_kinds(kinds: Iterable[str]) -> str:
    return ", ".join(kinds) or "none of them"


def _share(level: str) -> str:
    return f"share_{level}"
