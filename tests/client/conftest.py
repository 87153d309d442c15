"""Fixtures shared by the tests of the client."""

import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
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
