"""Sign the plans that this user saves, and recognise them by the signature.

The owner of a file proves nothing: a user who unpacks an archive or clones a repository owns its
files. Therefore the first run creates a key, ~/.local/state/serve-eval/key (below XDG_STATE_HOME if
that is set), with mode 0600. A signature is HMAC-SHA256 over the content and the real path of its
folder. Content that was edited, copied or moved has no valid signature.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.whole_file import force_to_disk

KEY_FILE, KEY_BYTES = "key", 32
SIGNATURE = "signature"
"""The key under which a signed file holds its signature, next to the signed content."""


def state_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for this user's state.

    Ignores a relative XDG_STATE_HOME, as the XDG specification requires: it would lead into the
    current folder, which may belong to someone else. Raises RuntimeError if no home is known.
    """
    given = (environ.get("XDG_STATE_HOME") or "", "~/.local/state")
    found = next((path for text in given if (path := Path(text).expanduser()).is_absolute()), None)
    if found is None:
        raise RuntimeError("HOME is not an absolute path")
    return found / "serve-eval"


def add_signature(
    content: Mapping[str, object], folder: Path, environ: Mapping[str, str] = os.environ
) -> dict[str, object]:
    """Return the content with this user's signature for this folder.

    The content has no signature if no key can be stored.
    """
    plain = {name: value for name, value in content.items() if name != SIGNATURE}
    key = _key(environ, make=True)
    return plain if key is None else {**plain, SIGNATURE: _signature(key, plain, folder)}


def is_own(
    content: Mapping[str, object], folder: Path, environ: Mapping[str, str] = os.environ
) -> bool:
    """Return True if this user signed the content for this folder, and it is unchanged."""
    given, key = content.get(SIGNATURE), _key(environ, make=False)
    if key is None or not isinstance(given, str):
        return False
    plain = {name: value for name, value in content.items() if name != SIGNATURE}
    return hmac.compare_digest(given.encode(), _signature(key, plain, folder).encode())


def has_key(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if there is a key. Create one if possible."""
    return _key(environ, make=True) is not None


def _signature(key: bytes, plain: Mapping[str, object], folder: Path) -> str:
    value: Any = msgspec.json.decode(msgspec.json.encode(plain))  # as it is read from a file
    text = (
        os.fsencode(os.path.realpath(folder)) + b"\0" + msgspec.json.encode(value, order="sorted")
    )
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def _key(environ: Mapping[str, str], *, make: bool) -> bytes | None:
    """Return the key, or None if there is none or others could have read or written it."""
    try:
        file = state_folder(environ) / KEY_FILE
        if make and not file.exists():
            _make(file)
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as opened:
            state = os.fstat(opened.fileno())
            private = (
                stat.S_ISREG(state.st_mode)
                and not state.st_mode & 0o077
                and state.st_uid == os.geteuid()
            )
            key = opened.read(KEY_BYTES + 1) if private else b""
    except (OSError, RuntimeError):
        return None
    return key if len(key) == KEY_BYTES else None


def _make(file: Path) -> None:
    """Create a new key in one step, unless another process was first. Raises OSError."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as new:
            new.write(secrets.token_bytes(KEY_BYTES))
            new.flush()
            force_to_disk(new.fileno())
        try:
            os.link(partial, file)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not file.exists():
                partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
