"""Fixtures shared by the tests of the client."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from serve_eval.client.aiohttp_transport.transport import AiohttpTransport
from serve_eval.client.client import Client
from serve_eval.client.http1.transport import Http1Transport
from tests.client.aiohttp_shortfalls import reason_of


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a self-signed certificate for localhost, with its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    command = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "both.pem").write_bytes(key.read_bytes() + cert.read_bytes())
    return folder / "both.pem"


OURS = pytest.param(Http1Transport, id="http1")
# The aiohttp cases are a quarter of all tests of the client.
THEIRS = pytest.param(AiohttpTransport, id="aiohttp", marks=pytest.mark.slow)


@pytest.fixture(params=[OURS, THEIRS])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every client of the test use this transport; tests listed for aiohttp must fail."""
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "transport", request.param)
    if request.param is AiohttpTransport and (why := reason_of(request.node.name)) is not None:
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
