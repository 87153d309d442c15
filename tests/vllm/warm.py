"""Start vLLM servers by fork from one process that has imported vLLM, which takes 17 s of CPU time.

`serve SOCKET` imports vLLM and then forks a server for each client; it ends at the end of its
stdin. `start SOCKET ARGS` is the command of a launcher: it hands its arguments, environment and
outputs over, passes signals on, and ends as the server does. If it is killed, so is the server.
vLLM runs as it does otherwise, but for four things: its engine is forked too, where vLLM starts a
new interpreter; while its processes wait for each other they pause, where vLLM polls; quantised
weights do not use the kernels for AMX, as vLLM chooses that of W8A8 for float32 too, which it then
refuses; and with speculation, requests that are not greedy get their own temperature and top_k,
where vLLM 0.32 on a CPU reads memory that nothing wrote and often ends (vllm-project/vllm#42638).
"""

import json
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

MAX_REQUEST = 1 << 20
PAUSE_S = 0.0002
"""Of a wait between the processes of an engine, which otherwise take a core each."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT)


def start(path, arguments):
    """Have a server started, wait until it ends, and return its exit status."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(path)
        request = {"arguments": arguments, "environ": dict(os.environ), "folder": str(Path.cwd())}
        socket.send_fds(server, [json.dumps(request).encode()], [1, 2])
        for number in PASSED_ON:
            signal.signal(number, lambda number, _: server.send(bytes([number])))
        told = server.recv(16)
    return int(told) if told else 1


class Forking:
    """Forks servers for clients, which each have a connection as long as their server runs."""

    def __init__(self, path, run):
        self._run = run
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._end)
        self._children = {}

    def serve(self):
        """Serve until stdin ends, and then kill the servers that still run."""
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _end(self):
        for pid in self._children:
            os.killpg(pid, signal.SIGKILL)
        sys.exit()

    def _accept(self):
        client, _ = self._listener.accept()
        message, descriptors, _, _ = socket.recv_fds(client, MAX_REQUEST, 2)
        request = json.loads(message)
        if pid := os.fork():
            for one in descriptors:
                os.close(one)
            self._children[pid] = client
            self._selector.register(client, selectors.EVENT_READ, lambda: self._pass_on(pid))
            child = os.pidfd_open(pid)
            self._selector.register(child, selectors.EVENT_READ, lambda: self._reap(pid, child))
            return
        os.setsid()
        self._close_all()
        for number, one in enumerate(descriptors, start=1):
            os.dup2(one, number)
            os.close(one)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environ"])
        _end_with(lambda: self._run(request["arguments"]))

    def _close_all(self):
        """Close in a child what belongs to the parent."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)
            else:
                key.fileobj.close()
        self._selector.close()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def _pass_on(self, pid):
        """Send the server a signal that its client received; kill it if the client is gone."""
        if told := self._children[pid].recv(1):
            os.kill(pid, told[0])
        else:
            self._selector.unregister(self._children[pid])
            os.killpg(pid, signal.SIGKILL)

    def _reap(self, pid, child):
        _, status = os.waitpid(pid, 0)
        self._selector.unregister(child)
        os.close(child)
        client = self._children.pop(pid)
        if client in {key.fileobj for key in self._selector.get_map().values()}:
            self._selector.unregister(client)
            client.send(str(os.waitstatus_to_exitcode(status) % 256).encode())
        client.close()
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # An engine that outlived its server.


def _end_with(run):
    """Run a forked server, and end this process without returning to the parent's code."""
    status = 1
    try:
        run()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def expand(values, ends, tokens, replace_from=0, replace_to=0):
    """Return the value of each request, a tensor, once for each of its draft tokens.

    `ends` are the sums of the numbers of draft tokens up to each request; the last is `tokens`.
    """
    counts = ends.diff(prepend=ends.new_zeros(1))
    put = values.masked_fill(values == replace_from, replace_to)
    return put.repeat_interleave(counts, output_size=tokens)


def run_vllm(arguments):
    """Run vLLM's server, as `python -m vllm.entrypoints.openai.api_server` does."""
    import multiprocessing

    from vllm.distributed.device_communicators import shm_broadcast
    from vllm.entrypoints.launchers.api_server.entry import main
    from vllm.model_executor.kernels.linear.mixed_precision import cpu as w4a16
    from vllm.model_executor.kernels.linear.scaled_mm import cpu as w8a8
    from vllm.v1.engine import utils
    from vllm.v1.executor import multiproc_executor
    from vllm.v1.sample import rejection_sampler

    for module in (utils, multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    w8a8.check_cpu_sgl_kernel = lambda *_: False
    rejection_sampler.expand_batch_to_tokens = expand
    chosen = w4a16._get_isa_hint
    w4a16._get_isa_hint = lambda dtype: chosen(dtype).replace("amx", "vec")
    shm_broadcast.sched_yield = lambda: time.sleep(PAUSE_S)
    sys.argv = ["api_server", *arguments]
    main()


def warm_up():
    """Import what a server needs."""
    import vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector
    import vllm.entrypoints.openai.api_server
    import vllm.model_executor.models.llama
    import vllm.v1.engine.core
    import vllm.v1.worker.cpu_worker  # noqa: F401


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "start":
        sys.exit(start(where, rest))
    warm_up()
    forking = Forking(where, run_vllm)
    print("warm", flush=True)
    forking.serve()
