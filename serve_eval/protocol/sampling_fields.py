"""List the fields that decide an answer, fingerprint a protocol, and find meaningless settings.

Two results are comparable if their fingerprints are equal. If they are not, the differing fields
can be named.

A neutral value changes nothing: with it, a server samples from the model's own distribution. An
extreme value changes nearly every answer, so that a probe sees if the field is heeded. Values that
only some servers take are listed by server: vLLM 0.8 refuses a top_k of 0, trtllm-serve has crashed
on -1, and SGLang takes -1 alone. A server that is not listed gets no such value.

Speed benchmarks use meaningless settings: they fix the share of drafts that is accepted, load
random weights, skip the transfer of the KV cache, or let a server generate past the end of an
answer. An accuracy that is measured under them says nothing, whatever its value.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from serve_eval.frozen import freeze
from serve_eval.schema import MEAN, Dataset, Sample, Task
from serve_eval.schema.endpoint import ServerInfo
from serve_eval.schema.media import put_checksums

LLAMA_CPP = ("llama-server", "llama-cpp-python")


@freeze
class SamplingFieldRow:
    """One field of the table.

    `neutral` is the value that changes no answer at any server (None: the value depends on the
    server, and `neutral_of` has it by server). `greedy`: the field changes answers at temperature 0
    too. `extreme` is a value that changes any answer. `names` are the names by server where they
    differ from `name`.
    """

    name: str
    neutral: float | None
    extreme: float
    greedy: bool = False
    neutral_of: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def name_at(self, server: str | None) -> str:
        """Return the name of the field that a server takes."""
        return self.names.get(server or "", self.name)

    def neutral_at(self, server: str | None) -> float | None:
        """Return the value that changes nothing at a server, or None if none is known."""
        return self.neutral_of.get(server or "", self.neutral)

    @property
    def all_names(self) -> frozenset[str]:
        """Every name of the field at any server."""
        return frozenset({self.name, *self.names.values()})


TABLE: tuple[SamplingFieldRow, ...] = (
    SamplingFieldRow(name="temperature", neutral=1.0, extreme=0.0),
    SamplingFieldRow(name="top_p", neutral=1.0, extreme=0.001),
    SamplingFieldRow(
        name="top_k",
        neutral=None,
        extreme=1,
        neutral_of={
            "vLLM": -1,
            "SGLang": -1,
            "trtllm-serve": 0,
            "llama-server": 0,
            "llama-cpp-python": 0,
        },
    ),
    SamplingFieldRow(name="min_p", neutral=0.0, extreme=1.0),
    SamplingFieldRow(
        name="repetition_penalty",
        neutral=1.0,
        extreme=2.0,
        greedy=True,
        names=dict.fromkeys(LLAMA_CPP, "repeat_penalty"),
    ),
    SamplingFieldRow(name="frequency_penalty", neutral=0.0, extreme=2.0, greedy=True),
    SamplingFieldRow(name="presence_penalty", neutral=0.0, extreme=2.0, greedy=True),
)
"""The seven fields, in the order in which they are shown."""
OF_OPTIONS = ("temperature", "top_p")
"""Fields that options of a task set: a run that leaves one out has chosen to."""
ROWS: Mapping[str, SamplingFieldRow] = {row.name: row for row in TABLE}
_LAUNCHED = {"vllm": "vLLM", "trtllm": "trtllm-serve", "llama_cpp": "llama-cpp-python"}
"""Servers by the beginning of the name of our launcher: orchestrators list no model."""


def server_kind(info: ServerInfo) -> str | None:
    """Return the kind of server that answers, from its own words or from its launcher."""
    if info.server is not None:
        return info.server
    launcher = info.launcher or ""
    return next((kind for name, kind in _LAUNCHED.items() if launcher.startswith(name)), None)


_FORCED = "accepts a fixed number of drafts, right or wrong"
_RANDOM = "loads random weights"
_ENDLESS = "generates past the end of an answer"
_NO_TRANSFER = "generates without the KV cache of the prompt"
SWITCHES: Mapping[str, str] = {
    "tllm_spec_decode_force_num_accepted_tokens": _FORCED,
    "sglang_simulate_acc_len": _FORCED,
    "simulate_acc_len": _FORCED,
    "synthetic_acceptance_length": _FORCED,
    "synthetic_acceptance_rate": _FORCED,
    "synthetic_acceptance_rates": _FORCED,
    "trtllm_disagg_benchmark_gen_only": _NO_TRANSFER,
    "ignore_eos": _ENDLESS,
}
"""Names that count unless their value turns them off, each with its effect. TensorRT-LLM, SGLang
and vLLM read them from the environment, from a config or from a flag."""
CHOICES: Mapping[str, Mapping[str, str]] = {
    "load_format": {"dummy": _RANDOM, "loadformat.dummy": _RANDOM},
    "rejection_sample_method": {"synthetic": _FORCED},
}
"""Names that count with these values only."""
_OFF = ("", "0", "0.0", "-1", "-1.0", "false", "none", "null", "no", "off")
_NAMES = "|".join((*SWITCHES, *CHOICES))
_IN_TEXT = re.compile(
    rf"""(?P<name>(?:{_NAMES}))["']?\s*[=:]\s*<?["']?(?P<value>[\w.+-]+)""", re.IGNORECASE
)


class MeaninglessSetting(NamedTuple):
    """A setting, the keys that lead to it, its value, and its effect on answers."""

    place: str
    name: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.place}: {self.name} {self.value} {self.effect}"


def judge_setting(name: str, value: object) -> str | None:
    """Return the effect of a setting that makes answers meaningless; None if it does not."""
    key = name.lower().lstrip("-").replace("-", "_").rpartition(".")[2]
    told = "true" if value is True else str(value).strip().lower()
    if value is None or (isinstance(value, (Mapping, list, tuple)) and not value):
        return None
    if key in SWITCHES:
        return None if told in _OFF else SWITCHES[key]
    return CHOICES.get(key, {}).get(told)


def find_meaningless(content: object, place: str) -> Iterator[MeaninglessSetting]:
    """Yield the settings within mappings, lists of words, command lines and JSON texts.

    `place` names `content` for people.
    """
    if isinstance(content, Mapping):
        for name, value in content.items():
            if effect := judge_setting(str(name), value):
                yield MeaninglessSetting(place, str(name), str(value), effect)
            else:
                yield from find_meaningless(value, f"{place}.{name}")
    elif isinstance(content, (list, tuple)):
        yield from _find_in_words(content, place)
    elif isinstance(content, str):
        yield from _find_in_text(content, place)


def _find_in_words(words: Sequence[object], place: str) -> Iterator[MeaninglessSetting]:
    """Yield the settings among words such as --name value, --name=value and NAME=value."""
    for i, word in enumerate(words):
        if not isinstance(word, str):
            yield from find_meaningless(word, place)
            continue
        name, equals, value = word.partition("=")
        if not equals:
            following = words[i + 1] if i + 1 < len(words) else ""
            alone = str(following).startswith("-") or not following
            value = "true" if alone else str(following)
        flag = word.startswith("-")
        if not (flag or equals) or (not flag and any(map(str.isspace, word))):
            yield from _find_in_text(word, place)
        elif effect := judge_setting(name, value):
            yield MeaninglessSetting(place, name, value, effect)
        elif equals:
            json_text = value.startswith(("{", "["))
            for part in [value] if json_text else value.split(","):
                yield from _find_in_text(part, place)


def _find_in_text(text: str, place: str) -> Iterator[MeaninglessSetting]:
    """Yield the settings in a text that holds JSON, an assignment, or several words."""
    if text.lstrip().startswith(("{", "[")):
        try:
            yield from find_meaningless(json.loads(text), place)
            return
        except (ValueError, RecursionError):
            pass
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    if words != [text] or "=" in text:
        yield from _find_in_words(words, place)


def find_in_description(told: object, place: str) -> Iterator[MeaninglessSetting]:
    """Yield the settings in the description that a server gives of itself.

    vLLM writes its whole config as one text.
    """
    found = dict.fromkeys(find_meaningless(told, place))
    for text in _list_texts(told):
        for match in _IN_TEXT.finditer(text):
            if effect := judge_setting(match["name"], match["value"]):
                found[MeaninglessSetting(place, match["name"], match["value"], effect)] = None
    yield from found


def _list_texts(told: object) -> Iterator[str]:
    if isinstance(told, str):
        yield told
    elif isinstance(told, Mapping):
        for value in told.values():
            yield from _list_texts(value)
    elif isinstance(told, (list, tuple)):
        for value in told:
            yield from _list_texts(value)


KEY_BYTES = 6
"""Bytes of hash per sample: two of 14042 samples collide once in three million data sets."""

SCORER_OPTIONS = "scorer_options"
"""Field of the options that scorers of cases have. `samples` depends on them too."""
SERVER_ADDS = "server_adds"
"""Field with the sampling fields that the server adds and that nothing replaces. It is present only
if there are some, and known only once the endpoint is probed."""
ROUTE = "route"
"""Field with the route of prompts that are messages. It is present only if it is not chat's."""
CASES = "cases"
"""Field of a reference with the number of cases and a checksum of their expected values."""


def fingerprint(task: Task, dataset: Dataset) -> dict[str, str]:
    """Return the fields with their values in canonical JSON.

    `samples` is the number of samples and a checksum of ids, prompts, targets, choices and
    overrides. It depends on what is asked, not on the format and the place of the files.
    `aggregation` is present if the value is not the mean of the scores.
    """
    content = hashlib.sha256()
    for sample in dataset.samples:
        content.update(_content(sample))
    aggregation = {} if task.aggregation is MEAN else {"aggregation": task.aggregation.name}
    return {
        "task": task.name,
        "version": str(task.version),
        **{name: canonical(value) for name, value in task.protocol.items()},
        **aggregation,
        "samples": f"{len(dataset.samples)} sha256:{content.hexdigest()}",
    }


def sample_key(sample: Sample) -> bytes:
    """Return KEY_BYTES that identify a sample: its id, what is asked and what is expected."""
    return hashlib.sha256(_content(sample)).digest()[:KEY_BYTES]


def _content(sample: Sample) -> bytes:
    prompt = sample.prompt
    if not isinstance(prompt, str):
        prompt = tuple(map(put_checksums, prompt))
    content = msgspec.json.encode((sample.id, prompt, sample.target))
    if sample.override is not None:
        content += msgspec.json.encode(sample.override, order="sorted")
    if sample.recorded is not UNSET:
        content += msgspec.json.encode(sample.recorded, order="sorted")
    if sample.choices:
        content += msgspec.json.encode(sample.choices)
    if (talk := sample.conversation) is not None:
        turns = [(put_checksums(one.message), one.results) for one in talk.turns]
        content += msgspec.json.encode((turns, talk.results, talk.rounds), order="sorted")
    return content + msgspec.json.encode(sample.heads) if sample.heads else content


def canonical(value: object) -> str:
    """Return the JSON of a value with sorted keys, so that equal values have equal texts."""
    return msgspec.json.encode(value, order="sorted").decode()


def protocol_differences(run: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names of the fields of `other` in which `run` differs, in the order of `other`."""
    return [name for name, value in other.items() if name not in run or run[name] != value]
