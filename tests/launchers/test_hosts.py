"""Test addresses of hosts and types of routers before anything starts."""

import asyncio
import socket
from pathlib import Path

import httpx
import pytest
from aiohttp import web

from serve_eval.client.client import Client
from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import llama_cpp, trtllm, trtllm_disaggregated
from serve_eval.launchers._fleet import fleet
from serve_eval.launchers._machine.hosts import family as family_of
from serve_eval.launchers._standin.cluster import TYPES
from serve_eval.launchers._standin.options import ALL
from serve_eval.launchers._trtllm import containers, version
from serve_eval.launchers._trtllm.command_line import Place, Server, to_yaml
from serve_eval.launchers._trtllm.version import adapt
from serve_eval.plugins import registry
from serve_eval.schema import Endpoint, Failure, LaunchContext, Limits
from tests.scripted_server import ScriptedServer, models

CONTEXT = LaunchContext(model="org/model", log_dir=Path("logs"))


def _has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("host", "family", "url"),
    [
        ("::1", socket.AF_INET6, "http://[::1]:7"),
        ("::", socket.AF_INET6, "http://[::1]:7"),
        ("127.0.0.1", socket.AF_INET, "http://127.0.0.1:7"),
        ("0.0.0.0", socket.AF_INET, "http://127.0.0.1:7"),
        ("", socket.AF_INET, "http://127.0.0.1:7"),
        ("no-such-host.invalid", socket.AF_INET, "http://no-such-host.invalid:7"),
    ],
)
def test_a_host_has_a_family_and_an_address(host, family, url):
    server = Server(name="s", argv=("x",), probe=("x",), place=Place(host=host, port=7))
    assert (family_of(host), server.url) == (family, url)


@pytest.mark.parametrize(("only", "family"), [(True, socket.AF_INET6), (False, socket.AF_INET)])
def test_a_name_is_bound_as_ipv6_only_where_it_has_no_other_address(only, family, monkeypatch):
    found = [(socket.AF_INET6,)] if only else [(socket.AF_INET6,), (socket.AF_INET,)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **more: found)
    assert family_of("node") == family


@needs_ipv6
def test_free_ports_of_ipv6_are_free_there():
    port, other = fleet.free_ports("::1", None, 1)
    with socket.create_server(("::1", port), family=socket.AF_INET6):
        assert port != other
        server = Server(name="s", argv=("x",), probe=("x",), place=Place(host="::1", port=port))
        with pytest.raises(LaunchError, match=rf"s: \[::1\]:{port} cannot be used"):
            fleet._check_free(server)
    fleet._check_free(server)


@pytest.mark.parametrize("host", ["[::1]", "http://node", "node/8000"])
def test_what_is_no_host_is_refused_before_anything_starts(host):
    with pytest.raises(PlanError, match=r"launcher\.host"):
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions(host=host))
    with pytest.raises(PlanError, match=r"launcher\.host"):
        llama_cpp.commands(
            CONTEXT,
            llama_cpp.LlamaCppOptions(
                **registry.check_options(llama_cpp.launch, {"model": "m.gguf", "host": host}, "l")
            ),
        )


@pytest.mark.parametrize("host", ["::1", "::", "fe80::1"])
def test_an_orchestrator_binds_ipv4_only(host):
    options = registry.check_options(trtllm_disaggregated.launch, {"host": host}, "launcher")
    with pytest.raises(
        PlanError, match=f"launcher.host: {host}: the orchestrator .* binds IPv4 addresses only"
    ) as told:
        trtllm_disaggregated.commands(CONTEXT, trtllm_disaggregated.DisaggregatedOptions(**options))
    assert "127.0.0.1" in told.value.hint


def test_a_server_alone_gets_the_address_as_it_is():
    [line] = trtllm.commands(CONTEXT, trtllm.TrtllmOptions(host="::1", port=7))
    assert line[line.index("--host") + 1] == "::1"


def test_a_container_publishes_its_port_at_an_address_in_brackets():
    server = Server(
        name="s", argv=("t", "--host", "::1"), probe=("t",), place=Place(host="::1", port=7)
    )
    container = containers.Container(image="i", network="bridge")
    assert "[::1]:7:7" in containers.wrap(server, container).argv


@needs_ipv6
@pytest.mark.slow
async def test_a_server_on_ipv6_is_launched_and_asked(context, standin):
    standin("main", STANDIN_LOAD_S="0.5")
    options = {"host": "::1", "gpus": [0], "ready_timeout_s": 30.0}
    async with (
        trtllm.launch(
            context,
            trtllm.TrtllmOptions(**registry.check_options(trtllm.launch, options, "launcher")),
        ) as endpoint,
        httpx.AsyncClient(trust_env=False) as plain,
        Client(endpoint, Limits()) as client,
    ):
        answer = await plain.get(endpoint.base_url.removesuffix("/v1") + "/health")
        status, listed = answer.status_code, await client.models()
    assert endpoint.base_url.startswith("http://[::1]:")
    assert (status, listed) == (200, ["org/model"])


@needs_ipv6
def test_a_client_names_the_host_in_brackets():
    server = ScriptedServer(routes={"/v1/models": models("m")})

    async def story():
        runner = web.AppRunner(server.app())
        await runner.setup()
        try:
            listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
            await web.SockSite(runner, listener).start()
            port = listener.getsockname()[1]
            async with Client(Endpoint(base_url=f"http://[::1]:{port}/v1"), Limits()) as client:
                found = await client.models()
            assert [request.headers["Host"] for request in server.requests] == [f"[::1]:{port}"]
            return found
        finally:
            await runner.cleanup()

    assert asyncio.run(story()) == ["m"]


@needs_ipv6
async def test_an_address_that_refuses_is_told_in_brackets():
    [port] = fleet.free_ports("::1", None)
    async with Client(Endpoint(base_url=f"http://[::1]:{port}/v1"), Limits()) as client:
        told = await client.models()
    assert isinstance(told, Failure)
    assert told.message.startswith(f"cannot connect to [::1]:{port}: ")


PROBE = ("trtllm-serve", "disaggregated")
OLD, NEW = frozenset({"-c", "-t", "-r"}), frozenset({"-c", "-t", "-r", "--schedule_style"})
TOKENS = {"type": "load_balancing", "use_tokens": True}


def _commands(router, side="context_servers"):
    options = {side: {"router": router}}
    trtllm_disaggregated.commands(
        CONTEXT,
        trtllm_disaggregated.DisaggregatedOptions(
            **registry.check_options(trtllm_disaggregated.launch, options, "launcher")
        ),
    )


@pytest.mark.parametrize(
    ("router", "told"),
    [
        (
            "load_balancng",
            "context_servers.router: unknown type 'load_balancng'. Did you mean 'load_balancing'?",
        ),
        ({"type": "kv_aware"}, "Did you mean 'kv_cache_aware'?"),
        ({"type": "roundrobin"}, "Did you mean 'round_robin'?"),
        ({"type": 7}, "Known: round_robin, load_balancing"),
    ],
)
def test_a_type_is_checked_with_the_nearest_name(router, told):
    with pytest.raises(PlanError) as caught:
        _commands(router)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "name", ["Round_Robin", *sorted({name for names in TYPES.values() for name in names})]
)
def test_every_type_of_any_version_is_taken(name):
    _commands(name)
    _commands({"type": name}, "generation_servers")


def test_every_flavour_of_the_stand_in_has_the_first_three():
    assert set(TYPES) == set(ALL)
    assert all(names[:3] == version.TYPES[:3] for names in TYPES.values())


def _server(router, *, probe=PROBE):
    content = {"context_servers": {"router": router}, "generation_servers": {}}
    files = {Path("orchestrator.yaml"): to_yaml(content)}
    return Server(name="o", argv=probe, probe=probe, place=Place(host="h", port=1), files=files)


@pytest.mark.parametrize(
    ("router", "flags", "refused"),
    [
        (TOKENS, OLD, True),
        (TOKENS, NEW, False),
        ({**TOKENS, "type": "LOAD_BALANCING"}, OLD, True),
        ({**TOKENS, "use_tokens": False}, OLD, False),
        ({**TOKENS, "type": "round_robin"}, OLD, False),
        (None, OLD, False),
    ],
)
def test_what_a_version_answers_with_500_is_refused(router, flags, refused):
    server = _server(router)
    assert bool(version.find_problems(server, flags)) == refused
    if refused:
        with pytest.raises(PlanError, match="this version answers 500 to every request"):
            adapt([server], {PROBE: flags})
    else:
        adapt([server], {PROBE: flags})


def test_other_servers_have_no_router():
    assert version.find_problems(_server(TOKENS, probe=("trtllm-serve", "serve")), OLD) == []


@pytest.mark.slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_a_load_in_tokens_is_launched_where_it_works(flavour, context, standin):
    standin(flavour)

    async def story():
        given = {
            "generation_servers": {"router": TOKENS},
            "gpus": [0, 1],
            "ready_timeout_s": 30.0,
        }
        options = registry.check_options(trtllm_disaggregated.launch, given, "launcher")
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**options)
        ) as endpoint:
            return endpoint.base_url

    if flavour == "main":
        assert asyncio.run(story()).startswith("http://")
        return
    with pytest.raises(PlanError, match="answers 500"):
        asyncio.run(story())
