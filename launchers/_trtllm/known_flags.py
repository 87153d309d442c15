"""What --help told of a trtllm-serve, kept in the user's cache folder: asking takes as long as
TensorRT-LLM to import.

One JSON file per thing that was asked. Whatever is wrong with one, it is as if it were not there.
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
"""How long it holds. An executable may stay as it is while the package behind it changes, and a tag
of an image may move; only an image that is named by its digest is the same for ever."""


def key(probe: Sequence[str], environ: Mapping[str, str], image: str | None) -> list[str | int]:
    """What the answer to `probe --help` depends on: the words, and the executable's file with its
    time and size, or the container image, which is among the words.
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
    """The options that are on record for the key; None when there are none, or none that hold any
    more.
    """
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
    """Puts them on record, if the folder can be written."""
    with suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".tmp", delete=False) as new:
            json.dump({"key": list(key), "asked": time.time(), "flags": sorted(flags)}, new)
        Path(new.name).replace(file)


def forget(key: Sequence[str | int]) -> None:
    """Takes them off the record."""
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
