"""Adapt servers to their version of trtllm-serve, by the options that its --help lists. Pure.

The newest option indicates all that came to main before it: `--report_addr` is of August 2026, two
weeks after the key between servers and three months after the limit of service discovery over HTTP.
No option came together with either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from serve_eval.launchers._trtllm import shared_key
from serve_eval.launchers._trtllm.command_line import FRONT_ENDS, Server

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
        shared_key.give_key(server, key) if server.auth_key is not False else server
        for server in found
    ]


def refusals(server: Server, flags: frozenset[str]) -> list[str]:
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
