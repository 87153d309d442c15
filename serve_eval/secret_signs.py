"""Recognise what is probably a key, in what a user writes into a plan. Pure.

A plan is saved, shown and shared, so a key in it is refused. Honest values look similar: ids of
models, hashes of checkpoints, ids of sessions, names of special tokens. The rules are in this
order: a known beginning of keys, the name that a value has, and the randomness of a part of a path.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, unquote, urlsplit

ADVICE = (
    "looks like a secret, and what is written here is saved and shown; export it as a variable:"
    " --api-key-env NAME sends a key, --header 'NAME: ${VARIABLE}' a header, and pass_env of a"
    " launcher hands a variable to its servers"
)
"""Text of a refusal, after the name of the place."""
Place = tuple[str | int, ...]
"""Keys and indices that lead to a value."""

_BEGINNINGS = re.compile(
    r"\b(?:(?:sk|rk|pk|pk-lf|sk-lf|sk-ant|nvapi|glpat|gldt|dapi|tgp|fw|csk|xai|pplx|xox[a-z]|xapp)-"
    r"|(?:hf|api_org|gh[a-z]|github_pat|gsk|r8|dckr_pat|npm|pypi|xai|fw|tgp_v1|csk|sk_live|rk_live)_)"
    r"(?P<key>[A-Za-z0-9][A-Za-z0-9_-]{7,})"
)
_FORMS = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bAIza[A-Za-z0-9_-]{20,}"
    r"|\bya29\.[A-Za-z0-9_-]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{40,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SCHEMES = re.compile(r"\b(?:Bearer|Basic)(?:\s|%20|\+)+(?P<key>[A-Za-z0-9._~+/=-]{8,})", re.I)
_USER = re.compile(r"://[^/\s@\"'$]*:[^/\s@\"'$]+@|://[^/\s@\"'$:]{8,}@")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_ALWAYS = frozenset(
    {"password", "passwd", "passphrase", "pwd", "secret", "apikey", "credential", "credentials"}
    | {"authorization", "bearer", "apitoken", "authtoken", "accesstoken", "accesskey", "secretkey"}
    | {"privatekey", "clientsecret", "hftoken"}
)
"""Words that make any name that of a secret."""
_KEYS = frozenset(
    {"api", "access", "private", "secret", "auth", "subscription", "encryption", "signing"}
    | {"account", "internal", "master", "service", "admin", "user", "client", "license", "x"}
)
"""Words before "key" in names of secrets. A cache key, a sort key and the like are none."""
_TOKENS = frozenset(
    {"api", "access", "auth", "bearer", "refresh", "hf", "hub", "huggingface", "github", "gitlab"}
    | {"ngc", "wandb", "private", "user", "security", "personal", "deploy", "service", "x", "jwt"}
    | {"csrf", "oauth", "admin"}
)
"""Words before "token" in names of secrets. Most names with "token" mean tokens of a text."""
_NAMED = frozenset(
    {"account", "accounts", "commit", "commits", "deployment", "deployments", "endpoint", "v1"}
    | {"endpoints", "model", "models", "project", "projects", "revision", "revisions", "run"}
    | {"runs", "session", "sessions", "sha", "sha256", "snapshot", "snapshots", "checkpoints"}
    | {"blobs", "tenants", "organizations", "workspaces", "checkpoint"}
)
"""Parts of a path after which a hexadecimal number is an id."""
_UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE)
_SORTABLE_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_VARIABLE = re.compile(r"\$\{?[A-Za-z_][A-Za-z0-9_]*\}?")
_FLAG = re.compile(r"(?P<flag>-{1,2}[A-Za-z][\w.-]*)")
_ASSIGNED = re.compile(r"(?P<name>[A-Za-z_-][\w.-]*)\s*[=:]\s*(?P<value>[^\s,;&]+)")
_OF_TEXTS = frozenset(
    {"guided_regex", "guided_grammar", "regex", "grammar", "pattern", "ebnf", "chat_template"}
    | {"description", "content"}
)
"""Fields of requests whose texts may be about names of secrets."""
LEAST_NAMED = 4
"""Minimum characters of a secret by its name: shorter ones are words such as yes and none."""
LEAST_RANDOM, LEAST_RUN = 18, 12
"""Minimum letters and digits of a random part of a path, and of those without a separator."""
LEAST_HEX = 32
WORDS_PER_CHARACTER = {"mixed": 0.34, "lower": 0.3, "upper": 0.22}
"""Random letters and digits change their kind more often than this; names do not."""


def names_secret(name: str) -> bool:
    """Return True if a key, a flag, a variable or a field of this name holds a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    joined = set(words) | {"".join(pair) for pair in itertools.pairwise(words)}
    if words[-1:] in (["env"], ["file"], ["path"], ["field"], ["name"], ["id"]):
        return False
    if joined & _ALWAYS:
        return True
    if words[-1:] == ["auth"]:
        return True
    before = words[-2] if len(words) > 1 else ""
    last = words[-1] if words else ""
    return (last == "key" and before in _KEYS) or (
        last == "token" and (before in _TOKENS or not before)
    )


def holds_secret(text: str) -> bool:
    """Return True if a text has a known form of keys, or a user and a password in an address."""
    told = _unquote(text)
    return (
        any(_is_random(found["key"]) for found in _BEGINNINGS.finditer(told))
        or any(_is_random(found["key"]) for found in _SCHEMES.finditer(told))
        or _FORMS.search(told) is not None
        or _USER.search(_VARIABLE.sub("", told)) is not None
    )


def hide(text: str, by: str) -> str:
    """Return a text with every known form of keys, and passwords in addresses, replaced."""
    if not holds_secret(text):
        return text
    for pattern in (_BEGINNINGS, _SCHEMES):
        text = pattern.sub(lambda found: by if _is_random(found["key"]) else found[0], text)
    text = _FORMS.sub(by, _USER.sub(f"://{by}@", text))
    return by if holds_secret(text.replace(f"://{by}@", "")) else text


def find_secrets(value: object, place: Place = ()) -> Iterator[Place]:
    """Yield the place of each probable secret in a value made of mappings, lists and texts."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if holds_secret(str(key)):
                yield (*place, "(a name)")
            elif str(key) in _OF_TEXTS and isinstance(inner, str):
                yield from [(*place, str(key))] if holds_secret(inner) else []
            elif _is_named(str(key), inner):
                yield (*place, str(key))
            else:
                yield from find_secrets(inner, (*place, str(key)))
    elif isinstance(value, list | tuple):
        yield from _in_words(value, place)
    elif isinstance(value, str) and (holds_secret(value) or _in_text(value)):
        yield place


def in_address(url: str) -> str:
    """Return the part of an address in which a key probably stands, or an empty text."""
    if holds_secret(url):
        return "address"
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    if any(_is_named(name, value) for name, value in parse_qsl(parts.query)):
        return "query"
    segments = [one for one in re.split("[/;]", _unquote(parts.path)) if one]
    for before, segment in zip(["", *segments], segments, strict=False):
        named = _ASSIGNED.fullmatch(segment)
        if (named and _is_named(named["name"], named["value"])) or (
            names_secret(before) and len(segment) >= 8 and re.search("[0-9A-Z]", segment)
        ):
            return "path"
        if _is_key_in_path(segment, before):
            return "path"
    return ""


def _is_named(name: str, value: object) -> bool:
    """Return True if a value under this name is a secret: not a variable, a mapping or a word."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    text = _VARIABLE.sub("", str(value)).strip()
    if len(text) < LEAST_NAMED or re.fullmatch(r"<.*>|\[.*\]", text):
        return False
    return names_secret(name) and text.lower() not in ("none", "null", "false", "true", "auto")


def _in_words(words: list[object] | tuple[object, ...], place: Place) -> Iterator[Place]:
    """Yield the places of secrets in a list; a word may be the flag of the next one."""
    for i, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        flag = _FLAG.fullmatch(before) if isinstance(before, str) else None
        is_value = isinstance(word, str) and not _FLAG.match(word)
        if flag and is_value and _is_named(flag["flag"], word):
            yield (*place, flag["flag"])
        else:
            yield from find_secrets(word, (*place, i))


def _in_text(text: str) -> bool:
    """Return True if a text is a command or an assignment that names a secret."""
    if "://" in text and in_address(text):
        return True
    words = text.split()
    return any(
        _is_named(found["name"], found["value"])
        for word in words
        if (found := _ASSIGNED.fullmatch(word)) is not None
    ) or any(
        _FLAG.fullmatch(flag) is not None and not _FLAG.match(value) and _is_named(flag, value)
        for flag, value in itertools.pairwise(words)
    )


def _is_random(key: str) -> bool:
    """Return True if what follows the beginning of a key is no word: `sk-learn-model` is none."""
    return (
        re.search(r"[0-9]", key) is not None
        or (
            re.search(r"[a-z]", key) is not None
            and re.search(r"[a-z][A-Z]|[A-Z]{4}", key) is not None
        )
        or re.search(r"[A-Za-z]{14}", key) is not None
    )


def _is_key_in_path(segment: str, before: str) -> bool:
    runs = re.findall(r"[A-Za-z0-9]+", segment)
    count, run = sum(map(len, runs)), max(runs, key=len, default="")
    if _UUID.search(segment) or _SORTABLE_ID.fullmatch(segment):
        return False
    if _HEX.fullmatch(run):
        return len(run) >= LEAST_HEX and run == segment and before.lower() not in _NAMED
    words = len(_WORDS.findall("".join(runs)))
    lower, upper = re.search("[a-z]", run), re.search("[A-Z]", run)
    kind = "mixed" if lower and upper else "lower" if lower else "upper"
    least = LEAST_RUN if kind == "mixed" else LEAST_RANDOM
    often = words / max(1, count) >= WORDS_PER_CHARACTER[kind]
    return count >= LEAST_RANDOM and len(run) >= least and often


def _unquote(text: str) -> str:
    """Return a text with its percent-encoding undone, also where it was applied again."""
    for _ in range(3):
        plain = unquote(text)
        if plain == text:
            break
        text = plain
    return text
