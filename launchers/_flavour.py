"""Which options the trtllm-serve of this machine knows: versions differ, and only its own --help tells."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
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
    """What `adapted` says, in the environment that the servers will have."""
    environ = _environment.over(_environment.scrubbed(os.environ), servers[0].env)
    return await asyncio.to_thread(adapted, servers, environ)


def adapted(servers: Sequence[Server], environ: Mapping[str, str]) -> list[Server]:
    """The servers with --no-telemetry where it is known. Raises PlanError when one is given an option that its version
    does not know, and LaunchError when --help does not work."""
    found: list[Server] = []
    problems: dict[str, None] = {}
    for server in servers:
        known = flags(server.probe, environ)
        for flag in (word.partition("=")[0] for word in server.argv[len(server.probe) :]):
            if FLAG.fullmatch(flag) and flag not in known:
                problems[f"launcher: {' '.join(server.probe)} of this version has no option {flag}"] = None
        extra = ("--no-telemetry",) if "--no-telemetry" in known and "--telemetry" not in server.argv else ()
        found.append(replace(server, argv=(*server.argv, *(e for e in extra if e not in server.argv))))
    if problems:
        raise PlanError(list(problems), hint=f"{' '.join(servers[0].probe)} --help lists what it knows.")
    return found


def flags(probe: Sequence[str], environ: Mapping[str, str]) -> frozenset[str]:
    """The options that `probe --help` names; asked once per executable and state of its file."""
    executable = shutil.which(probe[0], path=environ.get("PATH", os.defpath))
    if executable is None:
        raise LaunchError(f"{probe[0]} is not there", hint="Set launcher.command to the executable or its full path.")
    key = (*probe, executable, Path(executable).stat().st_mtime_ns)
    if key not in _known:
        try:
            done = subprocess.run(  # noqa: S603 - the plan's own command, and no shell
                [*probe, "--help"],
                env={**environ, "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=HELP_S,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise LaunchError(f"{' '.join(probe)} --help does not work: {error}") from error
        if done.returncode:
            last = "\n  ".join((done.stdout + done.stderr).splitlines()[-5:])
            raise LaunchError(
                f"{' '.join(probe)} --help ended with exit code {done.returncode}:\n  {last}",
                hint="launcher.command is the executable, or all that stands before `serve`.",
            )
        _known[key] = frozenset(FLAG.findall(done.stdout))
    return _known[key]
