"""aiohttp's connector with one more question before a connection is used again."""

from __future__ import annotations

import aiohttp
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.tracing import Trace


class Connector(aiohttp.TCPConnector):
    """Never hands out a pooled connection on which something arrived while it was idle.

    What arrived belongs to an earlier request (a proxy that answers twice): it would be read as the answer to the next
    one, and one sample would be scored with another's. aiohttp 3.14 asks this only when a connection comes back.
    """

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout) -> Connection:
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or not protocol.should_close:
                return connection
            connection.close()
