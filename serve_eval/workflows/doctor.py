"""Look at this machine: what serve-eval can do here, what it would need."""

from __future__ import annotations

import asyncio
import platform
import re
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY
from importlib import metadata
from typing import Literal

from serve_eval import __version__
from serve_eval.errors import SandboxError, install_command
from serve_eval.frozen import freeze_places
from serve_eval.launchers._machine import local_gpus
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    make_header,
    name_state,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable, TextLines
from serve_eval.sandbox.probe import strongest

FILES = 4096
"""Open files that suffice for some thousand requests in flight."""
KEY = "OPENAI_API_KEY"
PROGRAMS: Mapping[str, str] = {
    "trtllm-serve": "the launchers trtllm and trtllm_disaggregated",
    "vllm": "the launchers vllm and vllm_disaggregated",
    "llama-server": "the launcher llama_cpp",
    "docker": "the launcher container",
    "podman": "the launcher container, in place of docker",
    "srun": "servers on SLURM",
    "mpirun": "servers of several MPI ranks",
}
"""Programs that launchers start, with what needs them."""
EXTRAS: Mapping[str, str] = {
    "page": "pictures of pages as SVG",
    "hub": "data fetch",
    "tokenizer": "prompts rendered by the client",
    "lm-eval": "tasks of lm-evaluation-harness",
    "kubernetes": "servers in a cluster",
    "servers": "the embedded and the simulated model, the orchestrator of vLLM",
    "watch": "metrics of watch",
    "rouge": "tasks that are scored by ROUGE",
    "media": "tasks with sound, video or translation",
    "longbench": "Chinese tasks of LongBench",
    "instructions": "the checks of ifeval and ifbench",
    "ruler": "long_context",
    "math": "answers that are formulas",
    "holdout": "encrypted cases",
    "inspect": "recent logs of inspect",
}
"""The extras that are looked for, with what needs them."""
_REQUIRED = re.compile(r"\s*([\w.-]+).*;\s*extra\s*==\s*['\"]([\w-]+)['\"]")

DoctorState = Literal["ok", "absent", "problem"]


@freeze_places
class DoctorFinding:
    """One thing that was looked at.

    `absent` is optional, `problem` stops some runs. `fix` says what to do.
    """

    name: str
    state: DoctorState
    text: str
    _: KW_ONLY
    fix: str = ""


def examine(environ: Mapping[str, str]) -> Iterator[DoctorFinding]:
    """Yield what is found, in the order in which a first day needs it."""
    yield DoctorFinding(
        "serve-eval",
        "ok",
        f"{__version__}, Python {platform.python_version()}, {platform.system()}",
    )
    yield _look_at_files(*resource.getrlimit(resource.RLIMIT_NOFILE))
    yield _look_at_key(environ)
    yield _look_at_isolation()
    yield _look_at_gpus(local_gpus.ask("--query-gpu=name", "--format=csv,noheader"))
    yield from (_look_for_program(name, purpose) for name, purpose in PROGRAMS.items())
    yield from _look_for_extras(metadata.requires("serve-eval") or [])


def _look_at_files(soft: int, hard: int) -> DoctorFinding:
    """Judge the limits of open files. A run raises the soft one as far as it needs."""
    shown = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}"
    if hard == resource.RLIM_INFINITY or hard >= FILES:
        return DoctorFinding("open files", "ok", f"{soft:,} now, {shown}")
    return DoctorFinding(
        "open files",
        "problem",
        f"{shown}: a run has at most about {max(1, hard - 100):,} requests in flight",
        fix=f"ulimit -Hn {FILES}, or in /etc/security/limits.conf",
    )


def _look_at_key(environ: Mapping[str, str]) -> DoctorFinding:
    if environ.get(KEY, "").strip():
        return DoctorFinding("key", "ok", f"{KEY} is set")
    return DoctorFinding(
        "key",
        "absent",
        f"{KEY} is not set; servers of your own often need none",
        fix=f"export {KEY}=..., or name another variable with --api-key-env",
    )


def _look_at_isolation() -> DoctorFinding:
    try:
        _, found = asyncio.run(strongest())
    except SandboxError as error:
        return DoctorFinding(
            "isolation",
            "absent",
            "none works, so tasks that run code of a model are refused",
            fix=error.hint or "",
        )
    return DoctorFinding("isolation", "ok", f"{found.name}, for code of a model")


def _look_at_gpus(names: list[str] | None) -> DoctorFinding:
    if not names:
        return DoctorFinding("GPUs", "absent", "none; endpoints elsewhere need none here")
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    return DoctorFinding("GPUs", "ok", kinds)


def _look_for_program(name: str, purpose: str) -> DoctorFinding:
    if (path := shutil.which(name)) is not None:
        return DoctorFinding(name, "ok", f"{path}, for {purpose}")
    return DoctorFinding(name, "absent", f"not found; needed by {purpose}")


def _look_for_extras(requirements: list[str]) -> Iterator[DoctorFinding]:
    """Yield each extra, with the packages that it lacks."""
    packages: dict[str, list[str]] = {}
    for requirement in requirements:
        if found := _REQUIRED.match(requirement):
            packages.setdefault(found[2], []).append(found[1])
    for name, purpose in EXTRAS.items():
        lacking = [one for one in packages.get(name, []) if not _is_installed(one)]
        if not lacking:
            yield DoctorFinding(f"[{name}]", "ok", f"installed, for {purpose}")
            continue
        yield DoctorFinding(
            f"[{name}]",
            "absent",
            f"without {', '.join(lacking)}; needed by {purpose}",
            fix=f"{sys.executable} -m {install_command(name)}",
        )


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


FIRST_RUN = "serve-eval run --launcher embedded --tasks word_problems"
"""A run that needs only the extra `servers`."""
_STATES = {
    "problem": ("PROBLEM", CiState.FAILURE),
    "absent": ("ABSENT", CiState.SKIPPED),
    "ok": ("OK", CiState.PASSED),
}
"""By the state of a finding: its outcome and its state in CI, the worst first."""
OPTIONAL = "only some launchers, tasks and pictures need these; -v says which, and how to install"


def make_document(findings: Sequence[DoctorFinding]) -> Document:
    """Return the document of what was found: problems with their fixes, the rest by name."""
    problems = [one for one in findings if one.state == "problem"]
    absent = [one for one in findings if one.state == "absent"]
    works = any(one.name == "[servers]" and one.state == "ok" for one in findings)
    fixes = [f"{one.name}: {one.fix}" for one in findings if one.fix and one.state == "absent"]
    statements = []
    if not problems:
        statements.append(Statement("works", "runs against endpoints"))
    if absent:
        statements.append(Statement("absent", OPTIONAL))
    return Document(
        "doctor",
        "serve-eval setup doctor",
        make_header(1 if problems else 0),
        conclusions=[_conclude(one) for one in findings],
        outcome="PROBLEM" if problems else "READY",
        noun="parts",
        overview=_group(findings),
        statements=statements,
        blocks=[
            Block(_tabulate(findings), depth=Depth.MORE),
            Block(TextLines("To have what is absent", fixes)),
        ],
        commands=[FIRST_RUN] if works and not problems else [],
        suites=[
            CiSuite(
                "serve-eval setup doctor",
                [
                    CiCase(
                        "doctor",
                        one.name,
                        state=_STATES[one.state][1],
                        message=one.text,
                        details=[f"fix: {one.fix}"] if one.fix else [],
                    )
                    for one in findings
                ],
            )
        ],
    )


def _conclude(one: DoctorFinding) -> Conclusion:
    """Return a finding; only one that stops runs has words of its own on the first screen."""
    stops = one.state == "problem"
    return Conclusion(
        one.name,
        _STATES[one.state][0],
        figures="" if stops else one.text,
        cause=one.text if stops else "",
        statements=[Statement("fix", one.fix)] if stops and one.fix else [],
    )


def _group(findings: Sequence[DoctorFinding]) -> DataTable:
    """Return the names of the parts by outcome, the worst first."""
    rows = []
    for state, (outcome, _) in _STATES.items():
        if names := [one.name for one in findings if one.state == state]:
            cells = (outcome, str(len(names)), ", ".join(names))
            rows.append([DataCell(text) for text in cells])
            rows[-1][0] = DataCell(outcome, state=name_state(outcome))
    columns = ("outcome", "n", "parts")
    return DataTable(
        "Parts by outcome",
        columns=[DataColumn(name, number=name == "n") for name in columns],
        rows=rows,
    )


def _tabulate(findings: Sequence[DoctorFinding]) -> DataTable:
    """Return the table of all parts."""
    ordered = [one for state in _STATES for one in findings if one.state == state]
    rows = [
        [
            DataCell(_STATES[one.state][0], state=name_state(_STATES[one.state][0])),
            DataCell(one.name),
            DataCell(one.text),
        ]
        for one in ordered
    ]
    names = ("outcome", "part", "found")
    return DataTable("Parts", columns=[DataColumn(name) for name in names], rows=rows)
