"""Case files that nobody reads without the key: for questions that must not end in what models are
trained on.

The file is a Fernet token (AES in CBC mode with an HMAC) of the YAML. The key comes from the
environment alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import PlanError, install_hint

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

ENDING = ".enc"
VARIABLE = "SERVE_EVAL_HOLDOUT_KEY"
_NEW_KEY = f"export {VARIABLE}=$(openssl rand -base64 32 | tr '+/' '-_')"


def decrypt(file: Path, key: str) -> str:
    """The text of an encrypted file. Raises PlanError without the key, with a wrong one, and for a
    damaged file.
    """
    if not key:
        raise PlanError(
            f"{file}: is encrypted, and {VARIABLE} is not set",
            hint="Export the key that it was made with.",
        )
    cipher = _cipher(key)
    from cryptography.fernet import InvalidToken

    try:
        return cipher.decrypt(file.read_bytes()).decode()
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except (InvalidToken, UnicodeDecodeError) as error:
        raise PlanError(
            f"{file}: cannot be decrypted: the key of {VARIABLE} is another one, or the file is"
            " damaged",
            hint="Export the key that it was made with.",
        ) from error


def encrypt(source: Path, target: Path, key: str) -> None:
    """Writes an encrypted copy of a file. Raises PlanError without a key, and when a file cannot be
    read or written.
    """
    if not key:
        raise PlanError(f"{VARIABLE} is not set", hint=f"Make a key, and keep it: {_NEW_KEY}")
    cipher = _cipher(key)
    try:
        token = cipher.encrypt(source.read_bytes())
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), "wb") as file:
            file.write(token + b"\n")
    except OSError as error:
        raise PlanError(f"{error.filename}: {error.strerror}") from error


def _cipher(key: str) -> Fernet:
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise PlanError(
            "encrypted cases need the package cryptography", hint=install_hint("holdout")
        ) from error
    try:
        return Fernet(key.strip())
    except ValueError as error:
        raise PlanError(f"{VARIABLE} is no key: {error}", hint=f"A new one: {_NEW_KEY}") from error
