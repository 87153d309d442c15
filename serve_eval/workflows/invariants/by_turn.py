"""Find the turn of conversations at which an arm begins to change answers.

After a changed answer, the history of a conversation differs, and later answers may differ too. A
turn therefore counts only conversations whose answers were equal before it in all three passes:
they sent the same prompt, so that the server caused any difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.evidence.whole_answer import join_text
from serve_eval.protocol.conversation import SEPARATOR, TURN
from serve_eval.schema import Response, TurnChanges
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.scores import ScoreRecord

Talks = Mapping[str, Sequence[Response]]
LEAST_SHARE = 0.5
"""Share of the excess of changed answers from which on a turn is named."""


def cut_to_first_change(answers: Sequence[TaskAnswers]) -> list[TaskAnswers]:
    """Return `base`, its repeat and an arm with the first turn in which their answers differ.

    A changed answer changes the history of all later turns, in the repeat as in the arm. Judged as
    a whole, conversations of a server that often changes late turns would hide what an arm does to
    early ones.
    """
    runs = (0, 0, -1)
    lines = [dict(one.lines[run]) for one, run in zip(answers, runs, strict=True)]
    for name in set.intersection(*map(set, lines)):
        turns = [_split(of_one[name]) for of_one in lines]
        steps = enumerate(zip(*turns, strict=False))
        at = next((i for i, said in steps if len(set(said)) > 1), None)
        if at is None or len({len(one) for one in turns}) > 1:
            continue
        for of_one, told in zip(lines, turns, strict=True):
            answer, value = told[at]
            of_one[name] = msgspec.structs.replace(of_one[name], answer=answer, value=value)
    return [
        replace(one, lines=(cut, *one.lines[1:]) if run == 0 else (*one.lines[:-1], cut))
        for one, run, cut in zip(answers, runs, lines, strict=True)
    ]


def _split(line: ScoreRecord) -> list[tuple[str, float]]:
    """Return the answer and the score of each turn; none of a line that does not show them."""
    said = (line.answer or "").split(SEPARATOR)
    if set(line.parts) != {TURN.format(name) for name in _list_turns(line)}:
        return []
    values = [line.parts[TURN.format(turn)] for turn in _list_turns(line)]
    return list(zip(said, values, strict=True)) if len(said) == len(values) else []


def _list_turns(line: ScoreRecord) -> list[int]:
    known = (name.removeprefix(TURN.format("")) for name in line.parts)
    return sorted(int(one) for one in known if one.isdecimal())


def compare_turns(answers: Sequence[TaskAnswers]) -> tuple[TurnChanges, ...]:
    """Return the changes by turn between `base`, its repeat and an arm, in that order.

    Empty for tasks without conversations.
    """
    base, again, arm = map(_read, answers)
    left = [name for name in base if name in again and name in arm]
    found = []
    for turn in range(max((len(base[name]) for name in left), default=0)):
        left = [n for n in left if all(len(one[n]) > turn for one in (base, again, arm))]
        if not left:
            break
        texts = {n: [join_text(one[n][turn]) for one in (base, again, arm)] for n in left}
        found.append(
            TurnChanges(
                turn=turn + 1,
                compared=len(left),
                changed=sum(first != third for first, _, third in texts.values()),
                own=sum(first != second for first, second, _ in texts.values()),
                prompt_tokens=sum(arm[n][turn].usage.prompt_tokens for n in left),
                cached=_count_cached([arm[n][turn] for n in left]),
                base_cached=_count_cached([base[n][turn] for n in left]),
                fell=sum(by < 0 for by in _list_changes(answers, left, turn)),
                rose=sum(by > 0 for by in _list_changes(answers, left, turn)),
            )
        )
        left = [n for n in left if len(set(texts[n])) == 1]
    return tuple(found)


def _list_changes(
    answers: Sequence[TaskAnswers], names: Sequence[str], turn: int
) -> Iterator[float]:
    """Yield by how much the score of a turn is higher in the first pass than in the last one."""
    part = TURN.format(turn + 1)
    for name in names:
        base, arm = (of_one.get(name) for of_one in (answers[0].lines[0], answers[-1].lines[-1]))
        if base is not None and arm is not None and {part} <= {*base.parts} & {*arm.parts}:
            yield base.parts[part] - arm.parts[part]


def join_p(changed: float, turns: Sequence[TurnChanges]) -> float:
    """Return the p of a cold pass: of more changed answers, or of worse ones with cached data.

    If one worker of several has a damaged cache, each repeat is wrong elsewhere, so that answers
    change by themselves as often as in the arm. But cached data then cost points, while scores
    between exchangeable passes fall as often as they rise (sign test, mid-p).
    """
    fell, rose = (sum(counts) for counts in zip(*((t.fell, t.rose) for t in turns), strict=True))
    return min(1.0, 2.0 * min(changed, mcnemar(fell, rose).p_mid))


def _read(answers: TaskAnswers) -> Talks:
    """Return the answers of each conversation in their order, by id."""
    file = samples_file(answers.folder, answers.task.result.task)
    return {
        record.id: [one.response for one in record.response.exchanges]
        for record in (journal.read(file) if file.exists() else ())
        if record.response is not None and record.response.exchanges
    }


def _count_cached(responses: Sequence[Response]) -> int | None:
    counts = [one.usage.cached_tokens for one in responses]
    return None if None in counts else sum(count or 0 for count in counts)


def name_turn(turns: Sequence[TurnChanges]) -> str:
    """Return the turn at which most of the changed answers begin; empty if no turn stands out."""
    excess = [max(0, one.changed - one.own) for one in turns]
    told = "answers"
    if not sum(excess):
        excess, told = [max(0, one.fell - one.rose) for one in turns], "answers are worse"
    if not sum(excess):
        return ""
    most = max(range(len(turns)), key=excess.__getitem__)
    if excess[most] <= LEAST_SHARE * sum(excess):
        return ""
    one = turns[most]
    worse = told != "answers"
    return f"turn {one.turn}: {one.fell if worse else one.changed} of {one.compared} {told}"


def describe_turns(turns: Sequence[TurnChanges]) -> str:
    """Return the changed answers and the cached tokens of each turn."""
    return "; ".join(_describe(one) for one in turns)


def _describe(one: TurnChanges) -> str:
    told = (
        f"turn {one.turn}: {one.changed} of {one.compared} answers changed, {one.own} by themselves"
    )
    if one.fell or one.rose:
        told += f", {one.fell} worse with cached data and {one.rose} better"
    if one.cached is None or one.base_cached is None:
        return told
    return (
        f"{told}, {one.cached:,} of {one.prompt_tokens:,} prompt tokens cached,"
        f" {one.base_cached:,} in base"
    )
