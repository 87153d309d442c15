"""Make an empty environment, install the wheel into it, and see what uninstalling leaves."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.wheel.failing import Failed

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
