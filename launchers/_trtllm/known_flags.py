"""Cache the options of trtllm-serve, as --help takes as long as importing TensorRT-LLM.

The user's cache folder has one JSON file per probe. A file with an error counts as missing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

KEPT_S = 24 * 3600.0
"""Seconds for which an entry is valid. The package behind an executable may change, and a tag of an
image may move; only an image named by its digest never changes."""


def key(probe: Sequence[str], environ: Mapping[str, str], image: str | None) -> list[str | int]:
    """Return the cache key of `probe --help`.

    It is the words, with the executable's file, time and size, or with the container image, which
    is among the words.
    """
    if image is not None:
        return ["image", image, *probe]
    executable = shutil.which(probe[0], path=environ.get("PATH", os.defpath))
    if executable is None:
        return ["none", *probe]
    state = Path(executable).stat()
    place = os.path.realpath(executable)
    return ["file", place, state.st_mtime_ns, state.st_size, environ.get("PYTHONPATH", ""), *probe]


def read_remembered(key: Sequence[str | int]) -> frozenset[str] | None:
    """Return the cached options for the key; None if there are none or they are too old."""
    try:
        content = json.loads(_file(key).read_bytes())
        age_s = time.time() - content["asked"]
        fresh = 0 <= age_s < KEPT_S or (key[0] == "image" and "@sha256:" in str(key[1]))
        flags = content["flags"]
        if (
            content["key"] == list(key)
            and fresh
            and flags
            and all(isinstance(flag, str) for flag in flags)
        ):
            return frozenset(flags)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        pass
    return None


def remember(key: Sequence[str | int], flags: frozenset[str]) -> None:
    """Cache the options, if the folder can be written."""
    with suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"key": list(key), "asked": time.time(), "flags": sorted(flags)}
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".tmp", delete=False) as new:
            new.write(json.dumps(content).encode())
        Path(new.name).replace(file)


def forget(key: Sequence[str | int]) -> None:
    """Remove the options from the cache."""
    with suppress(OSError, RuntimeError):
        _file(key).unlink(missing_ok=True)


def _file(key: Sequence[str | int]) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = base if base.is_absolute() else Path.home() / ".cache"
    return (
        folder
        / "serve-eval"
        / "flags"
        / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    )
