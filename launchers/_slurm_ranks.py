"""The ranks of a server as tasks of a step: by TensorRT-LLM's wrapper, in a script that ends with the server. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

WRAPPER = "trtllm-llmapi-launch"
"""What starts the ranks of a server on several nodes, where a plan does not say."""
SCRIPT = "ranks.sh"
PORTS_EACH = 16
"""How many ports lie between those from which two servers of one node search a free one."""
TEXT = """\
#!/bin/bash
# ranks.sh HELD WRAPPER SERVER...: one task of a step. Its first rank ends with the exit code of the server.
held=$1 wrapper=$2
shift 2
[ "$SLURM_PROCID" = 0 ] || exec "$wrapper" "$@"
at=$(mktemp -d /tmp/serve-eval-ranks-XXXXXX) || exit
trap 'rm -rf "$at"' EXIT
# Newer wrappers take this address. Older ones search a free port from 10012 on and bind it much later, on 127.0.0.1:
# ports that are held on another address are free for others to bind, and not found.
export TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=ipc://$at/leader
if [ "$held" -gt 0 ]; then
  coproc python3 -c '
import socket, sys
held = [socket.socket() for port in range(int(sys.argv[1]))]
for port, one in enumerate(held, 10012):
    try:
        one.bind(("127.100.12.1", port))
    except OSError:
        pass
print(flush=True)
sys.stdin.read()' "$held"
  read -r <&"${COPROC[0]}"
fi
# The wrapper splits its command line at blanks, and older ones keep the exit code: neither matters so.
{ printf '%q ' "$@"; printf '\\ncode=$?\\necho $code > %s\\nexit $code\\n' "$at/code"; } > "$at/server"
"$wrapper" bash "$at/server" &
while [ ! -s "$at/code" ] && kill -0 $! 2> /dev/null; do sleep 0.5; done
[ ! -s "$at/code" ] || exit "$(< "$at/code")"
wait $!
"""


def wrapper_of(given: str | None, nodes: int) -> str:
    """Return the wrapper of a server: the given one, else none for a server of one node."""
    return given if given is not None else WRAPPER if nodes > 1 else ""


def words(wrapper: str, held: int, log_dir: Path) -> tuple[str, ...]:
    """Return what stands before the server's command line in each of its tasks."""
    return ("bash", str(log_dir / SCRIPT), str(held), wrapper)


def files(log_dir: Path) -> dict[Path, str]:
    return {log_dir / SCRIPT: TEXT}


def held(first_nodes: Sequence[int], wrapped: Sequence[bool]) -> Iterator[int]:
    """Yield for every server how many ports are held for the wrapped ones before it on its first node."""
    before: dict[int, int] = {}
    for node, one in zip(first_nodes, wrapped, strict=True):
        yield PORTS_EACH * before.get(node, 0)
        before[node] = before.get(node, 0) + one
