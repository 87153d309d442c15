"""Encrypt and decrypt case files whose questions must not get into training data.

The file is a Fernet token (AES in CBC mode with an HMAC) of the YAML. The key comes only from the
environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import PlanError, install_hint
from serve_eval.whole_file import write_named_file

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

ENDING = ".enc"
VARIABLE = "SERVE_EVAL_HOLDOUT_KEY"
_NEW_KEY = f"export {VARIABLE}=$(openssl rand -base64 32 | tr '+/' '-_')"


def decrypt(file: Path, key: str) -> str:
    """Return the text of an encrypted file.

    Raises PlanError if the key is missing or wrong, or if the file is damaged.
    """
    if not key:
        raise PlanError(
            f"{file}: is encrypted, but {VARIABLE} is not set",
            hint="Export the key with which it was encrypted.",
        )
    cipher = _cipher(key)
    from cryptography.fernet import InvalidToken

    try:
        return cipher.decrypt(file.read_bytes()).decode()
    except OSError as error:
        raise PlanError(f"{file}: cannot be read: {error.strerror}") from error
    except (InvalidToken, UnicodeDecodeError) as error:
        raise PlanError(
            f"{file}: cannot be decrypted: the key in {VARIABLE} is wrong, or the file is damaged",
            hint="Export the key with which it was encrypted.",
        ) from error


def encrypt(source: Path, target: Path, key: str) -> None:
    """Write an encrypted copy of a file.

    Raises PlanError if there is no key, or if a file cannot be read or written.
    """
    if not key:
        raise PlanError(f"{VARIABLE} is not set", hint=f"Create a key and keep it: {_NEW_KEY}")
    cipher = _cipher(key)
    try:
        token = cipher.encrypt(source.read_bytes())
        write_named_file(target, token + b"\n")
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
        raise PlanError(
            f"{VARIABLE} is not a key: {error}", hint=f"Create a new one: {_NEW_KEY}"
        ) from error
