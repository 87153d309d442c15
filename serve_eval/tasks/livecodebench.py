"""LiveCodeBench: programs for problems of contests, judged by hidden tests (pass@1).

Paper: Jain et al. 2024, "LiveCodeBench: Holistic and Contamination Free Evaluation of Large
Language Models for Code". Data: livecodebench/code_generation_lite, 1055 problems in release_v6, of
AtCoder, LeetCode and Codeforces from May 2023 to April 2025. A sample is the statement of a
problem, and the model writes a program that reads standard input, or a class with a method. It is
right if it passes every test, as the authors' lcb_runner runs them. Answers run on this machine;
see docs/own-questions.md. The data has no solutions.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets import source as datasets_source
from serve_eval.datasets.source import HubSource, Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Program,
    Response,
    Sample,
    SamplingParams,
    SourceFile,
    Task,
)
from serve_eval.schema.score import GivenPiece
from serve_eval.scorers.code import score_run
from serve_eval.tasks import _livecodebench_checks, _livecodebench_program
from serve_eval.tasks._samples import break_down_by, read_entry


class _Line(msgspec.Struct):
    """The columns of a row without its tests."""

    question_content: str
    platform: str
    question_id: str
    contest_date: str
    starter_code: str
    difficulty: str
    metadata: str


@dataclass(frozen=True, slots=True)
class ContestProblem:
    """A problem, and the place of its line, which has the tests.

    `function` is the function that tests call; None for standard input.
    """

    question: str
    starter_code: str
    platform: str
    number: str
    date: datetime
    difficulty: str
    function: str | None
    line: GivenPiece


_decode = msgspec.json.Decoder(_Line).decode


def read_problems(path: Path) -> tuple[SourceFile, list[ContestProblem]]:
    """Return a file with its checksum, and its problems.

    Raises DatasetError for a file that is not in the form of the upstream's, or that changed.
    """
    whole, found, at = hashlib.sha256(), [], 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                whole.update(line)
                if line.strip():
                    found.append(_read(path, number, at, line))
                at += len(line)
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    datasets_source.check_sha256(path, whole.hexdigest())
    return SourceFile(path=str(path), sha256=whole.hexdigest()), found


def _read(path: Path, number: int, at: int, line: bytes) -> ContestProblem:
    try:
        row = _decode(line)
        function = json.loads(row.metadata).get("func_name")
        date = datetime.fromisoformat(row.contest_date)
    except (msgspec.MsgspecError, ValueError, AttributeError) as error:
        raise DatasetError(f"{path}:{number}: not a row of LiveCodeBench: {error}") from error
    return ContestProblem(
        question=row.question_content,
        starter_code=row.starter_code,
        platform=row.platform,
        number=row.question_id,
        date=date,
        difficulty=row.difficulty,
        function=function,
        line=GivenPiece(
            path=str(path.absolute()),
            start=at,
            size=len(line),
            sha256=hashlib.sha256(line).hexdigest(),
        ),
    )


def find_files(source: local.Source, folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of a release. Raises DatasetError for one that is missing."""
    for name in names:
        if not (path := folder / name).is_file():
            raise DatasetError(
                f"{source.name} is incomplete: {path} is missing", hint=local.advice(source)
            )
        yield path


def read_line(piece: GivenPiece) -> dict[str, Any]:
    """Return a row with its tests, as they are encoded."""
    with Path(piece.path).open("rb") as file:
        file.seek(piece.start)
        return msgspec.json.decode(file.read(piece.size), type=dict[str, Any])


REVISION = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
SOURCE = Source(
    name="LiveCodeBench",
    folders=("livecodebench/code_generation_lite", "code_generation_lite", "livecodebench"),
    homepage="https://huggingface.co/datasets/livecodebench/code_generation_lite",
    licence="CC, of no named kind",
    rows="400, 111, 101, 101, 167 and 175 problems",
    revision=REVISION,
    hub=HubSource(
        repository="livecodebench/code_generation_lite",
        patterns=("test*.jsonl",),
        revision=REVISION,
    ),
    note="4.5 GB; the card says cc, and the problems belong to their platforms",
)
PROMPT_FROM = "LiveCodeBench (https://github.com/LiveCodeBench/LiveCodeBench, MIT)"
USUAL_REPEATS = 10
"""Answers to each problem in the upstream's tables, at temperature 0.2."""
NEW = {"v1": 400, "v2": 111, "v3": 101, "v4": 101, "v5": 167, "v6": 175}
"""Problems of each file. The release_vN has all files up to that of vN."""
MOST_S = 3600.0
"""Seconds after which a program ends in any case. Its checks end it much earlier."""
MEMORY_BYTES = 4 << 30
"""Memory of a program: the limit that the upstream's comments name. It sets none."""

SYSTEM = (
    "You are an expert Python programmer. You will be given a question (problem specification) and"
    " will generate a correct Python program that matches the specification and passes all tests."
)
WITH_STARTER = (
    "You will use the following starter code to write the solution to the problem and enclose your"
    " code within delimiters."
)
WITHOUT_STARTER = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly"
    " test on the sample inputs). Enclose your code within delimiters as follows. Ensure that when"
    " the python program runs, it reads the inputs, runs the algorithm and writes output to STDOUT."
)
FENCE = "```"

Release = Literal[
    "release_v1", "release_v2", "release_v3", "release_v4", "release_v5", "release_v6",
    "v1", "v2", "v3", "v4", "v5", "v6",
]  # fmt: skip
Platform = Literal["all", "leetcode", "atcoder", "codeforces"]


def task(
    *,
    release_version: Annotated[
        Release, Setting("Files that are asked: all up to a release, or those that one added.")
    ] = "release_v6",
    start_date: Annotated[
        str | None, Setting("Ask contests from this date on, as 2024-08-01. Not set: all.")
    ] = None,
    end_date: Annotated[
        str | None, Setting("Ask contests up to midnight before this date. Not set: all.")
    ] = None,
    platform: Annotated[Platform, Setting("Ask the problems of one platform only.")] = "all",
    num_samples: Annotated[
        int | None, Setting("Ask the first N of these problems. Not set: all.")
    ] = None,
    timeout_s: Annotated[int, Setting("Seconds that one test may run.")] = 6,
) -> Task:
    """Return the task with its options.

    A contest is asked if `start_date` <= its date <= `end_date`, as the upstream compares them.
    Raises PlanError for options out of range.
    """
    if (num_samples is not None and num_samples < 1) or not 1 <= timeout_s <= 600:
        raise PlanError("livecodebench: num_samples must be 1 or more, timeout_s 1 to 600")
    manner = _Manner(
        files=_list_files(release_version),
        start=_read_date("start_date", start_date),
        end=_read_date("end_date", end_date),
        platform=platform,
        timeout_s=timeout_s,
    )
    known = sum(NEW[name] for name in manner.files) if manner.asks_all else None
    return Task(
        name="livecodebench",
        version=1,
        datasets=("livecodebench",),
        reference_file="livecodebench",
        metric=Metric(name="pass_at_1"),
        hypothesis=Hypothesis(num_samples=num_samples or known),
        sampling=SamplingParams(max_tokens=2000, temperature=0.2, top_p=0.95),
        chat=True,
        protocol={
            "release_version": release_version,
            "start_date": start_date,
            "end_date": end_date,
            "platform": platform,
            "timeout_s": timeout_s,
        },
        load=manner.load,
        score=lambda sample, response: score_run(extract_code(response.text), response.ran),
        answers=manner.answers,
        program=manner.program,
        breakdown=break_down_by(
            {
                "difficulty": read_entry("difficulty"),
                "platform": read_entry("platform"),
                "kind": read_entry("subject"),
            }
        ),
        no_gold="it has tests and no solutions, so a program looks the outputs up",
        scoring="inline",
    )


def _list_files(release: str) -> tuple[str, ...]:
    """Return the names of the files of a release, as keys of NEW."""
    name = release.removeprefix("release_")
    return tuple(NEW)[: [*NEW].index(name) + 1] if name != release else (name,)


def _read_date(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.combine(date.fromisoformat(text), time())
    except ValueError:
        raise PlanError(
            f"livecodebench: {name} must be a date such as 2024-08-01, not {text!r}"
        ) from None


@freeze
class _Manner:
    """Load the problems of some files, and make the programs that judge answers to them.

    `lines` has the place of the tests of each sample that was loaded, and its function.
    """

    files: tuple[str, ...]
    start: datetime | None
    end: datetime | None
    platform: str
    timeout_s: int
    lines: dict[str, tuple[GivenPiece, str | None]] = field(default_factory=dict)

    @property
    def asks_all(self) -> bool:
        return self.start is None and self.end is None and self.platform == "all"

    def load(self, roots: DataRoots, wanted: int) -> Dataset:
        names = tuple(f"test{name[1:].removeprefix('1')}.jsonl" for name in self.files)
        folder = local.find_folder(SOURCE, roots, names)
        read = [read_problems(path) for path in find_files(SOURCE, folder, names)]
        all_of_them = [problem for _, problems in read for problem in problems]
        problems = [problem for problem in all_of_them if self._is_asked(problem)]
        if not problems:
            raise DatasetError(
                f"livecodebench: none of the {len(all_of_them)} problems has such a date and"
                " platform",
                hint="The contests of release_v6 are from May 2023 to April 2025.",
            )
        if self.asks_all:
            told = f"LiveCodeBench is incomplete: {folder} has {len(problems)} problems"
            local.check_rows(roots, len(problems), wanted, told, SOURCE)
        samples = [
            Sample(
                id=f"{problem.platform}-{problem.number}",
                prompt=(
                    Message(role="system", content=SYSTEM),
                    Message(
                        role="user", content=prompt_text(problem.question, problem.starter_code)
                    ),
                ),
                target=f"the tests of sha256 {problem.line.sha256}",
                metadata={
                    "difficulty": problem.difficulty,
                    "platform": problem.platform,
                    "subject": "stdin" if problem.function is None else "functional",
                    "contest_date": f"{problem.date:%Y-%m-%d}",
                },
            )
            for problem in problems[:wanted]
        ]
        self.lines.update(
            (sample.id, (problem.line, problem.function))
            for sample, problem in zip(samples, problems, strict=False)
        )
        published = sum(NEW[name] for name in self.files)
        return Dataset(
            samples=samples,
            files=tuple(file for file, _ in read),
            total=len(problems),
            deviation=(
                None
                if len(all_of_them) == published
                else f"{len(all_of_them)} problems, where the release has {published}"
            ),
        )

    def _is_asked(self, problem: ContestProblem) -> bool:
        return (
            (self.start is None or self.start <= problem.date)
            and (self.end is None or problem.date <= self.end)
            and self.platform in ("all", problem.platform)
        )

    def program(self, sample: Sample, response: Response) -> Program | None:
        """Return the program that judges an answer; None for an answer without code."""
        code = extract_code(response.text)
        if code is None:
            return None
        line, function = self.lines[sample.id]
        return Program(
            code=f"{_PROGRAM}\ntake({code!r}, {function!r}, {self.timeout_s})\n",
            checks=f"{_CHECKS}\njudge(GIVEN, run_test, {self.timeout_s})\n",
            given=line,
            memory_bytes=MEMORY_BYTES,
            wall_s=MOST_S,
        )

    def answers(self, sample: Sample) -> tuple[str, str]:
        """Return a program that looks the outputs of the tests up, and one that raises."""
        line, function = self.lines[sample.id]
        tests = _livecodebench_checks.read_tests(read_line(line))
        return _fence(_look_up(tests, function)), _fence("raise NotImplementedError")


_PROGRAM = inspect.getsource(_livecodebench_program)
_CHECKS = inspect.getsource(_livecodebench_checks)


def extract_code(text: str) -> str | None:
    """Return the lines between the last two that have three backticks; None for an empty text.

    Source: extract_code of the upstream's lcb_runner/utils/extraction_utils.py.
    """
    lines = text.split("\n")
    fences = [place for place, line in enumerate(lines) if FENCE in line]
    return "\n".join(lines[fences[-2] + 1 : fences[-1]]) or None if len(fences) > 1 else None


def prompt_text(question: str, starter_code: str) -> str:
    """Return the upstream's prompt for chat models, without its system message."""
    form = WITH_STARTER if starter_code else WITHOUT_STARTER
    return (
        f"### Question:\n{question}\n\n### Format: {form}\n"
        f"{FENCE}python\n{starter_code or '# YOUR CODE HERE'}\n{FENCE}\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def _fence(code: str) -> str:
    return f"{FENCE}python\n{code}\n{FENCE}"


def _look_up(tests: Iterable[Mapping[str, str]], function: str | None) -> str:
    """Return a program that knows the output of each input by a hash of it."""
    if function is None:
        known = {_hash(test["input"]): test["output"] for test in tests}
        key, result = "sys.stdin.read()", "print(known[hash_of({})])"
    else:
        known = {}
        for test in tests:
            arguments = [json.loads(line) for line in test["input"].split("\n")]
            known[_hash(json.dumps(arguments))] = json.loads(test["output"])
        key = "json.dumps(list(told))"
        result = f"def {function}(*told):\n    return known[hash_of({{}})]"
    packed = base64.b64encode(zlib.compress(json.dumps(known).encode())).decode()
    return (
        "import base64, hashlib, json, sys, zlib\n"
        f'known = json.loads(zlib.decompress(base64.b64decode("{packed}")))\n'
        "def hash_of(text):\n    return hashlib.sha256(text.encode()).hexdigest()\n"
        f"{result.format(key)}"
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
