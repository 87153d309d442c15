"""A mock API server with a Service, pods, logs, restarts and tunnels, in a thread of its own.

kmock keeps and lists the objects. What kmock does not serve is added here: logs that grow, and the
WebSocket of a port-forward, by the frames that the kubelet sends. The pods' servers are simulators
of ours on loopback.
"""

import asyncio
import base64
import json
import threading
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import aiohttp
import kmock
from aiohttp import web
from aiohttp.test_utils import RawTestServer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve

NAMESPACE, SERVICE, TOKEN = "serving", "llama", "a-token-of-the-mock"
PODS = kmock.resource("", "v1", "pods")
SERVICES = kmock.resource("", "v1", "services")
DIGEST = "registry.example/llm@sha256:" + "0123456789abcdef" * 4


def container_status(name="server", *, restarts=0, ready=True, **more):
    """Return the status of a container."""
    return {
        "name": name,
        "ready": ready,
        "restartCount": restarts,
        "imageID": DIGEST,
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        **more,
    }


def pod(
    name,
    *,
    uid="",
    port=8000,
    ready=True,
    phase="Running",
    status=None,
    args=("serve", "org/model", "--tp_size", "2"),
    container=None,
):
    """Return a pod as the API reports it."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": uid or f"uid-of-{name}",
            "labels": {"app": SERVICE},
        },
        "spec": {
            "nodeName": "node-a",
            "containers": [
                {
                    "name": "server",
                    "image": "registry.example/llm:1.2",
                    "command": ["trtllm-serve"],
                    "args": list(args),
                    "ports": [{"name": "http", "containerPort": port}],
                    "env": [{"name": "HF_TOKEN", "value": "never-recorded"}],
                    **(container or {}),
                }
            ],
        },
        "status": {
            "phase": phase,
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "containerStatuses": [container_status(ready=ready, **(status or {}))],
        },
    }


def service(**spec):
    """Return the Service as the API reports it."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": NAMESPACE},
        "spec": {
            "clusterIP": "10.0.0.1",
            "selector": {"app": SERVICE},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            **spec,
        },
    }


class MockCluster:
    """The API server and the servers of its pods. Use it as a context manager."""

    def __init__(self):
        self.objects = kmock.KubernetesEmulator()
        self.logs = {}
        self.previous = {}
        self.tunnels = {}
        self.answered = {}
        self.forbidden = ""
        self.away = False
        self.refuse_tunnels = False
        self.expired = 0
        self.error_of = {}
        self.url = ""
        self._ports = {}
        self._stops = {}
        self._sockets = set()
        self._followed = []

    def __enter__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(
        self,
        kind,
        error,
        trace,
    ):
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, story):
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(20)

    async def _start(self):
        self._closing = AsyncExitStack()
        await self._closing.enter_async_context(self.objects)
        self.objects.resources[PODS] = {}
        self.objects.resources[SERVICES] = {}
        server = RawTestServer(self._serve, handler_cancellation=True)
        await server.start_server()
        self._closing.push_async_callback(server.close)
        self.url = str(server.make_url("")).rstrip("/")

    async def _stop(self):
        for socket in list(self._sockets):
            await socket.close()
        for stack in self._stops.values():
            await stack.aclose()
        await self._closing.aclose()

    # ---------------------------------------------------------------------------------------------
    # what a test does

    def kubeconfig(self, folder, *, with_certificate=False):
        """Write a kubeconfig with the contexts `mock` and `other`, and return its path."""
        issued = {"certificate-authority-data": _certificate()} if with_certificate else {}
        context = {"cluster": "mock", "user": "tester", "namespace": NAMESPACE}
        path = folder / "kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "mock",
            "clusters": [{"name": "mock", "cluster": {"server": self.url, **issued}}],
            "users": [{"name": "tester", "user": {"token": TOKEN}}],
            "contexts": [
                {"name": "mock", "context": context},
                {"name": "other", "context": {**context, "namespace": "elsewhere"}},
            ],
        }
        path.write_text(json.dumps(content))
        return path

    def add(self, raw, **config):
        """Add or replace a pod or a Service; `config` starts a simulator for a pod."""
        self._run(self._add(raw, config))

    def add_served(self, *names, **config):
        """Add the Service and pods of these names that answer for any model."""
        self.add(service())
        for name in names:
            self.add(pod(name), any_model=True, **config)

    async def _add(self, raw, config):
        kind = PODS if raw["kind"] == "Pod" else SERVICES
        name = raw["metadata"]["name"]
        if (kind, NAMESPACE, name) in self.objects.objects:
            del self.objects.objects[kind, NAMESPACE, name]
        self.objects.objects[kind, NAMESPACE, name] = raw
        if config:
            stack = self._stops[name] = AsyncExitStack()
            url = await stack.enter_async_context(
                serve(SimulatorConfig(model="org/model", **config))
            )
            self._ports[name] = int(url.split(":")[2].partition("/")[0])

    def serve_raw(self, name, serving):
        """Let a pod's server be a function of a connection."""

        tasks = set()

        async def serve(reader, writer):
            try:
                await serving(reader, writer)
            finally:
                if not writer.is_closing():
                    writer.transport.abort()

        def accept(reader, writer):
            tasks.add(asyncio.create_task(serve(reader, writer)))

        async def stop():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

        async def start():
            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._ports[name] = server.sockets[0].getsockname()[1]
            stack = self._stops[name] = AsyncExitStack()
            stack.push_async_callback(stop)
            stack.callback(server.close)

        self._run(start())

    def lead(self, name, url):
        """Let a pod's server be one that already serves at an address of this machine."""
        self._ports[name] = int(url.split(":")[2].partition("/")[0])

    def remove(self, name):
        """Remove a pod."""

        async def remove():
            del self.objects.objects[PODS, NAMESPACE, name]

        self._run(remove())

    def after(self, requests, act):
        """Call `act` in a thread once the tunnels have carried that many requests."""

        def wait():
            while sum(self.answered.values()) < requests and self._loop.is_running():
                threading.Event().wait(0.01)
            act()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def later(self, seconds, act):
        """Call `act` in a thread after some seconds."""
        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.start()

    def port_of(self, name):
        """Return the port of a pod's server."""
        return self._ports[name]

    def break_tunnels(self):
        """Break all open tunnels without a farewell."""

        async def cut():
            for socket in list(self._sockets):
                socket._req.transport.abort()

        self._run(cut())

    def asked(self):
        """Return the paths, with their parameters, that were asked of kmock."""
        return [str(one.url.relative()) for one in self.objects]

    def break_streams(self):
        """Break all logs that are followed."""

        async def cut():
            for request in self._followed:
                if request.transport is not None:
                    request.transport.abort()

        self._run(cut())

    # ---------------------------------------------------------------------------------------------
    # what the API server does

    async def _serve(self, request):
        if self.away:  # only open tunnels go on
            request.transport.abort()
            return web.Response(status=503)
        parts = request.path.split("/")
        # A tunnel that opens at this moment would break, with a warning; its next try succeeds.
        late = self.expired > 0 and parts[-1] != "portforward"
        if request.headers.get("Authorization") != f"Bearer {TOKEN}" or late:
            self.expired -= late
            return _status(401, "Unauthorized")
        if self.forbidden and self.forbidden in parts:
            return _status(
                403, f'{self.forbidden} is forbidden: User "tester" cannot list resource'
            )
        if request.path == "/api/v1/namespaces":  # kmock takes it for the name of a namespace
            return web.json_response({"items": [{"metadata": {"name": NAMESPACE}}]})
        if parts[-1] == "portforward":
            return await self._forward(request, parts[-2])
        if parts[-1] == "log":
            return await self._log(request, parts[-2])
        return await self.objects(request)

    async def _log(self, request, name):
        if (PODS, NAMESPACE, name) not in self.objects.objects:
            return _status(404, f'pods "{name}" not found')
        if request.query.get("previous"):
            if name not in self.previous:
                return _status(400, "previous terminated container not found")
            return web.Response(text=self.previous[name])
        lines = self.logs.setdefault(name, [])
        if not request.query.get("follow"):
            return web.Response(text="".join(f"{line}\n" for line in lines))
        reply = web.StreamResponse()
        await reply.prepare(request)
        self._followed.append(request)
        sent = 0
        while True:
            for line in lines[sent:]:
                await reply.write(f"{line}\n".encode())
            sent = len(lines)
            await asyncio.sleep(0.02)

    async def _forward(self, request, name):
        if self.refuse_tunnels:
            return _status(403, "pods/portforward is forbidden")
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), autoclose=False)
        await socket.prepare(request)
        self._sockets.add(socket)
        port = int(request.query["ports"])
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + port.to_bytes(2, "little"))
        self.tunnels[name] = self.tunnels.get(name, 0) + 1
        try:
            if name in self.error_of:
                await socket.send_bytes(b"\x01" + self.error_of[name].encode())
            else:
                await self._pass_on(socket, name)
        finally:
            self._sockets.discard(socket)
            await socket.close()
        return socket

    async def _pass_on(self, socket, name):
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[name])

        async def down():
            while piece := await reader.read(65536):
                self.answered[name] = self.answered.get(name, 0) + piece.count(b"HTTP/1.1 ")
                await socket.send_bytes(b"\x00" + piece)
            await socket.close()

        carrying = asyncio.create_task(down())
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    break
                writer.write(message.data[1:])
                await writer.drain()
        finally:
            carrying.cancel()
            writer.close()


def _certificate():
    """Return a certificate that any TLS library accepts as an authority, as a kubeconfig has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "mock")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return base64.b64encode(made.public_bytes(serialization.Encoding.PEM)).decode()


def _status(code, message):
    content = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message}
    return web.json_response({**content, "code": code}, status=code)
