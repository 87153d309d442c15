"""Make calls fail below a folder, as some file systems do; Python imports this at its start.

FAILING holds words such as "rename:EPERM" and BELOW the folder. A write fails after the bytes that
AFTER allows.
"""

import errno
import fcntl
import os
from pathlib import Path

_failing = dict(word.split(":") for word in os.environ.get("FAILING", "").split())
_below = os.environ.get("BELOW", "/nowhere")


def _is_below(path):
    if isinstance(path, int):
        path = Path(f"/proc/self/fd/{path}").readlink()
    return str(Path(os.fsdecode(path)).absolute()).startswith(_below)


def _refuse(name, module, function):
    real = getattr(module, function)

    def call(*arguments, **options):
        if any(_is_below(one) for one in arguments[:2] if isinstance(one, (int, str, os.PathLike))):
            code = getattr(errno, _failing[name])
            raise OSError(code, os.strerror(code), None)
        return real(*arguments, **options)

    setattr(module, function, call)


for _name, _module, _functions in (
    ("rename", os, ("rename", "replace")),
    ("flock", fcntl, ("flock", "lockf")),
    ("fsync", os, ("fsync", "fdatasync")),
    ("link", os, ("link",)),
    ("symlink", os, ("symlink",)),
    ("mkdir", os, ("mkdir",)),
    ("chmod", os, ("chmod", "fchmod")),
):
    if _name in _failing:
        for _function in _functions:
            _refuse(_name, _module, _function)
