"""Hosts that servers bind, by name or as an IPv4 or IPv6 address."""

from __future__ import annotations

import socket

from serve_eval.errors import PlanError


def authority(host: str, port: int) -> str:
    """Return a host and a port as in a URL, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check(host: str) -> str:
    """Return the host. Raise PlanError if no server can bind it as written."""
    if "[" in host or "]" in host:
        raise PlanError(
            f"launcher.host: {host}: give an IPv6 address without brackets, such as ::1"
        )
    if "://" in host or "/" in host:
        raise PlanError(f"launcher.host: {host} is a URL: give the host alone")
    return host


def check_ipv4(host: str) -> str:
    """Return the host of an orchestrator. Raise PlanError if it is an IPv6 address.

    The orchestrator's socket is IPv4, and its file accepts no other address.
    """
    if ":" in host:
        raise PlanError(
            f"launcher.host: {host}: the orchestrator of trtllm-serve binds IPv4 addresses only",
            hint="Give 127.0.0.1, 0.0.0.0, or a name that has an IPv4 address.",
        )
    return host


def family(host: str) -> socket.AddressFamily:
    """Return the socket family for a host: IPv6 only if it has no other address."""
    if ":" in host:
        return socket.AF_INET6
    try:
        found = {one[0] for one in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return socket.AF_INET  # binding it shows what is wrong
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound as servers of the 1.2 line bind theirs, without SO_REUSEADDR.

    Raises OSError.
    """
    one = socket.socket(family(host))
    try:
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one
