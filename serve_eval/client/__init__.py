"""Send requests to one endpoint and account for each of them."""

__all__ = [
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
