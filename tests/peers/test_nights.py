"""Test docs/night.sh with a real llama-server: sound, damaged and dying."""

import sys

import pytest
import yaml

from tests.peers.peers import PEERS_OF_OURS
from tests.test_nights import spend_night, write_known

LLAMA = [peer for peer in PEERS_OF_OURS if peer.name.startswith("llama-server")]
ASKED = {"TASKS": "word_problems", "LIMIT": "150", "FLOOR": "0.1"}
DIES = """
import os, signal, subprocess, sys, time
server = subprocess.Popen(sys.argv[2:])
signal.signal(signal.SIGTERM, lambda *_: (server.terminate(), sys.exit(0)))
while not os.path.exists(sys.argv[1]) and server.poll() is None:
    time.sleep(0.05)
server.kill()
os._exit(1)
"""
"""Runs a server that is killed once a file exists."""


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize("night", ["sound", "damaged", "dying"])
@pytest.mark.parametrize("peer", LLAMA, ids=lambda peer: peer.name)
def test_a_night_of_two_images(peer, night, weights, tmp_path):
    if why := peer.missing():
        pytest.skip(why)
    for name in ("old", night):
        spec = peer.spec(weights("int3" if name == "damaged" else "BF16"))
        options = dict(spec.options)
        if name == "dying":
            (tmp_path / "dies.py").write_text(DIES)
            asked = tmp_path / "night-dying/compare/b/plan.json"
            command = [sys.executable, str(tmp_path / "dies.py"), str(asked), *options["command"]]
            options["command"] = command
        plan = {"model": "embedded", "tasks": ["word_problems"], "no_reference": True}
        launcher = {"name": spec.name, **options}
        # Two servers with the same options are one deployment, so a word tells them apart.
        launcher["env"] = {**dict(options.get("env", {})), "IMAGE": name}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({**plan, "launcher": launcher}))
    known = write_known(tmp_path, "old.yaml")
    ended = spend_night(tmp_path, "old.yaml", f"{night}.yaml", KNOWN=known, **ASKED)
    alerts = ended.alerts
    if night == "sound":
        assert (ended.code, alerts) == (0, {})
    elif night == "damaged":
        assert ended.code == 1
        assert "FAIL" in alerts["compare"]
    else:
        assert alerts["compare"].startswith("compare ended with 4")
    assert night == "dying" or "compare" in ended.pages
