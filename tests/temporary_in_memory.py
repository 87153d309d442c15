"""Keep the temporary files of the tests in memory: a plugin of `make test`.

What a run saves is made durable by fsync, tens of thousands of times in all tests, of some
milliseconds each on a disk. Where no file system in memory has room, the files lie where pytest
keeps them. With `--basetemp` they are there, and are kept.
"""

import os
import shutil
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
LEAST_FREE_BYTES = 4 * 2**30
PREFIX = "serve-eval-tests-"
MADE = pytest.StashKey[Path]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    """Choose the folder, in the process that starts the workers, which have theirs in it."""
    if hasattr(config, "workerinput") or config.option.basetemp is not None:
        return
    if (folder := choose_folder(MEMORY, os.getpid(), LEAST_FREE_BYTES)) is not None:
        config.option.basetemp = config.stash[MADE] = folder


def pytest_unconfigure(config):
    if (folder := config.stash.get(MADE, None)) is not None:
        shutil.rmtree(folder, ignore_errors=True)


def choose_folder(memory, process, least_free):
    """Return the folder of a process in memory; None if there is no room.

    Removes those of processes that were killed.
    """
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        return None
    for left in memory.glob(f"{PREFIX}*"):
        if not Path("/proc", left.name.removeprefix(PREFIX)).exists():
            shutil.rmtree(left, ignore_errors=True)
    if shutil.disk_usage(memory).free < least_free:
        return None
    return memory / f"{PREFIX}{process}"
