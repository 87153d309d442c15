"""Find the options of the trtllm-serve in use: versions differ, and only --help lists them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from serve_eval.errors import LaunchError, NoProgramError, PlanError
from serve_eval.launchers._logs.causes import TRTLLM
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.server_process import supervise
from serve_eval.launchers._trtllm import (
    shared_key,
    version,
)
from serve_eval.launchers._trtllm import (
    version as known_flags,
)
from serve_eval.launchers._trtllm import (
    version as router_types,
)
from serve_eval.launchers._trtllm.command_line import Server

HELP_S = 300.0
"""Seconds that --help may take: it imports all of TensorRT-LLM, from a cold disk or in a
container."""
HELP_GRACE_S = 2.0
"""Seconds that commands before it may take after SIGTERM: srun then ends its step, but not when it
is killed."""
FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")

Probe = tuple[str, ...]


async def adapt_to_machine(servers: Sequence[Server], key: str | None = None) -> list[Server]:
    """Return the servers adapted to their version, with the shared `key` if it has one.

    Raises PlanError if a server is given an option or task that its version does not have, and
    LaunchError if --help does not work.

    Options from --help are cached on disk, except for servers that run elsewhere, whose files are
    not known here. A refusal relies only on a fresh answer.
    """
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    keys = {
        server.probe: known_flags.key(server.probe, environ, server.image) for server in servers
    }
    here = {server.probe for server in servers if server.here}
    known = {
        probe: flags
        for probe in here
        if (flags := known_flags.read_remembered(keys[probe])) is not None
    }
    if len(known) == len(keys):
        with suppress(PlanError):
            return adapt(servers, known, key)
    for probe, flags in (await _ask(list(keys), environ)).items():
        if probe in here:
            known_flags.remember(keys[probe], flags)
        known[probe] = flags
    return adapt(servers, known, key)


def forget(servers: Sequence[Server]) -> None:
    """Drop the cached options: the command may start another version by now."""
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    for server in servers:
        known_flags.forget(known_flags.key(server.probe, environ, server.image))


def adapt_shown(servers: Sequence[Server]) -> list[Server]:
    """Return the servers for a dry run, adapted with cached options only."""
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    keys = {
        one.probe: known_flags.key(one.probe, environ, one.image) for one in servers if one.here
    }
    known = {
        probe: flags
        for probe, key in keys.items()
        if (flags := known_flags.read_remembered(key)) is not None
    }
    return version.fit_servers(servers, known, shared_key.SHOWN)


def adapt(
    servers: Sequence[Server], known: Mapping[Probe, frozenset[str]], key: str | None = None
) -> list[Server]:
    """Return the servers adapted to known options, by the probe of a server. Pure.

    Raises PlanError.
    """
    found = version.fit_servers(servers, known, key)
    problems: dict[str, None] = {}
    for server in found:
        flags = known[server.probe]
        for flag in (word.partition("=")[0] for word in server.options):
            if FLAG.fullmatch(flag) and flag not in flags:
                problems[
                    f"launcher: {' '.join(server.probe)} of this version has no option {flag}"
                ] = None
        problems |= dict.fromkeys(router_types.problems(server, flags))
    if refusals := [
        reason for server in found for reason in version.refusals(server, known[server.probe])
    ]:
        raise PlanError(refusals)
    if problems:
        raise PlanError(
            list(problems), hint=f"{' '.join(servers[0].probe)} --help lists what it knows."
        )
    return found


async def _ask(probes: Sequence[Probe], environ: Mapping[str, str]) -> dict[Probe, frozenset[str]]:
    """Return the options of each probe, all asked at the same time."""
    tasks = [asyncio.create_task(_flags(probe, environ)) for probe in probes]
    try:
        return dict(zip(probes, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _flags(probe: Probe, environ: Mapping[str, str]) -> frozenset[str]:
    if shutil.which(probe[0], path=environ.get("PATH", os.defpath)) is None:
        raise NoProgramError(probe[0])
    code, out, error = await _help(probe, environ)
    if code:
        said = out + error
        last = "\n  ".join(said.splitlines()[-5:])
        told, hint = cause(said, TRTLLM) or (
            "",
            "launcher.command is the executable, or all words before `serve`.",
        )
        message = (
            f"{' '.join(probe)} --help ended with exit code {code}{told and ': '}{told}:\n  {last}"
        )
        raise LaunchError(message, hint=hint)
    return frozenset(FLAG.findall(out))


async def _help(probe: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Return exit code, output and errors of --help.

    It may hang, so it ends with us as a server does.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *supervise([*probe, "--help"], grace_s=HELP_GRACE_S),
            env={**environ, "COLUMNS": "200"},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            # communicate() would close stdin and so end it.
            async with asyncio.timeout(HELP_S):
                out, err, _ = await asyncio.gather(
                    process.stdout.read(), process.stderr.read(), process.wait()
                )
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
            assert process.stdin is not None
            process.stdin.close()
    except TimeoutError as error:
        raise LaunchError(
            f"{' '.join(probe)} --help did not end within {HELP_S:g} s",
            hint="If it is in a container image, pull the image first.",
        ) from error
    except OSError as error:
        raise LaunchError(f"{' '.join(probe)} --help does not work: {error}") from error
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
