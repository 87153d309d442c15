"""`check load` against servers whose answers depend on the number of requests in flight."""

import asyncio
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.launchers._simulated import answers
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Spec
from serve_eval.storage.order_seed import read_seeds
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.load.document import make_document
from serve_eval.workflows.load.passes import shuffle_loads
from serve_eval.workflows.load.story import check_loads, measure_load
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail, models
from tests.workflows.load.batch_server import BatchServer, draw, plan_of, targets_of

PROMPTS = 64
LOADS = (1, 4, 16)


def _measure(
    out,
    loads=LOADS,
    *,
    bisect=False,
    server=BatchServer,
    **options,
):
    batches = server(targets=targets_of(PROMPTS), **options)

    async def run():
        async with batches.server().serve() as url:
            return await measure_load(plan_of(url, PROMPTS), out, loads, bisect=bisect, environ={})

    return asyncio.run(run()), batches


def test_answers_that_are_wrong_from_a_load_on_are_found_and_where_they_part(
    tmp_path,
):
    found, batches = _measure(tmp_path / "out", damage=lambda prompt, load, before: load >= 4)
    [task] = found.tasks
    assert (task.words, task.broken, found.exit_code) == ("broken from 4 on", (4, 16), FAIL)
    assert found.requests == batches.asked == 4 * PROMPTS
    worst = task.points[-1]
    # The text of the server parts at its ninth word, whatever words come before.
    assert (worst.places.unit, worst.places.usual) == ("word", 8)
    assert worst.places.at_usual >= 0.8 * worst.changed
    assert worst.ttft_s is not None
    assert set(worst.ttft_s) == {"p50", "p99"}
    assert [point.in_flight for point in task.points] == list(LOADS)
    assert all(point.right_per_s is not None for point in task.points)


class _RefusingServer(BatchServer):
    """Refuses a third of the prompts from four in flight on."""

    async def _reply(self, request):
        reply = await super()._reply(request)
        refused = request.prompt in self.targets and self._sizes[-1] >= 4
        return fail(400, "no room") if refused and draw(request.prompt) < 1 / 3 else reply


@pytest.mark.parametrize(
    ("server", "command", "shown"),
    [
        (BatchServer, "serve-eval compare OUT/1 OUT/16", "B 0.0"),
        (_RefusingServer, "serve-eval show OUT/16 --failed", "no room"),
    ],
)
def test_the_next_command_shows_the_samples_of_the_load_that_breaks(
    server,
    command,
    shown,
    tmp_path,
    monkeypatch,
):
    monkeypatch.chdir(tmp_path)
    wrong = server is BatchServer
    found, _ = _measure(
        Path("OUT"), (1, 16), server=server, damage=lambda prompt, load, before: wrong and load > 9
    )
    [following] = make_document(found, Path("OUT")).commands
    assert following == command
    ended = serve_eval(*shlex.split(following)[1:])
    assert ended.returncode in (0, FAIL), ended.stderr
    assert shown in ended.stdout


def test_a_load_that_alone_is_wrong_is_named_beside_sound_numerics(tmp_path):
    found, _ = _measure(
        tmp_path / "out", damage=lambda prompt, load, before: load == 4, numerics=0.1
    )
    assert (found.tasks[0].words, found.exit_code) == ("broken only at 4", FAIL)


def test_a_change_over_time_is_not_taken_for_load_and_the_command_resumes(tmp_path):
    def late(prompt, load, before):
        return before >= PROMPTS

    found, _ = _measure(tmp_path / "out", damage=late)
    [task] = found.tasks
    assert (task.time.changed, task.broken, found.exit_code) == (True, (), UNDECIDED)
    assert task.words.startswith(f"changed over time: at {found.order[0]} in flight, ")
    seed = read_seeds(tmp_path / "out", plan_of("http://h/v1", PROMPTS)).samples
    assert (found.seed, found.order) == (seed, shuffle_loads(LOADS, seed))
    again, batches = _measure_again(tmp_path / "out")
    assert (again.tasks, batches.asked) == (found.tasks, 0)


def _measure_again(out):
    """Repeat a finished check, of which nothing is left to ask."""
    batches = BatchServer(targets={})
    plan = read_json(out / "load_plan.json")["plan"]
    plan_again = plan_of(plan["launcher"]["options"]["base_url"], PROMPTS)
    return asyncio.run(measure_load(plan_again, out, LOADS, environ={})), batches


def test_a_load_at_which_every_request_fails_is_named_for_its_failures(tmp_path):
    found, _ = _measure(tmp_path / "out", refuse_from=16)
    [task] = found.tasks
    assert (task.words, task.failing, task.broken) == ("requests fail from 16 on", (16,), ())
    # If a busy machine splits the first batch, its requests are answered and the pass ends.
    given_up = task.points[-1].outcome == "gave up"
    assert (given_up or task.points[-1].outcome == "fails", found.exit_code) == (True, FAIL)
    assert any("load 16: given up" in line for line in found.warnings) == given_up


def test_a_bisection_finds_the_first_load_that_breaks(tmp_path):
    found, batches = _measure(
        tmp_path / "out", (1, 16), bisect=True, damage=lambda prompt, load, before: load >= 5
    )
    assert (found.bracket.good, found.bracket.bad, found.bracket.undecided) == (4, 5, None)
    assert [step.load for step in found.bracket.steps] == [4, 8, 6, 5]
    assert found.requests == batches.asked == (2 + 4 + 1) * PROMPTS


def test_a_bisection_of_a_sound_server_asks_only_the_ends(tmp_path):
    found, batches = _measure(tmp_path / "out", (1, 16), bisect=True)
    assert (found.tasks[0].words, found.bracket, found.exit_code) == ("nothing found", None, PASS)
    assert batches.asked == 2 * PROMPTS


def test_a_folder_keeps_its_loads(tmp_path):
    async def run():
        server = ScriptedServer([answer("#### 1")], routes={"/v1/models": models("m")})
        async with server.serve() as url:
            plan = plan_of(url, 8)
            first = await measure_load(plan, tmp_path / "out", (1, 2), environ={})
            assert first.exit_code == UNDECIDED, "8 prompts are too few"
            with pytest.raises(RunFolderError) as error:
                await measure_load(plan, tmp_path / "out", (1, 3), environ={})
        return str(error.value)

    assert "holds the loads 1, 2" in asyncio.run(run())


def test_the_command_prints_what_was_not_tested_and_its_json(tmp_path):
    server = ScriptedServer([answer("#### 1")], routes={"/v1/models": models("m")})
    with server.serve_in_thread() as url:
        command = f"check load {url} --tasks word_problems --limit 8 --concurrency 1,32"
        said = serve_eval(f"{command} -o {tmp_path}/out", COLUMNS="80")
        parsed = serve_eval(f"{command} -o {tmp_path}/out --json")
    assert said.returncode == UNDECIDED, said.stderr
    assert said.stdout.startswith(" INCONCLUSIVE   word_problems  ")
    assert " why      too few answers to conclude anything" in said.stdout
    assert re.search(r"load 32: at most \d+ requests were in flight", said.stdout), said.stdout
    table = said.stdout.partition("load  value")[2]
    assert all(len(line) <= 80 for line in table.splitlines())
    shown = json.loads(parsed.stdout)
    assert shown["result"] == read_json(tmp_path / "out/load.json")
    assert (shown["exit_code"], shown["outcome"]) == (UNDECIDED, "INCONCLUSIVE")
    assert "too few answers to conclude anything" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize("given", ["8", "1,x", "0,4", "4,4"])
def test_a_list_of_loads_needs_two_numbers(given):
    serve_eval("check load host:1 --concurrency", given, exits=2, tells="--concurrency")
    with pytest.raises(PlanError):
        check_loads([4, 4])


class _JsonServer(BatchServer):
    """Answers JSON tasks; from eight in flight on, a third of the texts breaks off."""

    def server(self):
        return ScriptedServer(
            self._guide, paths=["/v1/chat/completions"], routes={"/v1/models": models("m")}
        )

    async def _guide(self, request):
        if request.prompt in self.targets:
            return await self._reply(request)
        schema = answers.schema_of(request.body.get("response_format") or {})
        return answer("ok" if schema is None else answers.generate_text(schema))

    def _say(self, prompt, target, load, before):
        return target[:-2] if load >= 8 and draw(prompt) < 1 / 3 else target


def test_guided_answers_that_break_under_load_are_named(data_root, tmp_path):
    """Guided JSON of vLLM broke at 8 to 32 in flight and not below (its PR 44993)."""
    spec = Spec(name="json_mode_eval")
    samples = build_task(spec).load(DataRoots(roots=(data_root,)), 100).samples
    targets = {
        one.prompt[-1].text: one.target for one in samples if not isinstance(one.prompt, str)
    }

    async def run():
        async with _JsonServer(targets=targets).server().serve() as url:
            plan = replace(plan_of(url, 100), tasks=(spec,), dataset_roots=(str(data_root),))
            return await measure_load(plan, tmp_path / "out", (1, 4, 16), environ={})

    found = asyncio.run(run())
    assert (found.tasks[0].words, found.exit_code) == ("broken from 16 on", FAIL)
