"""Test what servers of each version receive, and what is reported about it."""

import asyncio
import os
import re
import stat
from dataclasses import replace
from functools import cache
from pathlib import Path

import click
import httpx
import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import trtllm, trtllm_disaggregated
from serve_eval.launchers._fleet import fleet
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._standin.options import group
from serve_eval.launchers._trtllm import disaggregated, kv_transfer, version
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.servers import build_servers, list_parts
from serve_eval.launchers._trtllm.version import FLAG, adapt
from serve_eval.plugins import registry
from serve_eval.plugins.declarations import find_structure
from tests.standin.deployments import free_port

KEY = "0123456789abcdef"
CONFIG = {"max_batch_size": 4}
PROBE = ("trtllm-serve", "serve")


@cache
def flags(flavour, command="serve"):
    found = group(flavour, lambda *_: None).commands[command]
    return frozenset(FLAG.findall(found.get_help(click.Context(found))))


def server(*options, **more):
    return Server(
        name="s",
        argv=(*PROBE, "M", *options),
        probe=PROBE,
        place=Place(host="127.0.0.1", port=8000),
        **more,
    )


def start(launcher, context, story=None, **options):
    given = registry.check_options(
        launcher.launch, {"ready_timeout_s": 20.0, "answer_timeout_s": 10.0, **options}, "launcher"
    )

    async def tell():
        async with launcher.launch(context, find_structure(launcher.launch)(**given)) as endpoint:
            await complete(endpoint)
            return endpoint if story is None else await story(endpoint)

    return asyncio.run(tell())


async def complete(endpoint):
    async with httpx.AsyncClient(trust_env=False) as client:
        body = {"model": "m", "prompt": "p", "max_tokens": 4}
        assert (await client.post(endpoint.base_url + "/completions", json=body)).status_code == 200


def everything(folder):
    return "".join(path.read_text() for path in sorted(folder.rglob("*")) if path.is_file())


# Config and port


@pytest.mark.parametrize(
    ("flavour", "option"), [("old", "--extra_llm_api_options"), ("v12", "--config")]
)
def test_the_config_file_is_named_as_the_version_knows_it(flavour, option):
    [found] = adapt([server("--config", "/c.yaml", "--tp_size", "2")], {PROBE: flags(flavour)})
    assert found.options == ("M", option, "/c.yaml", "--tp_size", "2")


def test_a_server_finds_a_port_itself_where_it_can_tell_it():
    one = server("--port", "8000", report=Path("/a"))
    [found] = adapt([one], {PROBE: flags("v12")})
    assert (found.options, found.report, found.place.port) == (("M", "--port", "8000"), None, 8000)
    [found] = adapt([one], {PROBE: flags("main")})
    assert found.options[:5] == ("M", "--port", "0", "--report_addr", "/a")
    assert found.options[5:7] == ("--num_serve_frontends", "1")
    assert found.url == "http://127.0.0.1:0"


@pytest.mark.parametrize(
    ("options", "front_ends", "port"),
    [
        (("--num_serve_frontends=2",), 2, "8000"),
        ((), 2, "8000"),
        (("--num_serve_frontends", "1"), 1, "0"),
        (("--grpc",), None, "8000"),
    ],
)
def test_a_server_with_several_front_ends_reports_no_port(options, front_ends, port):
    one = server("--port", "8000", *options, report=Path("/a"), front_ends=front_ends)
    [found] = adapt([one], {PROBE: flags("main")})
    assert found.options[2] == port
    assert " ".join(found.options).count("--num_serve_frontends") == len(options[:1]) - (
        "--grpc" in options
    )


def test_the_address_is_what_the_server_tells(tmp_path):
    report = tmp_path / "s.address"
    one = Server(
        name="s", argv=PROBE, probe=PROBE, place=Place(host="127.0.0.1", port=0), report=report
    )
    for text, port in [
        ("", 0),
        ("127.0.0.1", 0),
        ("h:x\n", 0),
        ("h:70000", 0),
        ("[::1]:812\n", 812),
    ]:
        report.write_text(text)
        assert one.url == f"http://127.0.0.1:{port}"


@pytest.mark.slow
def test_a_version_that_changed_behind_its_command_is_asked_anew(
    context, standin, tmp_path, monkeypatch
):
    """The output of --help is cached for a day, and an option in it may be unknown now."""

    async def start():
        async with trtllm.launch(context, trtllm.TrtllmOptions(ready_timeout_s=30.0)) as endpoint:
            return " ".join(endpoint.info.commands[0])

    def use(flavour):
        standin(flavour)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the same"))

    use("main")
    assert "--report_addr" in asyncio.run(start())
    use("v12")
    with pytest.raises(LaunchError, match="it does not know an option"):
        asyncio.run(start())
    assert "--report_addr" not in asyncio.run(start())


@pytest.mark.slow
def test_a_port_is_found_anew_for_every_session(context, standin):
    standin("main")
    ports = []
    for _ in range(2):
        endpoint = start(trtllm, context, config=CONFIG)
        words = endpoint.info.commands[0]
        assert words[words.index("--port") + 1] == "0"
        assert words[words.index("--report_addr") + 1] == str(context.log_dir / "trtllm.address")
        ports.append(endpoint.base_url.rpartition(":")[2])
        assert endpoint.info.servers["trtllm"].endswith(f":{ports[-1].removesuffix('/v1')}")
    assert ports[0] != ports[1]
    port = free_port()
    assert f":{port}/" in start(trtllm, context, port=port).base_url


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [trtllm, trtllm_disaggregated])
def test_a_version_without_config_option_starts(launcher, context, standin):
    standin("old")
    sides = (
        {"context_servers": {"config": CONFIG, "tp": 2}}
        if launcher is trtllm_disaggregated
        else {"config": CONFIG}
    )
    for _ in range(2):  # the second time from the cache
        assert start(launcher, context, **sides)
    script = (context.log_dir / "commands.sh").read_text()
    assert "--extra_llm_api_options" in script
    assert "--config" not in script


def test_a_dry_run_shows_what_is_known_without_asking(context, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (executable := tmp_path / "trtllm-serve").write_text("#!/bin/sh\nexit 1\n")
    executable.chmod(0o755)
    options = {"command": str(executable)}
    before = (
        trtllm_disaggregated.files(context, trtllm_disaggregated.DisaggregatedOptions(**options)),
        trtllm_disaggregated.commands(
            context, trtllm_disaggregated.DisaggregatedOptions(**options)
        ),
    )
    assert "--config" in before[1][0]
    assert kv_transfer.NAME not in "".join(before[0].values())
    for flavour, option in (("old", "--extra_llm_api_options"), ("main", "--config")):
        for command in ("serve", "disaggregated"):
            key = version.cache_key((str(executable), command), os.environ, None)
            version.remember(key, flags(flavour, command))
        assert (
            option
            in trtllm_disaggregated.commands(
                context, trtllm_disaggregated.DisaggregatedOptions(**options)
            )[0]
        )
        shown = "".join(
            trtllm_disaggregated.files(
                context, trtllm_disaggregated.DisaggregatedOptions(**options)
            ).values()
        )
        assert shown.count(f"{kv_transfer.NAME}: {kv_transfer.SHOWN}") == (
            3 if flavour == "main" else 0
        )
    assert "--report_addr" in trtllm.commands(context, trtllm.TrtllmOptions(**options))[0]


# Key


def sharing(flavour, auth_key):
    front = ("trtllm-serve", "disaggregated")
    both = [
        server(files={Path("w.yaml"): "a: 1\n"}, auth_key=auth_key),
        Server(
            name="o",
            argv=front,
            probe=front,
            place=Place(host="127.0.0.1", port=1),
            files={Path("o.yaml"): "port: 1\n"},
            auth_key=auth_key,
        ),
    ]
    return adapt(both, {PROBE: flags(flavour), front: flags(flavour, "disaggregated")}, KEY)


@pytest.mark.parametrize(
    ("flavour", "auth_key", "given"),
    [
        ("old", None, False),
        ("v12", None, False),
        ("main", None, True),
        ("main", False, False),
        ("v12", True, True),
    ],
)
def test_servers_share_a_key_where_their_version_has_one(flavour, auth_key, given):
    texts = [text for one in sharing(flavour, auth_key) for text in one.files.values()]
    assert texts == [
        text + f"{kv_transfer.NAME}: {KEY}\n" * given for text in ("a: 1\n", "port: 1\n")
    ]


def test_servers_of_two_versions_share_no_key_unless_it_is_asked_for():
    front = ("other", "disaggregated")
    known = {PROBE: flags("main"), front: flags("v12", "disaggregated")}
    for auth_key, given in ((None, False), (True, True)):
        both = [
            server(auth_key=auth_key, files={Path("w.yaml"): "a: 1\n"}),
            replace(server(), argv=front, probe=front),
        ]
        both[1] = replace(both[1], auth_key=auth_key, files={Path("o.yaml"): "b: 1\n"})
        assert [kv_transfer.is_given([one]) for one in adapt(both, known, KEY)] == [given] * 2


def test_no_plan_holds_a_key(context):
    for options in (
        {"context_servers": {"config": {kv_transfer.NAME: "k"}}},
        {"orchestrator": {kv_transfer.NAME: "k"}},
    ):
        given = registry.check_options(trtllm_disaggregated.launch, options, "launcher")
        with pytest.raises(
            PlanError, match=f"{kv_transfer.NAME}.*(draws one|written by the launcher)"
        ):
            trtllm_disaggregated.commands(
                context, trtllm_disaggregated.DisaggregatedOptions(**given)
            )


def drawn_keys(monkeypatch):
    keys = []
    draw = kv_transfer.draw_key

    def drawn():
        keys.append(draw())
        return keys[-1]

    monkeypatch.setattr(kv_transfer, "draw_key", drawn)
    return keys


@pytest.mark.slow
def test_the_key_is_in_nothing_that_is_left_or_told(context, standin, said, monkeypatch):
    keys = drawn_keys(monkeypatch)
    standin("main", {"tells_key": True}, STANDIN_AUTH_ENFORCED="1")

    async def look(endpoint):
        first = everything(context.log_dir)
        await complete(endpoint)
        return first, str(endpoint.info)

    while_running, info = start(trtllm_disaggregated, context, look)
    [key] = keys
    left = everything(context.log_dir)
    assert "the key is ****" in left
    assert left.count(kv_transfer.GONE) == 3
    assert all(path.stat().st_mode & 0o77 == 0 for path in context.log_dir.glob("*.*"))
    for text in (left, info, "\n".join(said)):
        assert key not in text
        assert key[:32] not in text
    assert f"{kv_transfer.NAME}: {key}" not in while_running
    start(trtllm_disaggregated, context)
    assert keys[0] != keys[1]


def test_the_key_is_taken_out_of_what_is_told_and_of_errors(context, said):
    key, config = kv_transfer.draw_key(), context.log_dir / "w.yaml"
    one = kv_transfer.give_key(server(files={config: "a: 1\n"}), key)
    fleet._write([one], context.log_dir)
    (log := context.log_dir / "s.log").write_text(f"first {key}\n")

    def told():
        with kv_transfer.secret([one], context, key) as (inside, started):
            inside.notify(f"it says {key}")
            started()
            kept = context.log_dir / kv_transfer.KEPT
            assert everything(context.log_dir).count(key) == 1
            assert (kept.read_text(), kept.stat().st_mode & 0o777) == (f"{key}\n", 0o600)
            with log.open("a") as file:
                file.write(f"later {key}\n")
            raise LaunchError(f"ended with {key}", hint=f"see {key}")

    with pytest.raises(LaunchError) as raised:
        told()
    assert (str(raised.value), raised.value.hint) == ("ended with ***", "see ***")
    assert said[-1] == "it says ***"
    assert log.read_text() == f"first {'*' * 64}\nlater {'*' * 64}\n"
    assert config.read_text() == f"a: 1\n{kv_transfer.GONE}"
    assert key not in everything(context.log_dir)


def test_the_address_of_an_earlier_session_is_forgotten(tmp_path):
    (report := tmp_path / "s.address").write_text("127.0.0.1:812\n")
    fleet._write([server(report=report)], tmp_path)
    assert not report.exists()


@pytest.mark.parametrize("linked", [False, True])
def test_what_holds_the_key_is_written_anew_for_this_user_alone(linked, tmp_path):
    (other := tmp_path / "other").write_text("of an earlier session")
    other.chmod(0o644)
    config = tmp_path / "logs/w.yaml"
    config.parent.mkdir()
    if linked:
        config.symlink_to(other)
    else:
        other.rename(config)
    fleet._write([server(files={config: f"{kv_transfer.NAME}: {KEY}\n"})], config.parent)
    assert config.read_text() == f"{kv_transfer.NAME}: {KEY}\n"
    assert stat.S_IMODE(config.lstat().st_mode) == 0o600
    assert not linked or other.read_text() == "of an earlier session"


@pytest.mark.slow
def test_the_key_is_not_in_an_error(context, standin, monkeypatch):
    keys = drawn_keys(monkeypatch)
    standin("main", {"tells_key": True, "crash_at_start": 1, "when": {"command": "serve"}})
    with pytest.raises(LaunchError, match=r"arguments: .*auth_key='\*\*\*'") as raised:
        start(trtllm_disaggregated, context)
    assert keys[0] not in str(raised.value) + raised.value.hint
    assert keys[0] not in everything(context.log_dir)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flavour", "auth_key", "told"),
    [
        ("v12", None, None),
        ("v12", True, "its config has a key that this version does not know"),
        ("main", False, "its version requires a key that the servers share, and it was given none"),
    ],
)
def test_a_key_that_does_not_fit_is_named(
    flavour,
    auth_key,
    told,
    context,
    standin,
):
    standin(flavour, STANDIN_AUTH_ENFORCED="1")
    options = {"auth_key": auth_key, "answer_timeout_s": 2.0}
    if told is None:
        assert start(trtllm_disaggregated, context, **options)
        return
    with pytest.raises(LaunchError, match=told):
        start(trtllm_disaggregated, context, **options)


# Discovery


@pytest.mark.slow
def test_discovery_beyond_loopback_is_refused_where_the_version_refuses_it(context, standin):
    standin("main")
    with pytest.raises(
        PlanError,
        match=r"registers? over HTTP on loopback only.* 0\.0\.0\.0: give discovery: etcd://",
    ):
        start(trtllm_disaggregated, context, discovery=True, host="0.0.0.0")
    assert not context.log_dir.exists()


@pytest.mark.parametrize(
    ("host", "discovery", "given"),
    [
        ("127.0.0.1", True, False),
        ("localhost", True, False),
        ("0.0.0.0", True, True),
        ("node7", True, True),
        ("node7", False, False),
        ("node7", "etcd://node7:2379", False),
    ],
)
def test_what_is_refused_is_known_by_the_newest_option(host, discovery, given, context):
    from serve_eval.launchers._fleet import session
    from serve_eval.launchers._trtllm import deployments

    deployment = deployments.Disaggregated(discovery=discovery)
    parts = list_parts(deployment, context)
    placed = session.place_parts(parts, gpus=None, host=host, port=8000)
    *workers, front = build_servers(deployment, context, placed, ready_timeout_s=1.0)
    assert not any(one.refused for one in workers)
    assert bool(version.find_refusals(front, flags("main", "disaggregated"))) == given
    assert not version.find_refusals(front, flags("v12", "disaggregated"))


@pytest.mark.parametrize(
    "discovery", ["http://h:1", "etcd://h", "etcd://u:p@h:1", "etcd://h:1/x", "etcd://h:1,h:2", ""]
)
def test_an_address_that_is_none_of_etcd_is_refused(discovery, context):
    with pytest.raises(PlanError, match="not an address of etcd"):
        trtllm_disaggregated.commands(
            context, trtllm_disaggregated.DisaggregatedOptions(discovery=discovery)
        )


def test_a_launch_has_a_name_of_its_own_in_an_etcd():
    names = [
        disaggregated.cluster("h", 1, 1, 1, etcd=etcd, tag=tag)["cluster_name"]
        for etcd, tag in (
            ("etcd://a:1", "x"),
            ("etcd://a:1", "y"),
            ("etcd://a:1", None),
            (None, "x"),
        )
    ]
    assert names == ["serve-eval-1-x", "serve-eval-1-y", "serve-eval-1", "serve-eval-1"]


def test_etcd_is_named_in_every_file(context):
    uri = "etcd://a:2379,etcd://[::1]:2380"
    texts = trtllm_disaggregated.files(
        context, trtllm_disaggregated.DisaggregatedOptions(discovery=uri)
    ).values()
    assert all(f"cluster_uri: {uri}" in text for text in texts)
    names = {re.search(r"cluster_name: (.*)", text).group(1) for text in texts}
    assert len(names) == 1


@pytest.mark.slow
def test_a_version_that_knows_no_etcd_is_named(context, standin):
    standin("v12")
    with pytest.raises(LaunchError, match="its version does not accept this discovery address"):
        start(trtllm_disaggregated, context, discovery="etcd://127.0.0.1:1")


# Causes


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            (
                "W ucx_utils.cpp:631] 4 NVIDIA GPU(s) were detected, but UCX CUDA support was not"
                " found!"
            ),
            "without CUDA",
        ),
        (
            "E nixl_agent.cpp:545] registerMem: registration failed for the specified or all",
            "NIXL could not move",
        ),
        (
            "Assertion failed: status == NIXL_SUCCESS (nixl_utils/transferAgent.cpp:505)",
            "NIXL could not move",
        ),
        (
            "Failed to deserialize data rail endpoints\nNIXL_ERR_BACKEND",
            "different underlying libraries",
        ),
        (
            "ValueError: Python transceiver currently only supports the NIXL backend, got UCX.",
            "needs NIXL",
        ),
        (
            "MixedMambaHybridCacheManager requires the Python transceiver runtime with the NIXL",
            "needs NIXL",
        ),
        (
            "OSError: libnixl.so: cannot open shared object file: No such file or directory",
            "NIXL is missing",
        ),
        (
            "[1:0] select.c:438  UCX  ERROR no active messages transport to <no debug data>: tcp",
            "UCX found no transport",
        ),
        (
            "UCX  ERROR   cuMemImportFromShareableHandle failed: invalid resource handle",
            "UCX found no transport",
        ),
        ("ValueError: Internal disaggregated authentication key is required", "requires a key"),
        (
            "ValueError: Invalid internal disaggregated request authentication",
            "do not share one key",
        ),
        ("ValueError: HTTP cluster storage is loopback-only", "on loopback only"),
        (
            "ValueError: Invalid cluster storage URI: etcd://h:1",
            "does not accept this discovery address",
        ),
        ("Etcd3 error in set: ConnectionFailedError", "cannot reach the etcd"),
        (
            (
                "FutureWarning: Internal disaggregated authentication key is required for protected"
                " disaggregated request fields. In a future release the requirement to use"
                " internal_request_auth_key will be enforced."
            ),
            None,
        ),
        (
            (
                "Using UCX kv-cache transceiver. If your devices are not in the same domain, please"
                " consider setting"
            ),
            None,
        ),
        ("Using NIXL kv-cache transceiver", None),
    ],
)
def test_causes_of_servers_that_cannot_work_together(line, told):
    found = cause(f"INFO: first\n{line}\nlast")
    assert (found is None) if told is None else (found is not None and told in found[0])
