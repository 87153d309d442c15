"""A container engine without containers: `docker run` and `rm` are clients of a daemon.

`fake_docker.py daemon SOCKET` runs the commands of clients as its own children, each in its own
session, with the daemon's environment and the variables of `-e`. As with the real engine, nothing
that happens to a client ends them.

`fake_docker.py SOCKET ARGUMENTS...` is the client. It passes SIGTERM and SIGINT on and ends with
the exit code of the container. Every command line is added to SOCKET.log as a JSON line. With
--interactive, the container's stdin ends when the client's does or the client is gone; data is not
passed on. `ps` names the containers.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

FLAGS = ("--rm", "--init", "--interactive")
STDIN_ENDS = 255
"""Sent by a client instead of a signal number when its own stdin ends."""
VALUES = (
    *(
        "--name",
        "--gpus",
        "--device",
        "--mount",
        "-v",
        "-e",
        "-p",
        "--network",
        "--ipc",
        "--shm-size",
        "--ulimit",
    ),
    *("--user", "--unsetenv"),
)


class Refused(Exception):
    pass


def parsed(words):
    """Return the options of `run`, each with its values, and the image with its command."""
    options = {}
    while words and words[0].startswith("-"):
        name, words = words[0], words[1:]
        if name in VALUES:
            options.setdefault(name, []).append(words[0])
            words = words[1:]
        elif name in FLAGS:
            options[name] = []
        else:
            raise Refused(f"unknown flag: {name}")
    if not words:
        raise Refused("requires at least 1 argument")
    return options, words


class Daemon:
    def __init__(self, place):
        self.place, self.lock = place, threading.Lock()
        self.running = {}

    def serve(self):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.place)
            listener.listen(50)
            print("ready", flush=True)
            while True:
                threading.Thread(
                    target=self.client, args=(listener.accept()[0],), daemon=True
                ).start()

    def client(self, connection):
        with connection:
            message, fds, _, _ = socket.recv_fds(connection, 1 << 20, 2)
            asked = json.loads(message)
            with self.lock, Path(self.place + ".log").open("a") as log:
                log.write(json.dumps(asked["argv"]) + "\n")
            try:
                code = self.done(connection, asked, fds)
            except Refused as error:
                os.write(fds[1], f"docker: {error}\n".encode())
                code = 125
            finally:
                for fd in fds:
                    os.close(fd)
            with contextlib.suppress(OSError):
                connection.sendall(str(code).encode())

    def done(self, connection, asked, fds):
        verb, *words = asked["argv"]
        if verb == "ps":
            os.write(fds[0], "".join(f"{name}\n" for name in sorted(self.running)).encode())
            return 0
        if verb == "rm":
            container = self.running.get(words[1])
            if container is None:
                os.write(
                    fds[1], f"Error response from daemon: No such container: {words[1]}\n".encode()
                )
                return 1
            os.killpg(container.pid, signal.SIGKILL)
            container.wait()
            return 0
        return self.run(connection, words, asked["env"], fds)

    def run(self, connection, words, outside, fds):
        options, [_, *command] = parsed(words)
        for mount in options.get("--mount", ()):
            source = dict(part.partition("=")[::2] for part in mount.split(","))["source"]
            if not Path(source).exists():
                raise Refused(f"bind source path does not exist: {source}")
        env = dict(os.environ)
        for name, equals, value in (word.partition("=") for word in options.get("-e", ())):
            env.pop(name, None)
            if equals or name in outside:
                env[name] = value if equals else outside[name]
        stdin = subprocess.PIPE if "--interactive" in options else subprocess.DEVNULL
        name = options.get("--name", [f"nameless-{id(connection)}"])[0]
        with self.lock:
            if name in self.running:
                raise Refused(f"the container name {name} is already in use")
            try:
                container = subprocess.Popen(
                    command,
                    env=env,
                    stdin=stdin,
                    stdout=fds[0],
                    stderr=fds[1],
                    start_new_session=True,
                )
            except OSError as error:
                raise Refused(f"exec failed: {error}") from error
            self.running[name] = container
        threading.Thread(target=self.signals, args=(connection, container), daemon=True).start()
        code = container.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(container.pid, signal.SIGKILL)
        with self.lock:
            del self.running[name]
        return code if code >= 0 else 128 - code

    def signals(self, connection, container):
        with contextlib.suppress(OSError):
            while (number := connection.recv(1)) and number[0] != STDIN_ENDS:
                container.send_signal(number[0])
        if container.stdin is not None:
            container.stdin.close()

    def stop(self):
        for container in list(self.running.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(container.pid, signal.SIGKILL)


def tell_of_stdin(connection):
    while os.read(0, 4096):
        pass
    with contextlib.suppress(OSError):
        connection.sendall(bytes([STDIN_ENDS]))


def client(place, argv):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(place)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _: connection.sendall(bytes([got])))
        message = json.dumps({"argv": argv, "env": dict(os.environ)}).encode()
        socket.send_fds(connection, [message], [1, 2])
        if "--interactive" in argv:
            threading.Thread(target=tell_of_stdin, args=(connection,), daemon=True).start()
        return int(connection.recv(16) or b"1")


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        daemon = Daemon(sys.argv[2])
        signal.signal(signal.SIGTERM, lambda *_: (daemon.stop(), os._exit(0)))
        daemon.serve()
    sys.exit(client(sys.argv[1], sys.argv[2:]))
