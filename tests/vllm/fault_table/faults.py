"""List every fault and the sound deployments, made with real servers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serve_eval.launchers._fleet.fleet import free_ports
from serve_eval.launchers._options import LOOPBACK
from serve_eval.launchers._vllm.deployment import VllmSide
from tests.vllm.conftest import SIDE_PORT
from tests.vllm.deployments import PYTHON, aggregated, decoding, disaggregated
from tests.vllm.fault_table.commands import IN_FLIGHT, Stage, System
from tests.vllm.faulty_transfer import (
    OtherPrompts,
    choose_one_in,
    damage_files,
    drop_last_block,
    foreign_blocks,
    handing_over,
    orchestrated,
    round_to_four_bits,
)

PATIENCE_S = 60.0
ANSWERS = 10
"""Answers after which a server is killed."""


def count_answers(out):
    """Return the number of answers in the folder of a run, or of the runs of several loads."""
    return sum(len(file.read_bytes().splitlines()) for file in out.glob("**/samples/*"))


def wait_for_answers(out, number):
    """Wait until a run has so many answers, or for PATIENCE_S."""
    deadline = time.monotonic() + PATIENCE_S
    while count_answers(out) < number and time.monotonic() < deadline:
        time.sleep(0.1)


def _list_processes():
    """Yield the number and the command line of each process; others may end at any time."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                yield int(folder.name), (folder / "cmdline").read_bytes().split(b"\0")


def kill_when_asked(url, out):
    """Kill the server at an address after the first answers of a run."""
    port = url.rpartition(":")[2].encode()
    [pid] = [pid for pid, words in _list_processes() if words[0] == bytes(PYTHON) and port in words]
    wait_for_answers(out, ANSWERS)
    os.kill(pid, signal.SIGKILL)


NEVER_ACCEPTED = {"model": "bad_drafts.BadDrafts", "num_speculative_tokens": 3}
OTHER_TEMPLATE = (
    "<|system|>\nToday is Monday.<|end|>\n"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PAIR_NAMES = ("context_0", "generation_0")
MANY, FEW = 100, 30
"""Prompts of a comparison for a fault of some requests, and for one of all."""
Open = Callable[[Stage], AbstractContextManager[System]]


@dataclass(frozen=True)
class Fault:
    """Say how a faulty deployment is opened."""

    open: Open
    one_trial_per_start: bool = False
    """True if each trial needs new servers, since the fault happens once."""


@contextmanager
def _blocks_of_others(stage, number):
    context, decode = stage.pair()
    with (
        foreign_blocks(context, choose_one_in(number)) as foreign,
        orchestrated(foreign, [decode]) as url,
    ):
        yield System(a=stage.sound, b=url, servers=_name(context, decode), prompts=MANY)


@contextmanager
def _last_block(stage):
    context, decode = stage.pair()
    with handing_over(context, drop_last_block) as bad, orchestrated(bad, [decode]) as url:
        yield System(a=stage.sound, b=url, servers=_name(context, decode), prompts=FEW)


@contextmanager
def _other_decode(stage, spec):
    context, _ = stage.pair()
    with stage.up(decode=spec):
        decode = stage.root("decode")
        with orchestrated(context, [decode]) as url:
            yield System(a=stage.sound, b=url, servers=_name(context, decode), prompts=FEW)


@contextmanager
def _one_of_two(stage, **other):
    context, decode = stage.pair()
    with stage.up(bad=decoding(SIDE_PORT, check=False, **other)):
        generation = [decode, stage.root("bad")]
        with orchestrated(context, generation) as url:
            servers = _name(context, *generation)
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY)


@contextmanager
def _files(stage, damage, chosen):
    folder = stage.top / "kv_files"
    pair = disaggregated(connector="folder", kv_folder=str(folder), connector_config={})
    with stage.up(files=pair):
        context, decode = (stage.server("files", name) for name in PAIR_NAMES)
        change = damage_files(folder, chosen, damage)
        with (
            handing_over(context, change, one_at_a_time=True) as bad,
            orchestrated(bad, [decode], by_params=False) as url,
        ):
            servers = _name(context, decode)
            # Asked on its own, a server with this connector can end: "shape mismatch".
            yield System(
                a=stage.sound, b=url, servers=servers, prompts=MANY, shots=2, may_ask_servers=False
            )


@contextmanager
def _other_template(stage):
    file = stage.top / "template.jinja"
    file.write_text(OTHER_TEMPLATE)
    other = VllmSide(extra_args=["--chat-template", str(file)])
    with stage.up(unlike=disaggregated(context_servers=other)):
        servers = _name(*(stage.server("unlike", name) for name in PAIR_NAMES))
        url = stage.running["unlike"].base_url
        yield System(a=stage.sound, b=url, servers=servers, prompts=FEW, chat=True)


@contextmanager
def _alone(stage, spec, expect, shots=0):
    with stage.up(alone=spec):
        url = stage.running["alone"].base_url
        yield System(a=stage.sound, b=url, expect=expect, prompts=FEW, shots=shots)


@contextmanager
def _killed(stage):
    with stage.up(killed=disaggregated()):
        context, decode = (stage.server("killed", name) for name in PAIR_NAMES)
        with orchestrated(context, [decode]) as url:
            servers = _name(context, decode)
            kill = partial(kill_when_asked, context)
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY, disturb=kill)


@contextmanager
def _restarted(stage):
    context, _ = stage.pair()
    [port] = free_ports(LOOPBACK, None)
    own = decoding(SIDE_PORT, check=False, port=port)
    other = decoding(SIDE_PORT, check=False, port=port, model=stage.weights("int3"))
    with stage.up(decode=own):
        servers = _name(context, stage.root("decode"))

        def restart(out):
            wait_for_answers(out, MANY // 3)
            stage.running.stop("decode")
            stage.running.start(decode=other)

        with orchestrated(context, [servers["generation_0"]]) as url:
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY, disturb=restart)


def _name(context, *generation):
    return {"context_0": context, **{f"generation_{i}": u for i, u in enumerate(generation)}}


def _all(body, tokens):
    return True


FAULTS = {
    "other requests' blocks for 10 %": Fault(lambda s: _blocks_of_others(s, 10)),
    "other requests' blocks for 1 %": Fault(lambda s: _blocks_of_others(s, 100)),
    "last block dropped": Fault(_last_block),
    "block sizes 32 and 64": Fault(lambda s: _other_decode(s, decoding(SIDE_PORT, block_size=64))),
    "decode prefills again": Fault(lambda s: _other_decode(s, aggregated(prefix_caching=False))),
    "one of two with int3": Fault(lambda s: _one_of_two(s, model=s.weights("int3"))),
    "one of two with W8A8": Fault(lambda s: _one_of_two(s, model=s.weights("w8a8"))),
    "one of two with KV fp8": Fault(lambda s: _one_of_two(s, kv_cache_dtype="fp8")),
    "decode restarted with int3": Fault(_restarted, one_trial_per_start=True),
    "prefill killed": Fault(_killed, one_trial_per_start=True),
    "prefill with another template": Fault(_other_template),
    "KV files of other prompts for 10 %": Fault(
        lambda s: _files(s, OtherPrompts(), choose_one_in(10))
    ),
    "KV files rounded to four bits": Fault(lambda s: _files(s, round_to_four_bits, _all)),
    "prefix cache off": Fault(
        lambda s: _alone(s, aggregated(prefix_caching=False), "prefix_cache", shots=2)
    ),
    "no draft accepted": Fault(
        lambda s: _alone(s, aggregated(speculative=NEVER_ACCEPTED), "speculation")
    ),
}


PROMPTS = 150


@contextmanager
def _pairs(stage, context, generation, in_flight=IN_FLIGHT):
    sides = {
        "context_servers": VllmSide(num_instances=context),
        "generation_servers": VllmSide(num_instances=generation),
    }
    with stage.up(pair=disaggregated(**sides)):
        names = [f"context_{i}" for i in range(context)]
        names += [f"generation_{i}" for i in range(generation)]
        servers = {name: stage.server("pair", name) for name in names}
        url = stage.running["pair"].base_url
        yield System(a=stage.sound, b=url, servers=servers, prompts=PROMPTS, in_flight=in_flight)


@contextmanager
def _one(stage, spec, expect, shots=0):
    with stage.up(one=spec):
        url = stage.running["one"].base_url
        yield System(a=stage.sound, b=url, expect=expect, prompts=PROMPTS, shots=shots)


SOUND = {
    "sound, 1 + 1": Fault(lambda s: _pairs(s, 1, 1)),
    "sound, 1 + 2": Fault(lambda s: _pairs(s, 1, 2)),
    "sound, 2 + 2": Fault(lambda s: _pairs(s, 2, 2)),
    "sound, compiled": Fault(lambda s: _one(s, aggregated(eager=False), "")),
    "sound, prefix cache on": Fault(
        lambda s: _one(s, aggregated(prefix_caching=True), "prefix_cache", shots=2)
    ),
    "sound, 64 in flight": Fault(lambda s: _pairs(s, 1, 1, in_flight=64)),
}
