"""Ask the set in each form at each load, each in a run folder of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import EndpointError
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evaluation.passes import PassSettings, ask_pass, prepare_passes
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, Failure, Plan, Sample, ToolForm, ToolProbe
from serve_eval.storage.reports.report_file import has_report
from serve_eval.tasks._tool_calls.requests import KINDS
from serve_eval.workflows.tools.answers import ToolPass, read_pass
from serve_eval.workflows.tools.parameters import check_parameters, find_kinds

FORMS: tuple[ToolForm, ...] = ("whole", "stream")
ALL = 1_000_000
"""More prompts than any set has."""


def name_folder(form: ToolForm, load: int) -> str:
    """Return the name of the folder of a pass."""
    return f"{form}_{load}"


def choose_kinds(plan: Plan, kinds: Sequence[str]) -> Plan:
    """Return the plan with the task restricted to these kinds of requests."""
    [spec] = plan.tasks
    options = {**spec.options, "kinds": list(kinds)}
    return replace(plan, tasks=(replace(spec, options=options),))


def list_kinds(plan: Plan) -> tuple[str, ...]:
    """Return the kinds of requests that a plan names, or all of them."""
    chosen = plan.tasks[0].options.get("kinds")
    return tuple(KINDS) if chosen is None else tuple(str(kind) for kind in chosen)  # type: ignore[attr-defined]


async def prepare_set(
    plan: Plan, out_dir: Path, loads: Sequence[int], environ: Mapping[str, str]
) -> tuple[Plan, PreparedTask]:
    """Return the plan that the passes vary, and the task.

    The task requires no ability, so that an endpoint that answers badly is asked too.
    """
    first = out_dir / name_folder(FORMS[0], loads[0])
    plan, [prepared] = await prepare_passes(plan, out_dir, first, environ, ALL)
    return plan, replace(prepared, task=replace(prepared.task, requires=frozenset()))


async def probe_endpoint(
    plan: Plan,
    loads: tuple[int, ...],
    samples: Sequence[Sample],
    endpoint: Endpoint,
    environ: Mapping[str, str],
) -> ToolsPlan:
    """Return the plan with the kinds of requests that the endpoint answers, and its fields."""
    limits = replace(plan.limits, stream=False)
    async with connect(replace(plan, limits=limits), endpoint, environ) as client:
        kinds, unsupported = await find_kinds(client, samples)
        parameters = await check_parameters(client, kinds)
    return ToolsPlan(
        plan=choose_kinds(plan, kinds),
        loads=loads,
        unsupported=unsupported,
        parameters=parameters,
    )


class ToolsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a folder, its loads, and what the endpoint was found to support."""

    plan: Plan
    loads: tuple[int, ...]
    unsupported: tuple[ToolProbe, ...]
    parameters: tuple[ToolProbe, ...]


def order_passes(loads: Sequence[int], seed: int) -> list[tuple[ToolForm, int]]:
    """Return all passes in a random order, the same for the same seed."""
    order = [(form, load) for form in FORMS for load in loads]
    random.Random(f"{seed}:tools").shuffle(order)
    return order


async def ask_passes(
    asked: ToolsPlan,
    prepared: PreparedTask,
    endpoint: Endpoint,
    shared: PassSettings,
    seed: int,
) -> tuple[list[ToolPass], list[str]]:
    """Ask what is left of all passes. Return those that are finished, and why others are not."""
    gave_up = []
    order = order_passes(asked.loads, seed)
    for form, load in order:
        name = name_folder(form, load)
        if has_report(shared.out_dir / name):
            continue
        limits = replace(asked.plan.limits, concurrency=load, stream=form == "stream")
        plan = replace(asked.plan, limits=limits)
        try:
            await ask_pass(name, plan, [prepared], endpoint, shared, seed)
        except EndpointError as error:
            if not await _answers_probe(plan, endpoint, shared.environ):
                raise
            gave_up.append(f"{form} at {load}: given up: {error}")
            shared.notify(gave_up[-1])
    return read_passes(shared.out_dir, asked.loads, prepared.dataset.samples), gave_up


async def _answers_probe(plan: Plan, endpoint: Endpoint, environ: Mapping[str, str]) -> bool:
    async with connect(plan, endpoint, environ) as client:
        return not isinstance(await send_probe(client, ping(chat=True)), Failure)


def read_passes(folder: Path, loads: Sequence[int], samples: Sequence[Sample]) -> list[ToolPass]:
    """Return the finished passes of a folder, whole answers first. Raises RunFolderError."""
    return [
        read_pass(folder / name, form, load, samples)
        for form in FORMS
        for load in loads
        if has_report(folder / (name := name_folder(form, load)))
    ]
