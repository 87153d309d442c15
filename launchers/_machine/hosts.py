"""Hosts that servers bind, by name or as an IPv4 or IPv6 address."""

from __future__ import annotations

import socket

from serve_eval.errors import PlanError


def authority(host: str, port: int) -> str:
    """Return a host and a port as they stand in a URL, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check(host: str) -> str:
    """Return the host. Raises PlanError for one that no server can bind as it stands."""
    if "[" in host or "]" in host:
        raise PlanError(
            f"launcher.host: {host}: give an IPv6 address without brackets, such as ::1"
        )
    if "://" in host or "/" in host:
        raise PlanError(f"launcher.host: {host} is a URL: give the host alone")
    return host


def check_ipv4(host: str) -> str:
    """Return the host of an orchestrator, whose socket is one of IPv4 and whose file knows no other
    address. Raises PlanError.
    """
    if ":" in host:
        raise PlanError(
            f"launcher.host: {host}: the orchestrator of trtllm-serve binds IPv4 addresses only",
            hint="Give 127.0.0.1, 0.0.0.0, or a name that has an IPv4 address.",
        )
    return host


def family(host: str) -> socket.AddressFamily:
    """Return the family of the socket that a server makes for a host: IPv6 where it has no other
    address.
    """
    if ":" in host:
        return socket.AF_INET6
    try:
        found = {one[0] for one in socket.getaddrinfo(host or None, 0, type=socket.SOCK_STREAM)}
    except OSError:
        return socket.AF_INET  # binding it tells what is wrong
    return socket.AF_INET6 if found == {socket.AF_INET6} else socket.AF_INET


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound as a server of the 1.2 line binds its own, without
    SO_REUSEADDR. Raises OSError.
    """
    one = socket.socket(family(host))
    try:
        one.bind((host, port))
    except OSError:
        one.close()
        raise
    return one
