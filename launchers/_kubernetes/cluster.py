"""Talk to the API server of a cluster, with the credentials that kubectl would use.

kr8s reads kubeconfig files, runs their credential plugins and knows the service account of a pod.
The requests are ours, over httpx: new credentials must not break open tunnels, and any number of
tunnels must be open at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import httpx
import httpx_ws
from kr8s.asyncio import Api

from serve_eval.errors import LaunchError

TIMEOUT_S = 10.0
"""Seconds that the API server may take for one answer."""
PING_S = 20.0
"""Seconds between two pings through an open tunnel, so that nothing between closes it as idle."""
PROTOCOL = "v4.channel.k8s.io"
UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 401, 403, 404
NEEDED = (
    "The user or service account needs these permissions in the namespace: get and list services,"
    " list pods, get pods/log; for the address port-forward also get and create pods/portforward."
)
_WRITTEN = {
    "client_cert_file": ("user", "client-certificate-data"),
    "client_key_file": ("user", "client-key-data"),
    "server_ca_file": ("cluster", "certificate-authority-data"),
}
"""Files that kr8s writes for a value of the kubeconfig, and leaves behind."""


class RefusedError(Exception):
    """The API server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class UnreachableError(Exception):
    """The API server did not answer."""


class Cluster:
    """The API of a cluster, in one namespace. `server` is the address of the API server."""

    def __init__(self, api: Api, namespace: str, closing: AsyncExitStack) -> None:
        self._auth, self.namespace = api.auth, namespace
        self._closing, self._client = closing, httpx.AsyncClient()
        self._renewing = asyncio.Lock()

    @property
    def server(self) -> str:
        """The address of the API server."""
        return self._auth.server

    async def open(self) -> None:
        """Use the present credentials for all further requests.

        Requests under way keep their connections.
        """
        verify = await self._auth.ssl_context()  # type: ignore[no-untyped-call]
        await asyncio.to_thread(_remove_written, self._auth)
        token = self._auth.token
        self._client = await self._closing.enter_async_context(
            httpx.AsyncClient(
                base_url=self._auth.server,
                headers={"Authorization": f"Bearer {token.strip()}"} if token else {},
                verify=verify,
                proxy=self._auth.proxy,
                timeout=TIMEOUT_S,
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=8),
            )
        )

    async def get(self, what: str, **params: str) -> dict[str, Any]:
        """Return an object or a list of the namespace, such as `pods` or `services/NAME`.

        Raises RefusedError and UnreachableError.
        """
        return await self._json(self.path(what), params)

    async def list_namespaces(self) -> dict[str, Any]:
        """Return the namespaces of the cluster. Raises RefusedError and UnreachableError."""
        return await self._json("/api/v1/namespaces", {})

    async def _json(self, path: str, params: Mapping[str, str]) -> dict[str, Any]:
        async with self._reply(path, params) as reply:
            await reply.aread()
            try:
                found = reply.json()
            except ValueError:
                found = None
        if not isinstance(found, dict):
            raise UnreachableError("it answers, but not as an API server does")
        return found

    @asynccontextmanager
    async def stream(self, what: str, **params: str) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the pieces of an answer that may go on forever.

        Raises RefusedError and UnreachableError, also while it is read.
        """
        async with self._reply(self.path(what), params, read_timeout_s=None) as reply:
            yield reply.aiter_bytes()

    async def text(self, what: str, **params: str) -> str:
        """Return an answer as text. Raises RefusedError and UnreachableError."""
        async with self._reply(self.path(what), params) as reply:
            return (await reply.aread()).decode(errors="replace")

    def tunnel(
        self, pod: str, port: int
    ) -> AbstractAsyncContextManager[httpx_ws.AsyncWebSocketSession]:
        """Open a WebSocket to a port of a pod.

        Entering raises httpx.HTTPError and httpx_ws.WebSocketUpgradeError.
        """
        return httpx_ws.aconnect_ws(
            self.path(f"pods/{pod}/portforward"),
            self._client,
            params={"ports": str(port)},
            subprotocols=[PROTOCOL],
            keepalive_ping_interval_seconds=PING_S,
            # A pod that reads slowly delays its answer to a ping too.
            keepalive_ping_timeout_seconds=None,
            extensions=self._extensions(),
        )

    def path(self, what: str) -> str:
        """Return the path of an object of the namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{what}"

    def _extensions(self) -> dict[str, Any]:
        name = self._auth.tls_server_name
        return {"sni_hostname": name} if name else {}

    @asynccontextmanager
    async def _reply(
        self, path: str, params: Mapping[str, str], read_timeout_s: float | None = TIMEOUT_S
    ) -> AsyncIterator[httpx.Response]:
        timeout = httpx.Timeout(TIMEOUT_S, read=read_timeout_s)
        for attempt in (0, 1):
            client = self._client
            try:
                async with client.stream(
                    "GET", path, params=params, timeout=timeout, extensions=self._extensions()
                ) as reply:
                    if reply.status_code == UNAUTHORIZED and not attempt:
                        await self._renew(client)
                        continue
                    if reply.is_error:
                        await reply.aread()
                        raise RefusedError(reply.status_code, _message(reply))
                    yield reply
                    return
            except httpx.HTTPError as error:
                raise UnreachableError(f"{type(error).__name__} {error}".strip()) from error

    async def _renew(self, used: httpx.AsyncClient) -> None:
        """Read the credentials again, unless another request has just done so."""
        async with self._renewing:
            if self._client is used:
                try:
                    await self._auth.reauthenticate()
                    await self.open()
                except (ValueError, KeyError, OSError, RuntimeError) as error:
                    raise UnreachableError(f"the credentials cannot be renewed: {error}") from error


@asynccontextmanager
async def connect(
    kubeconfig: str | None, context: str | None, namespace: str | None
) -> AsyncIterator[Cluster]:
    """Yield the API of a cluster. Raise LaunchError for wrong files, names and credentials."""
    path = None if kubeconfig is None else str(Path(kubeconfig).expanduser())
    if path is not None and not await asyncio.to_thread(Path(path).is_file):
        raise LaunchError(f"launcher.kubeconfig: {kubeconfig} is not a file")
    api = Api(kubeconfig=path, context=context, namespace=namespace, bypass_factory=True)
    auth = api.auth
    try:
        async with asyncio.timeout(6 * TIMEOUT_S):
            await auth.reauthenticate()
    except Exception as error:  # kr8s passes on what its parser or a plugin raises
        raise _explain(error, auth, context) from error
    async with AsyncExitStack() as closing:
        found = namespace or _namespace_of(auth) or auth.namespace
        cluster = Cluster(api, found.strip(), closing)
        try:
            await cluster.open()
        except (OSError, ValueError) as error:
            raise LaunchError(
                f"the credentials for {auth.server} cannot be used: {error}"
            ) from error
        yield cluster


def _namespace_of(auth: Any) -> str | None:
    """Return the namespace of the active context; kr8s returns that of the current one."""
    with suppress(AttributeError, ValueError, KeyError, TypeError):
        found = auth.kubeconfig.get_context(auth.active_context).get("namespace")
        return str(found) if found else None
    return None


def _explain(error: Exception, auth: Any, context: str | None) -> LaunchError:
    names: list[str] = []
    with suppress(AttributeError, KeyError, TypeError):
        names = [str(one["name"]) for one in auth.kubeconfig.contexts]
    if context is not None and context not in names:
        listed = f"the kubeconfig has {', '.join(names)}" if names else "no kubeconfig was found"
        return LaunchError(
            f"launcher.context: there is no context {context!r}; {listed}",
            hint="Set launcher.kubeconfig or KUBECONFIG, and check: kubectl config get-contexts.",
        )
    if isinstance(error, TimeoutError):
        told = "they were not read in time"
    else:
        told = str(error) or type(error).__name__
    return LaunchError(
        f"there are no credentials for a cluster: {told}",
        hint="Set launcher.kubeconfig or KUBECONFIG; kubectl cluster-info must work.",
    )


def _remove_written(auth: Any) -> None:
    """Remove files in which kr8s has put keys of the kubeconfig for the TLS library."""
    with suppress(AttributeError, ValueError, KeyError, TypeError):
        chosen = auth.kubeconfig.get_context(auth.active_context)
        held = {
            "user": auth.kubeconfig.get_user(chosen["user"]),
            "cluster": auth.kubeconfig.get_cluster(chosen["cluster"]),
        }
        for attribute, (side, key) in _WRITTEN.items():
            path = getattr(auth, attribute)
            if path and key in held[side] and Path(str(path)).parent == Path(gettempdir()):
                Path(str(path)).unlink(missing_ok=True)


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {reply.status_code} {reply.text[:300]}".strip()


def as_launch_error(
    error: RefusedError | UnreachableError, doing: str, cluster: Cluster
) -> LaunchError:
    """Return the error for a launch that cannot go on."""
    if isinstance(error, UnreachableError):
        return LaunchError(
            f"{doing}: the API server {cluster.server} does not answer: {error}",
            hint="kubectl cluster-info must work from this machine.",
        )
    if error.status in (UNAUTHORIZED, FORBIDDEN):
        return LaunchError(f"{doing}: the API server refuses it: {error}", hint=NEEDED)
    return LaunchError(f"{doing}: {error}")
