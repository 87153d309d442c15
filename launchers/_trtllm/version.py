"""Find the options of the trtllm-serve in use by its --help, and fit servers to them.

The newest option indicates all that came to main before it: `--report_addr` is of August 2026, two
weeks after the key between servers and three months after the limit of service discovery over HTTP.
No option came together with either.

The user's cache folder has one JSON file per probe. A file with an error counts as missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_eval.errors import LaunchError, NoProgramError, PlanError
from serve_eval.launchers._logs.causes import TRTLLM
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.server_process import supervise
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.launchers._trtllm.command_line import FRONT_ENDS, Server
from serve_eval.plugins.registry import find_closest

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
    keys = {server.probe: cache_key(server.probe, environ, server.image) for server in servers}
    here = {server.probe for server in servers if server.here}
    known = {probe: flags for probe in here if (flags := read_remembered(keys[probe])) is not None}
    if len(known) == len(keys):
        with suppress(PlanError):
            return adapt(servers, known, key)
    for probe, flags in (await _ask(list(keys), environ)).items():
        if probe in here:
            remember(keys[probe], flags)
        known[probe] = flags
    return adapt(servers, known, key)


def forget(servers: Sequence[Server]) -> None:
    """Drop the cached options: the command may start another version by now."""
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    for server in servers:
        forget_flags(cache_key(server.probe, environ, server.image))


def adapt_shown(servers: Sequence[Server]) -> list[Server]:
    """Return the servers for a dry run, adapted with cached options only."""
    environ = environment.over(environment.inherit(os.environ, servers[0].pass_env), servers[0].env)
    keys = {one.probe: cache_key(one.probe, environ, one.image) for one in servers if one.here}
    known = {
        probe: flags for probe, key in keys.items() if (flags := read_remembered(key)) is not None
    }
    return fit_servers(servers, known, kv_transfer.SHOWN)


def adapt(
    servers: Sequence[Server], known: Mapping[Probe, frozenset[str]], key: str | None = None
) -> list[Server]:
    """Return the servers adapted to known options, by the probe of a server. Pure.

    Raises PlanError.
    """
    found = fit_servers(servers, known, key)
    problems: dict[str, None] = {}
    for server in found:
        flags = known[server.probe]
        for flag in (word.partition("=")[0] for word in server.options):
            if FLAG.fullmatch(flag) and flag not in flags:
                problems[
                    f"launcher: {' '.join(server.probe)} of this version has no option {flag}"
                ] = None
        problems |= dict.fromkeys(find_problems(server, flags))
    if refusals := [
        reason for server in found for reason in find_refusals(server, known[server.probe])
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


CONFIG, OLD_CONFIG = "--config", "--extra_llm_api_options"
"""Options that name the config file: all versions know the second, those from November 2025 on
both."""
REPORT = "--report_addr"
"""Option of a server that finds a port itself and reports it in a file."""
NEWEST = REPORT
ONE_FRONT_END = f"--{FRONT_ENDS}"
NO_REPORT = ("--grpc", "--enable_visual_gen")
"""With one of these options, or several front ends, a server cannot report its port."""

Known = Mapping[tuple[str, ...], frozenset[str]]
"""The options of a version, by probe."""


def fit_servers(servers: Sequence[Server], known: Known, key: str | None = None) -> list[Server]:
    """Return the servers as their version needs them; unchanged if nothing is known of it.

    `key` is given to the servers if all of their versions know such a key.
    """
    found = [
        _fit(server, known[server.probe]) if server.probe in known else server for server in servers
    ]
    sharing = [server for server in servers if server.auth_key is not False]
    if key is None or not sharing or not all(_takes_key(server, known) for server in sharing):
        return found
    return [
        kv_transfer.give_key(server, key) if server.auth_key is not False else server
        for server in found
    ]


def find_refusals(server: Server, flags: frozenset[str]) -> list[str]:
    """Return why a version with these options would not do what this server is for."""
    return [reason for flag, reason in server.refused.items() if flag in flags]


def _takes_key(server: Server, known: Known) -> bool:
    return bool(server.auth_key) or NEWEST in known.get(server.probe, ())


def _fit(server: Server, flags: frozenset[str]) -> Server:
    own, options = server.argv[: len(server.argv) - len(server.options)], list(server.options)
    if CONFIG in options and CONFIG not in flags and OLD_CONFIG in flags:
        options[options.index(CONFIG)] = OLD_CONFIG
    if server.report is not None and (REPORT not in flags or not _may_report(server, options)):
        server = replace(server, report=None)
    if server.report is not None:
        options[options.index("--port") + 1] = "0"
        options += [REPORT, str(server.report)]
        if ONE_FRONT_END in flags and server.front_ends is None:
            # A version whose default is another number could not report its port.
            options += [ONE_FRONT_END, "1"]
        server = replace(server, place=replace(server.place, port=0))
    if "--no-telemetry" in flags and not {"--telemetry", "--no-telemetry"} & set(options):
        options.append("--no-telemetry")
    return replace(server, argv=(*own, *options))


def _may_report(server: Server, options: Sequence[str]) -> bool:
    return (server.front_ends or 1) == 1 and not {word.partition("=")[0] for word in options} & {
        *NO_REPORT
    }


TYPES = (
    "round_robin",
    "load_balancing",
    "kv_cache_aware",
    "conversation",
    "centralized_kv_cache_aware",
    "remote_http",
)
"""Types of all versions together: all versions that were read have the first three, those of 2026
also `conversation`, and one of main all. An orchestrator that does not know a type ends immediately
and names those that it has."""
SINCE_MAIN = frozenset({"--schedule_style", "--telemetry", "--no-telemetry"})
"""Options of `trtllm-serve disaggregated` that the 1.2 line does not have."""


def section(side: str, router: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return `router` for the orchestrator's file. Raise PlanError without a known type."""
    found = dict(router) if isinstance(router, Mapping) else {"type": router}
    if "type" not in found:
        raise PlanError(
            f"launcher.{side}.router: a type is required, such as round_robin or load_balancing"
        )
    if str(found["type"]).lower() not in TYPES:
        raise PlanError(
            f"launcher.{side}.router: unknown type {found['type']!r}.{_nearest(str(found['type']))}"
        )
    return found


def _nearest(name: str) -> str:
    close = find_closest(name.lower(), TYPES)
    return f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(TYPES)}."


def find_problems(server: Server, flags: Collection[str]) -> list[str]:
    """Return problems with the routers of an orchestrator whose version has these options."""
    import yaml

    if server.probe[-1] != "disaggregated" or SINCE_MAIN & set(flags):
        return []
    found = []
    for text in server.files.values():
        content = yaml.safe_load(text)
        for side in ("context_servers", "generation_servers"):
            router = (content.get(side) or {}).get("router") or {}
            if str(router.get("type", "")).lower() == "load_balancing" and router.get("use_tokens"):
                found.append(
                    f"launcher.{side}.router: with use_tokens: true this version answers 500 to"
                    " every request: leave use_tokens out"
                )
    return found


KEPT_S = 24 * 3600.0
"""Seconds for which an entry is valid. The package behind an executable may change, and a tag of an
image may move; only an image named by its digest never changes."""


def cache_key(
    probe: Sequence[str], environ: Mapping[str, str], image: str | None
) -> list[str | int]:
    """Return the cache key of `probe --help`.

    It is the words, with the executable's file, time and size, or with the container image, which
    is among the words.
    """
    if image is not None:
        return ["image", image, *probe]
    executable = shutil.which(probe[0], path=environ.get("PATH", os.defpath))
    if executable is None:
        return ["none", *probe]
    state = Path(executable).stat()
    place = os.path.realpath(executable)
    return ["file", place, state.st_mtime_ns, state.st_size, environ.get("PYTHONPATH", ""), *probe]


def read_remembered(key: Sequence[str | int]) -> frozenset[str] | None:
    """Return the cached options for the key; None if there are none or they are too old."""
    try:
        content = json.loads(_file(key).read_bytes())
        age_s = time.time() - content["asked"]
        fresh = 0 <= age_s < KEPT_S or (key[0] == "image" and "@sha256:" in str(key[1]))
        flags = content["flags"]
        if (
            content["key"] == list(key)
            and fresh
            and flags
            and all(isinstance(flag, str) for flag in flags)
        ):
            return frozenset(flags)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, RecursionError):
        pass
    return None


def remember(key: Sequence[str | int], flags: frozenset[str]) -> None:
    """Cache the options, if the folder can be written."""
    with suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"key": list(key), "asked": time.time(), "flags": sorted(flags)}
        with tempfile.NamedTemporaryFile(dir=file.parent, suffix=".tmp", delete=False) as new:
            new.write(json.dumps(content).encode())
        Path(new.name).replace(file)


def forget_flags(key: Sequence[str | int]) -> None:
    """Remove the options from the cache."""
    with suppress(OSError, RuntimeError):
        _file(key).unlink(missing_ok=True)


def _file(key: Sequence[str | int]) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    folder = base if base.is_absolute() else Path.home() / ".cache"
    return (
        folder
        / "serve-eval"
        / "flags"
        / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()}.json"
    )
