"""Answers of the simulated endpoint: drawn from the answer file, or made up for unknown prompts.

The answer file has one JSON object per line: `sha256` of the prompt
(`serve_eval.schema.media`), the texts `right` and `wrong`, and the `probability` of the right
one. A token is a word with the white space before it.

Hashes decide chance. The answer is right if a uniform number of (seed, run, prompt) is below the
probability times (1 - damage), so more damage only adds wrong answers. The prompts that fail, are
cut or come back empty depend on (seed, prompt).
"""

from __future__ import annotations

from collections import Counter

import msgspec

from serve_eval.launchers._http.answers import Generated
from serve_eval.launchers._http.requests import Ask
from serve_eval.launchers._simulated import guided, tools, words
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.schema.media import uniform

UNKNOWN_ANSWER = "I do not know."
SAMPLED_ANSWERS = (
    UNKNOWN_ANSWER,
    "I cannot tell.",
    "That is unknown to me.",
    "Nobody told me that.",
    "I have no answer to this.",
)
"""Answers to a prompt that the answer file does not know: the first, or with a temperature, one
that the request's seed decides."""


class _Entry(msgspec.Struct):
    """A line of the answer file."""

    sha256: str
    right: str
    wrong: str
    probability: float


class AnswerFile:
    """Draws chance once, when it reads the answer file; a request then only looks up.

    `by_hash` has the answer of each known prompt, `failing` the hashes of the prompts that fail.
    Raises OSError or msgspec.MsgspecError for a bad answer file.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self.by_hash: dict[str, Generated] = {}
        self.failing: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._drawn: Counter[str] = Counter()
        lines = config.answers.read_bytes() if config.answers else b""
        for entry in msgspec.json.Decoder(_Entry).decode_lines(lines):
            self.by_hash[entry.sha256] = self._draw(entry)
            if config.varied:
                self._entries[entry.sha256] = entry
            if uniform(f"{config.seed}:fail:{entry.sha256}") < config.failure_rate:
                self.failing.add(entry.sha256)

    def answer(self, key: str, ask: Ask) -> Generated:
        """Return the answer to a prompt by its hash, or a made-up one if it is unknown.

        With `varied`, it is drawn again each time.
        """
        if key in self._entries:
            again = self._drawn[key]
            self._drawn[key] += 1
            return self._draw(self._entries[key], again)
        return self.by_hash.get(key) or self._make_up(key, ask)

    def _draw(self, entry: _Entry, again: int = 0) -> Generated:
        config, key = self._config, entry.sha256
        drawn = f"{config.seed}:{config.run}:{key}" + (f":{again}" if again else "")
        right = uniform(drawn) < entry.probability * (1.0 - config.damage)
        text = entry.right if right else entry.wrong
        if uniform(f"{config.seed}:empty:{key}") < config.empty_rate:
            return Generated("", "stop")
        if uniform(f"{config.seed}:truncate:{key}") < config.truncate_rate:
            return Generated(words.first(text, max(1, len(text.split()) // 2)), "length")
        return Generated(text, "stop")

    def _make_up(self, key: str, ask: Ask) -> Generated:
        if ask.response_format and not self._config.no_guided:
            schema = guided.schema_of(ask.response_format)
            if schema is not None:
                return Generated(guided.generate_text(schema), "stop")
        if ask.tools:
            return Generated(tools.generate_call(ask.tools), "stop")
        draw = (
            int(len(SAMPLED_ANSWERS) * uniform(f"{ask.seed or 0}:{key}")) if ask.temperature else 0
        )
        return Generated(SAMPLED_ANSWERS[draw], "stop")
