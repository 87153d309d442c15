"""Start modules and scripts of ours in child processes, with a chosen environment and limits.

No list includes the variables of secrets, so a child process does not get the keys of endpoints,
clouds or the rest of a CI job. A process that needs a key gets it by name.

Without -P, `python -m` imports from the current folder first: a file `random.py` there would run in
place of Python's own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_eval.processes.import_path import ROOT

NAMES = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "PWD",
        "HOSTNAME",
        "TERM",
        "COLUMNS",
        "TZ",
        "TZDIR",
        "LANG",
        "LANGUAGE",
    }
    | {"TMPDIR", "TMP", "TEMP", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "VIRTUAL_ENV"}
    | {
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "DBUS_SESSION_BUS_ADDRESS",
    }
    | {f"{kind}_proxy" for kind in ("http", "https", "all", "no", "ftp")}
    | {f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO", "FTP")}
)
"""Variables that every program may need. The address of a proxy may include a password, which is
needed to reach anything."""
PREFIXES = ("LC_", "XDG_", "PYTHON", "CONDA_", "MALLOC_")
SECRET = {
    "TOKEN",
    "KEY",
    "APIKEY",
    "SECRET",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "AUTH",
}
"""Words in the name of a variable that holds a secret."""


FOLDERS = frozenset(
    {"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"}
    | {"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH"}
)
"""Variables that list folders of code. An empty entry is the current folder."""


def keep_absolute(folders: str) -> str:
    """Return a list of folders without relative ones, which depend on the current folder."""
    return os.pathsep.join(one for one in folders.split(os.pathsep) if Path(one).is_absolute())


def secret(name: str) -> bool:
    """Return True if a variable of this name holds a secret."""
    return bool(SECRET & set(re.split("[_-]", name.upper())))


def inherit(
    environ: Mapping[str, str],
    named: Iterable[str] = (),
    *,
    names: Collection[str] = (),
    prefixes: tuple[str, ...] = (),
) -> dict[str, str]:
    """Return the variables for a process.

    These are the variables for any program, those of further `names` and `prefixes`, and those
    `named` for the process, in which a * at the end matches the rest of a name. `prefixes` never
    match a secret. Of lists of folders, only absolute entries are passed on, unless the list is
    `named`.
    """
    wanted = tuple(named)
    whole = {*NAMES, *names, *wanted}
    begins = tuple(name[:-1] for name in wanted if name.endswith("*"))
    usual = PREFIXES + prefixes
    found = {
        name: value
        for name, value in environ.items()
        if name in whole or name.startswith(begins) or (name.startswith(usual) and not secret(name))
    }
    lists = {
        name: keep_absolute(value) for name, value in found.items() if name in FOLDERS - {*wanted}
    }
    return {name: lists.get(name, value) for name, value in found.items() if lists.get(name, True)}


CLEAN_FOLDER = "/"
"""The working folder of a process that needs none: nobody else can write there."""


def build_command(module: str, *words: str) -> list[str]:
    """Return the command line that runs a module of serve-eval."""
    return [sys.executable, "-P", "-m", module, *words]


def build_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return these variables with a PYTHONPATH by which only named folders supply code.

    Relative entries are left out. The folder of serve_eval is added if the command could not find
    it: in a checkout that is not installed.
    """
    places = keep_absolute(environ.get("PYTHONPATH", "")).split(os.pathsep)
    if ROOT not in map(sysconfig.get_path, ("purelib", "platlib")):
        places.append(ROOT)
    path = os.pathsep.join(dict.fromkeys(place for place in places if place))
    rest = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    return {**rest, "PYTHONPATH": path} if path else rest


def list_places() -> list[str]:
    """Return the import path of this process for a child, with the standard library first.

    A user's scorer is found where this process found it. A file `random.py` next to it, or next to
    a test of pytest, does not replace Python's own in the child.
    """
    paths = sysconfig.get_paths()
    standard = {paths["stdlib"], paths["platstdlib"], sysconfig.get_config_var("DESTSHARED")}
    places = [place or str(Path.cwd()) for place in sys.path]
    return sorted(places, key=lambda place: place not in standard)


_START = Path(__file__).with_name("limited_start.py")


@dataclass(frozen=True, slots=True)
class LimitedEnd:
    """The standard output of a script, and the reason for an early end ("": there was none)."""

    written: bytes
    why: str = ""


class LimitedProcess:
    """A process that runs a script of ours; it may start before its standard input is known.

    It starts in the root folder with -P, so that no code comes from the current one, and without
    the variables of secrets. What it writes to standard error is dropped: V8 writes pages of it.
    `arguments` are those of the script, `cpu_s` the seconds of processor time of its whole life.
    Nothing is raised if it cannot start or ends early: `finish` returns the reason.
    """

    def __init__(self, script: Path, *arguments: str, memory_bytes: int, cpu_s: float) -> None:
        command = [sys.executable, "-P", str(_START), str(memory_bytes), str(max(1, int(cpu_s)))]
        self._process: subprocess.Popen[bytes] | None = None
        self._why = ""
        try:
            self._process = subprocess.Popen(  # noqa: S603  (our own interpreter and script)
                [*command, str(script.resolve()), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=inherit(os.environ),
                start_new_session=True,
            )
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            self._why = f"it could not be started: {type(error).__name__}: {error}"

    def finish(self, given: bytes, *, limit_s: float) -> LimitedEnd:
        """Write its standard input, wait for its end for at most `limit_s`, and end it then."""
        if self._process is None:
            return LimitedEnd(b"", self._why)
        try:
            written, _ = self._process.communicate(given, timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            return LimitedEnd(late.stdout or b"", f"it took longer than {limit_s:g} s")
        except (OSError, ValueError, MemoryError, RuntimeError) as error:
            return LimitedEnd(b"", f"it could not be used: {type(error).__name__}: {error}")
        finally:
            self.end()
        return LimitedEnd(written, _describe(self._process.returncode))

    def end(self) -> None:
        """End the process if it still runs; do nothing if it has ended."""
        if self._process is not None:
            with self._process as process:
                process.kill()


def run_limited(script: Path, given: bytes, *, limit_s: float, memory_bytes: int) -> LimitedEnd:
    """Run a script with `given` as its standard input until it ends, and never raise for its end.

    `limit_s` are seconds, and seconds of processor time.
    """
    process = LimitedProcess(script, memory_bytes=memory_bytes, cpu_s=limit_s)
    return process.finish(given, limit_s=limit_s)


def _describe(code: int) -> str:
    if code >= 0:
        return f"it ended with the status {code}" if code else ""
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by the signal {-code}"
