"""Recognise settings under which answers do not follow from the model. Pure.

Speed benchmarks use them: they fix the share of drafts that is accepted, load random weights, skip
the transfer of the KV cache, or let a server generate past the end of an answer. An accuracy that
is measured under them says nothing, whatever its value.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
