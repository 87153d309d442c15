"""Test what can be tested of the container files without a container: their commands and names."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from tests.cli.command import serve_eval
from tests.docs.commands import read_command

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/docker"
SERVICES: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def test_the_image_installs_extras_that_exist_and_starts_our_command() -> None:
    file = (FOLDER / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extras] = re.findall(r"wheel\}\[(.*?)\]", file)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", file, re.MULTILINE)
    assert set(json.loads(entry)) == set(project["scripts"])
    [pinned] = re.findall(r"build==([\d.]+)", file)
    assert f"build=={pinned}\n" in (ROOT / "constraints.txt").read_text()


def test_the_services_have_commands_that_can_be_read() -> None:
    build = SERVICES["embedded"]["build"]
    assert (FOLDER / build["context"] / build["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    for service in SERVICES.values():
        read_command(shlex.split(service["command"]))


@pytest.mark.slow
def test_the_commands_of_the_services_work_together(tmp_path: Path) -> None:
    [port] = free_ports(LOOPBACK, None)
    serve, check = (
        shlex.split(
            SERVICES[name]["command"]
            .replace("8000", str(port))
            .replace("/results", str(tmp_path))
            .replace("/tmp/embedded", str(tmp_path / "embedded"))
        )
        for name in ("embedded", "check")
    )
    health = [
        word.replace("8000", str(port)) for word in SERVICES["embedded"]["healthcheck"]["test"]
    ]
    command = [sys.executable, "-m", "serve_eval", *serve]
    server = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while subprocess.run([sys.executable, *health[2:]], capture_output=True).returncode:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert serve_eval(*check).returncode == 3
    finally:
        server.terminate()
        server.wait(30)
    assert (tmp_path / "first/report.json").exists()
