"""What a watch remembers: a line for each round, for ever, and a state that is what the lines come
to.

OUT/rounds.jsonl is only ever appended to. OUT/state.json is written whole after each round; where a
kill came between the two, the lines that it does not know yet are judged again, so that no evidence
is lost or counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import JournalError, RunFolderError
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.evaluation.storage.private_files import pretty_json, write_private

SCHEMA_VERSION = 1
STATE_FILE, ROUNDS_FILE = "state.json", "rounds.jsonl"


class Seen(msgspec.Struct, kw_only=True):
    """What a round saw. `asked` are positions in the pool; of each, `values` has what its answer
    was worth (None: there is none), `usable` a 1 where there was something to score, and
    `prompt_tokens` what the server counted (0: it did not). `failures` counts requests without an
    answer by kind. `checks` are the rows of the smoke test by name (None: it was not its turn), and
    `stopped` why it was not finished. `tokens` are prompt and generated ones of everything,
    estimated from above where no server counted. `latencies_s` are those of the answers. `unscored`
    of these have no value, since the scorer raised or took too long; `first_unscored` tells of the
    first.
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

    @property
    def answered(self) -> int:
        return sum(value is not None for value in self.values)

    @property
    def came(self) -> int:
        """Answers, with a value or without."""
        return self.answered + self.unscored


class LearntLevel(msgspec.Struct, kw_only=True):
    """A share, learnt in the baseline: its mean there, and the `floor` that the true one then was
    below with the probability that is set aside for it.
    """

    mean: float
    floor: float


class Bets(msgspec.Struct, kw_only=True):
    """ln of the wealth of each stake, after so many rounds of betting."""

    rounds: int = 0
    logs: list[float] = []


class CheckHistory(msgspec.Struct, kw_only=True):
    """A check of the smoke test: how often it was seen, how often it passed from the first time on
    without a fail, and in how many smoke tests in a row up to the last it did not pass.
    """

    seen: int = 0
    first_passed: int = 0
    failing: int = 0


class WatchAlarm(msgspec.Struct, kw_only=True):
    """`kind` is accuracy, usable, failures, down, or check. `subject` names the check. `figures`
    are those that it rests on. `delivered`: command and webhook had it. `over`: what it told is
    over, so that it may be told again.
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
    """`bound` is what the watch asks, and of whom: another command is refused. `chat`: generated
    questions go by chat. `answers` and `usable` have the baseline's scores of each prompt in the
    order of the passes, `misses` how often it had no answer although others had, `dropped` the
    prompts that were given up for that. `accuracy` and `share_usable` are there when the baseline
    is complete. `recent` are the last rounds: asked, answered, sum of what they were worth.
    """

    schema_version: int = SCHEMA_VERSION
    bound: dict[str, Any]
    seed: int
    model: str
    chat: bool
    answers: list[list[float]]
    usable: list[list[float]]
    misses: list[int]
    prompt_tokens: list[int]
    dropped: list[int] = []
    rounds: int = 0
    silent: int = 0
    accuracy: LearntLevel | None = None
    share_usable: LearntLevel | None = None
    bets: dict[str, Bets] = {}
    rows: dict[str, CheckHistory] = {}
    smokes: int = 0
    recent: list[tuple[int, int, float]] = []
    alarms: list[WatchAlarm] = []

    @property
    def standing(self) -> list[WatchAlarm]:
        """Alarms of what is not over."""
        return [alarm for alarm in self.alarms if not alarm.over]


def plain(value: object) -> Any:
    """A value as it comes back out of a file."""
    return msgspec.json.decode(msgspec.json.encode(value))


def load(folder: Path, bound: Mapping[str, Any]) -> State | None:
    """The state of a watch; None where there is none yet. Raises RunFolderError for that of another
    watch.
    """
    file = folder / STATE_FILE
    try:
        state = msgspec.json.decode(file.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Begin anew in another folder: -o."
        ) from error
    if state.schema_version != SCHEMA_VERSION:
        raise RunFolderError(
            f"{file} is of another version of serve-eval",
            hint="Use that one, or begin anew in another folder: -o.",
        )
    if differing := run_folder.differences(state.bound, plain(bound)):
        raise RunFolderError(
            f"{folder} holds another watch:\n" + "\n".join(f"  {line}" for line in differing),
            hint="What is bet against must not change: begin anew in another folder with -o.",
        )
    return state


def save(folder: Path, state: State) -> None:
    """Writes the state whole or not at all."""
    write_private(folder / STATE_FILE, pretty_json(state))


def append(folder: Path, seen: Seen) -> None:
    """Adds the line of a round. Raises JournalError when it cannot be written."""
    file = folder / ROUNDS_FILE
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as lines:
            lines.write(msgspec.json.encode(seen) + b"\n")
            lines.flush()
            os.fsync(lines.fileno())
    except OSError as error:
        hint = NO_ROOM_HINT if error.errno in FULL_DISK else ""
        raise JournalError(f"{file}: cannot write: {error.strerror}", hint=hint) from error


def later_than(folder: Path, rounds: int) -> list[Seen]:
    """The lines of rounds that a state does not know yet. A torn last line, which a kill leaves, is
    cut off.

    Raises RunFolderError for a damaged line.
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
