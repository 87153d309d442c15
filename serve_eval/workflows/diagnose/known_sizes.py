"""Find the sizes of blocks, chunks and windows that are known of a run's servers.

They come from the command lines of servers that the run started, their config files, and what
servers report of themselves. An advice about a length fits a server only if one of its sizes does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from serve_eval.schema import ServerInfo

BLOCKS, CHUNKS, WINDOWS = "blocks", "chunked prefill", "attention window or rope scaling"
NAMES = {
    "tokens_per_block": BLOCKS,
    "block_size": BLOCKS,
    "max_num_tokens": CHUNKS,
    "max_num_batched_tokens": CHUNKS,
    "long_prefill_token_threshold": CHUNKS,
    "sliding_window": WINDOWS,
    "max_attention_window": WINDOWS,
    "original_max_position_embeddings": WINDOWS,
    "max_position_embeddings": WINDOWS,
}
"""Names of sizes in configs, and in command lines with dashes, and the mechanism of each."""
FITS = 0.1
"""Share by which the length at which a slice begins may differ from a size: a chat template adds
tokens, and not every length occurs."""


def find_sizes(info: ServerInfo) -> dict[str, set[int]]:
    """Return the known sizes by their mechanism."""
    found: dict[str, set[int]] = {}
    for name, size in _list_sizes(info):
        found.setdefault(NAMES[name], set()).add(size)
    return found


def list_fitting(length: int, sizes: Mapping[str, set[int]]) -> list[str]:
    """Return the mechanisms that begin at about a length: a chunk or a window of that size."""
    return [
        name
        for name in (CHUNKS, WINDOWS)
        if any(abs(length - size) <= FITS * size for size in sizes.get(name, ()))
    ]


def is_multiple(modulus: int, sizes: Mapping[str, set[int]]) -> bool:
    """Return True if blocks or chunks of a known size begin at a multiple of the modulus."""
    return any(size % modulus == 0 for name in (BLOCKS, CHUNKS) for size in sizes.get(name, ()))


def _list_sizes(info: ServerInfo) -> Iterator[tuple[str, int]]:
    for words in info.commands or ():
        yield from _read_words(words)
    for server in info.workers:
        for told in (server.config, server.server_info):
            yield from _read_values(told)


def _read_words(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for word, after in pairwise([*words, ""]):
        name, _, value = word.lstrip("-").partition("=")
        name, value = name.replace("-", "_"), value or after
        if word.startswith("-") and name in NAMES and value.isdecimal():
            yield name, int(value)


def _read_values(told: Any) -> Iterator[tuple[str, int]]:
    if isinstance(told, Mapping):
        for name, value in told.items():
            if name in NAMES:
                values = value if isinstance(value, list) else [value]
                yield from ((name, one) for one in values if _is_size(one))
            yield from _read_values(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
