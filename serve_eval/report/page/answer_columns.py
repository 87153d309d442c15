"""The columns of a page that have an entry per answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from serve_eval.report.page.columns import TextColumn, round_off
from serve_eval.report.samples.details import describe_attempts, describe_failure
from serve_eval.report.samples.samples import RIGHT, WORDS, ShownSample
from serve_eval.schema import PromptLogprobs, Response

LOWEST = 12
"""Tokens of a prompt that are listed, the least likely first."""
_TEXTS = ("outcome", "extracted", "text", "reasoning", "refusal", "calls", "finish", "failure")
_NUMBERS = ("start", "latency", "ttft", "tpot", "value")


class AnswerColumns:
    """The answers of all rows, in order. Texts have at most `most` characters."""

    def __init__(self, labels: Sequence[str], most: int | None) -> None:
        self._labels = list(labels)
        self._rows: list[int] = []
        self._arms: list[int] = []
        self._cut: list[int] = []
        self._tokens: list[tuple[int, int, int | None] | None] = []
        self._texts = {name: TextColumn(most) for name in (*_TEXTS, "worker", "mode")}
        self._numbers: dict[str, dict[int, float | None]] = {name: {} for name in _NUMBERS}
        self._parts: dict[int, dict[str, float]] = {}
        self._attempts: dict[int, list[str]] = {}
        self._choices: dict[int, list[list[object]]] = {}
        self._unlikely: dict[int, list[list[object]]] = {}

    @property
    def shortened(self) -> int:
        """Number of texts without their middle."""
        return sum(column.shortened for column in self._texts.values())

    def add(self, row: int, label: str, sample: ShownSample) -> None:
        """Add an answer to a row."""
        place = len(self._rows)
        self._rows.append(row)
        self._arms.append(self._labels.index(label))
        self._cut.append(int(sample.cut_off))
        self._add_texts(place, sample)
        self._add_numbers(place, sample)
        if sample.parts:
            self._parts[place] = dict(sample.parts)
        if len(sample.attempts) > 1 or sample.failure is not None:
            self._attempts[place] = list(describe_attempts(sample))
        if (response := sample.response) is not None:
            self._add_logprobs(place, sample, response)

    def _add_texts(self, place: int, sample: ShownSample) -> None:
        columns, response, servers = self._texts, sample.response, sample.servers
        columns["outcome"].add(place, sample.outcome)
        told = [("extracted", sample.extracted), ("mode", sample.mode)]
        if sample.failure is not None:
            told.append(("failure", describe_failure(sample.failure)))
        if servers is not None:
            names = dict.fromkeys((servers.context, servers.generation))
            told.append(("worker", " → ".join(name for name in names if name) or None))
        if response is not None:
            columns["text"].add(place, response.text)
            told += (
                ("reasoning", response.reasoning or None),
                ("refusal", response.refusal or None),
                ("finish", response.finish_reason),
            )
            if response.tool_calls:
                calls = "\n".join(f"{one.name}({one.arguments})" for one in response.tool_calls)
                told.append(("calls", calls or None))
        for name, text in told:
            if text is not None:
                columns[name].add(place, text)

    def _add_numbers(self, place: int, sample: ShownSample) -> None:
        response, attempts, columns = sample.response, sample.attempts, self._numbers
        if attempts and attempts[0].start_s:
            columns["start"][place] = round_off(attempts[0].start_s, 3)
        if sample.value is not None:
            columns["value"][place] = round_off(sample.value, 6)
        if response is None:
            self._tokens.append(None)
            return
        usage = response.usage
        self._tokens.append((usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens))
        if response.latency_s:
            columns["latency"][place] = round_off(response.latency_s, 4)
        if response.ttft_s is not None:
            columns["ttft"][place] = round_off(response.ttft_s, 4)
        if response.tpot_s is not None:
            columns["tpot"][place] = round_off(response.tpot_s, 5)

    def _add_logprobs(self, place: int, sample: ShownSample, response: Response) -> None:
        if response.choice_logprobs is not None:
            greedy = response.choice_greedy or (None,) * len(response.choice_logprobs)
            self._choices[place] = [
                [round_off(sum(values), 4), is_greedy]
                for values, is_greedy in zip(response.choice_logprobs, greedy, strict=True)
            ]
        if response.prompt_logprobs is not None and not sample.prompt_hidden:
            prompt = sample.prompt if isinstance(sample.prompt, str) else ""
            self._unlikely[place] = list(_list_unlikely(response.prompt_logprobs, prompt))

    def to_json(self) -> dict[str, object]:
        """Return the columns for a script."""
        return {
            "row": self._rows,
            "arm": self._arms,
            "cut": self._cut,
            "tokens": self._tokens,
            **{name: column.to_json(len(self._rows)) for name, column in self._texts.items()},
            **{name: self._fill(column) for name, column in self._numbers.items()},
            "parts": self._parts,
            "attempts": self._attempts,
            "choices": self._choices,
            "unlikely": self._unlikely,
            "words": [RIGHT, *(word for word in WORDS.values() if word != RIGHT)],
        }

    def _fill(self, column: Mapping[int, float | None]) -> Sequence[float | None] | None:
        """Return a number or None for each answer; None if no answer has a number."""
        if all(one is None for one in column.values()):
            return None
        return [column.get(place) for place in range(len(self._rows))]


def _list_unlikely(told: PromptLogprobs, prompt: str) -> Iterator[list[object]]:
    """Yield the least likely tokens of a prompt: text, log-probability and number."""
    lowest = sorted(range(len(told.values)), key=told.values.__getitem__)[:LOWEST]
    for i in lowest:
        text = "" if told.tokens is None else told.tokens[i]
        if told.offsets is not None:
            ends = (*told.offsets, len(prompt))
            text = prompt[ends[i] : ends[i + 1]]
        yield [text, round_off(told.values[i], 3), i + told.skipped]
