"""Serve a simulated or the embedded model whose damage depends on a combination of options."""

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

from serve_eval.errors import LaunchError
from serve_eval.launchers import embedded, simulated
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.launchers._simulated.simulator import serve
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint


@dataclass(frozen=True, kw_only=True)
class BreakableOptions:
    """Choose what breaks: `breaks` names the options of `served` that must all be on for it."""

    served: Annotated[dict[str, Any], Setting("Options of the served model; false is off.")] = (
        field(default_factory=dict)
    )
    step: Annotated[str, Setting("Step in a row.")] = ""
    breaks: Annotated[list[str], Setting("Options that break it together.")] = field(
        default_factory=list
    )
    bad_steps: Annotated[list[str], Setting("Steps that are bad.")] = field(default_factory=list)
    refuses: Annotated[
        list[list[str]], Setting("Pairs: the first one on and the second one off cannot start.")
    ] = field(default_factory=list)
    dead_steps: Annotated[list[str], Setting("Steps that cannot start.")] = field(
        default_factory=list
    )
    accuracy: Annotated[float, Setting("Share of right answers of the intact model.")] = 0.8
    flip_rate: Annotated[float, Setting("Share of prompts that two starts judge apart.")] = 0.0
    damage: Annotated[float, Setting("Share of the right answers that are lost.")] = 0.15
    bits: Annotated[str, Setting("Damage of the embedded model; empty: it is simulated.")] = ""
    running: Annotated[
        str, Setting("Address of a server that has both as models, by the names of their damage.")
    ] = ""
    start: Annotated[int, Setting("Number that each start must differ in; 0: drawn.")] = 0


_starts = 0


@asynccontextmanager
async def launch(context, options: BreakableOptions):
    """Start the model, intact or damaged, and yield its endpoint."""
    global _starts
    _starts += 1
    on = {name for name, value in options.served.items() if value}
    if options.step in options.dead_steps or any(
        first in on and second not in on for first, second in options.refuses
    ):
        raise LaunchError("the engine ended with status 1 before it was ready")
    broken = options.step in options.bad_steps or (bool(options.breaks) and on >= {*options.breaks})
    if options.bits:
        damage = options.bits if broken else "none"
        if options.running:
            yield Endpoint(base_url=options.running, model=damage)
            return
        async with embedded.launch(context, embedded.EmbeddedOptions(damage=damage)) as endpoint:
            yield endpoint
        return
    assert context.write_answer_file is not None
    context.log_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    answers = context.log_dir / "answers.jsonl"
    flips = options.flip_rate or None
    context.write_answer_file(answers, simulated.probability(options.accuracy, flips, 0))
    config = SimulatorConfig(
        answers=answers,
        model=context.model or "model",
        damage=options.damage if broken else 0.0,
        run=options.start or _starts,
    )
    async with serve(config) as url:
        yield Endpoint(base_url=url, model=context.model)


def commands(context, options: BreakableOptions):
    """Return no command line: the simulated model runs in this process."""
    return []
