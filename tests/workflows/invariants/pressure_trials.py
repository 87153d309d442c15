"""Trials of the passes under pressure: faults of a cache, and sound caches.

`python -m tests.workflows.invariants.pressure_trials` prints the table of the documentation; a
number after it is that of the trials for each fault.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from tests.workflows.invariants.faulty_servers import (
    BlockCache,
    CacheFault,
    CacheServer,
    check_server,
    list_answers,
    make_plan,
)

TRIALS, SOUND, PROMPTS, BUDGET = 20, 100, 50, 20_000
DEVICE, HOST = 300, 10_000
"""Blocks of the cache. The prompts fill some 110 of them, and those of other passes more."""
VARIES = 0.03
"""Share of the answers that a server changes by chance."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A server to check: its fault, the share of the concerned prompts that it strikes, its cache.

    `names` is what the output must say of it, `broken` whether it must be accused.
    """

    title: str
    names: str
    broken: bool = True
    fault: CacheFault = "none"
    share: float = 1.0
    host: int = 0
    cached: bool = True
    counts: bool = True
    room: bool = False


FAULTS = (
    Trial(title="reloaded blocks wrong, all", fault="reload", host=HOST, names="kept"),
    Trial(
        title="the same, cache size told", fault="reload", host=HOST, room=True, names="reloaded"
    ),
    Trial(title="reloaded blocks wrong, 30 %", fault="reload", host=HOST, share=0.3, names="kept"),
    Trial(title="evicted: another prompt's, all", fault="stale", names="foreign"),
    Trial(title="evicted: another prompt's, 30 %", fault="stale", share=0.3, names="foreign"),
    Trial(title="the same, no cached tokens told", fault="stale", counts=False, names="foreign"),
)
SOUND_ONES = (
    Trial(title="sound, eviction", broken=False, names="evicted"),
    Trial(title="sound, offload and reload", broken=False, host=HOST, room=True, names="reloaded"),
    Trial(title="sound, no cache", broken=False, cached=False, names="skipped"),
    Trial(title="sound, no cached tokens told", broken=False, counts=False, names="unknown"),
)


async def run_trial(trial, seed, out):
    """Check the server of a trial; return the result and the number of requests."""
    plan = replace(make_plan(PROMPTS), seed=seed)
    server = CacheServer(
        texts=list_answers(plan),
        cache=BlockCache(device=DEVICE, host=trial.host) if trial.cached else None,
        fault=trial.fault,
        share=trial.share,
        counts=trial.counts,
        room=trial.room,
        varies=VARIES,
        seed=seed,
    )
    return await check_server(server, plan, BUDGET, out), len(server.asked)


def name_fate(found):
    """Return what the result says of the pressure: the fates of the old prompts, and more."""
    uses = [one.pressure for one in found.results if one.pressure is not None]
    named = {str(use.fate) for use in uses[-1:]}
    if any(
        2 * use.foreign >= one.changed.other > 0 for one in found.results if (use := one.pressure)
    ):
        named.add("foreign")
    if "pressure" in found.skipped:
        named.add("skipped")
    return named


def is_found(found):
    """Return True if a pass under pressure is broken."""
    return any(one.broken and one.pressure is not None for one in found.results)


async def repeat(trial, trials):
    """Return the row of a trial."""
    accused = named = others = 0
    requests, times = [], []
    for seed in range(trials):
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            found, asked = await run_trial(trial, seed, Path(folder) / "out")
            times.append(time.monotonic() - start)
        requests.append(asked)
        accused += is_found(found)
        others += any(one.broken and one.pressure is None for one in found.results)
        named += trial.names in name_fate(found)
    return (
        f"| {trial.title} | {accused} of {trials} | {trial.names} {named} of {trials} |"
        f" {others} | {statistics.median(requests):g} | {statistics.median(times):.1f} |"
    )


async def main():
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else TRIALS
    print("| cache | found | named | another pass accused | requests | seconds |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    for trial in FAULTS:
        print(await repeat(trial, wanted), flush=True)
    for trial in SOUND_ONES:
        print(await repeat(trial, wanted * SOUND // TRIALS // len(SOUND_ONES)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
