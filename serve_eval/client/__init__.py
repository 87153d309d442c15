"""Send requests: one session (`client`) over a seam (`transport`), with every request answered or
accounted for.
"""

__all__ = [
    "aiohttp_transport",
    "attempts",
    "channel",
    "client",
    "connection",
    "http1",
    "preflight",
    "questions",
    "request_headers",
    "request_ids",
    "secret_mask",
    "server_address",
    "step_ledger",
    "tls",
    "traffic",
    "transport",
    "wire_format",
]
