"""Run the ranks of a server as tasks of a step, in a script that ends with the server. Pure.

TensorRT-LLM's wrapper connects the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

WRAPPER = "trtllm-llmapi-launch"
"""Command that starts the ranks of a server on several nodes, unless a plan names another."""
SCRIPT = "ranks.sh"
HOLDER = "held_ports.py"
PORTS_EACH = 16
"""Number of ports between those from which two servers of one node search a free one."""
TEXT = """\
#!/bin/bash
# ranks.sh WRAPPER SERVER...: run one task of a step. srun ends with the server and its exit code.
wrapper=$1
shift
set -m # The wrapper gets a process group.
ended() {
  disown -a
  kill -KILL -- "-$1" 2> /dev/null
  # This task may be asked to end later than others.
  [ "$asked" ] || [ "$2" != 143 ] || { sleep 3 & wait $!; kill $!; } 2> /dev/null
  exit $((asked ? 0 : $2)) # If all are asked to end, this task has not failed.
}
if [ "$SLURM_PROCID" != 0 ]; then
  trap asked=1 TERM
  "$wrapper" "$@" &
  set +m
  wait $! 2> /dev/null
  ended $! $?
fi
at=$(mktemp -d /tmp/serve-eval-ranks-XXXXXX) || exit
trap 'rm -rf "$at"' EXIT
export TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR=ipc://$at/leader # Older wrappers overwrite it.
# Wrappers split their command at blanks. Older ones do not pass its exit code on, and do not end.
{
  printf '%q ' "$@"
  printf '\\ncode=$?\\necho $code > %s\\nexit $code\\n' "$at/code"
} > "$at/server"
"$wrapper" bash "$at/server" &
set +m
lives=$!
trap 'asked=1 lives=-$!' TERM # A server may take longer to end than its wrapper.
{
  while [ ! -s "$at/code" ] && kill -0 -- "$lives"; do sleep 0.5; done
  if [ -s "$at/code" ]; then code=$(< "$at/code"); else wait $!; code=$?; fi
} 2> /dev/null
ended $! "$code"
"""


HELD = """\
# held_ports.py COUNT COMMAND...: run the command with ports held that its wrapper must not find.
import os, socket, sys

# Older wrappers search a free port from 10012 on, and bind it on 127.0.0.1 much later. A port that
# is held on another address is no longer found, but the wrapper that found it before can bind it.
for port in range(10012, 10012 + int(sys.argv[1])):
    try:
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Others may hold it as well.
        one.bind(("127.100.12.1", port))
        os.set_inheritable(one.detach(), True)
    except OSError:
        pass
os.execvp(sys.argv[2], sys.argv[2:])
"""


def wrapper_of(given: str | None, nodes: int) -> str:
    """Return the wrapper of a server: the given one, else none for a server of one node."""
    return given if given is not None else WRAPPER if nodes > 1 else ""


def words(wrapper: str, held: int, log_dir: Path) -> tuple[str, ...]:
    """Return the words before the server's command line in each of its tasks."""
    holder = ("python3", "-I", str(log_dir / HOLDER), str(held)) if held else ()
    return (*holder, "bash", str(log_dir / SCRIPT), wrapper)


def files(held: int, log_dir: Path) -> dict[Path, str]:
    """Return the scripts that these words name."""
    return {log_dir / SCRIPT: TEXT, **({log_dir / HOLDER: HELD} if held else {})}


def count_held_ports(first_nodes: Sequence[int], wrapped: Sequence[bool]) -> Iterator[int]:
    """Yield for every server the number of ports to hold.

    They belong to the wrapped servers before it on its first node.
    """
    before: dict[int, int] = {}
    for node, one in zip(first_nodes, wrapped, strict=True):
        yield PORTS_EACH * before.get(node, 0)
        before[node] = before.get(node, 0) + one
