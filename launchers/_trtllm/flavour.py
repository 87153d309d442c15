"""Which options the trtllm-serve of a launch knows: versions differ, and only its own --help
tells.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from launchers._logs.causes import cause
from launchers._process import environment
from launchers._process.server_process import supervise
from launchers._trtllm import known_flags, router_types, shared_key, version
from launchers._trtllm.command_line import Server
from serve_eval.errors import LaunchError, PlanError

HELP_S = 300.0
"""How long --help may take: it imports the whole of TensorRT-LLM, from a cold disk or in a
container."""
HELP_GRACE_S = 2.0
"""How long what stands before it may take after SIGTERM: srun ends its step then, and not when it
is killed."""
FLAG = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")

Probe = tuple[str, ...]


async def adapt_to_machine(servers: Sequence[Server], key: str | None = None) -> list[Server]:
    """The servers as their version needs them, with the `key` that they share where it has one.
    Raises PlanError when one is given what its version does not know or do, and LaunchError when
    --help does not work.

    What --help told is remembered on disk, but for servers that run elsewhere, of whose files
    nothing is known here; a refusal rests on what it tells now.
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
    """Takes off the record what --help told: the version behind the same command may be another one
    by now.
    """
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    for server in servers:
        known_flags.forget(known_flags.key(server.probe, environ, server.image))


def adapt_shown(servers: Sequence[Server]) -> list[Server]:
    """The servers for a dry run, which asks nobody: adapted as far as what was told before is
    remembered.
    """
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
    """The same for versions whose options are known, by the probe of a server. Pure. Raises
    PlanError.
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
    """What each of them tells, all asked at the same time."""
    tasks = [asyncio.create_task(_flags(probe, environ)) for probe in probes]
    try:
        return dict(zip(probes, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _flags(probe: Probe, environ: Mapping[str, str]) -> frozenset[str]:
    if shutil.which(probe[0], path=environ.get("PATH", os.defpath)) is None:
        raise LaunchError(
            f"{probe[0]} is not there",
            hint="Put it on PATH, or set launcher.command to its full path.",
        )
    code, out, error = await _help(probe, environ)
    if code:
        said = out + error
        last = "\n  ".join(said.splitlines()[-5:])
        told, hint = cause(said) or (
            "",
            "launcher.command is the executable, or all that stands before `serve`.",
        )
        message = (
            f"{' '.join(probe)} --help ended with exit code {code}{told and ': '}{told}:\n  {last}"
        )
        raise LaunchError(message, hint=hint)
    return frozenset(FLAG.findall(out))


async def _help(probe: Sequence[str], environ: Mapping[str, str]) -> tuple[int | None, str, str]:
    """Exit code, output and errors of --help, which ends with us as a server does: it may hang as
    well.
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
            async with asyncio.timeout(HELP_S):  # communicate() would close stdin, and so end it
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
            hint="A container image that is not here yet is best pulled before.",
        ) from error
    except OSError as error:
        raise LaunchError(f"{' '.join(probe)} --help does not work: {error}") from error
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
