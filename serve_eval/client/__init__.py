"""Send requests to one endpoint and account for each of them."""

__all__ = [
    "attempts",
    "client",
    "connection",
    "http1",
    "preflight",
    "questions",
    "request",
    "step_ledger",
    "tls",
    "traffic",
    "transport",
    "wire_format",
]
