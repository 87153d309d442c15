"""Run pytest with the plug-in in a process of its own, as a user does.

Most tests run it as a fork that has its imports already, which saves two seconds of processor time.
"""

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from tests.cli.command import environment
from tests.forked import run_forked

ROOT = Path(__file__).resolve().parents[2]
MODULE = "serve_eval.pytest_plugin.plugin"
NO_OTHERS = ("-p", "no:kmock", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")


def build_command(*arguments):
    """Return a command line; the plug-in is named if no installed package declares it."""
    return [sys.executable, "-m", "pytest", *_name_plugins(), *arguments]


def _name_plugins():
    declared = any(one.value == MODULE for one in metadata.entry_points(group="pytest11"))
    return NO_OTHERS if declared else (*NO_OTHERS, "-p", MODULE)


def build_environment(**variables):
    """Return the environment of a user whose terminal has 80 columns."""
    return environment(**{"PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables})


def run_pytest(folder, *arguments, timeout_s=240, fork=True, **variables):
    """Run pytest in a folder and return what it printed.

    Without `fork`, it is a new process, and so is the server of the launcher `simulated`. The
    folder for temporary files is its own: pytest would empty those of other sessions at its end.
    """
    with tempfile.TemporaryDirectory() as temporary:
        env = build_environment(**{"PYTEST_DEBUG_TEMPROOT": temporary, **variables})
        if fork:
            words = (*_name_plugins(), *arguments)
            return run_forked("pytest", *words, folder=folder, env=env, timeout_s=timeout_s)
        return subprocess.run(
            build_command(*arguments),
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
