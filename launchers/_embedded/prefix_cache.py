"""Keys and values of the beginnings of prompts, in whole blocks, for later prompts.

The oldest blocks leave for host memory, if there is any, and come back when they are found there. A
prompt of which a part is cached is computed in other pieces, so the last bits of its numbers may
differ.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from serve_eval.launchers._embedded.damage import CacheFault
from serve_eval.launchers._embedded.model import Cache
from serve_eval.launchers._embedded.weights import Array

BLOCK = 16
"""Tokens of a block."""


class _Block(NamedTuple):
    """Keys and values (layers x heads x tokens x size)."""

    keys: Array
    values: Array


class PrefixCache:
    """Blocks by all tokens up to their end, with room for `blocks` and then `host_blocks`.

    Faults, for tests of what finds them: with `hits`, every block that is found has lost its
    values; with `reload`, a block that comes back from host memory holds those of another; with
    `evicted`, a block without room is still found, and holds those of the one that took its place.
    """

    def __init__(self, blocks: int, host_blocks: int = 0, fault: CacheFault = "none") -> None:
        self._blocks, self._host_blocks, self._fault = blocks, host_blocks, fault
        self._near = OrderedDict[bytes, _Block]()
        self._far = OrderedDict[bytes, _Block]()
        self._lost: dict[bytes, _Block] = {}

    def find(self, ids: Sequence[int], salt: str, cache: Cache, row: int) -> int:
        """Copy the cached beginning of a prompt into a row, and return its tokens.

        The last token is always left to be computed.
        """
        found = 0
        for key in _keys(ids[:-1], salt):
            if (block := self._take(key)) is None:
                break
            at = slice(found, found + BLOCK)
            cache.keys[:, row, :, at], cache.values[:, row, :, at] = block
            found += BLOCK
        return found

    def keep(self, ids: Sequence[int], salt: str, cache: Cache, row: int) -> None:
        """Store the blocks of a prompt, which a row of the cache holds."""
        for number, key in enumerate(_keys(ids, salt)):
            at = slice(number * BLOCK, (number + 1) * BLOCK)
            if key not in self._near:
                block = _Block(cache.keys[:, row, :, at].copy(), cache.values[:, row, :, at].copy())
                self._put(key, block)
            self._near.move_to_end(key)

    def _take(self, key: bytes) -> _Block | None:
        block = self._near.get(key)
        if block is None and (block := self._far.pop(key, None)) is not None:
            if self._fault == "reload" and self._near:
                block = self._near[next(reversed(self._near))]
            self._put(key, block)
        if block is None:
            return self._lost.get(key)
        return (
            block._replace(values=np.zeros_like(block.values)) if self._fault == "hits" else block
        )

    def _put(self, key: bytes, block: _Block) -> None:
        """Put a block in its place; the oldest one leaves."""
        self._near[key] = block
        self._lost.pop(key, None)
        while len(self._near) > self._blocks:
            old, content = self._near.popitem(last=False)
            self._far[old] = content
        while len(self._far) > self._host_blocks:
            old, _ = self._far.popitem(last=False)
            if self._fault == "evicted":
                self._lost[old] = block


class PrefixCaching(NamedTuple):
    """The blocks of the prefix cache of each model on the device (0: none) and behind it."""

    blocks: int = 0
    host_blocks: int = 0
    fault: CacheFault = "none"

    def build(self) -> PrefixCache | None:
        return PrefixCache(*self) if self.blocks else None


NO_CACHE = PrefixCaching()


def _keys(ids: Sequence[int], salt: str) -> Iterator[bytes]:
    """Yield the key of every whole block: a hash of the salt and of all tokens up to its end."""
    found = hashlib.blake2b(salt.encode(), digest_size=16)
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        found.update(np.asarray(ids[end - BLOCK : end], dtype=np.int64).tobytes())
        yield found.digest()
