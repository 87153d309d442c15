"""Print a sample, or the two samples of a prompt that was asked twice, with all that is known.

Texts of models and data sets have escapes in place of control characters.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from serve_eval.report.samples.details import (
    describe_attempts,
    describe_end,
    describe_place,
    describe_score,
)
from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.samples import FAILED, RIGHT, UNSCORED, ShownSample
from serve_eval.report.summary import name_expected
from serve_eval.report.text import reveal
from serve_eval.schema import Response
from serve_eval.schema.media import media_url
from serve_eval.schema.task import is_mutable
from serve_eval.verdicts.cut_answers import AT
from serve_eval.workflows.show.blocks import print_field, print_text
from serve_eval.workflows.show.flips import FlippedPair

PROMPT_LINES, ANSWER_LINES, REASONING_LINES = 12, 16, 8
"""Lines of a text that are printed, unless the whole is wanted."""
_STYLES = {FAILED: "bold red", UNSCORED: "bold red", RIGHT: "green", "partly right": "yellow"}


def choose_style(outcome: str) -> str:
    """Return the style in which an outcome is printed."""
    return _STYLES.get(outcome, "red")


def put_on_a_line(text: str) -> str:
    """Return a text on one line, safe for a terminal."""
    return reveal(" ".join(text.split()))


class SamplePrinter:
    """Print samples on a console, long texts as a `whole` or shortened."""

    def __init__(self, console: Console, *, whole: bool) -> None:
        self._console, self._whole = console, whole

    def print_sample(self, sample: ShownSample) -> None:
        """Print a sample."""
        self._print_title(sample, (describe_outcome(sample), choose_style(sample.outcome)))
        self._print_prompt(sample)
        self._print_expected(sample.task, sample.expected)
        self._print_answer(sample)

    def print_pair(self, pair: FlippedPair) -> None:
        """Print both answers to a prompt, and the place at which they part."""
        a, b = pair.a, pair.b
        outcomes = [
            (f"{name} {describe_outcome(one)}", choose_style(one.outcome))
            for name, one in (("A", a), ("B", b))
        ]
        self._print_title(b, *outcomes)
        self._print_prompt(b)
        self._print_expected(b.task, a.expected if b.expected is None else b.expected)
        for name, sample in (("A", a), ("B", b)):
            self._console.print(Text(name, style="bold"))
            self._print_answer(sample)
        if (place := pair.parts_at) is not None:
            self._print_field("they part", f"at word {place.word}, character {place.character}:")
            cut = "… " if place.character > len(place.before) else ""
            self._print_field("", cut + put_on_a_line(place.before))
            for name, rest in (("A", place.a), ("B", place.b)):
                self._print_field(f"{name} goes on", put_on_a_line(rest) or "(it ends there)")

    def _print_title(self, sample: ShownSample, *outcomes: tuple[str, str]) -> None:
        pieces = ((put_on_a_line(sample.task), ""), (put_on_a_line(sample.id), "bold"), *outcomes)
        text = Text("  ").join(Text(said, style=style) for said, style in pieces)
        self._console.print(text, soft_wrap=True)

    def _print_prompt(self, sample: ShownSample) -> None:
        if sample.prompt is None:
            self._print_field("prompt", sample.prompt_note)
        elif isinstance(sample.prompt, str):
            self._print_text("prompt", sample.prompt, PROMPT_LINES)
        else:
            for turn in sample.prompt:
                said = [turn.text, *map(media_url, turn.media)]
                self._print_text(put_on_a_line(turn.role), "\n".join(said), PROMPT_LINES)
        for number, choice in enumerate(sample.choices, 1):
            self._print_text(f"choice {number}", choice, PROMPT_LINES)

    def _print_expected(self, task: str, target: str | None) -> None:
        """Print what was expected: of a case the answer, and otherwise a solution as a whole."""
        if target is not None and is_mutable(task):
            target = name_expected(task, target)
        self._print_text("expected", target, ANSWER_LINES)

    def _print_answer(self, sample: ShownSample) -> None:
        response = sample.response
        if response is not None:
            self._print_response(response, sample)
            if sample.extracted is not None:
                self._print_text("extracted", sample.extracted, ANSWER_LINES)
                self._print_field("", describe_place(sample))
            elif sample.value is not None and not sample.prompt_hidden:
                self._print_field("extracted", "nothing")
        self._print_field("score", describe_score(sample))
        if sample.failure is not None:
            self._print_text("failure", sample.failure.message, ANSWER_LINES)
        self._print_field("end", describe_end(sample))
        for number, said in enumerate(describe_attempts(sample)):
            self._print_field("" if number else "attempts", said)

    def _print_response(self, response: Response, sample: ShownSample) -> None:
        """Print the texts of an answer, with the extracted part highlighted."""
        self._print_text("reasoning", response.reasoning, REASONING_LINES)
        text = reveal(response.text)
        place = find_place(text, reveal(sample.extracted or ""))
        mark = None if place is None else (place.start, place.end)
        if text:
            most = None if self._whole else ANSWER_LINES
            print_text(self._console, "answer", text, most=most, mark=mark)
        for call in response.tool_calls:
            self._print_text("calls", f"{call.name}({call.arguments})", ANSWER_LINES)
        self._print_text("refusal", response.refusal, ANSWER_LINES)

    def _print_text(self, label: str, text: str | None, most: int) -> None:
        """Print a text of a model or a data set, if there is one."""
        if text:
            print_text(self._console, label, reveal(text), most=None if self._whole else most)

    def _print_field(self, label: str, text: str) -> None:
        """Print a text of our own, if there is one."""
        if text:
            print_field(self._console, label, text)


def describe_outcome(sample: ShownSample) -> str:
    """Return the outcome of a sample, and the cause if its answer was cut off."""
    by = "" if sample.cut is None else f" {AT[sample.cut]}"
    return f"{sample.outcome}, cut off{by}" if sample.cut_off else sample.outcome
