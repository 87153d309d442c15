"""Measure `serve-eval verify` on real engines: one pool of probes, then many trials.

`make test-peers` builds them; without any, the pool has vLLM and our own server only.

`make verify-trials` prints how often each outcome came, and after how many probes. A is the real
vLLM; what it is compared with are other engines, precisions and transfers. Reading takes some ten
minutes; the trials draw probes from the pool in random order.
"""

import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.evaluation.probe_server import AskedServer
from serve_eval.evidence.probe_floor import DistanceLimits, find_floor, measure_distance
from serve_eval.evidence.probe_judging import ProbeEvidence
from serve_eval.schema import (
    Endpoint,
    Limits,
    Plan,
    Probe,
    ProbeReading,
    ProbeRoute,
    Spec,
)
from serve_eval.workflows.verify.servers import NamedPlan, VerifyRules, VerifySession, open_server
from serve_eval.workflows.verify.verify import register
from tests.peers.peers import PEERS_OF_OURS, PYTHON, ROOT, WEIGHTS
from tests.scripted_server import external, serve_in_thread
from tests.vllm.deployments import (
    MODEL,
    Deployments,
    aggregated,
    decoding,
    disaggregated,
    write_model,
)
from tests.vllm.faulty_transfer import foreign_blocks, orchestrated

GGUF = {
    "BF16": ("--type", "BF16"),
    "Q8_0": ("--type", "Q8_0"),
    "Q4_0": ("--type", "Q4_0"),
    "int3": ("--type", "F32", "--damage", "int3"),
}
HUB = "HF"


def list_systems():
    """Yield the name of each system, its server, and the kind of its weights.

    Of the servers that read GGUF files and list log-probabilities, the first one that is built is
    taken.
    """
    built = [peer for peer in PEERS_OF_OURS if peer.missing() is None]
    llama = next((one for one in built if one.name.startswith("llama-server")), None)
    if llama is not None:
        for kind in GGUF:
            yield f"llama-server {kind}", llama, kind
    for one in built:
        if not one.gguf:
            yield one.name, one, HUB


async def read_peer(peer, kind, texts, folder):
    """Start a server with weights of a kind, and read all probes on it."""
    model = WEIGHTS if kind == HUB else _write(kind, folder)
    plan = Plan(
        model=MODEL,
        launcher=peer.spec(model),
        tasks=(Spec(name="word_problems"),),
        no_reference=True,
    )
    session = VerifySession(
        rules=VerifyRules(), out_dir=folder / peer.name / kind, environ=peer.env(), notify=print
    )
    began = time.monotonic()
    async with open_server(
        NamedPlan(name="b", plan=plan), session, route=ProbeRoute.TEXT
    ) as server:
        found = await server.read_all(texts)
    print(f"{peer.name} {kind}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return found


def _write(kind, folder):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{kind}.gguf"
    writer = ROOT / "tests/peers/write_gguf.py"
    subprocess.run([PYTHON, writer, WEIGHTS, file, *GGUF[kind]], check=True)
    return file


POOL, TRIALS, BUDGET = 500, 200, 200
SIBLING_PROBES, SEED = 60, 7
BF16 = "bfloat16"
Pool = dict[str, list[ProbeReading | None]]


def read_pool(folder):
    """Start each system in turn, and read all probes on it."""
    found = {}
    running = Deployments(folder)
    try:
        running.start(a=aggregated(dtype=BF16))
        a = running["a"].base_url
        probes = asyncio.run(_register(a, folder))
        texts = [probe.prompt for probe in probes]

        def note(name, url, in_flight=16):
            began = time.monotonic()
            found[name] = asyncio.run(_read(url, texts, in_flight))
            print(f"{name}: read in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

        note("again", a)
        note("64 in flight", a, 64)
        for name, spec in {
            "compiled": aggregated(dtype=BF16, eager=False),
            "float32": aggregated(),
            "W8A8": aggregated(dtype=BF16, model=str(write_model("w8a8", folder / "w8a8"))),
            "int3": aggregated(dtype=BF16, model=str(write_model("int3", folder / "int3"))),
        }.items():
            running.start(**{name: spec})
            note(name, running[name].base_url)
            running.stop(name)
        running.start(
            pair=disaggregated(dtype=BF16), blocks=decoding(5690, block_size=64, dtype=BF16)
        )
        note("prefill/decode", running["pair"].base_url)
        servers = running["pair"].info.servers or {}
        context, generation = servers["context_0"], servers["generation_0"]
        with foreign_blocks(context) as foreign, orchestrated(foreign, [generation]) as url:
            note("other blocks, 10 %", url)
        blocks = running["blocks"].base_url.removesuffix("/v1")
        with orchestrated(context, [blocks]) as url:
            note("block sizes 32, 64", url)
    finally:
        running.close()
    with ExitStack() as stack:
        for name, damage in {
            "numpy": "none", "numpy int8": "int8", "numpy int4-g32": "int4-g32",
            "numpy int4": "int4", "numpy int3": "int3",
        }.items():  # fmt: skip
            note(name, stack.enter_context(_embedded(damage)))
    return probes, found


@contextmanager
def _embedded(damage):
    from serve_eval.launchers._embedded.server import create_app
    from serve_eval.launchers.embedded import WEIGHTS

    with serve_in_thread(create_app(WEIGHTS, {MODEL: damage})) as url:
        yield url


async def _register(url, folder):
    plan = Plan(
        model=MODEL, launcher=external(url), tasks=(Spec(name="word_problems"),), no_reference=True
    )
    rules = VerifyRules(probes=POOL, seed=SEED)
    made = await register(NamedPlan(name="a", plan=plan), (), rules, folder, environ={})
    return list(made.probes)


async def _read(url, texts, in_flight):
    async with Client(Endpoint(base_url=url, model=MODEL), Limits()) as client:
        server = AskedServer(name=url, client=client, in_flight=in_flight)
        await server.settle(texts[0])
        return await server.read_all(texts)


def try_often(
    probes,
    sibling,
    b,
    sd=0.0,
):
    """Return the outcomes of all trials, and the probes that each took.

    `sd` is the standard deviation of the noise, in nats, that is added to every log-probability.
    """
    outcomes, taken = Counter[str](), list[int]()
    for trial in range(TRIALS):
        rng = random.Random(f"{SEED}:{trial}")
        order = rng.sample(range(len(probes)), BUDGET)
        asked = [_add_noise(probes[i].reading, sd, rng) for i in order]
        first = list(zip(order, asked, strict=True))[:SIBLING_PROBES]
        own = [_far(one, _add_noise(probes[i].reading, sd, rng)) for i, one in first]
        healthy = [
            _far(one, _add_noise(sibling[i], sd, rng)) for i, one in zip(order, asked, strict=True)
        ]
        limits = DistanceLimits(
            noise=max(own),
            step=0.0,
            floor=find_floor(healthy[:SIBLING_PROBES]),
            measured=True,
            typical=statistics.median(healthy[:SIBLING_PROBES]),
        )
        found = ProbeEvidence(limits=limits)
        for number, (i, one) in enumerate(zip(order, asked, strict=True), start=1):
            reading = _add_noise(b[i], sd, rng)
            if reading and (distance := measure_distance(probes[i].id, one, reading)):
                nats = healthy[number - 1]
                found.add(msgspec.structs.replace(distance, sibling_nats=(nats,)))
            if number % 20 == 0 and found.is_settled(BUDGET):
                break
        found.ended = True
        if found.lacks_answers:  # The siblings answer more probes.
            found.healthy = [_far(p.reading, s) for p, s in zip(probes, sibling, strict=True)]
        outcomes[found.conclude().value] += 1
        taken.append(found.asked)
    return outcomes, taken


def _add_noise(reading, sd, rng):
    if reading is None or not sd:
        return reading
    tokens = []
    for token in reading.tokens:
        top = {text: value + rng.gauss(0, sd) for text, value in token.top.items()}
        logprob = top.get(token.text, token.logprob + rng.gauss(0, sd))
        tokens.append(msgspec.structs.replace(token, logprob=logprob, top=top))
    return msgspec.structs.replace(reading, tokens=tuple(tokens))


def _far(a, b):
    found = None if a is None or b is None else measure_distance("", a, b)
    return 0.0 if found is None else found.nats


def _distance(probe, reading):
    return None if reading is None else measure_distance(probe.id, probe.reading, reading)


def print_tables(probes, pool):
    """Print the distances of each system, and the outcomes for each sibling."""
    print("system | median | 90 % | largest distance from A, in nats")
    for name, readings in pool.items():
        nats = [one.nats for p, r in zip(probes, readings, strict=True) if (one := _distance(p, r))]
        tenth = statistics.quantiles(nats, n=10)[-1]
        print(f"{name} | {statistics.median(nats):.4f} | {tenth:.4f} | {max(nats):.4f}")
    cases = [("again", 0.0), ("compiled", 0.0), ("float32", 0.0), ("numpy", 0.0)]
    cases += [("compiled", sd) for sd in (0.005, 0.02, 0.05)]
    for sibling, sd in cases:
        noise = f", noise of {sd} nat" if sd else ""
        print(
            f"\nsibling {sibling}{noise}: system | outcomes in {TRIALS} trials | probes"
            " (median, 90 %)"
        )
        for name, readings in pool.items():
            outcomes, taken = try_often(probes, pool[sibling], readings, sd)
            told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
            tenth = statistics.quantiles(taken, n=10)[-1]
            print(f"{name} | {told} | {statistics.median(taken):.0f}, {tenth:.0f}")


def main():
    """Read the pool, or take the file of an earlier reading, and print the tables."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if file is not None and file.exists():
        probes, pool = msgspec.json.decode(file.read_bytes(), type=tuple[list[Probe], Pool])
    else:
        with tempfile.TemporaryDirectory() as folder:
            probes, pool = read_pool(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        for name, peer, kind in list_systems():
            if name not in pool:
                texts = [probe.prompt for probe in probes]
                pool[name] = asyncio.run(read_peer(peer, kind, texts, Path(folder)))
    if file is not None:
        file.write_bytes(msgspec.json.encode((probes, pool)))
    print_tables(probes, pool)


if __name__ == "__main__":
    main()
