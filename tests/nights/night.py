"""Run the night of docs/ci.md with sh, exactly as the page prints it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli.command import environment

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```sh\n(#!/bin/sh\n.*?)```", re.DOTALL)
PROGRAMS = Path(sys.executable).parent
"""The folder with the command serve-eval of these tests."""


@dataclass(frozen=True)
class Night:
    """The result of a night: exit code, the text sent, a line for each alert, and folder."""

    code: int
    sent: str
    alerts: dict[str, str]
    folder: Path
    annotations: list[str]

    @property
    def pages(self) -> set[str]:
        return {page.parent.name for page in self.folder.glob("*/report.html")}

    @property
    def lines(self) -> str:
        return "\n".join(self.alerts.values())


def read_script() -> str:
    """Return the script of the page."""
    [script] = BLOCK.findall((ROOT / "docs/ci.md").read_text())
    return str(script)


def variables(folder: Path) -> dict[str, str]:
    """Return an environment in which servers and caches of other tests are not seen."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    # Errors are read line by line.
    return environment(PATH=path, HOME=str(folder), TMPDIR=str(folder), **own)


def serve_eval(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the folder of the nights."""
    return subprocess.run(
        ["serve-eval", *words],
        cwd=folder,
        env=variables(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def write_known(folder: Path, plan: str) -> str:
    """Write what fails on the servers of a plan today, and return the name of the file."""
    served = serve_eval(folder, "serve", plan, "--detach")
    assert served.returncode == 0, served.stderr
    told = dict(line.split(": ", 1) for line in served.stdout.splitlines() if ": " in line)
    url, number = told["base URL"].strip(), told["id"].strip()
    try:
        serve_eval(folder, "smoke", url, "--write-known", "known.json")
    finally:
        assert serve_eval(folder, "serve", "--stop", number).returncode == 0
    assert (folder / "known.json").exists()
    return "known.json"


def spend_night(folder: Path, old: str, new: str, **more: str) -> Night:
    """Run the script for two plans of a folder. No server may be left."""
    (folder / "night.sh").write_text(read_script())
    night = folder / f"night-{Path(new).stem}"
    env = {**variables(folder), "OLD": old, "NEW": new, **more}
    ended = subprocess.run(
        ["sh", "night.sh", night.name],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    listed = serve_eval(folder, "serve", "--list").stdout
    assert listed.startswith(" NO SERVERS ")
    file = night / "alerts.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    assert len(ended.stdout.splitlines()) <= 1, ended.stdout
    if lines:
        mark = "REHEARSAL, " if more.get("REHEARSE") else ""
        assert ended.stdout.startswith(f"{mark}{Path(new).name} against {Path(old).name}: ")
        assert any(line in ended.stdout for line in lines)
    alerts = {line.split()[0].rstrip(":"): line for line in lines}
    marked = [line for line in ended.stderr.splitlines() if line.startswith("::")]
    return Night(ended.returncode, ended.stdout.strip(), alerts, night, marked)
