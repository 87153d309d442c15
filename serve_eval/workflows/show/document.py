"""Make the document of chosen samples: a table of them, or one with its texts. Pure.

Texts of models and data sets have escapes in place of control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, Facts
from serve_eval.report.samples.details import (
    describe_attempts,
    describe_end,
    describe_failure,
    describe_place,
    describe_score,
)
from serve_eval.report.samples.place import find_place
from serve_eval.report.samples.samples import SampleRow, ShownSample
from serve_eval.report.summary import name_expected
from serve_eval.report.text import reveal
from serve_eval.schema import Message, Response, ToolCall
from serve_eval.schema.media import media_url
from serve_eval.schema.task import is_mutable
from serve_eval.shell_words import quote_argument, quote_path, quote_word
from serve_eval.workflows.show.story import FlippedPair, ShownRun

PROMPT, ANSWER, ANSWER_OF_TWO, EXPECTED = 4, 6, 4, 3
"""Last lines of a text that the first screen shows."""
LONGEST_ID, LONGEST_EXPECTED, LONGEST_ANSWER = 28, 20, 32
"""Characters of the cells of a table."""


def make_document(shown: ShownRun, include_path: Sequence[str] = ()) -> Document:
    """Return the document of chosen samples: of one its texts, of several a table.

    Several that were read in full stand below the table with -v. `include_path` has the folders
    that a command about the run needs.
    """
    run = quote_path(shown.run)
    against = "" if shown.a is None else f" --against {quote_path(shown.a)}"
    whole: list[ShownSample | FlippedPair] = [*shown.samples, *shown.pairs]
    alone = whole[0] if len(whole) == 1 else None
    if alone is not None:
        conclusion = _conclude_one(alone)
        commands = list(_list_next(alone, run, include_path))
    else:
        conclusion = _conclude_all(shown)
        first = [quote_argument(row.id) for row in shown.rows[:1]]
        commands = [f"serve-eval show {run}{against} {name}" for name in first]
    return Document(
        "show",
        f"serve-eval show {run}{against}",
        make_header(0),
        conclusions=[conclusion],
        statements=list(_describe_choice(shown, len(whole) if alone else len(shown.rows))),
        blocks=[] if alone else [_tabulate(shown), *map(_list_whole, whole)],
        commands=commands,
    )


def _conclude_all(shown: ShownRun) -> Conclusion:
    """Return how many samples were chosen, and how many of them have which outcome."""
    counted = ", ".join(f"{n:,} {outcome}" for outcome, n in shown.outcomes.items())
    if shown.fell is not None:
        figures = _count_flips(shown)
    elif shown.found:
        chosen = "" if shown.found == shown.asked else f"{shown.found:,} of "
        figures = f"{chosen}{shown.asked:,} samples: {counted}"
    else:
        figures = "no sample was sent"
    if shown.asked and not shown.found:
        figures = f"none of {shown.asked} samples matches"
    return Conclusion(shown.run, "SAMPLES", figures=figures)


def _count_flips(shown: ShownRun) -> str:
    origin = "A to B" if shown.a is not None else "the reference's first run"
    return f"from {origin}: {shown.fell} scores fell, {shown.rose} rose ({shown.asked} samples)"


def _describe_choice(shown: ShownRun, seen: int) -> Iterator[Statement]:
    """Yield the runs that are compared, and the number of samples that were left out."""
    if shown.a is not None:
        text = f"A is {_flatten(shown.a)}, B is {_flatten(shown.run)}"
        counted = f"; {_count_flips(shown)}" if len(shown.pairs) == 1 else ""
        yield Statement("runs", text + counted)
    if more := shown.found - seen:
        text = f"{more:,} more match; leave --n out to list them"
        yield Statement("left out", text)
    elif 1 < len(shown.samples) + len(shown.pairs) < shown.found:
        read = len(shown.samples) + len(shown.pairs)
        text = f"-v shows {read} of them, -v --all every one"
        yield Statement("in full", text)


def _list_next(
    one: ShownSample | FlippedPair, run: str, include_path: Sequence[str]
) -> Iterator[str]:
    """Yield the command that packs the request of a sample, so that it can be asked again."""
    sample = one.b if isinstance(one, FlippedPair) else one
    if sample.prompt is not None:
        folders = "".join(f" --include-path {quote_path(folder)}" for folder in include_path)
        chosen = f"--task {quote_word(sample.task)} --capsule {quote_argument(sample.id)}"
        yield f"serve-eval show {run}{folders} {chosen}"


def _tabulate(shown: ShownRun) -> Block:
    """Return the table of the chosen samples, the most important first."""
    if shown.a is None:
        rows = [_write_row(row) for row in shown.rows]
    else:
        rows = [_write_pair(*both) for both in zip(shown.rows_of_a, shown.rows, strict=True)]
    names = ["outcome", "sample", "expected", "answered"]
    if len({row.task for row in shown.rows}) > 1:
        rows = [
            [*cells[:2], DataCell(row.task), *cells[2:]]
            for cells, row in zip(rows, shown.rows, strict=True)
        ]
        names[2:] = ["task", "expected", "answered"]
    columns = [DataColumn(name) for name in names]
    return Block(DataTable("Samples", columns=columns, rows=rows), depth=Depth.FIRST)


def _write_row(row: SampleRow) -> list[DataCell]:
    answered = "-" if row.extracted is None else row.extracted
    if row.failure is not None:
        answered = describe_failure(row.failure)
    outcome = _name_outcome(row)
    return [
        DataCell(outcome, state=name_state(outcome.upper())),
        DataCell(_shorten(row.id, LONGEST_ID)),
        DataCell(_shorten(_name_expected(row), LONGEST_EXPECTED)),
        DataCell(_shorten(answered, LONGEST_ANSWER)),
    ]


def _write_pair(a: SampleRow, b: SampleRow) -> list[DataCell]:
    half = LONGEST_ANSWER // 2 - 2
    answered = " → ".join(_shorten(one.extracted or "-", half) for one in (a, b))
    outcome = f"{_name_outcome(a)} → {_name_outcome(b)}"
    return [
        DataCell(outcome, state=name_state(_name_outcome(b).upper())),
        DataCell(_shorten(b.id, LONGEST_ID)),
        DataCell(_shorten(_name_expected(a if b.expected is None else b), LONGEST_EXPECTED)),
        DataCell(answered),
    ]


def _list_whole(one: ShownSample | FlippedPair) -> Block:
    """Return one of several samples with everything that is known."""
    found = _conclude_one(one)
    rows = [Fact(row.label, row.text) for row in found.statements]
    return Block(Facts(f"{found.name}: {found.outcome}", rows=rows, closed=True))


def _conclude_one(one: ShownSample | FlippedPair) -> Conclusion:
    """Return a sample, or both answers to a prompt, with the texts: the prompt comes first."""
    if isinstance(one, ShownSample):
        return Conclusion(
            f"{one.task} {_flatten(one.id)}",
            _name_outcome(one).upper(),
            figures=_compare(one),
            statements=[
                *_describe_prompt(one),
                *_describe_answer(one, "", ANSWER),
                *_describe_expected(one),
                *_describe_score(one, ""),
                *_describe_rest(one, "", Depth.FIRST),
            ],
        )
    a, b = one.a, one.b
    sides = ((" A", a), (" B", b))
    return Conclusion(
        f"{b.task} {_flatten(b.id)}",
        f"A {_name_outcome(a)}, B {_name_outcome(b)}".upper(),
        statements=[
            *_describe_prompt(b, a),
            *(row for side, of in sides for row in _describe_answer(of, side, ANSWER_OF_TWO)),
            *_describe_expected(a if b.expected is None else b),
            *(row for side, of in sides for row in _describe_score(of, side)),
            *_describe_parting(one),
            *(row for side, of in sides for row in _describe_rest(of, side, Depth.MORE)),
        ],
    )


def _compare(sample: ShownSample) -> str:
    """Return what was answered and what was expected, in short."""
    if sample.prompt_hidden or sample.value is None or sample.expected is None:
        return "" if sample.failure is None else describe_failure(sample.failure)
    read = "nothing" if sample.extracted is None else _shorten(sample.extracted, LONGEST_ANSWER)
    return f"answered {read}, expected {_shorten(_name_expected(sample), LONGEST_EXPECTED)}"


def _describe_prompt(sample: ShownSample, a: ShownSample | None = None) -> Iterator[Statement]:
    """Yield the prompt; of a chat, the first screen has the last turn.

    Of a conversation that `a` is compared with, the answers of both sides stand between its turns.
    """
    if sample.prompt is None:
        yield Statement("prompt", sample.prompt_note)
        yield from _describe_answers({"": sample}, range(sample.turns_asked))
    elif (sample.exchanges or sample.later) and not isinstance(sample.prompt, str):
        sides = {"": sample} if a is None else {"A": a, "B": sample}
        yield from _describe_turns(sides, sample.prompt)
    elif isinstance(sample.prompt, str):
        yield Statement("prompt", reveal(sample.prompt).strip("\n"), last=PROMPT)
    else:
        for i, turn in enumerate(sample.prompt, 1):
            depth = Depth.FIRST if i == len(sample.prompt) else Depth.MORE
            yield Statement(_flatten(turn.role), _show_turn(turn), last=PROMPT, depth=depth)
    for i, choice in enumerate(sample.choices, 1):
        yield Statement(f"choice {i}", reveal(choice))


def _describe_turns(
    sides: Mapping[str, ShownSample], prompt: Sequence[Message]
) -> Iterator[Statement]:
    """Yield a conversation turn by turn, without the answer that ended it on each side."""
    later = max(one.later for one in sides.values())
    first = len(prompt) - later
    for turn in prompt[: first - 1]:
        yield Statement(_flatten(turn.role), _show_turn(turn), last=PROMPT, depth=Depth.MORE)
    for number, turn in enumerate(prompt[first - 1 :]):
        reached = {side: one for side, one in sides.items() if number < one.turns_asked}
        if not reached:
            return
        yield Statement(_flatten(turn.role), _show_turn(turn), last=PROMPT)
        yield from _describe_answers(reached, [number], alone=len(reached) < len(sides))


def _describe_answers(
    sides: Mapping[str, ShownSample], turns: Iterable[int], *, alone: bool = False
) -> Iterator[Statement]:
    """Yield the answers to turns of a conversation, once where both sides said the same."""
    for number in turns:
        told = {
            side: reveal(one.say_turn(number, ended=one.response is None)).strip("\n")
            for side, one in sides.items()
        }
        if len(set(told.values())) == 1 and not alone:
            told = {"": next(iter(told.values()))}
        for side, text in told.items():
            if text:
                label = f"{side} turn {number + 1}" if side else f"answer {number + 1}"
                yield Statement(label, text, last=ANSWER)


def _show_turn(turn: Message) -> str:
    return reveal("\n".join([turn.text, *map(media_url, turn.media)])).strip("\n")


def _write_call(call: ToolCall) -> str:
    return f"{call.name}({call.arguments})"


def _describe_answer(sample: ShownSample, side: str, most: int) -> Iterator[Statement]:
    """Yield the texts of an answer, with the extracted part marked, or why there is none."""
    response = sample.response
    if response is not None:
        yield from _describe_response(response, sample, side, most)
    if sample.failure is not None:
        text = reveal(sample.failure.message)
        yield Statement(f"failure{side}", text, state="fail")


def _describe_response(
    response: Response, sample: ShownSample, side: str, most: int
) -> Iterator[Statement]:
    text = reveal(response.text).rstrip("\n")
    if response.reasoning:
        label = f"reason{side}" if side else "reasoning"
        depth = Depth.MORE if text else Depth.FIRST
        thought = reveal(response.reasoning).strip("\n")
        yield Statement(label, thought, last=most, depth=depth)
    if text:
        place = find_place(text, reveal(sample.extracted or ""))
        mark = None if place is None else (place.start, place.end)
        yield Statement(f"answer{side}", text, last=most, mark=mark)
    for call in response.tool_calls:
        yield Statement(f"calls{side}", reveal(_write_call(call)), last=most)
    if response.refusal:
        yield Statement(f"refusal{side}", reveal(response.refusal), last=most)


def _describe_expected(sample: ShownSample) -> Iterator[Statement]:
    """Yield what was expected: of a case the answer, and otherwise a solution as a whole."""
    if (target := sample.expected) is not None:
        told = name_expected(sample.task, target) if is_mutable(sample.task) else target
        yield Statement("expected", reveal(told).rstrip("\n"), last=EXPECTED)


def _describe_score(sample: ShownSample, side: str) -> Iterator[Statement]:
    """Yield the score with its parts, and what was extracted from the answer and where."""
    told, read = describe_score(sample), ""
    if sample.response is not None and sample.extracted is not None:
        place = describe_place(sample)
        read = reveal(sample.extracted) + (f" ({place})" if place else "")
    elif sample.response is not None and sample.value is not None and not sample.prompt_hidden:
        read = "nothing"
    if side:
        read = f"extracted {read}" if read else ""
        yield Statement(f"score{side}", "; ".join(filter(None, (told, read))))
        return
    rows = (("score", told), ("extract", read))
    yield from (Statement(label, text) for label, text in rows if text)


def _describe_rest(sample: ShownSample, side: str, depth: Depth) -> Iterator[Statement]:
    """Yield why the answer ended, its tokens, and each attempt."""
    if told := describe_end(sample):
        yield Statement(f"end{side}", told, depth=depth)
    if attempts := list(describe_attempts(sample)):
        label = f"tried{side}" if side else "attempts"
        yield Statement(label, "\n".join(attempts), depth=depth)


def _describe_parting(pair: FlippedPair) -> Iterator[Statement]:
    """Yield the place at which two answers part, and how each goes on."""
    if (place := pair.parts_at) is None:
        return
    cut = "… " if place.character > len(place.before) else ""
    text = f"word {place.word}, character {place.character}: {cut}{_flatten(place.before)}"
    turn = "" if pair.turn is None else f"turn {pair.turn + 1}, "
    yield Statement("parts at", turn + text)
    for name, rest in (("A", place.a), ("B", place.b)):
        text = _flatten(rest) or "(it ends there)"
        yield Statement(f"then {name}", text)


def _name_outcome(one: SampleRow | ShownSample) -> str:
    return f"{one.outcome}, cut off" if one.cut_off else one.outcome


def _name_expected(one: SampleRow | ShownSample) -> str:
    return "-" if one.expected is None else name_expected(one.task, one.expected)


def _flatten(text: str) -> str:
    """Return a text on one line, safe for a terminal."""
    return reveal(" ".join(text.split()))


def _shorten(text: str, most: int) -> str:
    flat = _flatten(text)
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"
