"""TensorRT-LLM's leader and worker nodes for the imitated wrappers.

Run `llmapi.py port|leader|worker|stop`. The ranks of a step find each other by files below SITE
instead of MPI. After its imports (STANDIN_IMPORT_S seconds) the leader binds the given address. It
answers the server that has its key once all ranks are there.
"""

import os
import socket
import sys
import time
from pathlib import Path

FIRST_PORT = 10012
POLL_S = 0.1


def main(role):
    if role == "port":
        print(free_port(os.environ["SLURMD_NODENAME"]))
        return
    if role == "stop":
        stop()
        return
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    place = f"{os.environ['SLURMD_NODENAME']}, GPUs {os.environ.get('CUDA_VISIBLE_DEVICES')}"
    print(
        f"rank {rank} of {size} on {place}, PMIx rank {os.environ.get('PMIX_RANK', 'none')}",
        flush=True,
    )
    world = Path(
        os.environ["SITE"], f"llmapi-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_STEP_ID']}"
    )
    world.mkdir(exist_ok=True)
    (world / f"rank-{rank}").write_text(str(os.getpid()))
    if rank:
        while not (world / "ended").exists():
            time.sleep(POLL_S)
    else:
        lead(world, size)


def free_port(node):
    """Return the first port that is free now.

    Every node has its own loopback; the second node of this machine reaches it by its address only.
    """
    port = FIRST_PORT
    while True:
        with socket.socket() as one:
            try:
                one.bind(("" if node == "127.0.0.1" else node, port))
                return port
            except OSError:
                port += 1


def endpoint():
    kind, _, address = os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR"].partition("://")
    if kind == "ipc":
        return socket.socket(socket.AF_UNIX), address
    host, _, port = address.rpartition(":")
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as zmq does
    return one, (host, int(port))


def lead(world, size):
    time.sleep(float(os.environ.get("STANDIN_IMPORT_S", "1")))
    listener, address = endpoint()
    try:
        listener.bind(address)
    except OSError as error:
        raise OSError(
            f"ZMQError: {error.strerror} (addr={os.environ['TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR']!r})"
        ) from error
    listener.listen()
    print(f"leader at {os.environ['TLLM_SPAWN_PROXY_PROCESS_IPC_ADDR']}", flush=True)
    while len([*world.glob("rank-*")]) < size:
        time.sleep(POLL_S)
    others = []  # clients with another key; they get no answer
    while True:
        client = listener.accept()[0]
        word, _, key = client.recv(200).decode().strip().partition(" ")
        if key != os.environ["TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY"]:
            others.append(client)
        elif word == "join":
            client.sendall(f"{size}\n".encode())
        elif word == "stop":
            (world / "ended").touch()
            return


def stop():
    """Ask the leader to end, if one appears."""
    for _ in range(50):
        client, address = endpoint()
        try:
            client.connect(address)
            client.sendall(f"stop {os.environ['TLLM_SPAWN_PROXY_PROCESS_IPC_HMAC_KEY']}\n".encode())
            return
        except OSError:
            time.sleep(POLL_S)


if __name__ == "__main__":
    main(sys.argv[1])
