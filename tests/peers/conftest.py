"""Evaluations of other projects' servers with the embedded model's weights, against our server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from serve_eval.checks.run import choose_checks
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import LaunchContext, Limits, Plan, Spec, TaskReport
from serve_eval.workflows.references import register
from tests.peers.peers import CONTEXT_TOKENS, PYTHON, ROOT, WEIGHTS

MODEL = "embedded"
SAMPLES = 300
CHOICES = 60
MARGIN = 5.0
"""Points by which a server may be worse than ours.

Some answers differ, because each server sums in its own order.
"""
TABLE = []
"""A line for every evaluation, shown at the end."""
SMOKE_TABLE = []
"""The time of every smoke test, and the rows that are not PASS."""

TEXT = Spec(name="word_problems", options={"num_samples": SAMPLES})
CHAT = Spec(name="word_problems", options={"num_samples": SAMPLES, "apply_chat_template": True})
LIKELIHOOD = Spec(
    name="word_problems", options={"num_samples": CHOICES, "scoring": "loglikelihood"}
)
BEGINNING = "BF16 with a beginning"
QUANTISED = ("BF16", "Q8_0", "Q4_0")
MANY = Spec(name="word_problems", options={"num_samples": 1000})
PERPLEXITY = Spec(name="word_problems_perplexity", options={"num_samples": CHOICES})
WIDE = Limits(concurrency=16)
WAYS = {
    "text": (TEXT, WIDE),
    "one at a time": (TEXT, Limits(concurrency=1)),
    "streamed": (TEXT, Limits(concurrency=16, stream=True)),
    "one stream at a time": (TEXT, Limits(concurrency=1, stream=True)),
    "chat": (CHAT, WIDE),
    "chat, streamed": (CHAT, Limits(concurrency=16, stream=True)),
    "likelihood": (LIKELIHOOD, WIDE),
    "perplexity": (PERPLEXITY, WIDE),
}
"""Ways to ask the tasks, by our names."""


@dataclass(frozen=True, slots=True)
class Ours:
    """The report of our own server, and the references made of it (None for perplexities)."""

    report: TaskReport
    references: Path | None


@pytest.fixture(scope="session")
def ours(tmp_path_factory):
    """Return a function that evaluates our own server, for comparison sample by sample."""
    known = {}

    def of(spec):
        if (key := repr(spec)) not in known:
            folder = tmp_path_factory.mktemp("ours")
            launcher = Spec(name="embedded", options={"weights": str(WEIGHTS)})
            plan = Plan(model=MODEL, launcher=launcher, tasks=(spec,), no_reference=True)
            [report] = asyncio.run(evaluate(plan, folder / "run", environ={})).tasks
            scored = spec.name != PERPLEXITY.name
            if scored:
                register([folder / "run"], folder / "references")
            known[key] = Ours(report, folder / "references" if scored else None)
        return known[key]

    return of


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """Return a function that makes the weights of a kind.

    A kind is a GGUF type, a damage of ours, or a token before every text (BEGINNING), each a GGUF
    file; HF is the folder.
    """

    @cache
    def of(kind):
        if kind == "HF":
            return WEIGHTS
        file = tmp_path_factory.mktemp("gguf") / f"{kind}.gguf"
        writer = Path(__file__).with_name("write_gguf.py")
        others = {
            BEGINNING: ["--type", "BF16", "--beginning"],
            "int3": ["--type", "F32", "--damage", "int3"],
        }
        how = others.get(kind, ["--type", kind])
        subprocess.run([PYTHON, writer, WEIGHTS, file, *how], check=True)
        return file

    return of


def pytest_terminal_summary(terminalreporter):
    if TABLE:
        terminalreporter.section("servers that others wrote")
        terminalreporter.write_line(
            "server | weights | way | asked | accuracy | ours | other answers (lost, won) | verdict"
            " | requests/s"
        )
        for line in [*TABLE, *SMOKE_TABLE]:
            terminalreporter.write_line(line)


def evaluated(
    peer,
    row,
    launcher,
    mine,
    spec,
    folder,
    verdict="noninferiority",
    **more,
):
    """Evaluate one task on a server and compare it with ours sample by sample.

    The launcher starts the server, unless it runs already. `row` names weights and way in the
    table.
    """
    asked = (
        replace(spec, options={**spec.options, "extra_body": peer.extra_body})
        if peer.extra_body
        else spec
    )
    plan = Plan(
        launcher=launcher,
        tasks=(asked,),
        allow_mismatch=("extra_body",) if peer.extra_body else (),
        references_dir=None if mine.references is None else str(mine.references),
        no_reference=mine.references is None,
        verdict=Spec(
            name=verdict, options={"margin": MARGIN} if verdict == "noninferiority" else {}
        ),
        **{"model": MODEL, **more},
    )
    began = time.monotonic()
    [report] = asyncio.run(evaluate(plan, folder, environ={})).tasks
    result, told, theirs = report.result, report.verdict, mine.report.result
    per_s = result.scored / (time.monotonic() - began)
    paired = told.paired
    differ = "-" if paired is None else f"{paired.down}, {paired.up}"
    both = result.value, theirs.value
    if paired is not None and result.value is not None:
        both = (
            result.value,
            result.value - paired.difference,
        )  # ours of the same problems, if fewer are asked
    value, wanted = ("-" if one is None else f"{one:.2f}" for one in both)
    judged = f"{told.rule} {told.outcome.value}"
    TABLE.append(
        f"{peer.name} | {row} | {result.scored} | {value} | {wanted} | {differ} | {judged} |"
        f" {per_s:.0f}"
    )
    return report


@dataclass(frozen=True, slots=True)
class Seen:
    """Results of a server.

    They are the report of every way, and the rows of a smoke test that are not PASS.
    """

    reports: Mapping[str, TaskReport]
    smoke: Mapping[str, str]


def seen(peer, model, ours, folder):
    """Start a server by its launcher and ask it in every way."""
    found = {}
    smoke = {}
    launcher = load_launcher(peer.launcher)

    async def story():
        context = LaunchContext(model=MODEL, log_dir=folder / "logs")
        async with launcher.launch(context, **peer.spec(model).options) as endpoint:
            running = Spec(name="external", options={"base_url": endpoint.base_url})
            for name, (spec, limits) in WAYS.items():
                found[name] = await asyncio.to_thread(
                    evaluated,
                    peer,
                    f"{model.stem if peer.gguf else 'HF'} | {name}",
                    running,
                    ours(spec),
                    spec,
                    folder / name,
                    limits=limits,
                    limit=peer.limit,
                    model=endpoint.model,
                    reference_model=MODEL,
                )
            smoke.update(await asyncio.to_thread(smoke_rows, peer, endpoint))

    for spec, _ in WAYS.values():
        ours(spec)
    asyncio.run(story())
    return Seen(found, smoke)


def smoke_rows(peer, endpoint):
    """Run a smoke test as a user does and return the rows that are not PASS."""
    command = [
        sys.executable,
        "-m",
        "serve_eval",
        "smoke",
        endpoint.base_url,
        "--model",
        str(endpoint.model),
    ]
    more = ["--level", "full", "--set", f"smoke.context_tokens={CONTEXT_TOKENS}", "--json"]
    environ = {**os.environ, "OPENAI_API_KEY": ""}
    said = subprocess.run([*command, *more], capture_output=True, text=True, cwd=ROOT, env=environ)
    done = json.loads(said.stdout)["result"]
    rows = {row["name"]: row for row in done["rows"]}
    assert list(rows) == [check.name for check in choose_checks("full")], done["stopped"]
    lacks = {name: row["outcome"] for name, row in rows.items() if row["outcome"] != "PASS"}
    SMOKE_TABLE.append(f"{peer.name}: {done['seconds']:.1f} s, {done['requests']} requests")
    SMOKE_TABLE.extend(
        f"  {name} {outcome}: {rows[name]['told']}" for name, outcome in lacks.items()
    )
    return lacks
