"""Build the wheel and the sdist, and install them into empty environments."""

from __future__ import annotations

import csv
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path


class Failed(Exception):
    """A step that did not do what a user needs."""

    def __init__(self, message: str, printed: str = "") -> None:
        super().__init__(message)
        self.printed = printed


def expect(
    done: subprocess.CompletedProcess[str], *, code: int, words: tuple[str, ...] = ()
) -> None:
    """Raise Failed for another exit code, or if the output lacks one of the words."""
    printed = done.stdout + done.stderr
    shown = " ".join(map(str, done.args))[-300:]
    if done.returncode != code:
        raise Failed(f"exit code {done.returncode}, not {code}: {shown}", printed)
    for word in words:
        if word not in printed:
            raise Failed(f"the output lacks {word!r}: {shown}", printed)


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


NAME, PACKAGE = "serve-eval", "serve_eval"
LOCK_OF_UV = ".lock"


class Environment:
    """A virtual environment of one Python, without any package but, where uv is absent, pip."""

    def __init__(self, python: Path, folder: Path, constraints: Path) -> None:
        self.folder = folder.resolve()
        self._constraints = constraints
        self.python = self.folder / "bin/python"
        self.uv = _find_uv()
        if self.uv:
            self._run([self.uv, "venv", "-q", "--python", str(python), str(self.folder)])
        else:
            self._run([str(python), "-P", "-m", "venv", str(self.folder)])
        self._empty = self._list_files()

    def install(self, *wanted: str) -> str:
        """Install requirements, and return the name of the installer."""
        if self.uv:
            try:
                self._run([self.uv, "pip", "install", "-q", *self._asked(), *wanted])
            except Failed:  # pip reads other settings: indexes, certificates.
                if self._list_files() != self._empty:
                    raise
                self.uv = None
                self._run([str(self.python), "-P", "-m", "ensurepip"])
                self._empty = self._list_files()
            else:
                return "uv"
        self._run([*self._pip(), "install", "-q", "-c", str(self._constraints), *wanted])
        return "pip"

    def uninstall(self) -> None:
        """Uninstall serve-eval. Raises Failed if a file is left that no other package owns.

        uv removes whole folders, and pip only Python's own cache of each module.
        """
        rewritten = f"site-packages/{PACKAGE}/**/*-pytest-*.pyc"
        if beyond := sorted(map(str, self.folder.glob(f"lib/python*/{rewritten}"))):
            raise Failed(f"pip would leave {len(beyond)} files: {beyond[:8]}")
        if self.uv:
            self._run([self.uv, "pip", "uninstall", "-q", "--python", str(self.python), NAME])
        else:
            self._run([*self._pip(), "uninstall", "-q", "-y", NAME])
        left = self._list_files() - self._empty - self._list_owned() - {LOCK_OF_UV}
        left = {one for one in left if not self._is_cache_of_another(one)}
        if left:
            raise Failed(f"uninstalling leaves {len(left)} files: {sorted(left)[:8]}")

    def _asked(self) -> list[str]:
        return ["--python", str(self.python), "-c", str(self._constraints)]

    def _pip(self) -> list[str]:
        return [str(self.python), "-P", "-m", "pip", "--disable-pip-version-check"]

    def _run(self, words: Sequence[str]) -> None:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            words,
            cwd=self.folder.parent,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(words)} failed", done.stdout + done.stderr)

    def _list_files(self) -> set[str]:
        """Return all files and folders of the environment, relative to it."""
        return {
            os.path.relpath(f"{place}/{name}", self.folder)
            for place, folders, files in os.walk(self.folder)
            for name in (*folders, *files)
        }

    def _list_owned(self) -> set[str]:
        """Return the files that the installed packages list as theirs, and their folders."""
        owned = set[str]()
        for record in self.folder.glob("lib/python*/site-packages/*.dist-info/RECORD"):
            with record.open(newline="") as lines:
                files = [record.parents[1] / row[0] for row in csv.reader(lines) if row]
            for file in files:
                place = Path(os.path.relpath(os.path.normpath(file), self.folder))
                owned.update(map(str, (place, *place.parents)))
        return owned

    def _is_cache_of_another(self, name: str) -> bool:
        """Return True for compiled code of a module that is still installed, and its folder."""
        file = self.folder / name
        if file.name == "__pycache__":
            return any(file.parent.glob("*.py"))
        source = file.parent.parent / f"{file.name.partition('.')[0]}.py"
        return file.suffix == ".pyc" and source.exists()


def _find_uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")
