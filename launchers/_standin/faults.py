"""Faults on demand, given by the environment variable STANDIN_FAULTS.

It holds a JSON object, or a list of them if servers that share an environment are to fail
differently. The optional `when` of each selects processes by any of `command` (serve,
disaggregated), `role` (context, generation), `port`, `gpus` (CUDA_VISIBLE_DEVICES), `config` (the
file's name) and the model's arguments, such as `kv_cache_config.dtype`. Requests are those for
completions: whole requests or one leg of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.launchers._standin.generation import ThoughtsForm, ToolFaults
from serve_eval.launchers._standin.model import Thinks, find_answer
from serve_eval.schema.media import uniform


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults of one process. A count N means: the first N requests are served well."""

    crash_at_start: int | None = None
    """Exit code that ends loading."""
    last_words: str = "RuntimeError: the executor could not be created, as told"
    """Text printed then."""
    hang_at_start: bool = False
    """Loading ends with `last_words`; the process stays and does nothing."""
    spin_at_start: bool = False
    """Like `hang_at_start`, but the process uses a whole CPU, like a rank waiting for another."""
    says: str = ""
    """Text printed during loading."""
    says_s: float = 0.0
    """Seconds of silence after that text."""
    says_busy: bool = False
    """Use a CPU during that silence."""
    tells_key: bool = False
    """Log the key that it shares with others at the start and with each request."""
    rank: bool = False
    """Start a process in its own session that ignores SIGTERM, as MPI's do."""
    no_gpu: bool = False
    """Loading finds no GPU."""
    no_model: bool = False
    """Loading finds no model."""
    no_transceiver: bool = False
    """The cache transceiver is disabled, even if the config enables it."""
    crash_after: int | None = None
    """The process ends at the next request, without an answer."""
    hang_after: int | None = None
    """Requests are never answered while /health stays 200."""
    unhealthy_after: int | None = None
    """/health stays 503 and requests fail; the process stays."""
    error_after: int | None = None
    """Requests are refused with `error_status`."""
    error_status: int = 400
    """An orchestrator turns a 400 into a 500."""
    error_says: str = "Generation failed, as told"
    """Message of a refusal."""
    refuse_first: int = 0
    """Refuse this number of requests like an orchestrator without servers, then serve the rest."""
    lose: int | None = None
    """The connection of this request, counted from 1, is closed without an answer."""
    drop_stream: int | None = None
    """Close the connection of a stream after this number of events."""
    fail_stream: int | None = None
    """Generation fails after this number of events.

    Main reports it in an event of completions, and refuses whole answers; other streams just break.
    """
    executor_crash_after: int | None = None
    """The engine dies: the request gets `null` and the server sends itself SIGINT."""
    lingers_s: float = 0.0
    """Seconds from the death of the engine to the SIGINT; requests fail meanwhile."""
    corrupt_after: int | None = None
    """Answers are wrong; 0: from the beginning."""
    residue: tuple[int, int] | None = None
    """(64, 5): wrong answers only for prompts whose number of tokens leaves 5 modulo 64."""
    longer_than: int = 0
    """Wrong answers only for prompts of more tokens."""
    kv_loss_after: int | None = None
    """The context worker's cache is lost: a generation worker returns an empty answer."""
    wrong_tp: bool = False
    """Answers are wrong if the context worker has a different tensor parallel size."""
    wrong_pair: Mapping[str, str | int] = {}
    """Answers are wrong if the context worker has this `port` or these `gpus`."""
    prefix_cache: bool = False
    """The worker keeps prompts by cache_salt, and reports the tokens that it has of later ones."""
    wrong_turns: bool = False
    """Answers are wrong to later turns of a chat of which the prefix cache has a beginning."""
    turns_share: float = 1.0
    """Share of these later turns that are wrong, drawn for each prompt."""
    share: float = 1.0
    """Share of requests that are corrupted, emptied, refused or dropped, by a draw for each."""
    seed: int = 0
    """Seed of these draws."""
    null_ctx_id: bool = False
    """A context worker that finished an answer sends no ctx_request_id."""
    latency_s: float = 0.0
    """Pause before every answer."""
    latency_jitter_s: float = 0.0
    """Largest extra pause, drawn for each request."""
    ignore_sigterm: bool = False
    """The shutdown of the model hangs; only SIGKILL ends the process."""
    silent_discovery: bool = False
    """A worker registers and sends no heartbeats."""
    tools: ToolFaults = ToolFaults()
    """Faults of tool calls, guided decoding and their streams."""
    thinks: Thinks = "never"
    """Thoughts before answers to chats; `always` ignores what a request says about thinking."""
    thoughts: ThoughtsForm = ThoughtsForm()
    """The form of these thoughts."""
    when: Mapping[str, str | int | bool] = {}

    def strikes(self, after: int | None, number: int) -> bool:
        """Return True if a fault with this count and the common share hits the request.

        `number` counts requests from 1.
        """
        return after is not None and number > after and self.is_drawn(number)

    def corrupts(self, number: int, tokens: int) -> bool:
        """Return True if the answer to a request with a prompt of this length is wrong."""
        fits = self.residue is None or tokens % self.residue[0] == self.residue[1]
        return self.strikes(self.corrupt_after, number) and fits and tokens > self.longer_than

    def spoils_turn(self, ids: Sequence[int], cached: int) -> bool:
        """Return True if the cached beginning of this prompt of a later turn is damaged."""
        if not self.wrong_turns or not 0 < find_answer(ids) <= cached:
            return False
        return self.turns_share >= 1 or uniform(f"{self.seed}:turns:{ids}") < self.turns_share

    def is_drawn(self, number: int) -> bool:
        """Return True if this request is in the share."""
        return uniform(f"{self.seed}:share:{number}") < self.share

    def pause_s(self, number: int) -> float:
        return self.latency_s + self.latency_jitter_s * uniform(f"{self.seed}:latency:{number}")


def is_at(wanted: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Return True if a process is at the wanted place."""
    return all(str(place.get(key)) == str(value) for key, value in wanted.items())


def flatten(args: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Return the arguments of a model by their paths, such as kv_cache_config.dtype."""
    found: dict[str, Any] = {}
    for key, value in args.items():
        inner = isinstance(value, Mapping)
        found |= flatten(value, f"{parent}{key}.") if inner else {f"{parent}{key}": value}
    return found


def faults(text: str | None, place: Mapping[str, Any]) -> Faults:
    """Return the last faults whose `when` fits the process at `place`.

    Raises msgspec.MsgspecError.
    """
    if not text:
        return Faults()
    found = msgspec.json.decode(text, type=Faults | list[Faults])
    fitting = [
        one for one in (found if isinstance(found, list) else [found]) if is_at(one.when, place)
    ]
    return fitting[-1] if fitting else Faults()


def find_faults(
    command: str,
    role: str | None,
    port: object,
    config: str | None,
    args: Mapping[str, Any] | None = None,
) -> Faults:
    """Return the faults that STANDIN_FAULTS holds for this process."""
    place = flatten(args or {})
    place |= {"command": command, "role": role and role.lower(), "port": port}
    place |= {
        "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "config": config and Path(config).name,
    }
    return faults(os.environ.get("STANDIN_FAULTS"), place)
