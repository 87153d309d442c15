"""Test what is found of sampling fields that servers add, and references with other fields."""

import asyncio
import itertools
import json
import shlex
from dataclasses import replace

import pytest

from serve_eval.client.client import Client
from serve_eval.errors import NotComparableError, RunFolderError
from serve_eval.evaluation.capabilities.sampling import (
    choose_sent,
    compare_with_reference,
    describe_defaults,
    name_difference,
    probe_defaults,
    put_logged,
    read_logged,
)
from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.protocol.sampling_fields import ROWS, TABLE
from serve_eval.schema import (
    AccuracySpec,
    Endpoint,
    Limits,
    Plan,
    Reference,
    ReferenceRuns,
    SamplingDefault,
    SamplingDefaults,
    Spec,
    VerdictOutcome,
)
from serve_eval.tasks import word_problems
from serve_eval.workflows.references import register
from tests.scripted_server import ScriptedServer, answer, fail, json_reply
from tests.standin.deployments import aggregated

NAMES = tuple(row.name for row in TABLE)
PENALTIES = tuple(row.name for row in TABLE if row.greedy)
OPENAI = ("temperature", "top_p", "frequency_penalty", "presence_penalty")


async def _probe(served, *, model="m", chat=True):
    async with served as url:
        endpoint = Endpoint(base_url=url, model=model)
        async with Client(endpoint, Limits()) as client:
            known = endpoint.with_info(**await client.describe())
            return await probe_defaults(client, known, chat=chat)


def _embedded(**defaults):
    return serve_app(create_app(WEIGHTS, {"m": "none"}, defaults=defaults))


def _added(found):
    return {one.name for one in found.added}


def _obedience(found):
    return {one.name: one.obedience for one in found.fields}


@pytest.mark.parametrize(
    "defaults",
    [
        {},
        {"repetition_penalty": 1.05},
        {"repetition_penalty": 1.3},
        {"top_p": 0.95},
        {"min_p": 0.05, "presence_penalty": 0.5},
        {"temperature": 0.6},
    ],
)
@pytest.mark.parametrize("chat", [False, True])
async def test_fields_that_a_model_gets_unseen_are_named(defaults, chat):
    found = await _probe(_embedded(**defaults), chat=chat)
    assert _added(found) == set(defaults)
    told = {one.name: one.adds for one in found.fields if one.name not in defaults}
    assert told.pop("top_k") is None  # no neutral value is known to be safe there
    assert set(told.values()) == {False}
    assert set(_obedience(found).values()) == {"heeded"}


async def test_a_server_that_adds_nothing_costs_fourteen_short_answers():
    found = await _probe(_embedded(), chat=False)
    assert (found.requests, found.unknown) == (14, "")
    assert found.tokens < 1200


@pytest.mark.parametrize("flavour", ["v12", "main"])
@pytest.mark.parametrize(
    "defaults", [{}, {"repetition_penalty": 1.05}, {"top_k": 20, "temperature": 0.7}]
)
async def test_the_stand_in_adds_what_its_generation_config_says(flavour, defaults):
    found = await _probe(aggregated(MadeUpModel(defaults=defaults), flavour=flavour))
    assert _added(found) == set(defaults)
    assert all(one.adds is not None for one in found.fields)  # it is known as trtllm-serve
    assert found.find("top_k").neutral == 0


# Scripted servers


def _scripted(
    *,
    takes=NAMES,
    refuses=None,
    adds=None,
    owner="someone",
    renamed="",
    steady=True,
):
    """Return a server that heeds the fields that it `takes`, and ignores or refuses the others."""
    drawn = itertools.count()

    def reply(request):
        if PROMPT not in request.prompt:
            return answer("4")
        told = {**(adds or {}), **{k: v for k, v in request.body.items() if k in takes}}
        if renamed in request.body:
            told["repetition_penalty"] = request.body[renamed]
        if refuses and (more := set(request.body) & {*NAMES, "repeat_penalty"} - {*takes}):
            return fail(refuses, f"unexpected fields: {more}")
        temperature = told.get("temperature", 1.0)
        one_left = told.get("top_k") == 1 or told.get("top_p") == 0.001 or told.get("min_p") == 1
        shown = PENALTIES if temperature == 0 or one_left else NAMES
        marks = [
            f"{name} {told[name]:g}"
            for name in shown
            if name in told and told[name] not in (ROWS[name].neutral, 0, -1)
        ]
        if shown is NAMES and not steady:
            marks.append(str(next(drawn)))
        return answer(f"{marks} is the answer")

    listed = json_reply({"data": [{"id": "m", "owned_by": owner}]})
    return ScriptedServer(reply, routes={"/v1/models": lambda request: listed}, probed=True)


async def test_a_server_that_ignores_every_field_may_add_them():
    found = await _probe(_scripted(takes=()).serve())
    assert _obedience(found) == dict.fromkeys(PENALTIES, "ignored") | {
        "temperature": "ignored",
        "top_p": "unknown",
        "top_k": "unknown",
        "min_p": "unknown",
    }
    assert not found.added
    assert len(found.possible) == 7
    assert any("whether the server adds" in line for line in describe_defaults(found))


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize("adds", [{}, {"presence_penalty": 0.5}])
async def test_a_server_that_refuses_unknown_fields_gets_those_of_openai(status, adds):
    server = _scripted(takes=OPENAI, refuses=status, adds=adds)
    found = await _probe(server.serve())
    told = _obedience(found)
    assert {name for name, how in told.items() if how == "heeded"} == set(OPENAI)
    assert {name for name, how in told.items() if how == "refused"} == set(NAMES) - set(OPENAI)
    assert _added(found) == set(adds)
    assert [one.name for one in found.possible] == ["top_k", "min_p", "repetition_penalty"]


@pytest.mark.parametrize(
    ("owner", "sent"),
    [("vllm", {-1, 1}), ("tensorrt_llm", {0, 1}), ("llamacpp", {0, 1}), ("someone", {1})],
)
async def test_each_server_gets_only_a_top_k_that_it_takes(owner, sent):
    """Check it on the wire: -1 has crashed trtllm-serve."""
    server = _scripted(owner=owner, renamed="repeat_penalty")
    await _probe(server.serve())
    told = {body["top_k"] for body in server.bodies if "top_k" in body}
    assert told == sent
    assert all(isinstance(one, int) for one in told)


@pytest.mark.parametrize("owner", ["llamacpp", "me"])
async def test_llama_cpp_is_asked_for_its_own_name_of_the_penalty(owner):
    server = _scripted(
        takes=tuple(one for one in NAMES if one != "repetition_penalty"),
        owner=owner,
        renamed="repeat_penalty",
        adds={"repetition_penalty": 1.1},
    )
    found = await _probe(server.serve())
    assert not any("repetition_penalty" in body for body in server.bodies)
    assert [one.sent_as for one in found.added] == ["repeat_penalty"]


async def test_without_repeatable_seeds_greedy_answers_still_show_a_penalty():
    server = _scripted(steady=False, adds={"frequency_penalty": 0.3, "top_p": 0.9})
    found = await _probe(server.serve())
    assert _added(found) == {"frequency_penalty"}
    assert {one.name for one in found.possible} == {"temperature", "top_p", "top_k", "min_p"}
    assert found.unknown == "a seed does not give one answer twice"


async def test_answers_that_differ_by_themselves_accuse_nobody():
    drawn = itertools.count()
    server = ScriptedServer(lambda request: answer(f"number {next(drawn)}"), probed=True)
    found = await _probe(server.serve())
    assert not found.added
    assert found.unknown == "greedy answers to one prompt differ"


@pytest.mark.parametrize("script", [answer(""), fail(500, "broken"), fail(429, "later")])
async def test_a_server_without_texts_leaves_everything_unknown(script):
    found = await _probe(ScriptedServer(lambda request: script, probed=True).serve())
    assert len(found.possible) == 7
    assert set(_obedience(found).values()) == {"unknown"}


# Logs and sentences

VLLM_LOG = (
    "(APIServer pid=27317) WARNING 11-29 21:50:54 [model.py:1893] Default vLLM sampling parameters"
    " have been overridden by the model's `generation_config.json`: `{'repetition_penalty': 1.05,"
    " 'top_k': 20}`. If this is not intended, please relaunch vLLM instance with"
    " `--generation-config vllm`."
)
OLDER_LOG = (
    "WARNING [config.py:1] Default sampling parameters have been overridden by the model's Hugging"
    " Face generation config recommended from the model creator. {'temperature': 0.6}"
)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (VLLM_LOG, {"repetition_penalty": 1.05, "top_k": 20}),
        (OLDER_LOG, {"temperature": 0.6}),
        ("overridden by the model's `generation_config.json`: `{'max_tokens': 9}`", {}),
        ("Default sampling parameters have been overridden by the model's x: {broken", {}),
        ("nothing", {}),
    ],
)
async def test_the_log_of_vllm_names_what_is_added(text, found, tmp_path):
    log = tmp_path / "vllm.log"
    log.write_text(f"INFO before\n{text}\nINFO after\n")
    assert read_logged([log, tmp_path / "missing"]) == found
    known = put_logged(await _probe(_scripted().serve()), found)
    assert {one.name: one.value for one in known.added} == found


def _defaults(**adds):
    found = asyncio.run(_probe(_scripted(owner="vllm").serve()))
    return put_logged(found, adds)


def test_two_servers_are_told_apart_by_field_and_value():
    plain, small, large = (
        _defaults(),
        _defaults(repetition_penalty=1.05),
        _defaults(repetition_penalty=1.3),
    )
    assert name_difference(plain, plain) == name_difference(small, small) == ""
    assert name_difference(plain, None) == ""
    assert name_difference(plain, small) == (
        "the servers' sampling defaults differ: B adds repetition_penalty 1.05"
    )
    told = name_difference(small, large, ("one", "other"))
    assert told.endswith("one adds repetition_penalty 1.05 and other adds repetition_penalty 1.3")
    assert json.loads(json.dumps(told)) == told


ADDS = {"repetition_penalty": 1.3}
N = 12


def _plan(url, **options):
    return replace(
        Plan(
            model="m",
            launcher=Spec(name="external", options={"base_url": url}),
            tasks=(Spec(name="word_problems", options={"num_samples": N}),),
            limits=Limits(concurrency=16),
        ),
        **options,
    )


def _run(defaults, folder, **options):
    async def main():
        app = create_app(WEIGHTS, {"m": "none"}, defaults=defaults)
        async with serve_app(app) as url:
            return await evaluate(_plan(url, **options), folder, environ={})

    return asyncio.run(main())


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """References of servers that added a penalty, which was kept, and of one that adds none."""
    folder = tmp_path_factory.mktemp("references")
    for name, defaults in (("adds", ADDS), ("plain", {})):
        _run(defaults, folder / f"run_{name}", no_reference=True, server_defaults="keep")
        register([folder / f"run_{name}"], folder / name)
    return {name: str(folder / name) for name in ("adds", "plain")}


@pytest.mark.parametrize(
    ("taken", "defaults", "policy", "told", "hint"),
    [
        ("adds", {}, "neutral", "added repetition_penalty to its requests, and nothing", ""),
        ("adds", {}, "keep", "added repetition_penalty to its requests, and nothing", ""),
        ("adds", ADDS, "neutral", "which send a neutral repetition_penalty", "keep leaves"),
        ("plain", ADDS, "keep", "added nothing to its requests, and repetition_penalty", "neutral"),
    ],
)
def test_a_run_with_other_sampling_is_refused_before_its_first_sample(
    taken,
    defaults,
    policy,
    told,
    hint,
    references,
    tmp_path,
):
    options = {"references_dir": references[taken], "server_defaults": policy}
    with pytest.raises(NotComparableError, match=told) as caught:
        _run(defaults, tmp_path / "run", **options)
    assert caught.value.exit_code == 3
    assert "--allow-mismatch server_adds" in caught.value.hint
    take = caught.value.hint.splitlines()[-1]
    assert shlex.split(take)[-4:] == [
        *("--references-dir", references[taken]),
        *("--reason", "other server_adds"),
    ]
    advice = [f"--set server_defaults={way}" for way in ("keep leaves", "neutral replaces")]
    assert [way for way in advice if way in caught.value.hint] == [
        way for way in advice if hint and hint in way
    ]
    assert not (tmp_path / "run/samples/word_problems.jsonl").stat().st_size

    allowed = _run(defaults, tmp_path / "allowed", allow_mismatch=("server_adds",), **options)
    [task] = allowed.tasks
    assert task.reference is not None
    assert "mismatch allowed: server_adds" in str(task.verdict.protocol)
    assert any(told in line for line in allowed.warnings)

    lacks = _run(defaults, tmp_path / "lacks", allow_missing_reference=True, **options)
    [task] = lacks.tasks
    assert (task.verdict.outcome, lacks.exit_code) == (VerdictOutcome.NO_REFERENCE, 3)
    assert told in task.verdict.reasons[0]
    assert task.result.scored == N


@pytest.mark.parametrize(
    ("taken", "defaults", "policy"),
    [
        ("adds", ADDS, "keep"),
        ("plain", {}, "neutral"),
        ("plain", {}, "keep"),
        ("plain", ADDS, "neutral"),
    ],
)
def test_a_run_with_the_same_sampling_is_judged(
    taken,
    defaults,
    policy,
    references,
    tmp_path,
):
    report = _run(defaults, tmp_path, references_dir=references[taken], server_defaults=policy)
    [task] = report.tasks
    assert (task.result.value, report.exit_code) == (task.verdict.reference, 0)


def test_a_finished_run_is_not_judged_again_by_other_sampling(references, tmp_path):
    _run({}, tmp_path, no_reference=True)
    plan = _plan("http://127.0.0.1:1/v1", references_dir=references["adds"])
    with pytest.raises(NotComparableError, match="server_adds is"):
        judge_again(plan, tmp_path)
    allowed = judge_again(replace(plan, allow_mismatch=("server_adds",)), tmp_path)
    assert allowed.tasks[0].reference is not None


def test_an_early_stop_ends_with_its_reference(references, tmp_path):
    report = _run(
        {},
        tmp_path,
        references_dir=references["adds"],
        allow_missing_reference=True,
        early_stop=0.2,
        verdict=Spec(name="classic"),
        rule_named=True,
    )
    [task] = report.tasks
    assert (task.result.scored, task.verdict.outcome) == (N, VerdictOutcome.NO_REFERENCE)


def test_runs_with_unlike_sampling_are_no_reference(tmp_path):
    for name, defaults in (("one", {}), ("two", ADDS)):
        _run(defaults, tmp_path / name, no_reference=True, server_defaults="keep")
    with pytest.raises(RunFolderError, match="two, the server added repetition_penalty to"):
        register([tmp_path / "one", tmp_path / "two"], tmp_path / "references")
    assert not (tmp_path / "references").exists()


def _reference(adds, *, published=False):
    runs = ReferenceRuns(values=(80.0,), n=10, sigma=40.0, samples="", sha256="", server_adds=adds)
    return Reference(
        task="word_problems",
        model="m",
        spec=AccuracySpec(),
        value=80.0,
        runs=None if published else runs,
    )


def _found(adds, policy, obedience="heeded"):
    penalty = SamplingDefault(
        name="repetition_penalty",
        sent_as="repetition_penalty",
        obedience=obedience,
        adds=adds,
        neutral=1.0,
    )
    return choose_sent(SamplingDefaults(fields=(penalty,)), policy)


PENALTY = ("repetition_penalty",)


@pytest.mark.parametrize(
    ("reference", "found", "expected"),
    [
        (_reference(None), _found(False, "neutral"), None),
        (_reference(None), _found(False, "keep"), None),
        (_reference(None), _found(None, "neutral"), None),
        (_reference(None), _found(True, "neutral"), True),  # asked otherwise than its runs
        (_reference(None), _found(True, "keep"), False),  # asked as its runs
        (_reference((), published=True), _found(True, "neutral"), None),
        (_reference((), published=True), _found(True, "keep"), True),
        (_reference((), published=True), _found(True, "neutral", "ignored"), True),
        (_reference(PENALTY), _found(None, "neutral"), True),  # replaced, if it is added
        (_reference(PENALTY), _found(None, "keep"), False),
        (_reference(PENALTY), _found(None, "neutral", "refused"), False),
        (_reference(PENALTY), _found(False, "keep"), True),
        (_reference(PENALTY), SamplingDefaults(), False),
        (_reference(PENALTY), None, None),
        (_reference(()), _found(None, "keep"), None),
        (_reference(("top_k",)), _found(True, "keep"), True),
    ],
)
def test_only_a_known_difference_refuses(reference, found, expected):
    other = compare_with_reference(found, reference, word_problems.task())
    assert (None if other is None else other.differs) == expected
