"""Draw files and messages by a seed, for a reader who judges every sentence of them."""

from __future__ import annotations

import random
from pathlib import Path

from tests.prose import source

MIN_LINES = 30
"""Shorter files hold too little text to judge."""


def draw_files(root: Path, number: int, seed: int) -> list[str]:
    """Return `number` files of the packages, as paths below `root`, in the order of the draw."""
    files = [
        str(file.relative_to(root))
        for file in source.python_files(root, source.PACKAGES)
        if len(file.read_text("utf-8").splitlines()) >= MIN_LINES
    ]
    return random.Random(seed).sample(files, number)


def draw_messages(root: Path, number: int, seed: int) -> list[str]:
    """Return `number` messages of the packages as FILE:LINE and text, in the order of the draw."""
    found = [
        f"{file.relative_to(root)}:{prose.line}  {' '.join(prose.text.split())}"
        for file in source.python_files(root, source.PACKAGES)
        for prose in source.messages(file)
    ]
    return random.Random(seed).sample(found, number)
