"""Test the probes of a watch through real sockets: rounds, alarms, refusals and restarts."""

import asyncio
import json
import random
from dataclasses import replace

import msgspec
import pytest

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.plan.resolve import resolve_address
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.storage.story_results import read_reference, write_reference
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules
from serve_eval.workflows.verify.verify import register
from serve_eval.workflows.watch import probes as watch_probes
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.metrics import Metrics
from serve_eval.workflows.watch.probes import read_watch_reference
from serve_eval.workflows.watch.story import WatchJob, watch
from tests.workflows.verify.model_server import ModelServer
from tests.workflows.watch.changing_endpoint import Endpoint

PROBES, PER_ROUND, FLOOR, NOISE = 40, 10, 0.08, 0.01
BUDGET = 6000
LONG = 1000
"""Tokens of probes that are left out, since they leave no room for questions in this budget."""
RULES = WatchRules(passes=2, tolerance=0.01, max_error_rate=0.05)


def _model(**faults):
    return ModelServer(name="a", noise=NOISE, rng=random.Random(7), **faults)


def _register(folder, model, **rules):
    """Write the reference of a server."""

    async def main():
        async with model.server.serve() as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(Spec(name="word_problems"),),
                limits=Limits(max_attempts=1),
                no_reference=True,
            )
            named = NamedPlan(name="a", plan=plan)
            rule = VerifyRules(probes=PROBES + 1, **rules)
            return await register(named, (), rule, folder, environ={})

    file = folder / "reference.json"
    made = asyncio.run(main())
    short = tuple(one for one in made.probes if one.reading.prompt_tokens < LONG)
    write_reference(file, msgspec.structs.replace(made, probes=short[:PROBES]))
    return file


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the file of a reference with a floor."""
    return _register(tmp_path_factory.mktemp("reference"), _model(), floor=FLOOR)


class _Watched:
    """An endpoint that is watched with probes, in one folder."""

    def __init__(self, model, reference, folder):
        self.endpoint, self.folder, self.lines = Endpoint(model=model), folder, list[str]()
        self.reference, self.metrics = reference, Metrics()
        self.more = {}

    def run(self, rounds, **more):
        """Watch for some rounds, and return the exit code."""

        async def main():
            async with self.endpoint.server.serve(port=self.port) as url:
                self.port = int(url.rpartition(":")[2].partition("/")[0])
                job = self.build_job(url, rounds)
                return await watch(
                    job,
                    self.folder,
                    environ={},
                    metrics=self.metrics,
                    notify=self.lines.append,
                    **more,
                )

        return asyncio.run(main())

    port = 0

    def build_job(self, url, rounds):
        """Return the job of a watch."""
        file = self.reference
        given = {
            "plan": resolve_address({"base_url": url}, {}),
            "pool": None,
            "prompts": 40,
            "rules": RULES,
            "tokens": BUDGET,
            "smoke": False,
            "every_s": 0.0,
            "rounds": rounds,
            "timeout_s": 10.0,
            "seed": 1,
            "ends": False,
            "delivery": Delivery(webhook=url.removesuffix("/v1") + "/hook"),
            "reference": None if file is None else read_watch_reference(file, PER_ROUND),
        }
        return WatchJob(**{**given, **self.more})

    @property
    def state(self):
        return json.loads((self.folder / record.STATE_FILE).read_bytes())

    @property
    def rounds(self):
        lines = (self.folder / record.ROUNDS_FILE).read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def kinds(self):
        return [alarm["kind"] for alarm in self.state["alarms"]]

    def list_warnings(self):
        """Yield the warnings that were printed."""
        return (line for line in self.lines if line.startswith("warning: "))


def test_a_healthy_endpoint_with_its_own_noise_is_not_accused(reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path)
    assert watched.run(60) == 0
    assert watched.kinds == []
    rounds, ids = watched.rounds, {one.id for one in read_reference(reference).probes}
    assert any(nats > 0 for one in rounds for nats in one["probes"]["nats"])
    cycles = [
        [name for one in rounds[begin : begin + 4] for name in one["probes"]["asked"]]
        for begin in range(0, 60, 4)
    ]
    assert all(len(one) == PROBES and set(one) == ids for one in cycles)
    assert len({tuple(one) for one in cycles}) == len(cycles)
    assert all(one["tokens"] <= BUDGET for one in rounds)
    assert "; 10 of 10 probes are like the reference; " in watched.lines[-1]
    assert not list(watched.list_warnings())
    assert watched.state["probes"]["rounds"] == 60
    assert watched.state["probes"]["cycles"] == 15


def test_requantised_weights_alarm_in_the_first_round_without_a_baseline(reference, tmp_path):
    watched = _Watched(_model(numerics=0.4), reference, tmp_path)
    watched.more = {"ends": True}
    assert watched.run(5) == 1
    (one,), state = watched.rounds, watched.state
    assert state["accuracy"] is None
    beyond = one["probes"]["beyond"]
    told = (
        "the endpoint is another model, precision or cache than the reference:"
        f" {beyond} of 10 probes are beyond 0.08 nat, where 5% are allowed"
    )
    assert f"ALARM numerics: {told}" in watched.lines
    assert "worse" not in " ".join(watched.lines)
    (alarm,) = watched.endpoint.alarms
    assert (alarm["kind"], alarm["told"], alarm["round"]) == ("numerics", told, 1)
    figures = alarm["figures"]
    assert figures["beyond"] == beyond == sum(nats > FLOOR for nats in one["probes"]["nats"])
    assert figures["far"] == one["probes"]["far"] == sum(n > 0.5 for n in one["probes"]["nats"])
    assert (figures["probes"], figures["beyond_nats"], figures["alpha"]) == (10, FLOOR, 0.002)
    assert figures["largest_nats"] == max(one["probes"]["nats"])
    assert figures["evidence_nats"] >= figures["limit_nats"] == pytest.approx(6.2146, abs=1e-4)
    line = f"; {10 - beyond} of 10 probes are like the reference (evidence "
    assert any(line in printed and "of 500)" in printed for printed in watched.lines)
    assert watched.run(5) == 1
    assert len(watched.rounds) == 1
    assert "is still active" in watched.lines[-1]


def test_a_fault_that_begins_later_alarms_in_its_first_rounds_and_evidence_can_be_forgotten(
    reference, tmp_path
):
    watched = _Watched(_model(), reference, tmp_path)
    assert watched.run(7) == 0
    watched.endpoint.model = _model(numerics=0.4)
    assert watched.run(2) == 1
    assert watched.kinds == ["numerics"]
    assert watched.state["alarms"][0]["round"] in (8, 9)
    watched.endpoint.model = _model()
    assert watched.run(2, forget=True) == 0
    state = watched.state["probes"]
    assert (state["rounds"], state["cycles"], state["place"]) == (2, 1, 20)
    assert state["in_cycle"]["beyond"] == 0


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_failures_of_probes_are_no_evidence(share, reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path)
    assert watched.run(1) == 0
    watched.endpoint.model = _model(failing=share)
    assert watched.run(8) == 0
    assert watched.kinds == []
    found = [one["probes"] for one in watched.rounds[1:]]
    assert any(None in one["nats"] for one in found)
    assert not any(one["beyond"] for one in found)
    said = " without an answer; " if share < 1 else "; probes: none of 10 can be compared: HTTP 400"
    assert any(said in line for line in watched.lines)


def test_a_fault_shows_although_half_of_the_probes_fail(reference, tmp_path):
    watched = _Watched(_model(failing=0.5, numerics=1.0), reference, tmp_path)
    watched.run(4)
    assert watched.kinds == ["numerics"]


def test_an_endpoint_that_is_down_is_asked_no_probes(reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path)
    watched.run(1)
    watched.endpoint.failing = 1
    asked = len(watched.endpoint.server.requests)
    assert watched.run(3) == 1
    assert "numerics" not in watched.kinds
    assert "down" in watched.kinds
    assert not any(one.body.get("logprobs") for one in watched.endpoint.server.requests[asked:])
    watched.endpoint.failing = 0
    watched.run(1)
    assert len(watched.rounds[-1]["probes"]["nats"]) == PER_ROUND


@pytest.mark.parametrize(
    ("fault", "told"),
    [({"plain": True}, "reports no log-probabilities"), ({"chat_only": True}, "no completions")],
)
def test_an_endpoint_that_the_reference_does_not_fit_is_warned_of_once(
    fault, told, reference, tmp_path
):
    watched = _Watched(_model(**fault), reference, tmp_path)
    assert watched.run(4) == 0
    assert watched.run(6) == 0
    (warning,) = watched.list_warnings()
    assert told in warning
    assert "The other sensors go on, and each round tries again" in warning
    assert watched.state["accuracy"] is not None
    assert watched.lines[-1].count("; no probes were asked; ") == 1
    watched.endpoint.model = _model()
    watched.run(1)
    assert "; 10 of 10 probes are like the reference; " in watched.lines[-1]


def test_log_probabilities_that_end_are_found_out(reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path)
    watched.run(1)
    watched.endpoint.model = _model(plain=True, numerics=1.0)
    assert watched.run(2) == 0
    assert watched.kinds == []
    assert "; probes: none of 10 can be compared; " in watched.lines[-3]
    assert len(list(watched.list_warnings())) == 1


def test_an_endpoint_that_refuses_salts_is_asked_half_as_much_within_the_budget(
    reference, tmp_path
):
    watched = _Watched(_model(salts=False), reference, tmp_path)
    assert watched.run(3) == 0
    (warning,) = watched.list_warnings()
    assert "refuses cache_salt" in warning
    rounds = watched.rounds
    assert all(len(one["probes"]["nats"]) == PER_ROUND // 2 for one in rounds)
    assert all(one["tokens"] <= BUDGET for one in rounds)


def test_a_reference_without_salts_is_asked_without_them(tmp_path):
    file = _register(tmp_path, _model(salts=False), floor=FLOOR)
    watched = _Watched(_model(), file, tmp_path / "o")
    watched.more = {"tokens": 12_000}
    watched.run(2)
    probes = [one for one in watched.endpoint.server.requests if one.body.get("logprobs")]
    texts = {one.prompt for one in read_reference(file).probes}
    assert not any("cache_salt" in one.body for one in probes if one.prompt in texts)
    assert not list(watched.list_warnings())
    assert all(len(one["probes"]["nats"]) == PER_ROUND for one in watched.rounds)
    assert all(one["tokens"] <= 12_000 for one in watched.rounds)


def test_probes_continue_after_a_restart_or_a_kill(reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path)
    watched.run(2)
    earlier = (tmp_path / record.STATE_FILE).read_bytes()
    watched.run(1)
    whole = watched.state
    # As if the process was killed after the line of the round and before its state.
    (tmp_path / record.STATE_FILE).write_bytes(earlier)
    watched.run(1)
    asked = [name for one in watched.rounds for name in one["probes"]["asked"]]
    assert len(watched.rounds) == 4
    assert len(asked) == len(set(asked)) == PROBES
    loaded = record.load(tmp_path, watched.state["bound"])
    loaded.probes = record.WatchedProbes(count=PROBES)
    for seen in record.later_than(tmp_path, 0)[:3]:
        watch_probes.judge_probes(loaded, seen)
    assert record.plain(loaded.probes) == whole["probes"]


def test_another_reference_in_the_folder_is_refused(reference, tmp_path):
    watched = _Watched(_model(), reference, tmp_path / "o")
    watched.run(1)
    other = tmp_path / "other.json"
    known = read_reference(reference)
    write_reference(other, msgspec.structs.replace(known, floor=0.2))
    watched.reference = other
    with pytest.raises(RunFolderError, match=r"verify_reference\.sha256: was "):
        watched.run(1)
    watched.reference = None
    with pytest.raises(RunFolderError, match="verify_reference: was "):
        watched.run(1)


def test_folders_of_older_versions_are_resumed_and_get_no_probes(reference, tmp_path):
    watched = _Watched(_model(), None, tmp_path)
    watched.run(1)
    old = watched.state
    del old["probes"]
    (tmp_path / record.STATE_FILE).write_text(json.dumps(old))
    lines = watched.rounds
    assert lines[0].pop("probes") is None
    (tmp_path / record.ROUNDS_FILE).write_text(json.dumps(lines[0]) + "\n")
    assert watched.run(1) == 0
    assert "probes" not in watched.lines[-1]
    watched.reference = reference
    with pytest.raises(RunFolderError, match="verify_reference: was null"):
        watched.run(1)


def test_a_reference_that_cannot_accuse_is_refused(reference, tmp_path):
    file = tmp_path / "x.json"
    known = read_reference(reference)
    write_reference(file, msgspec.structs.replace(known, floor=None))
    with pytest.raises(PlanError, match="has no floor"):
        read_watch_reference(file, 20)


def test_the_figures_of_the_probes_are_served(reference, tmp_path):
    from prometheus_client import generate_latest

    watched = _Watched(_model(numerics=0.4), reference, tmp_path)
    watched.run(1)
    text = generate_latest(watched.metrics.registry).decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
    assert float(figures["serve_eval_watch_probes_beyond_ratio"]) > 0.5
    assert figures['serve_eval_watch_alarm{kind="numerics"}'] == "1.0"
    evidence, limit = (
        float(figures[f'serve_eval_watch_evidence{name}_nats{{watched="numerics"}}'])
        for name in ("", "_limit")
    )
    assert evidence >= limit


def test_tokens_that_no_server_counted_are_estimated(reference):
    known = read_watch_reference(reference, PER_ROUND)
    probe = known.known.probes[0]
    assert known.count_tokens(probe) == probe.reading.prompt_tokens + 2
    uncounted = msgspec.structs.replace(
        probe, reading=msgspec.structs.replace(probe.reading, prompt_tokens=0)
    )
    assert known.count_tokens(uncounted) > known.count_tokens(probe)
    unsalted = replace(known, known=msgspec.structs.replace(known.known, salted=False))
    assert unsalted.count_tokens(probe) == 2 * known.count_tokens(probe)
    most = max(map(known.count_tokens, known.known.probes))
    assert PER_ROUND * most / 2 < known.round_tokens <= PER_ROUND * most + 100
    assert known.sum_tokens([0]) == known.count_tokens(probe) + 100
    assert known.sum_tokens(range(PER_ROUND)) <= known.round_tokens
