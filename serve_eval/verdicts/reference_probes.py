"""Keep the probes of a registered reference in a JSON file next to its scores."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from serve_eval.errors import ReferenceFileError
from serve_eval.schema import IDENTITY_VERSION, IdentityProbes, Reference
from serve_eval.whole_file import write_named_file

_TAKE_AGAIN = "Take the probes again: serve-eval references take ... --probes N."


class _Versioned(msgspec.Struct):
    version: int = 0


def write_probes(path: Path, probes: IdentityProbes) -> str:
    """Write the file and return its sha256. Raises ReferenceFileError."""
    data = msgspec.json.encode(probes) + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_named_file(path, data)
    except OSError as error:
        raise ReferenceFileError(f"{path}: cannot be written: {error.strerror}") from error
    return hashlib.sha256(data).hexdigest()


def read_probes(reference: Reference) -> IdentityProbes:
    """Return the probes of a reference that names some.

    Raises ReferenceFileError if they are missing, changed, or of another version.
    """
    runs = reference.runs
    assert runs is not None
    path = Path(reference.file).parent / runs.probes
    try:
        data = path.read_bytes()
    except OSError as error:
        told = f"{path}: cannot be read: {error.strerror}"
        raise ReferenceFileError(told, hint=_TAKE_AGAIN) from error
    if hashlib.sha256(data).hexdigest() != runs.probes_sha256:
        told = f"{path} is not the file that was registered"
        raise ReferenceFileError(told, hint=_TAKE_AGAIN)
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != IDENTITY_VERSION:
            told = f"{path}: probes of version {version}, and this program compares those of"
            raise ReferenceFileError(f"{told} {IDENTITY_VERSION}", hint=_TAKE_AGAIN)
        return msgspec.json.decode(data, type=IdentityProbes)
    except msgspec.MsgspecError as error:
        raise ReferenceFileError(f"{path}: {error}", hint=_TAKE_AGAIN) from error
