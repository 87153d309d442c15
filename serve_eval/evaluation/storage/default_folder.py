"""Name the folder of a command that was given none."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from serve_eval.evaluation.storage.latest import OUTPUTS


def name_default_folder(name: str) -> Path:
    """Return a folder in outputs/ that does not exist yet, named by the time and `name`.

    A second command in the same second gets a number.
    """
    folder = OUTPUTS / f"{datetime.now(UTC):%Y%m%d_%H%M%S}_{name}"
    numbered = (folder.with_name(f"{folder.name}_{number}") for number in count(2))
    return folder if not folder.exists() else next(one for one in numbered if not one.exists())
