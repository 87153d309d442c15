"""Test every kind of plan against reviewed files of what it writes and starts.

`golden/NAME.txt` is a launcher as in a plan, a line of dashes, and the text that the dry run shows.
`@` is that folder.
"""

import os
import re
import sys
from pathlib import Path

import pytest

from serve_eval.cli._dry_run import list_commands, preview
from serve_eval.errors import PlanError
from serve_eval.schema import Plan, Spec
from serve_eval.yaml_source import parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("launching.md", "clusters.md"))
GOLDEN = Path(__file__).with_name("golden")


@pytest.fixture(autouse=True)
def _nothing_around_us(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith(("SLURM_", "CUDA_", "UCX_"))]:
        monkeypatch.delenv(name)


def shown(launcher):
    spec = Spec(name=launcher.pop("name"), options=launcher)
    plan = Plan(model="org/model", launcher=spec, tasks=(Spec(name="gsm8k"),))
    return "\n".join(list_commands(*preview(plan, Path("/runs/r/logs"))))


@pytest.mark.parametrize("name", sorted(file.stem for file in GOLDEN.glob("*.txt")))
def test_what_a_plan_starts(name):
    given, told = (GOLDEN / f"{name}.txt").read_text().split("\n---\n")
    text = shown(parse(given.replace("@", str(GOLDEN)), name, PlanError).value)
    assert text.replace(str(GOLDEN), "@").replace(sys.executable, "python") == told.rstrip("\n")


def test_every_launcher_that_starts_something_is_among_them():
    names = {file.read_text().split(":", 1)[1].split()[0] for file in GOLDEN.glob("*.txt")}
    trtllm = {"trtllm", "trtllm_disaggregated", "container", "slurm"}
    assert names >= {"simulated", "vllm", "vllm_disaggregated"} | trtllm


def test_the_plans_of_the_page_are_plans_and_print_what_it_says():
    texts = re.findall(r"```yaml\n(launcher:.*?)```\n(.*?)(?=\n## |```yaml)", PAGE, re.DOTALL)
    assert len(texts) >= 3
    for plan, after in texts:
        text = shown(parse(plan, "page", PlanError).value["launcher"])
        if printed := re.search(r"```\n((?:env|docker) .*?)```", after, re.DOTALL):
            assert " ".join(printed.group(1).split()) in " ".join(text.split())
    assert "```\ndocker run" in PAGE
