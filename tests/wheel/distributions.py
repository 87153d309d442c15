"""Build the wheel and the sdist, and compare the wheel with one that is built from the sdist."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.wheel.failing import Failed


def build(checkout: Path, folder: Path) -> Path:
    """Return the wheel of a checkout. Raises Failed if that of its sdist holds other files."""
    _hatch(checkout, folder, "wheel", "sdist")
    wheel, sdist = next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    _hatch(next((folder / "source").iterdir()), folder / "again", "wheel")
    first, again = _read(wheel), _read(folder / "again" / wheel.name)
    differ = sorted(name for name in first | again if first.get(name) != again.get(name))
    if differ:
        raise Failed(f"the wheel of the sdist differs in {len(differ)} files: {differ[:5]}")
    return wheel


def _hatch(source: Path, folder: Path, *targets: str) -> None:
    asked = [word for target in targets for word in ("-t", target)]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "hatchling", "build", *asked, "-d", str(folder)],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode != 0:
        raise Failed(f"{source} cannot be built", done.stdout + done.stderr)


def _read(wheel: Path) -> dict[str, str]:
    """Return the checksums of a wheel's files, without its list of them."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if not name.endswith("/RECORD")
        }
