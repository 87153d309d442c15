"""Find the folder of real data next to the checkout, which may be absent."""

from __future__ import annotations

from pathlib import Path

from tests.oracle.part import Skipped

SHARED = Path(__file__).resolve().parents[3] / "shared/data"


def shared(name: str) -> Path:
    """Return a subfolder of the real data.

    Raises Skipped if it is missing.
    """
    if not (folder := SHARED / name).is_dir():
        raise Skipped(f"{folder} is not there")
    return folder
