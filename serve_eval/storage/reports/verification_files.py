"""Read and write the references of verifications."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.errors import ReferenceFileError, RunFolderError
from serve_eval.schema import VerificationReference
from serve_eval.schema.verification import REFERENCE_VERSION
from serve_eval.storage.private_files import write_private


class _Versioned(msgspec.Struct):
    version: int


def read_reference(path: Path) -> VerificationReference:
    """Return the reference in a file. Raises ReferenceFileError if it is none that can be read."""
    try:
        content = path.read_bytes()
        version = msgspec.json.decode(content, type=_Versioned).version
        if version > REFERENCE_VERSION:
            raise ReferenceFileError(
                f"{path}: written by a newer serve-eval (version {version})",
                hint="Install that version, or register the reference again.",
            )
        return msgspec.json.decode(content, type=VerificationReference)
    except OSError as error:
        raise ReferenceFileError(f"{path}: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReferenceFileError(
            f"{path} is no reference of `serve-eval verify`: {error}",
            hint="Make one with: serve-eval verify HOST --register FILE",
        ) from error


def write_reference(path: Path, reference: VerificationReference) -> None:
    """Write a reference, with a line for each probe.

    Raises RunFolderError, and JournalError for a full disk.
    """
    head = msgspec.to_builtins(reference)
    probes = head.pop("probes")
    lines = [msgspec.json.encode(one) for one in probes]
    text = msgspec.json.encode(head)[:-1] + b',"probes":[\n' + b",\n".join(lines) + b"\n]}\n"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(f"{path.parent}: {error.strerror}") from error
    write_private(path, text)
