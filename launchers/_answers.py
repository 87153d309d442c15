"""What the simulated model says to a prompt, decided by hashes: the same seed and run always give the same answer."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

UNKNOWN = " I do not know."
_TOKEN = re.compile(r"\s*\S+\s*\Z|\s*\S+")


class Answer(msgspec.Struct, frozen=True):
    """One line of the answer file: a right and a wrong text, and the probability of the right one."""

    sha256: str
    right: str
    wrong: str
    probability: float


def uniform(*key: object) -> float:
    """A number in [0, 1) that depends on the key alone."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_answers(path: Path) -> dict[str, Answer]:
    """The answer file (JSON lines) by prompt hash. Raises OSError and msgspec.DecodeError."""
    decoder = msgspec.json.Decoder(Answer)
    with path.open("rb") as file:
        return {answer.sha256: answer for answer in map(decoder.decode, file)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model that knows the answers. `damage` is the share of its right answers that it has lost: a damaged model is
    wrong wherever the sound one is. Other runs differ only on prompts with a probability strictly between 0 and 1."""

    answers: Mapping[str, Answer]
    seed: int = 0
    run: int = 0
    damage: float = 0.0

    def answer(self, sha256: str) -> str:
        """The whole text; `UNKNOWN` for a prompt that is not in the answer file."""
        known = self.answers.get(sha256)
        if known is None:
            return UNKNOWN
        right = uniform(self.seed, self.run, sha256) < known.probability * (1.0 - self.damage)
        return known.right if right else known.wrong


def probability(seed: int, task: str, sample_id: str, *, accuracy: float, flip_rate: float | None) -> float:
    """A prompt's probability of a right answer, such that the mean over prompts is `accuracy`.

    Without `flip_rate` it is `accuracy` for every prompt. With one, a share u = 3 * flip_rate of the prompts is
    unstable with a probability uniform in (0, 1), and the others are always right or always wrong: two runs then
    disagree on a share of `flip_rate` of all prompts, since the mean of 2 p (1 - p) is 1/3. Raises ValueError when no
    such mixture has the wanted mean.
    """
    if not 0.0 <= accuracy <= 1.0:
        raise ValueError(f"an accuracy must lie in 0..1, not {accuracy}")
    if flip_rate is None:
        return accuracy
    unstable = 3.0 * flip_rate
    if not 0.0 <= unstable <= 1.0 or not unstable / 2 <= accuracy <= 1.0 - unstable / 2:
        raise ValueError(
            f"a flip rate of {flip_rate} makes {unstable:.0%} of the prompts unstable, which cannot give a mean of "
            f"{accuracy}: it needs 0 <= 3 * flip_rate <= 2 * min(accuracy, 1 - accuracy)"
        )
    place = uniform("kind", seed, task, sample_id)
    if place < unstable:
        return uniform("p", seed, task, sample_id)
    return float(place < unstable / 2 + accuracy)


def cut(text: str, max_tokens: int, stop: list[str]) -> tuple[str, str]:
    """The text up to the first stop string and `max_tokens` tokens, with its finish_reason.

    A token is a word with the white space before it.
    """
    ends = [end for end in map(text.find, stop) if end >= 0]
    text = text[: min(ends)] if ends else text
    tokens = _TOKEN.findall(text)
    return ("".join(tokens[:max_tokens]), "length") if len(tokens) > max_tokens else (text, "stop")


def count_tokens(text: str) -> int:
    """Number of words."""
    return len(text.split())
