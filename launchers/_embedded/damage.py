"""Kinds of damage to the embedded model, apart from the code for it, which is slow to import."""

from __future__ import annotations

from typing import Literal

Damage = Literal["none", "int8", "int4", "int4-g32", "int3"]
"""Rounding of the linear layers: the number of bits, with a scale per row or per group of 32
columns."""
CacheFault = Literal["none", "hits", "reload", "evicted"]
"""Fault of the prefix cache: every found block is damaged; one that comes back from host memory is
another; one that was evicted is still found and is another."""
