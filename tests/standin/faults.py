"""What goes wrong on demand, told by the environment variable STANDIN_FAULTS.

It holds a JSON object, or a list of them when servers that share an environment are to fail
differently; the optional `when` of each says which processes it is for, by any of `command` (serve,
disaggregated), `role` (context, generation), `port`, `gpus` (CUDA_VISIBLE_DEVICES) and `config`
(the file's name). Requests are those for completions, whole or one leg of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from serve_eval.schema.prompt_hash import uniform


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A count N means: the first N requests are served well."""

    crash_at_start: int | None = None
    """Exit code with which loading ends."""
    last_words: str = "RuntimeError: the executor could not be created, as told"
    """What it says then."""
    hang_at_start: bool = False
    """Loading ends with `last_words`, and the process stays and does nothing."""
    spin_at_start: bool = False
    """The same, and the process uses a whole CPU, as a rank does that waits for another."""
    says: str = ""
    """What loading says before it goes on."""
    says_s: float = 0.0
    """How long it then says nothing."""
    says_busy: bool = False
    """It uses a CPU for that long."""
    tells_key: bool = False
    """The key that it shares with others stands in its log, when it begins and with each
    request."""
    rank: bool = False
    """A process in a session of its own, as those of MPI are, that hears no SIGTERM."""
    no_gpu: bool = False
    """Loading finds no GPU."""
    no_model: bool = False
    """Loading finds no model."""
    no_transceiver: bool = False
    """The cache transceiver is disabled, whatever the config says."""
    crash_after: int | None = None
    """The process is gone at the next request, without a word to its clients."""
    hang_after: int | None = None
    """Requests are never answered while /health stays 200."""
    unhealthy_after: int | None = None
    """/health is 503 for ever and requests fail; the process stays."""
    error_after: int | None = None
    """Requests are refused with `error_status`."""
    error_status: int = 400
    """400: what an orchestrator turns into a 500."""
    error_says: str = "Generation failed, as told"
    """What a refusal says."""
    refuse_first: int = 0
    """So many requests are refused as by an orchestrator that knows no server yet, and all others
    served."""
    lose: int | None = None
    """The connection of this request, counted from 1, is closed without an answer."""
    drop_stream: int | None = None
    """The connection of a stream is gone after so many events."""
    fail_stream: int | None = None
    """Generation fails after so many events: main tells it in a last event of completions, all
    others drop."""
    executor_crash_after: int | None = None
    """The engine dies: the request gets `null` and the server sends itself SIGINT."""
    corrupt_after: int | None = None
    """Answers are wrong; 0: from the beginning."""
    kv_loss_after: int | None = None
    """What the context worker computed is lost: a generation worker says nothing, as if the answer
    ended at once."""
    wrong_tp: bool = False
    """Answers are wrong when the context worker has another tensor parallel size than this
    generation worker."""
    wrong_pair: Mapping[str, str | int] = {}
    """Answers are wrong when the context worker is the one that these tell of, by `port` or
    `gpus`."""
    share: float = 1.0
    """Of the requests that would be corrupted, emptied, refused or dropped so many are, by a draw
    for each."""
    seed: int = 0
    """Of these draws."""
    null_ctx_id: bool = False
    """A context worker that finished an answer gives no ctx_request_id."""
    latency_s: float = 0.0
    """Pause before every answer."""
    latency_jitter_s: float = 0.0
    """Up to so much more, by a draw for each request."""
    ignore_sigterm: bool = False
    """The shutdown of the model hangs: only SIGKILL ends the process."""
    silent_discovery: bool = False
    """A worker registers and sends no heartbeats."""
    when: Mapping[str, str | int] = {}

    def strikes(self, after: int | None, number: int) -> bool:
        """Whether a fault with this count and the common share hits the request of that number,
        counted from 1.
        """
        return after is not None and number > after and self.drawn(number)

    def drawn(self, number: int) -> bool:
        """Whether this request is among the share."""
        return uniform(f"{self.seed}:share:{number}") < self.share

    def pause_s(self, number: int) -> float:
        return self.latency_s + self.latency_jitter_s * uniform(f"{self.seed}:latency:{number}")


def is_at(wanted: Mapping[str, Any], place: Mapping[str, Any]) -> bool:
    """Whether a process is where `wanted` says."""
    return all(str(place.get(key)) == str(value) for key, value in wanted.items())


def faults(text: str | None, place: Mapping[str, Any]) -> Faults:
    """The faults for a process of which `place` tells what `when` may ask for: the last ones that
    fit.

    Raises msgspec.MsgspecError.
    """
    if not text:
        return Faults()
    found = msgspec.json.decode(text, type=Faults | list[Faults])
    fitting = [
        one for one in (found if isinstance(found, list) else [found]) if is_at(one.when, place)
    ]
    return fitting[-1] if fitting else Faults()
