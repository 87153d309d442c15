"""An endpoint that disagrees with itself more than the other one, and the level of the warning."""

import asyncio
import io
import re
import shlex
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from rich.console import Console
from scipy.stats import binom

from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._simulated.simulator import SimulatorConfig, _Simulator
from serve_eval.launchers.simulated import probability
from serve_eval.report.document import print_document
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage import run_folder
from serve_eval.storage.report_file import read_report
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.compare.document import make_document
from serve_eval.workflows.compare.exact import (
    UNSTEADY_ALPHA,
    AskedFolder,
    _list_reasons,
    describe_asked,
)
from tests.cli.command import serve_eval
from tests.scripted_server import ScriptedServer, external, hand_over

pytestmark = pytest.mark.usefixtures("simulated_here")

N = 120
PAIRED = CompareRules(rule=Spec(name="paired"), again=80)


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="simulated",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="gsm8k", options={"num_fewshot": 0}),),
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=8),
    )


@pytest.fixture(scope="module")
def server(plan, tmp_path_factory):
    """Return a server with one answer to each prompt; another `run` differs on a fifth of them."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(replace(plan, no_reference=True)), probability(0.7, 0.2, 0))
    return SimulatorConfig(answers=path, run=1)


def _door(servers):
    """Answer each prompt from the servers in turn, so that its second answer is another one's."""
    behind = [_Simulator(config) for config in servers]
    turns = {}

    async def reply(request):
        turn = next(turns.setdefault(request.prompt, count()))
        return await hand_over(behind[turn % len(behind)].completions)(request)

    return reply


def _compare(plan, a, b, out):
    async def run():
        async with AsyncExitStack() as stack:
            sides = []
            for behind in (a, b):
                script = ScriptedServer(_door(behind), paths=["/v1/completions"])
                url = await stack.enter_async_context(script.serve())
                at = replace(plan, launcher=external(url))
                sides.append(CompareSide(plan=at))
            return await compare(*sides, PAIRED, out, environ={}, show_flips=0)

    return asyncio.run(run())


def _unsteady(found):
    return [line for line in found.warnings if line.startswith("unsteady: ")]


@pytest.mark.parametrize("repeats", [1, 2])
@pytest.mark.parametrize("unlike", ["A", "B"])
def test_unlike_servers_behind_one_address_are_named(plan, server, tmp_path, unlike, repeats):
    one, two = [server], [server, replace(server, run=2)]
    sides = (two, one) if unlike == "A" else (one, two)
    found = _compare(replace(plan, repeats=repeats), *sides, tmp_path / "out")
    [line] = _unsteady(found)
    other = {"A": "B", "B": "A"}[unlike]
    asked = PAIRED.again if repeats == 1 else N
    told = re.match(
        rf"unsteady: {unlike} disagrees with itself on (\d+) of {asked} prompts, {other} on 0 ",
        line,
    )
    assert int(told[1]) >= asked // 10
    own = dict(zip("AB", found.tasks[0].own, strict=True))
    differing = {side: agreed.different for side, agreed in own.items() if agreed is not None}
    assert differing == {unlike: int(told[1]), other: 0}
    command = line.split("each of them: ")[1].split(",")[0]
    assert command == f"serve-eval check workers {tmp_path / 'out' / unlike.lower()}"
    said = serve_eval(*shlex.split(command)[1:], "--dry-run")
    assert "--worker" in said.stderr, "it knows no server, and says how to name them"


def test_endpoints_that_are_equally_unsteady_are_not_accused(plan, server, tmp_path):
    other = replace(server, run=2)
    found = _compare(plan, [server, other], [other, server], tmp_path / "out")
    [task] = found.tasks
    assert task.itself.own >= PAIRED.again // 10
    assert _unsteady(found) == []


def test_a_steady_pair_is_not_accused(plan, server, tmp_path):
    assert _unsteady(_compare(plan, [server], [server], tmp_path / "out")) == []


def test_of_a_finished_run_it_is_not_known_whether_it_is_steadier(plan, server, tmp_path):
    _compare(plan, [server], [server], tmp_path / "before")
    done = tmp_path / "before" / "a"

    async def run():
        script = ScriptedServer(_door([server, replace(server, run=2)]), paths=["/v1/completions"])
        async with script.serve() as url:
            at = replace(plan, launcher=external(url))
            a = CompareSide(plan=run_folder.read_plan(done), folder=done)
            return await compare(a, CompareSide(plan=at), PAIRED, tmp_path / "out", environ={})

    found = asyncio.run(run())
    assert _unsteady(found) == []
    assert not (tmp_path / "out" / "again_b").exists()
    console = Console(file=io.StringIO(), record=True, width=400)
    print_document(make_document(found, tmp_path / "out"), console, verbose=True)
    assert "A was asked once, so whether A is steadier is not known" in console.export_text()


@pytest.mark.parametrize(
    ("asked", "told", "untold"),
    [
        ({}, ["unlike servers behind one address?"], ["temperature", "mixed"]),
        ({"one_server": True}, ["depend on the load"], ["unlike", "attribute", "temperature"]),
        ({"one_server": True, "draws": True}, ["a flatter distribution"], ["unlike", "attribute"]),
        ({"draws": True}, ["a flatter distribution", "unlike servers"], []),
        (
            {"sessions": 2, "one_server": True},
            ["answers of two servers may be mixed: B was asked in 2 sessions"],
            ["unlike", "load"],
        ),
    ],
)
def test_the_reasons_fit_how_the_side_was_asked(asked, told, untold):
    reasons = "; ".join(_list_reasons("B", AskedFolder(folder=Path("out/b"), **asked)))
    assert all(one in reasons for one in told)
    assert not any(one in reasons for one in untold)


def test_one_launched_server_above_temperature_0_is_no_router(tmp_path):
    drawn = "--set word_problems.temperature=0.7 --limit 60 -t word_problems"
    done = serve_eval(f"run --no-reference --launcher embedded -o {tmp_path}/b {drawn}")
    report = read_report(tmp_path / "b")
    assert done.returncode in (0, 1, 3), done.stderr
    asked = describe_asked(tmp_path / "b", report, 1)
    assert (asked.draws, asked.one_server) == (True, True)


def test_the_warning_never_exceeds_its_level():
    """Given the prompts with two answers at one side only, A's share of them is binomial at 1/2."""
    for prompts in range(401):
        chances = binom.pmf(range(prompts + 1), prompts, 0.5)
        chance = sum(
            float(chances[own])
            for own in range(prompts + 1)
            if mcnemar(own, prompts - own).p_exact_two_sided <= UNSTEADY_ALPHA
        )
        assert chance <= UNSTEADY_ALPHA
    least = next(own for own in range(100) if mcnemar(own, 0).p_exact_two_sided <= UNSTEADY_ALPHA)
    assert least == 8
