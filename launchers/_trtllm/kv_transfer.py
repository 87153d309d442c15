"""Prepare servers for the transfer of the KV cache: their environment and their shared key.

It has a library and, for UCX, transports. Every version takes the name of the library from the
config. Versions decide what DEFAULT means (NIXL on main, UCX before), and a variable that names a
library counts only for DEFAULT.

Every launch draws a new one. Only files that this user alone can read contain it: the config files
until the servers have read them, then a file of its own until the servers end. `serve-eval
attribute`, which asks a pair of servers past their orchestrator, signs with it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.launchers._machine import local_gpus
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.masking import Masking
from serve_eval.schema import KvTransfer, LaunchContext
from serve_eval.whole_file import write_whole

BACKEND = "UCX"
"""The default of a plan: NVIDIA's own accuracy test of disaggregated serving uses it."""
BY_NIXL = ("DEFAULT", "NIXL")
LINK = re.compile(r"Link \d+:\s+[\d.]+\s+GB/s")
TLS = "UCX_TLS"
OWN = "as it was inherited"


@freeze
class Ways:
    """Facts about a machine.

    `nvlink`: True if its GPUs have links (None: not known). `own`: variables that the servers get
    from the user, which the launcher does not change.
    """

    nvlink: bool | None = None
    own: frozenset[str] = frozenset()


def nvlink() -> bool | None:
    """Return True if nvidia-smi shows a link between GPUs; None if it does not work."""
    if (answer := local_gpus.answer("nvlink", "-s")) is None:
        return None
    code, lines = answer
    return code == 0 and any(map(LINK.search, lines))


def list_inherited(
    names: Collection[str], environ: Mapping[str, str] = os.environ
) -> frozenset[str]:
    """Return the variables of UCX that a server inherits and that the launcher does not change.

    UCX_TLS is among them only if it is named: many clusters export one, such as tcp, that cannot
    move a KV cache.
    """
    found = {name for name in environment.inherit(environ, names) if name.startswith("UCX_")}
    if not any(fnmatchcase(TLS, name) for name in (*names, *environment.list_named(environ))):
        found.discard(TLS)
    return frozenset(found)


def variables(backend: str, ways: Ways | None) -> dict[str, str]:
    """Return variables for the transfer on one machine, without those of the user.

    They follow NVIDIA's own tests.
    """
    if ways is None:
        return {}
    found = {TLS: "^cuda_ipc" if ways.nvlink is False else "^ib"}
    if backend.upper() in BY_NIXL:
        found["UCX_MM_ERROR_HANDLING"] = "y"
    return {name: value for name, value in found.items() if name not in ways.own}


def summary(backend: str, ways: Ways | None, env: Mapping[str, str | None]) -> KvTransfer:
    """Return the facts for the report: the library, links between the GPUs, and UCX_TLS.

    `env` are the variables of the plan.
    """
    inherited = OWN if ways is not None and TLS in ways.own else None
    ours = {TLS: inherited, **variables(backend, ways)}
    return KvTransfer(
        backend=backend,
        nvlink=ways.nvlink if ways is not None else None,
        ucx_tls={**ours, **env}[TLS],
    )


def describe_transfer(summary: KvTransfer) -> str:
    """Return this summary as one line."""
    backend = summary.backend
    library = "DEFAULT, as this version reads it" if backend.upper() == "DEFAULT" else backend
    links = {True: "NVLink found", False: "no NVLink", None: "NVLink not known"}[summary.nvlink]
    tls = summary.ucx_tls
    set_to = f"{TLS} not set" if tls is None else f"{TLS} {tls}" if tls == OWN else f"{TLS}={tls}"
    return f"transfer of the KV cache: {library}; {links}; {set_to}"


AS_ROOT = {"PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
"""Without both, Open MPI 5 starts no rank for root, and the server never stops waiting."""
ROOT = ("", "root", "0")
SETTINGS = ("OMPI_MCA_", "PMIX_MCA_", "UCX_")


def for_ranks() -> dict[str, str]:
    """Return the variables for a server on this machine or in a step, which runs as our user."""
    return AS_ROOT if we_are_root() else {}


def we_are_root() -> bool:
    return os.geteuid() == 0


def for_container(user: str | None) -> dict[str, str]:
    """Return the variables for a server in a container, which runs as root by default."""
    return AS_ROOT if (user or "").partition(":")[0] in ROOT else {}


def describe_ranks(servers: Sequence[Server], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return messages about ranks that run as root and settings that servers do not get."""
    name = next(iter(AS_ROOT))
    lines = []
    if any(f"{name}=1" in server.line() for server in servers):
        lines.append(
            f"{name}=1 and {name}_CONFIRM=1 are set: without them Open MPI 5 starts no"
            " ranks for root"
        )
    for setting, value in sorted(environment.inherit(environ).items()):
        if setting.startswith(SETTINGS):
            lines += _not_passed_on(servers, setting, value)
    return lines


def _not_passed_on(servers: Sequence[Server], setting: str, value: str) -> list[str]:
    begin, replaced, outside = f"{setting}=", [], []
    for server in servers:
        if set_anew := [word for word in server.line() if word.startswith(begin)]:
            replaced += [] if set_anew[-1] == begin + value else [server.name]
        elif server.image is not None and setting not in server.pass_env:
            outside.append(server.name)
    why = {
        "the launcher or the plan sets it there": replaced,
        "to pass it into a container, name it in its pass_env": outside,
    }
    return [
        f"not passed on to {_few(names)}: your {setting}; {reason}"
        for reason, names in why.items()
        if names
    ]


def _few(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


NAME = "internal_request_auth_key"
SHOWN = "drawn for each launch"
"""Placeholder for the key in a dry run."""
GONE = f"# {NAME} was here while the servers started.\n"
KEPT = "pair.key"
"""Name of the file with the key, in the folder of the logs, while the servers run."""


def draw_key() -> str:
    """Return a new key."""
    return secrets.token_hex(32)


def give_key(server: Server, key: str) -> Server:
    """Return the server with the key in its config files."""
    return replace(
        server, files={path: f"{text}{NAME}: {key}\n" for path, text in server.files.items()}
    )


def is_given(servers: Iterable[Server]) -> bool:
    """Return True if servers have a key in their files."""
    return any(_line(text) for server in servers for text in server.files.values())


@contextmanager
def secret(
    servers: Sequence[Server], context: LaunchContext, key: str
) -> Iterator[tuple[LaunchContext, Callable[[], None]]]:
    """Keep the key out of messages and files for the block.

    Yields a context that masks it, and a function to call once the servers have read their files.
    From then on the file KEPT has it, until the block ends.
    """
    if not is_given(servers):
        yield context, lambda: None
        return
    masking = Masking([key])
    logs = [context.log_dir / f"{server.name}.log" for server in servers]
    kept = context.log_dir / KEPT
    kept.unlink(missing_ok=True)  # from an earlier launch whose end was not orderly

    def keep_apart() -> None:
        forget(servers, logs, key)
        write_whole(kept, f"{key}\n".encode())

    context.notify(f"{NAME}: drawn for this launch")
    try:
        yield (
            replace(context, notify=lambda line: context.notify(masking.text(line))),
            keep_apart,
        )
    except ServeEvalError as error:
        error.args = tuple(
            masking.text(part) if isinstance(part, str) else part for part in error.args
        )
        error.hint = error.hint and masking.text(error.hint)
        raise
    finally:
        kept.unlink(missing_ok=True)
        forget(servers, logs, key)


def read_kept(log_dir: Path) -> str | None:
    """Return the key of the launch with these logs, while it runs.

    A file of another user, or one that others can read, is not read.
    """
    with (
        suppress(OSError, UnicodeDecodeError),
        os.fdopen(os.open(log_dir / KEPT, os.O_RDONLY | os.O_NOFOLLOW)) as file,
    ):
        there = os.fstat(file.fileno())
        if there.st_uid == os.getuid() and not there.st_mode & 0o077:
            return file.read().strip() or None
    return None


def forget(servers: Iterable[Server], logs: Iterable[Path], key: str) -> None:
    """Remove the key from written files: its line from configs, and each piece of it from logs.

    In logs, stars of the same length replace it, since a server may still be writing.
    """
    for path, text in {
        path: text for server in servers for path, text in server.files.items()
    }.items():
        if line := _line(text):
            with suppress(OSError):
                write_whole(path, text.replace(line, GONE).encode())
    masking = Masking([key])
    for log in logs:
        with suppress(OSError):
            _star_out(log, masking)


def _line(text: str) -> str:
    return next(
        (line for line in text.splitlines(keepends=True) if line.startswith(f"{NAME}: ")), ""
    )


def _star_out(log: Path, masking: Masking) -> None:
    with log.open("rb") as file, log.open("r+b") as over:
        for line in iter(file.readline, b""):
            told = line.decode("latin-1")
            if (blanked := masking.blank(told)) != told:
                over.seek(file.tell() - len(line), os.SEEK_SET)
                over.write(blanked.encode("latin-1"))
