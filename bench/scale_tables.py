"""The tables of bench/scale.py as text: costs, fleets, lengths, checks."""

from __future__ import annotations

from collections.abc import Sequence

from check import Compared
from costs import IN_FLIGHT, STREAMS, Cost, Costs
from fleet import (
    FLEETS,
    MOST,
    SAMPLES,
    SHARDS,
    Assumptions,
    Model,
    simulate_delays,
    simulate_length,
    simulate_load,
)
from table_text import digits, format_table, ms

LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95)


def format_costs(costs: Costs) -> str:
    """Return what an answer costs, by kind."""
    rows = [
        [
            cost.kind.name,
            _us(cost.cpu_s),
            _us(cost.at("cpu_s", 90)),
            _us(cost.at("user_s", 50)),
            _us(cost.at("system_s", 50)),
            "-" if cost.kind.streamed else _us(cost.at("wall_s", 50)),
            f"{1 / cost.cpu_s:,.0f}",
            f"{MOST / cost.cpu_s:,.0f}",
            digits(cost.sent_bytes / 1000),
            digits(cost.received_bytes / 1000),
            f"{cost.disk_bytes / 10:,.0f}",
        ]
        for cost in costs.kinds
    ]
    head = ["", "CPU us|p50", "|p90", "user us|p50", "sys|p50", "wall|p50"]
    head += [
        "answers/s|at 100 %",
        f"|at {100 * MOST:.0f} %",
        "KB|sent",
        "KB|received",
        "disk MB|of 100k",
    ]
    title = f"One process: per answer, {IN_FLIGHT} in flight ({STREAMS} streams)"
    return format_table(title, head, rows)


def format_levels(costs: Costs) -> str:
    """Return what requests in flight cost, and other figures of a process."""
    rows = [[f"{level:,}", _us(cpu_s), f"{mb:.0f}"] for level, cpu_s, mb in costs.levels]
    table = format_table("Medium answers, by requests in flight", ["", "CPU us", "peak MB"], rows)
    lines = [
        table,
        "",
        f"growth of memory per 100,000 samples: {costs.growth_bytes / 10:.0f} MB",
        f"start and end of a run: {costs.around_s:.1f} s of CPU",
    ]
    for cost in costs.kinds:
        if cost.kind.streamed:
            lines.append(
                f"a token of a stream: {1e6 * cost.cpu_s / cost.kind.events:.1f} us if it comes "
                f"alone, {1e6 * cost.backlog_s / cost.kind.events:.1f} us in a stream that comes "
                "at once"
            )
    return "\n".join(lines)


def format_assumptions(costs: Costs, assumed: Assumptions, models: Sequence[Model]) -> str:
    """Return the assumed answers per second of one GPU."""
    rows = [
        [
            cost.kind.name,
            str(cost.kind.new_tokens),
            str(cost.kind.tokens),
            *(digits(assumed.rate(model, cost.kind)) for model in models),
            *(f"{_gpus(cost.cpu_s, assumed.rate(model, cost.kind))}" for model in models),
        ]
        for cost in costs.kinds
    ]
    head = ["", "new prompt|tokens", "answer|tokens"]
    head += [f"answers/s|per GPU|{model.name}" for model in models]
    head += [f"GPUs per|process|{model.name}" for model in models]
    title = f"Assumed rates, and GPUs that keep one process busy for {MOST:.0%} of its time"
    return format_table(title, head, rows)


def _gpus(cpu_s: float, rate: float) -> str:
    return digits(MOST / cpu_s / rate)


def format_loads(costs: Costs, assumed: Assumptions, model: Model, count: int) -> str:
    """Return what one process adds to the answers of the fleets."""
    rows = []
    for gpus in FLEETS:
        for cost in costs.kinds:
            load = simulate_load(cost, model, gpus, assumed, count)
            grows = (None, None)
            rows.append(
                [
                    f"{gpus:,} GPUs: {cost.kind.name}",
                    f"{load.rate:,.0f}",
                    f"{load.in_flight:,.0f}",
                    f"{100 * load.load:,.0f}",
                    *map(ms, load.poisson or grows),
                    *map(ms, load.bursts or grows),
                    str(load.needed),
                ]
            )
    head = ["", "answers/s", "in flight", "busy %", "Poisson|p50 ms", "|p99"]
    head += ["bursts|p50 ms", "|p99", "shards"]
    title = f"{model.name}: one process with all answers, the delay it adds, and the shards to use"
    return format_table(title, head, rows)


def format_by_load(cost: Cost, assumed: Assumptions, count: int) -> str:
    """Return the delays of answers by the share of its time for which a process is busy."""
    rows = []
    for busy in LOADS:
        rate = busy / cost.cpu_s
        poisson, bursts = simulate_delays(cost, rate, FLEETS[0], assumed, count)
        rows.append([f"{100 * busy:.0f} %", f"{rate:,.0f}", *map(ms, poisson + bursts)])
    head = ["busy", "answers/s", "Poisson|p50 ms", "|p99", "bursts|p50 ms", "|p99"]
    title = f"Delay of {cost.kind.name} answers by load, bursts of {FLEETS[0]} GPUs"
    return format_table(title, head, rows)


def format_lengths(costs: Costs, assumed: Assumptions, model: Model, most: int) -> str:
    """Return the seconds of an evaluation by shards."""
    rows = []
    for gpus in FLEETS:
        for cost in costs.kinds:
            cells = [f"{gpus:,} GPUs: {cost.kind.name}"]
            rate = gpus * assumed.rate(model, cost.kind)
            latency_s = assumed.latency_s(cost.kind)
            for samples in SAMPLES:
                count = min(samples, most)
                for shards in (0, *SHARDS):
                    before_s = latency_s + (costs.around_s if shards else 0.0)
                    took_s = simulate_length(cost, rate, count, shards, before_s, assumed.seed)
                    cells.append(digits(took_s))
            rows.append(cells)
    head = [""]
    for samples in SAMPLES:
        head += [
            f"{min(samples, most):,}|endpoint",
            *("|1 shard" if n == 1 else f"|{n}" for n in SHARDS),
        ]
    return format_table(f"{model.name}: seconds of an evaluation", head, rows)


def format_checks(compared: Sequence[Compared]) -> str:
    """Return the comparison of simulated with measured delays."""
    rows = []
    for one in compared:
        steps = f", all of {1000 * one.step_s:.0f} ms at once" if one.step_s else ""
        first = [f"{100 * one.offered:.0f} %{steps}", f"{one.rate:,.0f}"]
        measured = ["measured", f"{100 * one.busy:.0f}", *map(ms, one.measured)]
        simulated = ["simulated", f"{100 * one.simulated_busy:.0f}", *map(ms, one.simulated)]
        rows.append([*first, *measured, f"{100 * one.kept_waiting:.1f}"])
        rows.append(["", "", *simulated, ""])
        rows.append(["", "", "as busy", f"{100 * one.busy:.0f}", *map(ms, one.as_busy), ""])
    head = ["offered load", "answers/s", "", "busy %", "p50 ms", "p90 ms", "p99 ms", "core lost %"]
    return format_table("Delay of medium answers: measured and simulated", head, rows)


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.0f}"
