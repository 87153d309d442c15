"""Select the environment variables of a child process: common ones, and those named for it.

No list includes the variables of secrets, so a child process does not get the keys of endpoints,
clouds or the rest of a CI job. A process that needs a key gets it by name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

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
