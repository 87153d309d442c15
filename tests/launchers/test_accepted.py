"""Test which version of TensorRT-LLM is found, and that it accepts every plan.

The definitions are those of the stand-in for both generations and, if present, the list of what the
real servers accept.
"""

import asyncio
import json
import os
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.launchers._fleet import session
from serve_eval.launchers._standin import config as front_config
from serve_eval.launchers._standin import worker_config
from serve_eval.launchers._standin.options import group
from serve_eval.launchers._trtllm import containers, version
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.containers import Container
from serve_eval.launchers._trtllm.deployments import (
    Aggregated,
    Disaggregated,
    ServerSide,
)
from serve_eval.launchers._trtllm.servers import build_servers, list_parts
from serve_eval.launchers._trtllm.version import FLAG, adapt, adapt_to_machine
from serve_eval.schema import LaunchContext
from tests.launchers.flavours import BEGIN, END, PAGE, table

SCRIPT = """#!/bin/sh
echo "$1" >> {folder}/asked
cat {folder}/flags
"""
DAY = 24 * 3600


@pytest.fixture
def cache_flavour(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/serve-eval/flags"


@pytest.fixture
def executable(tmp_path, cache_flavour):
    """Write a trtllm-serve that knows the options in the file `flags`.

    It records its calls in `asked`.
    """
    path = tmp_path / "trtllm-serve"
    path.write_text(SCRIPT.format(folder=tmp_path))
    path.chmod(0o755)
    (tmp_path / "flags").write_text("--port --config\n")
    return path


def server(*words, options=("M", "--port", "1"), **more):
    return Server(
        name="s", argv=(*words, *options), probe=words, place=Place(host="h", port=1), **more
    )


def adapt_flavour(*servers):
    return [one.argv for one in asyncio.run(adapt_to_machine(servers))]


def asked(tmp_path):
    return (tmp_path / "asked").read_text().split()


def test_of_a_server_elsewhere_nothing_is_remembered(tmp_path, executable, cache_flavour):
    there = server(str(executable), "serve", here=False)
    for _ in range(2):
        assert adapt_flavour(there) == [there.argv]
    assert asked(tmp_path) == ["serve", "serve"]
    assert not cache_flavour.exists()


def test_what_help_told_is_remembered_until_the_executable_changes(tmp_path, executable):
    one, other = server(str(executable), "serve"), server(str(executable), "disaggregated")
    for _ in range(2):
        assert adapt_flavour(one, one, other) == [one.argv, one.argv, other.argv]
    assert sorted(asked(tmp_path)) == ["disaggregated", "serve"]
    (tmp_path / "flags").write_text("--port --telemetry / --no-telemetry\n")
    assert adapt_flavour(one) == [one.argv]
    os.utime(executable, (1, 1))
    assert adapt_flavour(one) == [(*one.argv, "--no-telemetry")]
    executable.write_text(executable.read_text() + "\n")
    os.utime(executable, (1, 1))
    adapt_flavour(one)
    assert asked(tmp_path).count("serve") == 3


def test_a_refusal_rests_on_what_help_tells_now(tmp_path, executable):
    new = server(str(executable), "serve", options=("M", "--kv_cache_dtype=fp8"))
    with pytest.raises(PlanError, match="of this version has no option --kv_cache_dtype"):
        adapt_flavour(new)
    (tmp_path / "flags").write_text("--port --kv_cache_dtype\n")
    assert adapt_flavour(new) == [new.argv]
    assert adapt_flavour(new) == [new.argv]
    assert asked(tmp_path) == ["serve", "serve"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        "asked",
        "key",
        "flags",
        "types",
    ],
)
def test_a_damaged_record_is_as_none(content, tmp_path, executable, cache_flavour):
    adapt_flavour(one := server(str(executable), "serve"))
    (file,) = cache_flavour.iterdir()
    if isinstance(content, str):
        record = json.loads(file.read_text())
        changes = {
            "asked": {"asked": "x"},
            "key": {"key": ["a"]},
            "flags": {"flags": []},
            "types": {"flags": [1]},
        }
        content = json.dumps(record | changes[content]).encode()
    file.write_bytes(content)
    assert adapt_flavour(one) == [one.argv]
    assert asked(tmp_path) == ["serve", "serve"]
    assert [path.name for path in cache_flavour.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("image", "age_s", "holds"),
    [
        (None, DAY - 60, True),
        (None, DAY + 60, False),
        (None, -60, False),
        ("image:1", DAY - 60, True),
        ("image:1", DAY + 60, False),
        (f"image@sha256:{'0' * 64}", 400 * DAY, True),
    ],
)
def test_how_long_it_holds(
    image,
    age_s,
    holds,
    cache_flavour,
    monkeypatch,
):
    key = version.cache_key(("sh", "serve"), os.environ, image)
    version.remember(key, frozenset({"--port"}))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + age_s)
    assert version.read_remembered(key) == (frozenset({"--port"}) if holds else None)
    assert version.read_remembered([*key, "more"]) is None


def test_without_a_folder_to_write_it_is_asked_every_time(tmp_path, executable, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    one = server(str(executable), "serve")
    assert adapt_flavour(one) == adapt_flavour(one) == [one.argv]
    assert asked(tmp_path) == ["serve", "serve"]


def test_without_a_variable_it_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        version.remember(["image", "i", value], frozenset({"--port"}))
        assert version.read_remembered(["image", "i", value]) == frozenset({"--port"})
    assert len(list((tmp_path / ".cache/serve-eval/flags").iterdir())) == 2


def test_all_are_asked_at_the_same_time(tmp_path, executable):
    """Each command ends only when it sees the other."""
    executable.write_text(
        f"#!/bin/sh\ncd {tmp_path} && touch $1.here\nfor i in $(seq 99); do [ -e serve.here ] && ["
        " -e disaggregated.here ] && echo --port && exit; sleep .1; done\nexit 1\n"
    )
    both = [server(str(executable), "serve"), server(str(executable), "disaggregated")]
    assert adapt_flavour(*both) == [one.argv for one in both]


@pytest.mark.slow
def test_the_page_tells_what_happens():
    text = PAGE.read_text()
    written = text[text.index(BEGIN) + len(BEGIN) : text.index(END)].splitlines()
    assert table() == written, "python -m tests.launchers.flavours write"


FLAVOURS = ("v12", "main")
ALL = ("old", *FLAVOURS)
KEY = "0123456789abcdef"
VECTORS = "vectors/trtllm_serve_conformance.json"


def optional(*values):
    return st.sampled_from([None, *values])


SIZES = optional(1, 2, 4)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "tensor_parallel_size": st.sampled_from([1, 2]),
        "max_batch_size": st.integers(1, 256),
        "max_num_tokens": st.integers(1, 65536),
        "backend": st.just("pytorch"),
        "disable_overlap_scheduler": st.booleans(),
        "cuda_graph_config": st.sampled_from([None, {"max_batch_size": 8}]),
        "kv_cache_config": st.fixed_dictionaries(
            {},
            optional={
                "free_gpu_memory_fraction": st.floats(0.1, 0.9),
                "enable_block_reuse": st.booleans(),
                "tokens_per_block": st.just(32),
            },
        ),
    },
)
EXTRA = st.lists(
    st.sampled_from(
        [
            ("--trust_remote_code",),
            ("--log_level", "debug"),
            ("--max_seq_len=8192",),
            ("--tokenizer", "T"),
        ]
    ),
    max_size=3,
    unique=True,
).map(lambda pairs: [word for pair in pairs for word in pair])
ENV = st.dictionaries(
    st.sampled_from(["UCX_TLS", "HF_HOME", "TLLM_LOG_LEVEL"]), optional("a", "b c"), max_size=2
)
BACKENDS = optional("pytorch", "_autodeploy")
MODELS = optional("org/other", "/models/llama", "/cache/models--org--m/snapshots/abc")
PARALLEL = {"tp": SIZES, "pp": SIZES, "cp": SIZES, "ep": SIZES, "extra_args": EXTRA, "env": ENV}
ROUTERS = optional(
    "round_robin", "load_balancing", {"type": "kv_cache_aware", "tokens_per_block": 32}
)
SIDES = st.builds(
    ServerSide,
    num_instances=st.integers(1, 3),
    config=st.none() | CONFIGS,
    router=ROUTERS,
    **PARALLEL,
)
TRANSCEIVERS = st.fixed_dictionaries(
    {"backend": st.sampled_from(["DEFAULT", "UCX", "NIXL", "MPI"])},
    optional={
        "max_tokens_in_buffer": st.integers(1, 65536),
        "kv_transfer_timeout_ms": st.just(600_000),
    },
)
ORCHESTRATORS = st.fixed_dictionaries(
    {},
    optional={
        "schedule_style": st.sampled_from(["context_first", "generation_first"]),
        "node_id": st.integers(0, 255),
        "max_retries": st.integers(0, 2),
        "perf_metrics_max_requests": st.integers(0, 100),
        "conditional_disagg_config": st.just({"max_local_prefill_length": 10}),
    },
)
AGGREGATED = st.builds(
    Aggregated,
    model=MODELS,
    backend=BACKENDS,
    config=st.none() | CONFIGS,
    command=st.just("trtllm-serve"),
    **PARALLEL,
)
DISAGGREGATED = st.builds(
    Disaggregated,
    model=MODELS,
    context_servers=SIDES,
    generation_servers=SIDES,
    backend=BACKENDS,
    cache_transceiver=TRANSCEIVERS,
    discovery=st.booleans(),
    orchestrator=ORCHESTRATORS,
    env=ENV,
    command=st.just("trtllm-serve"),
    request_timeout_s=optional(9000),
)
CONTAINERS = st.builds(
    Container, image=st.just("image:1"), engine=st.sampled_from(["docker", "podman"])
)


def started(deployment, container, log_dir, host, port):
    """Return the servers that a launcher would start; none if the options contradict each other."""
    context = LaunchContext(model="org/model", log_dir=log_dir)
    try:
        parts = list_parts(deployment, context)
        placed = session.place_parts(
            parts, gpus=range(sum(part.width for part in parts)), host=host, port=port
        )
        servers = build_servers(deployment, context, placed, ready_timeout_s=60.0)
    except PlanError:
        return []
    return (
        servers
        if container is None
        else [containers.wrap(server, container, "x") for server in servers]
    )


@cache
def told(command, flavour):
    """Return the options in --help of this generation."""
    found = group(flavour, lambda *_: None).commands[command]
    return frozenset(FLAG.findall(found.get_help(click.Context(found))))


def known(servers, flavour):
    return {server.probe: told(server.probe[-1], flavour) for server in servers}


def accept(server, flavour):
    """Read the command line and its file as trtllm-serve does, and raise its error."""

    def run(command, params, given):
        if command == "serve":
            worker = worker_config.worker(params["model"], params, given, flavour)
            worker_config.check_llm_args(worker.args)
            assert (worker.host, worker.port) == (server.place.host, server.place.port)
        else:
            content = yaml.safe_load(Path(params["config_file"]).read_text())
            found = front_config.orchestrator(content, flavour)
            assert (found.hostname, found.port) == (server.place.host, server.place.port)
            assert bool(found.cluster) != bool(found.servers)
        return command

    command = (server.probe[-1], *server.options)
    return group(flavour, run).main(list(command), standalone_mode=False)


def check(deployment, container, host, port):
    """Check that every server is accepted, and return their number."""
    with TemporaryDirectory() as folder:
        servers = started(deployment, container, Path(folder), host, port)
        for flavour in ALL:
            flags = known(servers, flavour)
            try:
                found = adapt(servers, flags, KEY)
            except PlanError:
                assert refused(version.fit_servers(servers, flags), flavour)
                continue
            write(found)
            for server in found:
                assert accept(server, flavour) == server.probe[-1]
                assert ("--no-telemetry" in server.argv) == (flavour == "main")
                assert any(KEY in text for text in server.files.values()) == (
                    flavour == "main" and len(servers) > 1
                )
    return len(servers)


def write(servers):
    for server in servers:
        for path, text in server.files.items():
            path.write_text(text)


def refused(servers, flavour):
    """Return True if this generation refuses one of the servers; the 1.2 line accepts all."""
    assert flavour != "v12"
    write(servers)
    for server in servers:
        try:
            accept(server, flavour)
        except (click.ClickException, ValueError):
            return True
    return False


HOSTS, PORTS = st.sampled_from(["127.0.0.1", "0.0.0.0", "node7"]), optional(9000)


@settings(max_examples=40)
@given(AGGREGATED, st.none() | CONTAINERS, HOSTS, PORTS)
def test_one_server(deployment, container, host, port):
    check(deployment, container, host, port)


@settings(max_examples=40)
@given(DISAGGREGATED, st.none() | CONTAINERS, HOSTS, PORTS)
def test_disaggregated(deployment, container, host, port):
    check(deployment, container, host, port)


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        (Aggregated(extra_args=["--kv_cache_dtype", "fp8"]), "No such option"),
        (Aggregated(backend="tensorrt"), "is not one of"),
        (Aggregated(config={"max_batchsize": 1}), "extra_forbidden|Extra inputs"),
        (Disaggregated(orchestrator={"node_id": 256}), "node_id must be in range"),
    ],
)
def test_the_check_can_fail(deployment, message, monkeypatch):
    monkeypatch.setattr(
        f"{__name__}.adapt", lambda servers, known, key: version.fit_servers(servers, known)
    )
    with pytest.raises((click.ClickException, ValueError), match=message):
        check(deployment, None, "127.0.0.1", None)


def test_what_the_plans_of_these_tests_start():
    sides = {
        "context_servers": ServerSide(num_instances=2),
        "generation_servers": ServerSide(num_instances=2, tp=2),
    }
    assert check(Aggregated(), None, "127.0.0.1", None) == 1
    assert (
        check(Disaggregated(discovery=True, **sides), Container(image="image:1"), "127.0.0.1", None)
        == 5
    )


# What the real definitions were seen to accept


def vectors(shared):
    return json.loads((shared / VECTORS).read_text())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_every_option_of_ours_was_accepted_once(shared, flavour, tmp_path):
    rows = [row for row in vectors(shared)["argv"] if row["flavour"] == flavour and row["rc"] == 0]
    seen = {word.partition("=")[0] for row in rows for word in row["argv"]}
    side = ServerSide(tp=2, pp=1, cp=1, config={"max_batch_size": 1})
    plans = [
        Aggregated(tp=2, pp=2, cp=1, backend="pytorch", config={"max_batch_size": 1}),
        Disaggregated(context_servers=side, generation_servers=side, discovery=True),
    ]
    for plan in plans:
        servers = started(plan, None, tmp_path, "127.0.0.1", None)
        for server in adapt(servers, known(servers, flavour)):
            used = {word for word in server.options if word.startswith("-")}
            assert used <= seen
            assert server.probe[-1] in seen


def test_files_that_were_parsed_are_those_that_we_write(shared, tmp_path):
    """Every key that we write was in an accepted file, with a value of the same type."""
    rows = [row["config"] for row in vectors(shared)["disagg_config"] if row["rc"] == 0]
    assert rows

    def keys(value, at=""):
        if not isinstance(value, dict):
            return {f"{at}: {type(value).__name__}"}
        return set().union(*(keys(v, f"{at}.{k}") for k, v in value.items())) if value else set()

    accepted = set().union(*(keys(row) for row in rows))
    for discovery in (False, True):
        plan = Disaggregated(discovery=discovery, orchestrator={"perf_metrics_max_requests": 5})
        front = started(plan, None, tmp_path, "127.0.0.1", None)[-1]
        (text,) = front.files.values()
        assert keys(yaml.safe_load(text)) <= accepted
