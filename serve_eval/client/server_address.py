"""Read the host and the port of a URL."""

from __future__ import annotations

from base64 import b64encode
from urllib.parse import unquote, urlsplit

from serve_eval.errors import PlanError


class ServerAddress:
    """The address in `url`. Raises ValueError unless it is an http or https URL with a host."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        self.name = f"[{name}]" if ":" in name else name
        self.default_port = self.port == (443 if self.tls else 80)
        user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self.basic = (
            b64encode(f"{user}:{self.password}".encode()).decode() if user or self.password else ""
        )

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        return self.name if self.default_port else f"{self.name}:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The header that a proxy at this address needs; empty without a user."""
        return {"Proxy-Authorization": f"Basic {self.basic}"} if self.basic else {}


def endpoint_address(base_url: str) -> ServerAddress:
    """Return the address of an endpoint. Raises PlanError, which does not quote it."""
    try:
        return ServerAddress(base_url)
    except ValueError:
        raise PlanError("base_url: expected an http or https URL with a host") from None


def proxy_address(url: str | None) -> ServerAddress | None:
    """Return the address of a proxy.

    Raises PlanError without quoting the address, which may hold a password.
    """
    try:
        return None if url is None else ServerAddress(url)
    except ValueError:
        raise PlanError("proxy: expected http://host:port or https://host:port") from None
