"""Every fault: how it is made with real servers, and what names it rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launchers._fleet.fleet import free_ports
from launchers._options import LOOPBACK
from tests.vllm.conftest import SIDE_PORT, SPECULATION
from tests.vllm.damaged_files import Damage, OtherPrompts, damage_files, round_to_four_bits
from tests.vllm.deployments import aggregated, decoding, disaggregated
from tests.vllm.fault_table import disturbing
from tests.vllm.fault_table.stage import Stage
from tests.vllm.fault_table.system import System
from tests.vllm.faulty_transfer import (
    Chosen,
    choose_one_in,
    drop_last_block,
    foreign_blocks,
    handing_over,
    orchestrated,
)

NEVER_ACCEPTED = {
    **SPECULATION,
    "rejection_sample_method": "synthetic",
    "synthetic_acceptance_rates": [0.0] * int(SPECULATION["num_speculative_tokens"]),
}
OTHER_TEMPLATE = (
    "<|system|>\nToday is Monday.<|end|>\n"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MANY, FEW = 200, 60
"""Prompts of a comparison for a fault of some requests, and for one of all."""
Open = Callable[[Stage], AbstractContextManager[System]]


@dataclass(frozen=True)
class Fault:
    """Say how a faulty deployment is opened."""

    open: Open
    anew: bool = False
    """Whether each trial needs new servers, since the fault happens once."""


@contextmanager
def _blocks_of_others(stage: Stage, number: int) -> Iterator[System]:
    with stage.up(pair=disaggregated()):
        context, decode = stage.server("pair", "context_0"), stage.server("pair", "generation_0")
        with (
            foreign_blocks(context, choose_one_in(number)) as foreign,
            orchestrated(foreign, [decode]) as url,
        ):
            servers = {"context_0": context, "generation_0": decode}
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY)


@contextmanager
def _last_block(stage: Stage) -> Iterator[System]:
    with stage.up(pair=disaggregated()):
        context, decode = stage.server("pair", "context_0"), stage.server("pair", "generation_0")
        with handing_over(context, drop_last_block) as bad, orchestrated(bad, [decode]) as url:
            servers = {"context_0": context, "generation_0": decode}
            yield System(a=stage.sound, b=url, servers=servers, prompts=FEW)


@contextmanager
def _block_sizes(stage: Stage) -> Iterator[System]:
    with stage.up(pair=disaggregated(), blocks=decoding(SIDE_PORT, block_size=64)):
        servers = {
            "context_0": stage.server("pair", "context_0"),
            "generation_0": stage.root("blocks"),
        }
        with orchestrated(servers["context_0"], [servers["generation_0"]]) as url:
            yield System(a=stage.sound, b=url, servers=servers, prompts=FEW)


@contextmanager
def _one_of_two(stage: Stage, kind: str) -> Iterator[System]:
    bad = decoding(SIDE_PORT, check=False, model=stage.weights(kind))
    with stage.up(pair=disaggregated(), bad=bad):
        servers = {
            "context_0": stage.server("pair", "context_0"),
            "generation_0": stage.server("pair", "generation_0"),
            "generation_1": stage.root("bad"),
        }
        generation = [servers["generation_0"], servers["generation_1"]]
        with orchestrated(servers["context_0"], generation) as url:
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY)


@contextmanager
def _files(stage: Stage, damage: Damage, chosen: Chosen, prompts: int) -> Iterator[System]:
    folder = stage.top / "kv_files"
    pair = disaggregated(connector="folder", kv_folder=str(folder), connector_config={})
    with stage.up(pair=pair):
        context, decode = stage.server("pair", "context_0"), stage.server("pair", "generation_0")
        change = damage_files(folder, chosen, damage)
        with (
            handing_over(context, change, one_at_a_time=True) as bad,
            orchestrated(bad, [decode], by_params=False) as url,
        ):
            servers = {"context_0": context, "generation_0": decode}
            yield System(a=stage.sound, b=url, servers=servers, prompts=prompts, shots=2)


@contextmanager
def _other_template(stage: Stage) -> Iterator[System]:
    file = stage.top / "template.jinja"
    file.write_text(OTHER_TEMPLATE)
    other = {"extra_args": ["--chat-template", str(file)]}
    with stage.up(pair=disaggregated(context_servers=other)):
        servers = {name: stage.server("pair", name) for name in ("context_0", "generation_0")}
        url = stage.running["pair"].base_url
        yield System(a=stage.sound, b=url, servers=servers, prompts=FEW, chat=True)


@contextmanager
def _prefills_again(stage: Stage) -> Iterator[System]:
    with stage.up(pair=disaggregated(), alone=aggregated(prefix_caching=False)):
        context, alone = stage.server("pair", "context_0"), stage.root("alone")
        with orchestrated(context, [alone]) as url:
            servers = {"context_0": context, "generation_0": alone}
            yield System(a=stage.sound, b=url, servers=servers, prompts=FEW)


@contextmanager
def _no_prefix_cache(stage: Stage) -> Iterator[System]:
    with stage.up(uncached=aggregated(prefix_caching=False)):
        url = stage.running["uncached"].base_url
        yield System(a=stage.sound, b=url, expect="prefix_cache", prompts=FEW, shots=2)


@contextmanager
def _never_accepts(stage: Stage) -> Iterator[System]:
    with stage.up(drafting=aggregated(speculative=NEVER_ACCEPTED)):
        url = stage.running["drafting"].base_url
        yield System(a=stage.sound, b=url, expect="speculation", prompts=FEW)


@contextmanager
def _killed(stage: Stage) -> Iterator[System]:
    with stage.up(pair=disaggregated()):
        context, decode = stage.server("pair", "context_0"), stage.server("pair", "generation_0")
        with orchestrated(context, [decode]) as url:
            servers = {"context_0": context, "generation_0": decode}
            during = partial(disturbing.kill_when_asked, context)
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY, during=during)


@contextmanager
def _restarted(stage: Stage) -> Iterator[System]:
    [port] = free_ports(LOOPBACK, None)
    own = decoding(SIDE_PORT, check=False, port=port)
    other = decoding(SIDE_PORT, check=False, port=port, model=stage.weights("int3"))
    with stage.up(pair=disaggregated(), decode=own):
        servers = {
            "context_0": stage.server("pair", "context_0"),
            "generation_0": stage.root("decode"),
        }

        def restart(out: Path) -> None:
            disturbing.wait_for_answers(out, MANY // 3)
            stage.running.stop("decode")
            stage.running.start(decode=other)

        with orchestrated(servers["context_0"], [servers["generation_0"]]) as url:
            yield System(a=stage.sound, b=url, servers=servers, prompts=MANY, during=restart)


def _all(body: object, tokens: int) -> bool:
    return True


FAULTS: Mapping[str, Fault] = {
    "other requests' blocks for 10 %": Fault(lambda s: _blocks_of_others(s, 10)),
    "other requests' blocks for 1 %": Fault(lambda s: _blocks_of_others(s, 100)),
    "block sizes 32 and 64": Fault(_block_sizes),
    "one of two with int3": Fault(lambda s: _one_of_two(s, "int3")),
    "one of two with W8A8": Fault(lambda s: _one_of_two(s, "w8a8")),
    "KV files of other prompts for 10 %": Fault(
        lambda s: _files(s, OtherPrompts(), choose_one_in(10), MANY)
    ),
    "KV rounded to four bits": Fault(lambda s: _files(s, round_to_four_bits, _all, MANY)),
    "last block dropped": Fault(_last_block),
    "prefill with another template": Fault(_other_template),
    "decode prefills again": Fault(_prefills_again),
    "prefix cache off": Fault(_no_prefix_cache),
    "no draft accepted": Fault(_never_accepts),
    "prefill killed": Fault(_killed, anew=True),
    "decode restarted with int3": Fault(_restarted, anew=True),
}
