"""Copy the files of the checkout that git knows or does not ignore."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def list_files(root: Path) -> list[str]:
    """Return the files of the checkout that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    names = (name for name in listed.stdout.split("\0") if name)
    return [name for name in names if (root / name).is_file() or (root / name).is_symlink()]


def copy_checkout(root: Path, copy: Path) -> Path:
    """Write a copy of the checkout, with its links, in place of an earlier one, and return it."""
    shutil.rmtree(copy, ignore_errors=True)
    for name in list_files(root):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        if (root / name).is_symlink():
            (copy / name).symlink_to((root / name).readlink())
        else:
            shutil.copy2(root / name, copy / name)
    return copy
