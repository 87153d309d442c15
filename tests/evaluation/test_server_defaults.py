"""Test runs, comparisons and verifications of servers that add sampling fields, end to end."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from serve_eval.evaluation.capabilities.sampling.sending import DIFFER, advise
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import (
    Limits,
    Plan,
    SamplingDefault,
    SamplingDefaults,
    Spec,
    VerdictOutcome,
    VerificationOutcome,
)
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.story import diagnose, find_leads
from serve_eval.workflows.references import register
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules
from serve_eval.workflows.verify.verify import verify
from tests.scripted_server import ScriptedServer, answer, serve

PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
NEUTRAL = {"min_p": 0, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}


def _plan(url, *, limit=12, **options):
    of_plan = {name: options.pop(name) for name in ("server_defaults",) if name in options}
    return Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="word_problems", options=options),),
        limit=limit,
        no_reference=True,
        limits=Limits(concurrency=16),
        **of_plan,
    )


@asynccontextmanager
async def _served(*defaults):
    """Serve the embedded model once for each set of defaults."""
    async with AsyncExitStack() as stack:
        apps = [create_app(WEIGHTS, {"m": "none"}, defaults=one) for one in defaults]
        yield [await stack.enter_async_context(serve_app(app)) for app in apps]


def _recording(ignored_in_chats=""):
    """Return a server whose answers show the fields that decide them, which it all heeds."""

    def reply(request):
        told = request.body
        heeded = [name for name in PENALTIES if not (request.chat and name == ignored_in_chats)]
        shown = [name for name in heeded if told.get(name, NEUTRAL[name]) != NEUTRAL[name]]
        one_left = told.get("top_p") == 0.001 or told.get("top_k") == 1 or told.get("min_p") == 1
        if told.get("temperature") != 0 and not one_left:
            shown.append(f"seed {told.get('seed')}")
        return answer(f"text {shown}")

    return ScriptedServer(reply, probed=True)


def _run(server, folder, **options):
    """Return the bodies of the samples that a run sends."""

    async def main():
        async with serve(server) as url:
            await evaluate(_plan(url, limit=3, **options), folder, environ={})

    asyncio.run(main())
    return [body for body in server.bodies if body["max_tokens"] > 32]


def test_neutral_values_are_sent_for_fields_that_are_heeded(tmp_path):
    bodies = _run(_recording(), tmp_path)
    assert len(bodies) == 3
    for body in bodies:
        assert {name: body[name] for name in PENALTIES} == {n: NEUTRAL[n] for n in PENALTIES}
        assert not {"min_p", "top_k", "seed"} & body.keys()  # they decide nothing at temperature 0


def test_above_temperature_0_min_p_is_sent_too(tmp_path):
    bodies = _run(_recording(), tmp_path, temperature=0.7)
    assert len(bodies) == 3
    assert all(body["min_p"] == 0 for body in bodies)


def test_values_of_the_plan_win_and_keep_sends_none(tmp_path):
    own = {"extra_body": {"repeat_penalty": 1.2, "presence_penalty": 0.5}}
    bodies = _run(_recording(), tmp_path / "own", **own)
    assert {body["presence_penalty"] for body in bodies} == {0.5}
    assert not any("repetition_penalty" in body for body in bodies)
    assert all(body["frequency_penalty"] == 0 for body in bodies)
    kept = _run(_recording(), tmp_path / "kept", server_defaults="keep")
    assert not any(NEUTRAL.keys() & body.keys() for body in kept)


async def test_a_field_is_sent_only_if_both_routes_heed_it(tmp_path):
    """Chats of this server ignore a penalty, so that no value of a request replaces it there."""
    server = _recording(ignored_in_chats="repetition_penalty")
    chats = {"kinds": ["json_object"], "num_samples": 2}
    async with serve(server) as url:
        plan = _plan(url, limit=2)
        tasks = (*plan.tasks, Spec(name="tool_calls", options=chats))
        report = await evaluate(replace(plan, tasks=tasks), tmp_path, environ={})
    found = report.sampling_defaults
    assert found.sent.keys() == {"min_p", "frequency_penalty", "presence_penalty"}
    asked = [one for one in server.asked if PROMPT in json.dumps(one.body)]
    assert {one.chat for one in asked} == {True, False}
    assert len(asked) == found.requests


async def test_an_endpoint_is_probed_once_also_if_the_run_resumes(tmp_path):
    server = _recording()
    async with serve(server) as url:
        plan = _plan(url, limit=3)
        await evaluate(plan, tmp_path, environ={})
        (tmp_path / "samples/word_problems.jsonl").unlink()
        report = await evaluate(plan, tmp_path, environ={})
    probed = [body for body in server.bodies if PROMPT in json.dumps(body)]
    assert len(probed) == report.sampling_defaults.requests
    samples = [body for body in server.bodies if body["max_tokens"] > 32]
    assert len(samples) == 6
    assert all(body["repetition_penalty"] == 1 for body in samples)


async def _evaluate(defaults, folder, **options):
    async with _served(defaults) as (url,):
        report = await evaluate(_plan(url, **options), folder, environ={})
    told = [line for line in report.warnings if "the server adds" in line]
    kept = options.get("server_defaults") == "keep"
    assert len(told) == bool(defaults)
    assert all(
        ("which changes answers" if kept else "sent neutral values") in line for line in told
    )
    return report


def test_what_a_server_adds_is_in_the_fingerprint_only_if_it_counts(tmp_path):
    adds = {"repetition_penalty": 1.3}
    plain = asyncio.run(_evaluate({}, tmp_path / "plain"))
    neutral = asyncio.run(_evaluate(adds, tmp_path / "neutral"))
    kept = asyncio.run(_evaluate(adds, tmp_path / "kept", server_defaults="keep"))
    prints = [dict(report.tasks[0].fingerprint) for report in (plain, neutral, kept)]
    assert prints[0] == prints[1]
    assert prints[2].pop("server_adds") == '["repetition_penalty"]'
    assert prints[2] == prints[0]
    values = [report.tasks[0].result.value for report in (plain, neutral, kept)]
    assert values[0] == values[1] != values[2]


async def _compare(folder, policy):
    async with _served({}, {"repetition_penalty": 1.3}) as urls:
        a, b = (CompareSide(plan=_plan(url, limit=40, server_defaults=policy)) for url in urls)
        rules = CompareRules(rule=Spec(name="paired"), again=0)
        return await compare(a, b, rules, folder, environ={})


def test_compare_names_unlike_defaults_and_diagnose_says_it_first(tmp_path):
    neutral = asyncio.run(_compare(tmp_path / "neutral", "neutral"))
    assert (neutral.tasks[0].worse, neutral.tasks[0].better) == (0, 0)
    assert any(DIFFER in line and "do not" in line for line in neutral.warnings)
    kept = asyncio.run(_compare(tmp_path / "kept", "keep"))
    assert kept.tasks[0].worse > 5
    assert any(f"{DIFFER}: B adds repetition_penalty" in line for line in kept.warnings)
    causes = diagnose(tmp_path / "kept").between
    assert [one.rule for one in causes[:2]] == ["server_defaults", "overruled"]
    assert causes[0].told == f"{DIFFER}: B adds repetition_penalty"
    assert causes[0].change[0] == "--set server_defaults=neutral: ask A and B again"
    assert "B writes a token that it ranks below another" in causes[1].told
    assert not any("weights" in one.told and one.rule == "even_loss" for one in causes)
    assert not any(one.rule == "server_defaults" for one in diagnose(tmp_path / "neutral").between)


PENALTY = {"repetition_penalty": 1.05}


def test_fields_that_the_reference_has_too_are_no_cause_of_damage(tmp_path):
    """Fails if a penalty is blamed that the sound servers of the reference added as well."""

    async def ask(damage, folder, adds, **options):
        async with serve_app(create_app(WEIGHTS, {"m": damage}, defaults=adds)) as url:
            plan = _plan(url, limit=None, num_samples=200, server_defaults="keep")
            return await evaluate(replace(plan, **options), folder, environ={})

    def judge(of, **options):
        own = {"no_reference": False, "references_dir": str(tmp_path / of)}
        folder = tmp_path / f"against_{of}"
        report = asyncio.run(ask("int3", folder, PENALTY, **own, **options))
        assert report.tasks[0].verdict.outcome is VerdictOutcome.FAIL
        return dict(find_leads(read_folder(folder)).causes)

    for name, adds in {"same": PENALTY, "none": {}}.items():
        asyncio.run(ask("none", tmp_path / f"run_{name}", adds))
        register([tmp_path / f"run_{name}"], tmp_path / name)
    [cause] = judge("same").values()
    assert "weights, precision" in cause
    [*_, last] = diagnose(tmp_path / "against_same").runs[0].findings
    assert (last.rule, last.explains, last.change) == ("server_defaults", 0, ())
    assert "the reference's servers added the same" in last.told
    [other] = judge("none", allow_mismatch=("server_adds",)).values()
    assert "the server adds repetition_penalty" in other


def test_fields_that_both_sides_add_are_no_cause_of_damage(tmp_path):
    async def main():
        async with AsyncExitStack() as stack:
            apps = [create_app(WEIGHTS, {"m": one}, defaults=PENALTY) for one in ("none", "int3")]
            urls = [await stack.enter_async_context(serve_app(app)) for app in apps]
            plans = [_plan(url, limit=200, server_defaults="keep") for url in urls]
            a, b = (CompareSide(plan=plan) for plan in plans)
            rules = CompareRules(rule=Spec(name="paired"), again=0)
            return await compare(a, b, rules, tmp_path, environ={})

    assert asyncio.run(main()).tasks[0].verdict.outcome is VerdictOutcome.FAIL
    [cause] = find_leads(read_folder(tmp_path)).causes.values()
    assert "weights, precision" in cause
    for run, name in zip(diagnose(tmp_path).runs, "BA", strict=True):
        [told] = [one for one in run.findings if one.rule == "server_defaults"]
        assert f"the server of {name} adds the same" in told.told
        assert (told.explains, told.change) == (0, ())


@pytest.mark.parametrize("adds", [{}, {"repetition_penalty": 1.05}])
async def test_verify_calls_no_server_identical_that_adds_a_penalty(adds, tmp_path):
    async with _served({}, adds) as urls:
        named = [
            NamedPlan(name=name, plan=_plan(url)) for name, url in zip("ab", urls, strict=True)
        ]
        found, known = await verify(
            named[0], [named[1]], [], VerifyRules(probes=80), tmp_path, environ={}
        )
    [side] = found.sides
    expected = VerificationOutcome.OTHER_DEFAULTS if adds else VerificationOutcome.IDENTICAL
    assert (side.outcome, found.exit_code) == (expected, 1 if adds else 0)
    assert (f"{DIFFER}: b adds repetition_penalty" in side.why) == bool(adds)
    assert known.sampling_defaults is not None
    assert any("adds top_k to requests" in line for line in found.warnings) == (not adds)


async def test_a_temperature_that_the_plan_leaves_out_is_named_with_the_way_to_set_it(
    tmp_path,
):
    """Neutral values were in force: they leave the temperature to the task, which sets null."""
    async with _served({}, {"repetition_penalty": 1.3, "temperature": 0.6}) as urls:
        plans = [_plan(url, limit=12) for url in urls]
        task = Spec(name="word_problems", options={"temperature": None})
        a, b = (CompareSide(plan=replace(plan, tasks=(task,))) for plan in plans)
        rules = CompareRules(rule=Spec(name="paired"), again=0)
        found = await compare(a, b, rules, tmp_path, environ={})
    [differ] = [line for line in found.warnings if DIFFER in line]
    assert "the answers below do not differ by repetition_penalty" in differ
    [left] = [line for line in found.warnings if line.startswith("the plan leaves temperature")]
    assert "--set word_problems.temperature=VALUE" in left


SERVED = [
    SamplingDefault(name="temperature", sent_as="temperature", obedience="heeded", adds=True),
    SamplingDefault(name="top_k", sent_as="top_k", obedience="heeded", adds=True),
    SamplingDefault(name="min_p", sent_as="min_p", obedience="ignored", adds=True, neutral=0.0),
]


@pytest.mark.parametrize(
    ("names", "policy", "said"),
    [
        (["temperature"], "neutral", ["the task leaves it to the server (null)"]),
        (["temperature"], "keep", ["the task leaves it to the server (null)"]),
        (["min_p"], "neutral", ["no value of a request replaces it, so change the server"]),
        (["min_p"], "keep", ["--set server_defaults=neutral replaces it"]),
        (["top_k"], "neutral", ["set it in `extra_body` of the task"]),
        (["temperature", "min_p"], "neutral", ["temperature: the task", "min_p: no value"]),
    ],
)
def test_the_advice_about_a_field_is_the_way_that_replaces_it(names, policy, said):
    ways = advise(names, SamplingDefaults(fields=tuple(SERVED), policy=policy))
    assert len(ways) == len(said)
    assert all(words in way for words, way in zip(said, ways, strict=True))


@pytest.mark.parametrize(
    ("policies", "again"),
    [(("keep", "neutral"), "A"), (("neutral", "keep"), "B"), (("keep", "keep"), "A and B")],
)
def test_the_side_that_kept_what_its_server_adds_must_be_asked_again(policies, again):
    sides = [SamplingDefaults(fields=tuple(SERVED), policy=policy) for policy in policies]
    told = f"--set server_defaults=neutral replaces it: ask {again} again"
    assert advise(["min_p"], *sides) == [told]
