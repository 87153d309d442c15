"""Plans for the launcher `breakable` of the folder `included`: what breaks, and from which step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serve_eval.schema import Limits, Plan, Spec
from serve_eval.workflows.bisect.configurations import (
    Configurations,
    along_steps,
    between_plans,
    fill_in,
    list_changes,
)

INCLUDED = Path(__file__).with_name("included")
OPTIONS = ("speculation", "overlap", "kv_dtype", "graphs", "chunking", "tp")
STEPS = tuple(f"v{number}" for number in range(1, 17))


def build_plan(options: dict[str, Any], *, samples: int, order_seed: int | None = None) -> Plan:
    """Return a plan for the launcher with these options."""
    return Plan(
        model="model",
        launcher=Spec(name="breakable", options=options),
        tasks=(Spec(name="word_problems", options={"num_samples": samples}),),
        include_path=(str(INCLUDED),),
        limits=Limits(concurrency=16, order_seed=order_seed),
    )


def build_options(
    breaks: Sequence[str], *, names: Sequence[str] = OPTIONS, samples: int = 200, **more: Any
) -> Configurations:
    """Return the search between a plan with all options off and one with all on."""
    order_seed = more.pop("order_seed", None)
    common = {"breaks": list(breaks), **more}
    good = build_plan(
        {**common, "served": dict.fromkeys(names, False)}, samples=samples, order_seed=order_seed
    )
    options = {**common, "served": dict.fromkeys(names, True)}
    bad = replace(good, launcher=Spec(name="breakable", options=options))
    return between_plans(good, list_changes(good, bad))


def build_steps(
    first_bad: int | None, *, steps: Sequence[str] = STEPS, samples: int = 200, **more: Any
) -> Configurations:
    """Return the search along steps, of which those from number `first_bad` on are bad."""
    order_seed = more.pop("order_seed", None)
    bad = [] if first_bad is None else list(steps[first_bad:])
    options = {"bad_steps": bad, "step": "{step}", **more}
    plans = [
        build_plan(fill_in(options, step), samples=samples, order_seed=order_seed) for step in steps
    ]
    return along_steps(plans, steps)
