"""Commands that need an absent extra say so before they start; the others still work."""

import subprocess
import sys

import pytest

from serve_eval.errors import install_command
from tests.cli.command import environment, serve_eval

SERVERS, WATCH = install_command("servers"), install_command("watch")


@pytest.fixture(autouse=True)
def without_extras(monkeypatch):
    monkeypatch.delitem(sys.modules, "serve_eval.workflows.watch.metrics", raising=False)
    for name in ("aiohttp", "prometheus_client"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize("launcher", ["embedded", "simulated"])
@pytest.mark.parametrize("more", ["", "--dry-run"], ids=["run", "dry"])
def test_servers_of_ours_name_their_extra(launcher, more, data_root, tmp_path):
    given = f"--model m --tasks gsm8k --dataset-root={data_root} --no-reference"
    said = serve_eval(
        f"run --launcher {launcher} -o {tmp_path}/run {given} {more}",
        exits=2,
        tells=f"the launcher {launcher} needs the package aiohttp",
    )
    assert SERVERS in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", ["", "--dry-run"], ids=["run", "dry"])
def test_a_cluster_names_its_extra(more, data_root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kr8s", None)
    given = ["--model", "m", "--tasks", "gsm8k", f"--dataset-root={data_root}", "--no-reference"]
    given += ["--set", "launcher.service=llama", "-o", str(tmp_path / "run")]
    said = serve_eval(
        f"run --launcher kubernetes {more}",
        *given,
        exits=2,
        tells="the launcher kubernetes needs the package kr8s",
    )
    assert install_command("kubernetes") in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["simulated", "embedded"])
def test_their_options_are_listed_all_the_same(name):
    script = "import sys; sys.modules['aiohttp'] = None; from serve_eval.cli import main; main()"
    command = [sys.executable, "-c", script, "data", "list", "launchers", name]
    said = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    assert "strict_fields" in said.stdout


def test_the_demo_names_its_extra(tmp_path):
    serve_eval(f"setup demo -o {tmp_path}/demo", exits=2, tells=SERVERS)
    assert not (tmp_path / "demo").exists()


def test_a_server_to_be_held_names_its_extra(tmp_path):
    serve_eval(f"serve embedded -o {tmp_path}/held", exits=2, tells=SERVERS)


def test_figures_of_a_watch_name_their_extra(tmp_path):
    folder = tmp_path / "watch"
    said = serve_eval(
        f"watch http://127.0.0.1:9 --every 1h --metrics-port 0 -o {folder}",
        exits=2,
        tells="--metrics-port needs the package prometheus_client",
    )
    assert WATCH in said.stderr
    assert not folder.exists()


def test_a_watch_without_figures_needs_no_extra():
    """The dry run goes as far as the endpoint, at a port where nothing listens."""
    serve_eval(
        "watch http://127.0.0.1:9 --every 1h --rounds 1 --dry-run",
        exits=0,
        prints="nothing was sent",
    )
