"""Sign the requests to a pair of servers as their orchestrator does.

Since August 2026, trtllm-serve takes data about another server's KV cache only from a client that
knows the key that the servers share. A generation server refuses a request without its signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path

from serve_eval.launchers._trtllm import shared_key
from serve_eval.schema import Endpoint

HEADER = "x-trtllm-disagg-auth"
STATE, ENDPOINT = "encoded_opaque_state", "ctx_info_endpoint"
"""The signed fields of `disaggregated_params`."""
REFUSED = "Invalid internal disaggregated request authentication"
"""Text of a server that got no signature, or a wrong one."""
ADVICE = (
    f"the servers share a key ({shared_key.NAME}), and its launch no longer has it or was not"
    " serve-eval's: keep servers up with --keep-servers, name the variable that has the key with"
    " --auth-key-env, or start them without one (launcher.auth_key: false)"
)


def find_key(endpoint: Endpoint, variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the key of a variable, else that of the launch that still runs; None if unknown."""
    if variable is not None:
        return environ.get(variable) or None
    log_dir = endpoint.info.log_dir
    return shared_key.read_kept(Path(log_dir)) if log_dir else None


def sign(key: str | None, params: Mapping[str, object]) -> dict[str, str]:
    """Return the header that a generation server needs for these `disaggregated_params`.

    Empty without a key, and if no field has to be signed. The signature is HMAC-SHA256 over the
    sorted, compact JSON of both fields; of several addresses of the context server, the first
    counts (tensorrt_llm/serve/disagg_auth.py).
    """
    state, address = params.get(STATE), params.get(ENDPOINT)
    if key is None or (state is None and address is None):
        return {}
    if isinstance(address, list):
        address = address[0] if address else None
    signed = json.dumps({STATE: state, ENDPOINT: address}, sort_keys=True, separators=(",", ":"))
    digest = hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest()
    return {HEADER: f"sha256={digest}"}
