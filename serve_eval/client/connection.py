"""Connect to the endpoint of a plan, and hide the secrets of the connection.

A plan holds the name of the key's variable, and headers and a proxy with `${VARIABLE}` in place of
secrets. It is checked when it is made. The values are filled in when the connection is opened, and
stay in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from serve_eval.client.tls import certificates_of
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.masking import HIDDEN, Masking
from serve_eval.schema import Connection, Endpoint, Plan
from serve_eval.secret_signs import holds_secret

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from serve_eval.client.client import Client


KEY_ADVICE = (
    "keys are read from the environment only: export OPENAI_API_KEY, or name a variable with"
    " api_key_env"
)

LEAST_HIDDEN = 3
"""Minimum characters of a header's value that is hidden in messages: a 1 stands in all of them."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET_NAME = re.compile(
    r"key|auth(?!or(?!i[sz]))|token|secret|passw|cookie|credential", re.IGNORECASE
)
_SECRET_VALUE = re.compile(r"^(Bearer|Basic)\s|\b(sk-|hf_|nvapi-|ghp_)[A-Za-z0-9_-]{8,}")
_SCHEME_WORD = re.compile(r"^(bearer|basic|token|apikey|key)\b", re.IGNORECASE)


_PLACE_OF_ID = re.compile(
    r"header:[Xx]-[\w-]+|body:(?!(?:model|messages|input|stream)\b)[a-z]\w*(?:\.\w+)*"
)
"""Places for the id of a conversation: own headers, and fields that requests do not have."""


def looks_secret(name: str) -> bool:
    """Return True if a header, variable or key of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


def problems(
    connection: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what a plan's connection must not hold, as (path of the field, message).

    Messages never repeat a value.
    """
    variable = connection.get("api_key_env")
    if variable and (
        not _VARIABLE_NAME.fullmatch(variable)
        or holds_secret(variable)
        or _SECRET_VALUE.search(variable)
    ):
        yield ("api_key_env",), "expected the name of an environment variable, not a key"
    elif variable and variable != Connection().api_key_env and variable not in environ:
        yield ("api_key_env",), f"the environment has no {variable}; export it first"
    yield from _certificate_problems(connection, environ)
    for name, value in connection.get("headers", {}).items():
        if _literal_secret(name, value):
            yield (
                ("headers", name),
                "looks like a secret; read it from the environment as ${VARIABLE}",
            )
    place = connection.get("conversation_id")
    if place is not None and not _PLACE_OF_ID.fullmatch(place):
        yield ("conversation_id",), f"{place!r} is neither header:X-... nor body:FIELD.FIELD"
    proxy = connection.get("proxy")
    if proxy is not None and (message := _proxy_problem(proxy)):
        yield ("proxy",), message


def _certificate_problems(
    connection: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield what is wrong with a client certificate; its files are read when it is used."""
    for name in ("client_cert", "client_key"):
        if "-----BEGIN" in (connection.get(name) or ""):
            yield (name,), "expected the path of a PEM file, not its content"
    if connection.get("client_cert") is None:
        for name in ("client_key", "client_key_password_env"):
            if connection.get(name) is not None:
                yield (name,), "needs client_cert, the certificate that belongs to the key"
    password = connection.get("client_key_password_env")
    if password is not None and not _VARIABLE_NAME.fullmatch(password):
        yield (
            ("client_key_password_env",),
            "expected the name of an environment variable, not a password",
        )
    elif password is not None and password not in environ:
        yield ("client_key_password_env",), f"the environment has no {password}; export it first"


def _literal_secret(name: str, value: str) -> bool:
    """Return True if a header holds a literal secret, not only variables after a scheme word."""
    literal = _SCHEME_WORD.sub("", _VARIABLE.sub("", value).strip()).strip()
    return bool(literal) and (
        looks_secret(name) or holds_secret(value) or _SECRET_VALUE.search(value) is not None
    )


def _proxy_problem(proxy: str) -> str | None:
    """Return what is wrong with a proxy, or None.

    Credentials must be variables. An address with variables is checked when they are filled in.
    """
    scheme, _, rest = proxy.partition("://")
    if _VARIABLE.sub("", rest.rpartition("@")[0]).strip(":"):
        return "holds credentials; read user and password from the environment as ${VARIABLE}"
    if _VARIABLE.search(proxy) or (
        scheme in ("http", "https") and re.match(r"[\w.-]+(:\d+)?/?$", rest)
    ):
        return None
    return "expected http://host:port or https://host:port"


def connect(plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]) -> Client:
    """Return a client with the plan's connection, key and variables taken from `environ`.

    Raises PlanError, without the value, for a variable that is missing or holds characters that a
    header cannot carry.
    """
    from serve_eval.client.client import Client  # making a plan needs no client

    api_key, headers, proxy, hidden = _fill_in(plan.connection, environ)
    return Client(
        endpoint,
        plan.limits,
        api_key=api_key or None,
        headers=headers,
        proxy=proxy,
        certificates=certificates_of(plan.connection, environ),
        masked=hidden,
        max_tokens_field=plan.connection.max_tokens_field,
        send_media=plan.connection.send_media,
        route=plan.connection.route,
        conversation_id=plan.connection.conversation_id,
    )


@contextmanager
def hide_in_errors(connection: Connection, environ: Mapping[str, str]) -> Iterator[None]:
    """Mask the connection's secrets in errors raised by the block, which may quote a log."""
    try:
        yield
    except ServeEvalError as error:
        with suppress(PlanError):  # a value that cannot be filled in was never sent
            api_key, _, _, hidden = _fill_in(connection, environ)
            masking = Masking([api_key, *hidden])
            error.args = (masking.text(str(error)),)
            error.hint = masking.text(error.hint)
        raise


def openai_client(
    plan: Plan, base_url: str, environ: Mapping[str, str], *, timeout_s: float
) -> AsyncOpenAI:
    """Return the official OpenAI client with the same connection and no retries.

    Raises PlanError as `connect` does.
    """
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient

    api_key, headers, proxy, _ = _fill_in(plan.connection, environ)
    verify = certificates_of(plan.connection, environ).context()
    http = DefaultAsyncHttpxClient(proxy=proxy, verify=verify, trust_env=False, timeout=timeout_s)
    return AsyncOpenAI(
        base_url=base_url,
        api_key=api_key or "none",
        default_headers=headers,
        http_client=http,
        timeout=timeout_s,
        max_retries=0,
    )


def _fill_in(
    connection: Connection, environ: Mapping[str, str]
) -> tuple[str, dict[str, str], str | None, list[str]]:
    """Return the key ("": none), the headers, the proxy and the secrets of a connection."""
    hidden: list[str] = []
    api_key = environ.get(connection.api_key_env, "").strip()
    hidden += filter(None, [environ.get(connection.client_key_password_env or "")])
    _check_header(api_key, f"the key in {connection.api_key_env}")
    headers = {}
    for name, value in connection.headers.items():
        headers[name] = _expand(value, environ, f"header {name}", hidden).strip()
        _check_header(headers[name], f"header {name}")
    proxy = _expand(connection.proxy, environ, "proxy", hidden) if connection.proxy else None
    return api_key, headers, proxy, hidden


def expand(value: str, environ: Mapping[str, str], where: str) -> str:
    """Return `value` with its `${VARIABLE}` filled in. Raises PlanError for a missing variable."""
    return _expand(value, environ, where, [])


def _check_header(value: str, what: str) -> None:
    if not value.isascii() or not value.isprintable():
        raise PlanError(f"{what} has a character that cannot be sent in a header")


def _expand(value: str, environ: Mapping[str, str], where: str, hidden: list[str]) -> str:
    """Return `value` with its variables filled in, and add their values to `hidden`.

    Whatever is read from the environment is a secret, under any name: else it could stand in the
    plan. So is the last word of each, because it may come back without its scheme.
    """
    names = _VARIABLE.findall(value)
    missing = [name for name in names if name not in environ]
    if missing:
        raise PlanError(f"{where}: the environment has no {', '.join(missing)}")
    read = {name: environ[name].strip() for name in names}
    held = [text for name, text in read.items() if len(text) >= LEAST_HIDDEN or looks_secret(name)]
    hidden += dict.fromkeys(word for one in held for word in (one, *one.split()[1:][-1:]))
    return _VARIABLE.sub(lambda match: environ[match.group(1)], value)


_TOKEN = re.compile(
    r"\b(?:Bearer\s+|sk-|hf_|nvapi-|ghp_)[A-Za-z0-9._-]{8,}|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)
_SIGNS = {"B": ("Bearer",), "-": ("sk-", "nvapi-"), "_": ("hf_", "ghp_"), "/": ("://",)}
"""Parts of every match of _TOKEN, by one of their characters: looking for that, then for them,
takes a thirtieth of the time."""
_PLAIN = re.compile(r"tokens|tokeniz|_env$", re.IGNORECASE)
"""Names that look secret but are not: token counts, tokenizers, names of variables."""


class SecretMask:
    """Hide secrets in text from other sources.

    Secrets are the values of the connection's variables and of every variable with a
    secret-sounding name, and anything that looks like a key.
    """

    def __init__(self, connection: Connection, environ: Mapping[str, str]) -> None:
        named = {
            connection.api_key_env,
            connection.client_key_password_env,
            *variables_in(*connection.headers.values(), connection.proxy or ""),
        }
        held = (
            value.strip() for name, value in environ.items() if name in named or looks_secret(name)
        )
        self._masking = Masking(held)

    def __call__(self, text: str) -> str:
        text = self._masking.text(text)
        for character, signs in _SIGNS.items():
            if character in text:
                for sign in signs:
                    if sign in text:
                        return _TOKEN.sub(HIDDEN, text)
        return text

    def holds(self, data: bytes) -> bool:
        """Return True if bytes contain a known secret."""
        return self._masking.holds(data)

    def of(self, value: Any, name: str = "") -> Any:
        """Return a JSON value with its secrets hidden, and any text under a secret's name."""
        if isinstance(value, Mapping):
            return {self(str(key)): self.of(inner, str(key)) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            texts = bool(value) and all(isinstance(inner, str) for inner in value)
            return [
                self.of(inner, name) for inner in (self._masking.pieces(value) if texts else value)
            ]
        if not isinstance(value, str):
            return value
        return HIDDEN if looks_secret(name) and not _PLAIN.search(name) else self(value)


def variables_in(*texts: str) -> Iterable[str]:
    """Yield the names in the `${NAME}` of texts."""
    return (name for text in texts for name in re.findall(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text))
