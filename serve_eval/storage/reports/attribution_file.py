"""Write attribution.json, the results of asking each worker separately, and keep their faces."""

from __future__ import annotations

from pathlib import Path

from serve_eval.storage.file_names import ATTRIBUTION_FACES
from serve_eval.storage.folder_format import Versioned
from serve_eval.storage.story_files import ATTRIBUTE


def check_attribution(run: Path) -> None:
    """Raise RunFolderError if a newer serve-eval wrote the file, since it would be lost.

    A damaged file may be replaced.
    """
    ATTRIBUTE.find(run, Versioned)


def make_faces_folder(run: Path) -> Path:
    """Return the folder in a run for the page and the files of CI, which the run has of its own."""
    folder = run / ATTRIBUTION_FACES
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
