"""Choose the certificates to trust."""

from __future__ import annotations

import ssl

from serve_eval.client.server_address import ServerAddress
from serve_eval.errors import PlanError


def ssl_context(
    target: ServerAddress, proxy: ServerAddress | None, ca_bundle: str | None
) -> ssl.SSLContext | None:
    """Return a context that trusts the bundle, by default the system's; None if TLS is unused.

    Raises PlanError for a bundle that cannot be used.
    """
    if not (target.tls or ca_bundle is not None or (proxy is not None and proxy.tls)):
        return None
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise PlanError(f"ca_bundle: {ca_bundle} cannot be used: {error}") from error
