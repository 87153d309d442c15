"""Test client certificates (mTLS): every way to an endpoint shows the one that a plan names."""

import asyncio
import json
import select
import socket
import ssl
import threading
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from urllib.parse import urlsplit

import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from serve_eval.client.client import Client
from serve_eval.client.connection import connect, openai_client
from serve_eval.client.tls import Certificates
from serve_eval.errors import PlanError
from serve_eval.launchers import external
from serve_eval.schema import (
    Connection,
    Endpoint,
    Failure,
    FailureKind,
    LaunchContext,
    Limits,
    Plan,
    Request,
    Response,
    SamplingParams,
    Spec,
)
from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

PASSWORD = "open-sesame-94"


class Authority:
    """An authority that signs certificates into the files of a folder."""

    def __init__(self, folder, name):
        self.folder, self._name = folder, _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.bundle = folder / f"{name}.pem"
        made = _builder(self._name, self._name, self._key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.bundle.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def sign(self, name, *, password=None, expired=False):
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
        lock = serialization.NoEncryption()
        if password is not None:
            lock = serialization.BestAvailableEncryption(password.encode())
        key_file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)
        )
        return cert_file, key_file


@contextmanager
def demanding_front(authority, behind, *, tls=ssl.TLSVersion.TLSv1_3):
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


def _accept(listener, context, place, stop):
    """Serve each connection in a thread: blocking sockets send alerts before they end."""
    threads = []
    while not stop.is_set():
        with suppress(TimeoutError):
            taken, _ = listener.accept()
            threads.append(threading.Thread(target=_serve, args=(taken, context, place, stop)))
            threads[-1].start()
    for thread in threads:
        thread.join(20)


def _serve(taken, context, place, stop):
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


def _name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject,
    issuer,
    key,
    *,
    expired=False,
):
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


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
QUICK = Limits(max_attempts=3, connect_timeout_s=10.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls"), "authority")


@pytest.fixture(scope="module", params=VERSIONS, ids=["1.2", "1.3"])
def url(request, authority):
    with (
        create(Quirks()).serve_in_thread() as behind,
        demanding_front(authority, behind, tls=request.param) as front,
    ):
        yield front


def _ask(url, certificates):
    async def ask():
        endpoint = Endpoint(base_url=url, model="simulated")
        async with Client(endpoint, QUICK, certificates=certificates) as client:
            request = Request(sample_id="1", prompt="p", sampling=SamplingParams(max_tokens=2))
            return await client.send(request)

    return asyncio.run(ask())


def test_the_certificate_of_a_trusted_authority_is_accepted(url, authority):
    cert, key = map(str, authority.sign("client"))
    assert isinstance(_ask(url, Certificates(str(authority.bundle), cert, key)), Response)
    cert, key = map(str, authority.sign("locked", password=PASSWORD))
    assert isinstance(_ask(url, Certificates(str(authority.bundle), cert, key, PASSWORD)), Response)


@pytest.mark.parametrize("kind", ["none", "other", "expired"])
def test_a_refusal_says_what_to_do_and_is_not_tried_again(url, authority, tmp_path, kind):
    made = {
        "none": lambda: (None, None),
        "other": lambda: tuple(map(str, Authority(tmp_path, "other").sign("client"))),
        "expired": lambda: tuple(map(str, authority.sign("expired", expired=True))),
    }
    result = _ask(url, Certificates(str(authority.bundle), *made[kind]()))
    assert isinstance(result, Failure)
    assert (result.kind, result.retryable, len(result.attempts)) == (
        FailureKind.DISCONNECTED,
        False,
        1,
    ), result.message
    assert "client certificate" in result.message
    assert "--set connection.client_cert=FILE" in result.message


@pytest.mark.parametrize(
    ("cert", "key", "password", "said"),
    [
        ("locked.crt", "locked.key", None, "connection.client_key_password_env."),
        ("locked.crt", "locked.key", "wrong", "the password does not open"),
        ("notes.txt", "locked.key", PASSWORD, "must be PEM"),
        ("client.crt", "locked.key", PASSWORD, "The key belongs to another certificate"),
        ("client.crt", None, None, "name that with connection.client_key."),
        ("missing.crt", "client.key", None, "No such file or directory"),
        ("notes.txt", "client.key", None, "must be PEM"),
    ],
)
def test_a_file_that_cannot_be_used_is_a_plan_error(authority, cert, key, password, said):
    authority.sign("client")
    authority.sign("locked", password=PASSWORD)
    (authority.folder / "notes.txt").write_text("no certificate")
    place = authority.folder
    shown = Certificates(None, str(place / cert), key and str(place / key), password)
    with pytest.raises(PlanError) as caught:
        shown.context()
    assert said in f"{caught.value} {caught.value.hint}"
    assert PASSWORD not in f"{caught.value} {caught.value.hint} {shown!r}"


def test_the_official_package_shows_the_same_certificate(url, authority):
    cert, key = map(str, authority.sign("client"))
    both = Connection(ca_bundle=str(authority.bundle), client_cert=cert, client_key=key)

    async def ask(connection):
        plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
        async with openai_client(plan, url, {}, timeout_s=20.0) as package:
            told = await package.completions.create(model="simulated", prompt="p")
            return told.choices[0].text

    assert asyncio.run(ask(both))
    with pytest.raises(openai.APIConnectionError):
        asyncio.run(ask(Connection(ca_bundle=str(authority.bundle))))


def test_a_password_is_read_from_the_environment_and_hidden(authority):
    cert, key = map(str, authority.sign("locked", password=PASSWORD))
    connection = Connection(client_cert=cert, client_key=key, client_key_password_env="MINE")
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(), connection=connection)
    client = connect(plan, Endpoint(base_url="https://h/v1"), {"MINE": PASSWORD})
    assert client.masking.message(f"it said {PASSWORD}") == "it said ***"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "connection.client_key=a.key"), "client_key: needs client_cert"),
        (
            (
                "--set",
                "connection.client_cert=a",
                "--set",
                "connection.client_key_password_env=NOT_SET",
            ),
            "has no NOT_SET",
        ),
        (
            (
                "--set",
                "connection.client_cert=a",
                "--set",
                "connection.client_key_password_env=p w",
            ),
            "not a password",
        ),
        (("--set", "connection.client_cert=-----BEGIN CERTIFICATE-----"), "not its content"),
        (("--set", "connection.client_cert=/nowhere/a.pem"), "/nowhere/a.pem cannot be used"),
    ],
)
def test_a_command_refuses_what_cannot_work(words, said):
    done = serve_eval("smoke", "https://127.0.0.1:9", "--model", "m", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_commands_take_the_certificate_and_keep_only_its_path(url, authority, tmp_path, data_root):
    cert, key = authority.sign("locked", password=PASSWORD)
    out = tmp_path / "out"
    common = ("--base-url", url, "--tasks", "gsm8k", "--limit", "8", "--dataset-root", data_root)
    named = (
        "--set",
        f"connection.ca_bundle={authority.bundle}",
        "--set",
        f"connection.client_cert={cert}",
        "--set",
        f"connection.client_key={key}",
    )
    words = ("--set", "connection.client_key_password_env=MINE", "--no-reference", "-o", out)
    done = serve_eval("run", *common, *named, *words, MINE=PASSWORD)
    assert done.returncode == 3, done.stderr
    saved = json.loads((out / "report.json").read_text())["plan"]["connection"]
    assert (saved["client_cert"], saved["client_key_password_env"]) == (str(cert), "MINE")
    secret = key.read_text().splitlines()[2]
    for file in out.rglob("*"):
        if file.is_file():
            held = file.read_bytes()
            assert PASSWORD.encode() not in held, file
            assert secret.encode() not in held, file
    smoke = serve_eval(
        *("smoke", url, "--level", "quick"),
        SERVE_EVAL_CA_BUNDLE=str(authority.bundle),
        SERVE_EVAL_CLIENT_CERT=str(cert),
        SERVE_EVAL_CLIENT_KEY=str(key),
        SERVE_EVAL_CLIENT_KEY_PASSWORD_ENV="MINE",
        MINE=PASSWORD,
    )
    assert "PASS" in smoke.stdout, smoke.stdout + smoke.stderr
    bare = serve_eval(
        "run", *common, "--set", f"connection.ca_bundle={authority.bundle}", "-o", tmp_path / "bare"
    )
    assert bare.returncode == 4
    assert "--set connection.client_cert=FILE" in bare.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("smoke", "URL"),
        ("compare", "URL", "127.0.0.1:9", "--tasks", "word_problems"),
        ("verify", "URL", "127.0.0.1:9", "--floor", "0.1"),
        ("run", "--base-url", "URL", "-t", "word_problems", "--no-reference"),
    ],
    ids=lambda command: command[0],
)
def test_every_command_says_which_certificate_is_missing(url, authority, tmp_path, command):
    words = [url if word == "URL" else word for word in command]
    locked, key = authority.sign("locked", password=PASSWORD)
    trust = ("--set", f"connection.ca_bundle={authority.bundle}")
    shown = (
        "--set",
        f"connection.client_cert={locked}",
        "--set",
        f"connection.client_key={key}",
        "--set",
        "connection.client_key_password_env=PW",
    )
    for number, (more, code, said) in enumerate(
        [
            ((), 4, "with --set connection.ca_bundle=FILE"),
            (trust, 4, "with --set connection.client_cert=FILE"),
            ((*trust, *shown), 2, f"the password in PW does not open {key}"),
        ]
    ):
        done = serve_eval(*words, *more, "-o", tmp_path / f"{number}", PW="wrong")
        told = " ".join(f"{done.stdout} {done.stderr}".split())
        assert (done.returncode, said in told) == (code, True), told
        assert "loading its model" not in told


async def test_the_wait_for_a_server_ends_where_it_demands_a_certificate(url, tmp_path):
    """It answers; the client, which has the certificate, shows it."""
    options = external.ExternalOptions(base_url=url, ready_timeout_s=20)
    async with external.launch(
        LaunchContext(model="simulated", log_dir=tmp_path), options
    ) as endpoint:
        assert endpoint.base_url == url
