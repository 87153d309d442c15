"""Test servers that stay, held inside an allocation of a real SLURM."""

from __future__ import annotations

import json

import pytest

from tests.slurm.cluster import missing

if reason := missing():
    pytest.skip(reason, allow_module_level=True)

from tests.slurm.conftest import Site
from tests.slurm.test_ends import gone, result

pytestmark = [pytest.mark.slow, pytest.mark.slurm]


def test_servers_of_a_job_are_held_and_used_by_its_runs(site: Site) -> None:
    plan = str(site.plan({"trtllm_disaggregated": {}, "mpi": "none", "wrapper": ""}))
    job = site.submit(
        site.script(
            site.command("serve", plan, "--detach"),
            f"{site.command('run', plan, '--reuse')} || exit 9",
            site.command("serve", "--list"),
            site.command("serve", "--stop", "all"),
        ),
        XDG_STATE_HOME=str(site.folder / "state"),
    )
    assert site.ended(job) == ("COMPLETED", 0), site.output(job)
    assert result(site) == (80, 75.0, "PASS")
    assert "attached" in json.loads((site.out / "report.json").read_text())["endpoint"]["info"]
    gone(site, job)
