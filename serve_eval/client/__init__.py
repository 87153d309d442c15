"""Send requests to one endpoint and account for each of them."""

__all__ = [
    "attempts",
    "client",
    "connection",
    "http1",
    "preflight",
    "questions",
    "request",
    "tls",
    "traffic",
    "transport",
    "wire_format",
]
