"""Which options the trtllm-serve of this machine knows: versions differ, and only its own --help tells."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from launchers import _environment
from launchers._trtllm_command import Server
from serve_eval.errors import LaunchError, PlanError

HELP_S = 300.0
"""How long --help may take: it imports the whole of TensorRT-LLM, from a cold disk or in a container."""
FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")

_known: dict[tuple[object, ...], frozenset[str]] = {}


async def adapted_to_machine(servers: Sequence[Server]) -> list[Server]:
    """The servers with --no-telemetry where it is known. Raises PlanError when one is given an option that its version
    does not know, and LaunchError when --help does not work."""
    environ = _environment.over(_environment.scrubbed(os.environ), servers[0].env)
    found: list[Server] = []
    problems: dict[str, None] = {}
    for server in servers:
        known = await flags(server.probe, environ)
        for flag in (word.partition("=")[0] for word in server.argv[len(server.probe) :]):
            if FLAG.fullmatch(flag) and flag not in known:
                problems[f"launcher: {' '.join(server.probe)} of this version has no option {flag}"] = None
        extra = ("--no-telemetry",) if "--no-telemetry" in known and "--telemetry" not in server.argv else ()
        found.append(replace(server, argv=(*server.argv, *(e for e in extra if e not in server.argv))))
    if problems:
        raise PlanError(list(problems), hint=f"{' '.join(servers[0].probe)} --help lists what it knows.")
    return found


async def flags(probe: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """The options that `probe --help` names; asked once per executable and state of its file."""
    executable = shutil.which(probe[0], path=environ.get("PATH", os.defpath))
    if executable is None:
        raise LaunchError(f"{probe[0]} is not there", hint="Set launcher.command to the executable or its full path.")
    key = (*probe, executable, Path(executable).stat().st_mtime_ns)
    if key not in _known:
        code, out, error = await _help(probe, environ)
        if code:
            last = "\n  ".join((out + error).splitlines()[-5:])
            raise LaunchError(
                f"{' '.join(probe)} --help ended with exit code {code}:\n  {last}",
                hint="launcher.command is the executable, or all that stands before `serve`.",
            )
        _known[key] = frozenset(FLAG.findall(out))
    return _known[key]


async def _help(probe: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Exit code, output and errors of --help, which is killed when we are cancelled meanwhile."""
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *probe,
            "--help",
            env={**environ, "COLUMNS": "200"},
            stdin=none,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(HELP_S):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    except TimeoutError as error:
        raise LaunchError(f"{' '.join(probe)} --help did not end within {HELP_S:g} s") from error
    except OSError as error:
        raise LaunchError(f"{' '.join(probe)} --help does not work: {error}") from error
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
