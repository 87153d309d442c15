"""Which variables of ours a process gets that we start: what any program needs, and what is named.
Never all of them.

What a secret is stored under is in no list, so that the keys of endpoints, of clouds and of the
rest of a CI job stay with us. A process that needs one gets it by name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

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
"""What every program may need. The address of a proxy may hold a password, without which nothing is
reached."""
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


def secret(name: str) -> bool:
    """Tell whether what goes by this name is a secret."""
    return bool(SECRET & set(re.split("[_-]", name.upper())))


def inherit(
    environ: Mapping[str, str],
    named: Iterable[str] = (),
    *,
    names: Collection[str] = (),
    prefixes: tuple[str, ...] = (),
) -> dict[str, str]:
    """The variables for a process: those for any program, those of these further `names` and
    `prefixes`, and whatever is `named` for it, where a * at the end stands for the rest of a name.
    A prefix never brings a secret with it.
    """
    wanted = tuple(named)
    whole = {*NAMES, *names, *wanted}
    begins = tuple(name[:-1] for name in wanted if name.endswith("*"))
    usual = PREFIXES + prefixes
    return {
        name: value
        for name, value in environ.items()
        if name in whole or name.startswith(begins) or (name.startswith(usual) and not secret(name))
    }
