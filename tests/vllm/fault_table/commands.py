"""The commands that each trial runs, and whether they found something."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.cli.command import serve_eval
from tests.vllm.conftest import FLOOR
from tests.vllm.deployments import MODEL
from tests.vllm.fault_table.system import IN_FLIGHT, System

LOADS, PER_LOAD = "1,8,64", 40
USAGE = 2
"""The exit code of a command that cannot be used on a system."""
FINDING = re.compile(r"^ (likely|for|also|seen|A) +\w+: ", re.MULTILINE)


class Told(NamedTuple):
    """Keep what a command printed, and whether that is an accusation."""

    code: int
    text: str
    found: bool


Command = Callable[[System, int, Path], Told]
"""Runs a command on a system with a seed; the folder is that of the trial."""


def _run(*arguments: object) -> tuple[int, str]:
    ran = serve_eval(*map(str, arguments))
    return ran.returncode, ran.stdout + ran.stderr


def _accuses(code: int, text: str) -> Told:
    """Take a fail, or a deployment that cannot be asked, for an accusation."""
    return Told(code, text, code in (1, 4))


def _write_plan(system: System, url: str, seed: int, path: Path, prompts: int) -> Path:
    path.write_text(yaml.safe_dump(system.plan(url, seed, prompts)))
    return path


def compare(system: System, seed: int, folder: Path) -> Told:
    """Compare B with A."""
    plans = [
        _write_plan(system, url, seed, folder / f"{side}.yaml", system.prompts)
        for side, url in (("a", system.a), ("b", system.b))
    ]
    how = ["--self", 20, "--concurrency", system.in_flight, "-o", folder / "compared"]
    with system.disturbed(folder / "compared/b"):
        return _accuses(*_run("compare", *plans, *how, "-v"))


def find_unequal(system: System, seed: int, folder: Path) -> Told:
    """Compare the same answers once more, by the rule that they must be equal."""
    sides = [folder / "compared" / side for side in "ab"]
    how = ["--verdict", "tokens", "-o", folder / "equal"]
    return _accuses(*_run("compare", *sides, *how, "-v"))


def diagnose(system: System, seed: int, folder: Path) -> Told:
    """Diagnose the comparison."""
    code, text = _run("diagnose", folder / "compared", "-v")
    return Told(code, text, bool(FINDING.search(text)))


def prove(system: System, seed: int, folder: Path) -> Told:
    """Judge B's run of the comparison with the path that it should have taken."""
    if not system.expect:
        return Told(USAGE, "", found=False)
    code, text = _run("judge", folder / "compared/b", "--expect", system.expect)
    return Told(code, text, "path not proven" in text)


def attribute(system: System, seed: int, folder: Path) -> Told:
    """Ask the servers of B's run separately."""
    if not system.may_ask_servers:
        return Told(USAGE, "", found=False)
    how = ["--concurrency", IN_FLIGHT, "--set", f"workers.seed={seed}", "-v"]
    return _accuses(*_run("check", "workers", folder / "compared/b", *how, *system.workers))


def verify(system: System, seed: int, folder: Path) -> Told:
    """Verify B against a reference of A, which is asked once for a seed.

    One over chats takes thousands of requests, so that all trials share two of them.
    """
    kind, seed = ("chat", seed % 2) if system.chat else ("text", seed)
    reference = folder.parents[1] / f"references/{kind}_{seed}.json"
    reference.parent.mkdir(exist_ok=True)
    way = [
        "--model",
        MODEL,
        *(["--set", "protocol.apply_chat_template=true"] if system.chat else []),
    ]
    if not reference.exists():
        how = ["--floor", FLOOR, "--set", f"seed={seed}", "-o", reference.with_suffix("")]
        code, text = _run("verify", system.a, *way, "--register", reference, *how)
        assert reference.exists(), (code, text)
    how = ["--concurrency", system.in_flight, "-v", "-o", folder / "verified"]
    return _accuses(
        *_run("verify", system.b, *way, "--reference", reference, *system.workers, *how)
    )


def load(system: System, seed: int, folder: Path) -> Told:
    """Ask B the same prompts at several loads."""
    plan = _write_plan(system, system.b, seed, folder / "load.yaml", PER_LOAD)
    with system.disturbed(folder / "loads"):
        return _accuses(
            *_run("check", "load", plan, "--concurrency", LOADS, "-o", folder / "loads")
        )


COMMANDS: Mapping[str, Command] = {
    "compare": compare,
    "equal tokens": find_unequal,
    "verify": verify,
    "diagnose": diagnose,
    "attribute": attribute,
    "load": load,
    "path proof": prove,
}
