"""The sound deployments, of which nothing may be said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from serve_eval.launchers._vllm.deployment import VllmSide
from serve_eval.schema import Spec
from tests.vllm.deployments import aggregated, disaggregated
from tests.vllm.fault_table.faults import Fault
from tests.vllm.fault_table.stage import Stage
from tests.vllm.fault_table.system import IN_FLIGHT, System

PROMPTS = 150


@contextmanager
def _pairs(
    stage: Stage, context: int, generation: int, in_flight: int = IN_FLIGHT
) -> Iterator[System]:
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
def _one(stage: Stage, spec: Spec, expect: str, shots: int = 0) -> Iterator[System]:
    with stage.up(one=spec):
        url = stage.running["one"].base_url
        yield System(a=stage.sound, b=url, expect=expect, prompts=PROMPTS, shots=shots)


SOUND: Mapping[str, Fault] = {
    "sound, 1 + 1": Fault(lambda s: _pairs(s, 1, 1)),
    "sound, 1 + 2": Fault(lambda s: _pairs(s, 1, 2)),
    "sound, 2 + 2": Fault(lambda s: _pairs(s, 2, 2)),
    "sound, compiled": Fault(lambda s: _one(s, aggregated(eager=False), "")),
    "sound, prefix cache on": Fault(
        lambda s: _one(s, aggregated(prefix_caching=True), "prefix_cache", shots=2)
    ),
    "sound, 64 in flight": Fault(lambda s: _pairs(s, 1, 1, in_flight=64)),
}
