"""A TLS server on the loopback that demands a client certificate, and certificates for tests."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

PASSWORD = "open-sesame-94"


class Authority:
    """An authority that signs certificates into the files of a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._name = folder, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.bundle = folder / f"{name}.pem"
        made = _builder(self._name, self._name, self._key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.bundle.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def sign(
        self, name: str, *, password: str | None = None, expired: bool = False
    ) -> tuple[Path, Path]:
        """Return the files of a certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_name(name), self._name, key, expired=expired).add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
        cert_file, key_file = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        cert_file.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))
        lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            lock = serialization.BestAvailableEncryption(password.encode())
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        )
        return cert_file, key_file


@contextmanager
def demanding_front(
    authority: Authority, behind: str, *, tls: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[str]:
    """Yield the URL of a TLS server that hands what trusted clients send to the server behind."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.sign("server"))
    context.load_verify_locations(authority.bundle)
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = context.maximum_version = tls
    place = urlsplit(behind)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        threads = [threading.Thread(target=_accept, args=(listener, context, place, stop))]
        threads[0].start()
        try:
            yield f"https://localhost:{listener.getsockname()[1]}/v1"
        finally:
            stop.set()
            threads[0].join(20)


def _accept(
    listener: socket.socket, context: ssl.SSLContext, place: SplitResult, stop: threading.Event
) -> None:
    """Serve each connection in a thread: blocking sockets send alerts before they end."""
    threads: list[threading.Thread] = []
    while not stop.is_set():
        with suppress(TimeoutError):
            taken, _ = listener.accept()
            threads.append(threading.Thread(target=_serve, args=(taken, context, place, stop)))
            threads[-1].start()
    for thread in threads:
        thread.join(20)


def _serve(
    taken: socket.socket, context: ssl.SSLContext, place: SplitResult, stop: threading.Event
) -> None:
    taken.settimeout(10)
    client = context.wrap_socket(taken, server_side=True, do_handshake_on_connect=False)
    try:
        client.do_handshake()
    except OSError:
        # What the client wrote is read first, since an end with unread data drops the alert.
        with socket.socket(fileno=client.detach()) as taken, suppress(OSError):
            taken.shutdown(socket.SHUT_WR)
            taken.settimeout(1)
            while taken.recv(65536):
                pass
        return
    with client, socket.create_connection((place.hostname, place.port)) as back, suppress(OSError):
        client.settimeout(0.0)
        while not stop.is_set():
            if not client.pending():
                select.select([client, back], [], [], 0.1)
            for one, other in ((client, back), (back, client)):
                with suppress(ssl.SSLWantReadError, BlockingIOError):
                    one.setblocking(False)
                    piece = one.recv(65536)
                    other.setblocking(True)
                    other.sendall(piece)
                    if not piece:
                        return


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    *,
    expired: bool = False,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC) - timedelta(days=30 if expired else 0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
