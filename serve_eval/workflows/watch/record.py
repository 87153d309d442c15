"""The files of a watch: a line for each round, and the state that results from the lines.

A round is appended to OUT/rounds.jsonl. OUT/state.json is replaced after each round. If the process
is killed between the two, the next start judges the lines that the state lacks, so no evidence is
lost or counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.storage.json_files import differences, pretty_json, write_private
from serve_eval.whole_file import force_to_disk

SCHEMA_VERSION = 1
STATE_FILE, ROUNDS_FILE = "state.json", "rounds.jsonl"


class SeenProbes(msgspec.Struct, kw_only=True):
    """The probes of a round.

    `asked` are the ids of the probes in the reference, and `nats` their distances from it (None: no
    answer, or none that can be compared). `beyond` of them lie beyond `limit` nats, and `far` of
    these far beyond it. If none was asked, `unfit` is the reason (empty: no question of the round
    was answered either). `salted` and `listed` say how the endpoint answered: without its prefix
    cache, and with log-probabilities.
    """

    asked: list[str] = []
    nats: list[float | None] = []
    limit: float
    beyond: int = 0
    far: int = 0
    unfit: str = ""
    salted: bool = True
    listed: bool = False
    first_failure: str = ""

    @property
    def measured(self) -> list[float]:
        """The distances of the answers."""
        return [one for one in self.nats if one is not None]


class Seen(msgspec.Struct, kw_only=True):
    """The results of a round.

    `asked` are positions in the pool. For each of them, `values` has the score of its answer (None
    if it has none), `usable` a 1 if there was something to score, and `prompt_tokens` the server's
    count (0 if it did not count). `failures` counts requests without an answer by kind. `checks`
    are the rows of the smoke test by name (None if none was due), and `stopped` is the reason why
    it was not finished. `tokens` are the prompt and generated tokens of all requests, with upper
    estimates if the server did not count. `latencies_s` are those of the answers. `unscored`
    answers have no value, because the scorer raised or timed out; `first_unscored` explains the
    first. `probes` are those of a reference (None: the watch has no reference).
    """

    round: int
    started_at: str
    seconds: float
    asked: list[int]
    values: list[float | None]
    usable: str
    prompt_tokens: list[int]
    failures: dict[str, int]
    first_failure: str = ""
    checks: dict[str, str] | None = None
    told: dict[str, str] = {}
    stopped: str = ""
    tokens: int = 0
    latencies_s: list[float] = []
    unscored: int = 0
    first_unscored: str = ""
    probes: SeenProbes | None = None

    @property
    def answered(self) -> int:
        return sum(value is not None for value in self.values)

    @property
    def came(self) -> int:
        """Number of answers, with or without a value."""
        return self.answered + self.unscored


class LearntLevel(msgspec.Struct, kw_only=True):
    """A share learnt in the baseline: its mean, and a `floor`.

    The probability that the true share was below the floor is at most `FLOOR_ALPHA`.
    """

    mean: float
    floor: float


class Bets(msgspec.Struct, kw_only=True):
    """The natural logarithms of the wealth of each stake after `rounds` rounds of betting."""

    rounds: int = 0
    logs: list[float] = []


class ProbeCounts(msgspec.Struct, kw_only=True):
    """Probes that were tried, those `beyond` the floor, and those `far` beyond it."""

    tried: int = 0
    beyond: int = 0
    far: int = 0


class WatchedProbes(msgspec.Struct, kw_only=True):
    """The state of the probes of a reference with `count` of them.

    Cycle number `cycle` asks each probe once; `place` of them were asked in it. The evidence has
    `rounds` rounds and `cycles` cycles so far, and its counts are those of the `latest` round and
    of the cycle. The endpoint is `settled` if it answered in the reference's way in the last round,
    `salted` if without its prefix cache. `warned` lists the warnings that were printed.
    """

    count: int
    cycle: int = 1
    place: int = 0
    rounds: int = 0
    cycles: int = 0
    latest: ProbeCounts = msgspec.field(default_factory=ProbeCounts)
    in_cycle: ProbeCounts = msgspec.field(default_factory=ProbeCounts)
    settled: bool = False
    salted: bool = True
    warned: list[str] = []


class CheckHistory(msgspec.Struct, kw_only=True):
    """The history of a check of the smoke test.

    It ran `seen` times and passed the first `first_passed` times. It did not pass in the last
    `failing` smoke tests.
    """

    seen: int = 0
    first_passed: int = 0
    failing: int = 0


class WatchAlarm(msgspec.Struct, kw_only=True):
    """An alarm of a watch.

    `kind` is numerics, accuracy, usable, failures, down, or check. `subject` names the check.
    `figures` are the values behind the alarm. `delivered` means that it was sent to the command and
    the webhook. `over` means that its cause has ended, so it may be raised again.
    """

    kind: str
    subject: str = ""
    round: int
    at: str
    told: str
    figures: dict[str, float] = {}
    delivered: bool = False
    over: bool = False

    @property
    def name(self) -> str:
        return f"{self.kind} {self.subject}".rstrip()


class State(msgspec.Struct, kw_only=True):
    """The state of a watch.

    `bound` are the endpoint, questions and rules, which another command must not change. `chat`
    means that generated questions use chat. `answers` and `usable` have the baseline's scores of
    each prompt in the order of the passes. `misses` counts how often a prompt had no answer
    although others had, and `dropped` lists the prompts that were dropped for that. `accuracy` and
    `share_usable` are set once the baseline is complete. `blocks` has the block of the day of each
    answer of the baseline, and `began` the time of its first round. `recent` has requests, answers
    and sum of scores of the last rounds. `probes` is None without a reference. `rehearsal`: the
    stand-in answered. `thoughts_off`: generated questions switch the model's thoughts off;
    `thoughts_room` are the tokens that their answers have for them.
    """

    schema_version: int = SCHEMA_VERSION
    bound: dict[str, Any]
    seed: int
    model: str
    chat: bool
    thoughts_off: bool = False
    thoughts_room: int = 0
    answers: list[list[float]]
    usable: list[list[float]]
    misses: list[int]
    prompt_tokens: list[int]
    dropped: list[int] = []
    blocks: list[list[int]] = []
    began: str = ""
    rounds: int = 0
    silent: int = 0
    accuracy: LearntLevel | None = None
    share_usable: LearntLevel | None = None
    bets: dict[str, Bets] = {}
    rows: dict[str, CheckHistory] = {}
    smokes: int = 0
    recent: list[tuple[int, int, float]] = []
    alarms: list[WatchAlarm] = []
    probes: WatchedProbes | None = None
    rehearsal: bool = False

    @property
    def standing(self) -> list[WatchAlarm]:
        """The alarms that are not over."""
        return [alarm for alarm in self.alarms if not alarm.over]


def plain(value: object) -> Any:
    """Return a value as it is read back from a file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def load(folder: Path, bound: Mapping[str, Any]) -> State | None:
    """Return the state of a watch, or None if there is none yet.

    Raises RunFolderError if the state belongs to another watch or cannot be read.
    """
    file = folder / STATE_FILE
    try:
        state = msgspec.json.decode(file.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Start again in another folder with -o."
        ) from error
    if state.schema_version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{file} was written by another version of serve-eval",
            hint="Use that version, or start again in another folder with -o.",
        )
    if differing := differences(state.bound, plain(bound)):
        raise RunFolderError(
            f"{folder} holds another watch:\n" + "\n".join(f"  {line}" for line in differing),
            hint="These settings must not change. Start again in another folder with -o.",
        )
    return state


def save(folder: Path, state: State) -> None:
    """Write the state atomically."""
    write_private(folder / STATE_FILE, pretty_json(state))


def append(folder: Path, seen: Seen) -> None:
    """Append the line of a round. Raises JournalError if it cannot be written."""
    file = folder / ROUNDS_FILE
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as lines:
            lines.write(msgspec.json.encode(seen) + b"\n")
            lines.flush()
            force_to_disk(lines.fileno())
    except OSError as error:
        hint = NO_ROOM_HINT if error.errno in FULL_DISK else ""
        raise JournalError(f"{file}: cannot write: {error.strerror}", hint=hint) from error


def later_than(folder: Path, rounds: int) -> list[Seen]:
    """Return the rounds after round number `rounds`.

    An incomplete last line, which a killed process leaves, is removed. Raises RunFolderError for a
    damaged line.
    """
    file = folder / ROUNDS_FILE
    found = []
    try:
        opened = file.open("r+b")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{file} cannot be read: {error.strerror}") from error
    with opened as lines:
        whole = 0
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                lines.truncate(whole)
                break
            whole += len(line)
            try:
                seen = msgspec.json.decode(line, type=Seen)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise RunFolderError(f"{file}:{number}: a damaged line: {error}") from error
            if seen.round > rounds:
                found.append(seen)
    return found
