"""Measure which faults of a real vLLM diagnose names: `python -m` this module prints the table.

It is that of `tests.workflows.diagnose.fault_trials`, with real servers and real hand-overs. Half
an hour, after `make test-vllm`; with a folder as argument the answers are kept in it.
"""

import sys
import tempfile
from pathlib import Path

from tests.vllm.conftest import address
from tests.vllm.deployments import OPTIONS, Deployments, aggregated, disaggregated, write_model
from tests.vllm.faulty_transfer import choose_tenth, foreign_blocks, orchestrated
from tests.workflows.diagnose.fault_trials import (
    BLOCK,
    LAST,
    LONG,
    PLACE,
    TENTH,
    Exchange,
    ask_all,
    in_front,
    name_folder,
    print_trials,
    take_from,
)

LATE = ("--logits-processors", "late_token:LateToken")
BLOCKS_OF_OTHERS = {
    f"length modulo {BLOCK} from {LAST} on": lambda body, tokens: tokens % BLOCK >= LAST,
    f"above {LONG} tokens": lambda body, tokens: tokens > LONG,
    "one prompt in ten": choose_tenth,
}
"""The prompts of which the context server hands over other prompts' blocks."""


def answer_all(top):
    """Return the folders of the runs: A, sound ones, and one with each fault."""
    running = Deployments(top)
    found = {}

    def note(name, url):
        found[name] = name_folder(top, name)
        ask_all(url, found[name], len(found))

    try:
        running.start(sound=aggregated(prefix_caching=False), pair=disaggregated())
        sound = running["sound"].base_url
        note("A", sound)
        note("sound, again", sound)
        note("sound, prefill and decode", running["pair"].base_url)
        context = address(running["pair"], "context_0")
        decode = [address(running["pair"], "generation_0")]
        for name, chosen in BLOCKS_OF_OTHERS.items():
            with foreign_blocks(context, chosen) as foreign, orchestrated(foreign, decode) as url:
                note(name, url)
        running.stop("pair")
        with in_front(Exchange(TENTH), sound) as url:
            note("answers of other requests, 10 %", url)
        more = [*map(str, OPTIONS["extra_args"]), *LATE]
        running.start(late=aggregated(prefix_caching=False, extra_args=more))
        note(f"token {PLACE}", running["late"].base_url)
        running.stop("late")
        weights = top / "weights"
        weights = weights if weights.exists() else write_model("int3", weights)
        running.start(int3=aggregated(model=str(weights)), cached=aggregated(prefix_caching=True))
        note("int3", running["int3"].base_url)
        cached = running["cached"].base_url
        ask_all(cached, top / "half", 0, half=True)
        hits = take_from(running["int3"].base_url, lambda _body, _tokens, hit: hit > 0)
        with in_front(hits, cached) as url:
            note("cache hits only", url)
    finally:
        running.close()
    return found


def main():
    """Ask, and print the trials."""
    with tempfile.TemporaryDirectory() as made:
        print_trials(answer_all(Path(sys.argv[1] if len(sys.argv) > 1 else made)))


if __name__ == "__main__":
    main()
