"""Compile the test files once, and not once in each worker: a plugin of `make test`.

In a fresh checkout, every worker would compile every test file, since all of them collect all tests
at the same time. Each worker first compiles a share of the files into pytest's cache. A file that
is not compiled when a worker comes to it is compiled by that worker, as without this plugin.
"""

import sys
from pathlib import Path

from _pytest.assertion.rewrite import (
    PYC_TAIL,
    _rewrite_test,
    _write_pyc,
    assertstate_key,
    get_cache_dir,
    try_makedirs,
)

ROOT = Path(__file__).resolve().parents[1]


def pytest_sessionstart(session):
    """Compile this worker's share; the process that starts the workers has none."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and not sys.dont_write_bytecode:
        files = sorted(ROOT.glob("tests/**/test_*.py"))
        number = int(worker["workerid"].removeprefix("gw"))
        compile_files(files[number :: worker["workercount"]], session.config)


def compile_files(files, config):
    """Write the compiled form of each file that is newer than it."""
    for file in files:
        cached = get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"
        try:
            if cached.stat().st_mtime >= file.stat().st_mtime:
                continue
        except FileNotFoundError:
            pass
        if try_makedirs(cached.parent):
            content_hash, code = _rewrite_test(file, config)
            _write_pyc(config.stash[assertstate_key], code, content_hash, cached)
