"""A server whose ranks another process leads.

Like the real one, it waits for that process without a limit.
"""

from __future__ import annotations

import os
import socket
import time

POLL_S = 0.1


def wait_for_leader() -> int | None:
    """Return the number of ranks of the leader; None for a server that starts its own."""
    if os.environ.get("TLLM_SPAWN_PROXY_PROCESS") != "1":
        return None
    kind, _, address = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].partition("://")
    host, _, port = address.rpartition(":")
    while True:
        with socket.socket(socket.AF_UNIX if kind == "ipc" else socket.AF_INET) as leader:
            try:
                leader.connect(address if kind == "ipc" else (host, int(port)))
                leader.sendall(
                    f"join {os.environ['TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY']}\n".encode()
                )
                if answer := leader.recv(20):
                    return int(answer)
            except OSError:
                pass
        time.sleep(POLL_S)
