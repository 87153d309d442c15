"""Test what the probe finds of servers that add sampling fields, ignore them or refuse them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.sampling import (
    describe_defaults,
    name_difference,
    probe_defaults,
    put_logged,
    read_logged,
)
from serve_eval.evaluation.capabilities.sampling.reading import PROMPT
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.protocol.sampling_fields import ROWS, TABLE
from serve_eval.schema import Endpoint, Limits, SamplingDefaults
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail, json_reply
from tests.standin.deployments import aggregated

NAMES = tuple(row.name for row in TABLE)
PENALTIES = tuple(row.name for row in TABLE if row.greedy)
OPENAI = ("temperature", "top_p", "frequency_penalty", "presence_penalty")


async def _probe(
    served: AbstractAsyncContextManager[str], *, model: str = "m", chat: bool = True
) -> SamplingDefaults:
    async with served as url:
        endpoint = Endpoint(base_url=url, model=model)
        async with Client(endpoint, Limits()) as client:
            known = endpoint.with_info(**await client.describe())
            return await probe_defaults(client, known, chat=chat)


def _embedded(**defaults: float) -> AbstractAsyncContextManager[str]:
    return serve_app(create_app(WEIGHTS, {"m": "none"}, defaults=defaults))


def _added(found: SamplingDefaults) -> set[str]:
    return {one.name for one in found.added}


def _obedience(found: SamplingDefaults) -> dict[str, str]:
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
def test_fields_that_a_model_gets_unseen_are_named(defaults: dict[str, float], chat: bool) -> None:
    found = asyncio.run(_probe(_embedded(**defaults), chat=chat))
    assert _added(found) == set(defaults)
    told = {one.name: one.adds for one in found.fields if one.name not in defaults}
    assert told.pop("top_k") is None  # no neutral value is known to be safe there
    assert set(told.values()) == {False}
    assert set(_obedience(found).values()) == {"heeded"}


def test_a_server_that_adds_nothing_costs_fourteen_short_answers() -> None:
    found = asyncio.run(_probe(_embedded(), chat=False))
    assert (found.requests, found.unknown) == (14, "")
    assert found.tokens < 1200


@pytest.mark.parametrize("flavour", ["v12", "main"])
@pytest.mark.parametrize(
    "defaults", [{}, {"repetition_penalty": 1.05}, {"top_k": 20, "temperature": 0.7}]
)
def test_the_stand_in_adds_what_its_generation_config_says(
    flavour: Flavour, defaults: dict[str, float]
) -> None:
    found = asyncio.run(_probe(aggregated(MadeUpModel(defaults=defaults), flavour=flavour)))
    assert _added(found) == set(defaults)
    assert all(one.adds is not None for one in found.fields)  # it is known as trtllm-serve
    assert found.find("top_k").neutral == 0  # type: ignore[union-attr]


# Scripted servers


def _scripted(
    *,
    takes: tuple[str, ...] = NAMES,
    refuses: int | None = None,
    adds: Mapping[str, float] | None = None,
    owner: str = "someone",
    renamed: str = "",
    steady: bool = True,
) -> ScriptedServer:
    """Return a server that heeds the fields that it `takes`, and ignores or refuses the others."""
    drawn = itertools.count()

    def reply(request: HttpRequest) -> Reply:
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


def test_a_server_that_ignores_every_field_may_add_them() -> None:
    found = asyncio.run(_probe(_scripted(takes=()).serve()))
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
def test_a_server_that_refuses_unknown_fields_gets_those_of_openai(
    status: int, adds: dict[str, float]
) -> None:
    server = _scripted(takes=OPENAI, refuses=status, adds=adds)
    found = asyncio.run(_probe(server.serve()))
    told = _obedience(found)
    assert {name for name, how in told.items() if how == "heeded"} == set(OPENAI)
    assert {name for name, how in told.items() if how == "refused"} == set(NAMES) - set(OPENAI)
    assert _added(found) == set(adds)
    assert [one.name for one in found.possible] == ["top_k", "min_p", "repetition_penalty"]


@pytest.mark.parametrize(
    ("owner", "sent"),
    [("vllm", {-1, 1}), ("tensorrt_llm", {0, 1}), ("llamacpp", {0, 1}), ("someone", {1})],
)
def test_each_server_gets_only_a_top_k_that_it_takes(owner: str, sent: set[int]) -> None:
    """Check it on the wire: -1 has crashed trtllm-serve."""
    server = _scripted(owner=owner, renamed="repeat_penalty")
    asyncio.run(_probe(server.serve()))
    told = {body["top_k"] for body in server.bodies if "top_k" in body}
    assert told == sent
    assert all(isinstance(one, int) for one in told)


@pytest.mark.parametrize("owner", ["llamacpp", "me"])
def test_llama_cpp_is_asked_for_its_own_name_of_the_penalty(owner: str) -> None:
    server = _scripted(
        takes=tuple(one for one in NAMES if one != "repetition_penalty"),
        owner=owner,
        renamed="repeat_penalty",
        adds={"repetition_penalty": 1.1},
    )
    found = asyncio.run(_probe(server.serve()))
    assert not any("repetition_penalty" in body for body in server.bodies)
    assert [one.sent_as for one in found.added] == ["repeat_penalty"]


def test_without_repeatable_seeds_greedy_answers_still_show_a_penalty() -> None:
    server = _scripted(steady=False, adds={"frequency_penalty": 0.3, "top_p": 0.9})
    found = asyncio.run(_probe(server.serve()))
    assert _added(found) == {"frequency_penalty"}
    assert {one.name for one in found.possible} == {"temperature", "top_p", "top_k", "min_p"}
    assert found.unknown == "a seed does not give one answer twice"


def test_answers_that_differ_by_themselves_accuse_nobody() -> None:
    drawn = itertools.count()
    server = ScriptedServer(lambda request: answer(f"number {next(drawn)}"), probed=True)
    found = asyncio.run(_probe(server.serve()))
    assert not found.added
    assert found.unknown == "greedy answers to one prompt differ"


@pytest.mark.parametrize("script", [answer(""), fail(500, "broken"), fail(429, "later")])
def test_a_server_without_texts_leaves_everything_unknown(script: Reply) -> None:
    found = asyncio.run(_probe(ScriptedServer(lambda request: script, probed=True).serve()))
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
def test_the_log_of_vllm_names_what_is_added(
    text: str, found: dict[str, float], tmp_path: Path
) -> None:
    log = tmp_path / "vllm.log"
    log.write_text(f"INFO before\n{text}\nINFO after\n")
    assert read_logged([log, tmp_path / "missing"]) == found
    known = put_logged(asyncio.run(_probe(_scripted().serve())), found)
    assert {one.name: one.value for one in known.added} == found


def _defaults(**adds: Any) -> SamplingDefaults:
    found = asyncio.run(_probe(_scripted(owner="vllm").serve()))
    return put_logged(found, adds)


def test_two_servers_are_told_apart_by_field_and_value() -> None:
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
