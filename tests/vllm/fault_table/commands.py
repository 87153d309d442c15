"""Hold a deployment under test, and list the commands of a trial with their findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import httpx
import yaml

from serve_eval.errors import LaunchError
from tests.cli.command import serve_eval
from tests.vllm.conftest import FLOOR, address
from tests.vllm.deployments import (
    MODEL,
    aggregated,
    disaggregated,
    read_counter,
    write_model,
)

SOUND, PAIR = "aggregated", "disaggregated"


class Stage:
    """Starts the servers of a system beside a sound one, which all systems are compared with."""

    def __init__(self, running, top):
        self.running, self.top = running, top
        if SOUND not in running.names:
            running.start(**{SOUND: aggregated()})

    @property
    def sound(self):
        """The base URL of the sound deployment."""
        return self.running[SOUND].base_url

    def weights(self, kind):
        """Return the folder of rounded weights."""
        folder = self.top / "weights" / kind
        return str(folder if folder.exists() else write_model(kind, folder))

    def pair(self):
        """Return the addresses of a sound context and generation server, which stay up."""
        if PAIR not in self.running.names:
            self.running.start(**{PAIR: disaggregated()})
        return self.server(PAIR, "context_0"), self.server(PAIR, "generation_0")

    @contextmanager
    def up(self, **launchers):
        """Keep deployments running; one that has lost a server is ended as well."""
        try:
            self.running.start(**launchers)
            yield
        finally:
            for name in set(launchers) & set(self.running.names):
                with suppress(LaunchError):
                    self.running.stop(name)

    def server(self, deployment, name):
        """Return the address of a server of a disaggregated deployment."""
        return address(self.running[deployment], name)

    def root(self, deployment):
        """Return the address of a deployment of one server."""
        return self.running[deployment].base_url.removesuffix("/v1")


REQUESTS = "vllm:request_success_total"
TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
IN_FLIGHT = 16
SAMPLES = 3000
"""Problems from which a trial draws its prompts."""


@dataclass(frozen=True, kw_only=True)
class System:
    """Say where a deployment is reached, and how it is asked."""

    a: str
    b: str
    """Base URLs of the sound deployment and of the one under test."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the servers behind B, by names such as context_0."""
    expect: str = "kv_transfer"
    """The part of the path that must be proven. Empty: none."""
    prompts: int = 200
    shots: int = 0
    chat: bool = False
    may_ask_servers: bool = True
    """True if each server behind B takes requests without the orchestrator."""
    in_flight: int = IN_FLIGHT
    disturb: Callable[[Path], None] | None = None
    """Disturbs the servers once, while B is asked. Its argument is the folder of B's answers."""
    _disturbed: list[bool] = field(default_factory=list, init=False)

    @property
    def workers(self):
        """The flags that name the servers behind B."""
        if not self.may_ask_servers:
            return []
        flags = [f"{name.partition('_')[0]}={url}" for name, url in self.servers.items()]
        return [word for flag in flags for word in ("--worker", flag)]

    @contextmanager
    def disturbed(self, out):
        """Disturb the servers while the body asks B, unless that was done before.

        Raises the error of the disturbance, which then left the servers as they were.
        """
        if self.disturb is None or self._disturbed:
            yield
            return
        self._disturbed.append(True)
        with ThreadPoolExecutor(1) as pool:
            disturbing = pool.submit(self.disturb, out)
            yield
            disturbing.result()

    def plan(self, url, seed, prompts):
        """Return the plan of a side as a mapping for YAML."""
        behind = {"servers": dict(self.servers)} if url == self.b and self.servers else {}
        return {
            "model": MODEL,
            "launcher": {"name": "external", "base_url": url, **behind},
            "tasks": [{"name": "word_problems", "num_samples": SAMPLES, "num_fewshot": self.shots}],
            "limit": prompts,
            "seed": seed,
            "no_reference": True,
            **({"protocol": {"apply_chat_template": True}} if self.chat else {}),
        }

    def count(self):
        """Return the requests and tokens that the engines of both sides have counted."""
        roots = {url.removesuffix("/v1") for url in (self.a, *self.servers.values())}
        roots |= set() if self.servers else {self.b.removesuffix("/v1")}
        requests = tokens = 0.0
        for root in roots:
            with suppress(httpx.HTTPError):
                requests += read_counter(root, REQUESTS)
                tokens += sum(read_counter(root, name) for name in TOKENS)
        return requests, tokens


LOADS, PER_LOAD = "1,8,64", 40
USAGE = 2
"""The exit code of a command that cannot be used on a system."""
FINDING = re.compile(r"^ (likely|for|also|seen|A) +\w+: ", re.MULTILINE)


class Told(NamedTuple):
    """Keep what a command printed, and whether that is an accusation."""

    code: int
    text: str
    found: bool


def _run(*arguments):
    ran = serve_eval(*map(str, arguments))
    return ran.returncode, ran.stdout + ran.stderr


def _accuses(code, text):
    """Take a fail, or a deployment that cannot be asked, for an accusation."""
    return Told(code, text, code in (1, 4))


def _write_plan(system, url, seed, path, prompts):
    path.write_text(yaml.safe_dump(system.plan(url, seed, prompts)))
    return path


def compare(system, seed, folder):
    """Compare B with A."""
    plans = [
        _write_plan(system, url, seed, folder / f"{side}.yaml", system.prompts)
        for side, url in (("a", system.a), ("b", system.b))
    ]
    how = ["--self", 20, "--concurrency", system.in_flight, "-o", folder / "compared"]
    with system.disturbed(folder / "compared/b"):
        return _accuses(*_run("compare", *plans, *how, "-v"))


def find_unequal(system, seed, folder):
    """Compare the same answers once more, by the rule that they must be equal."""
    sides = [folder / "compared" / side for side in "ab"]
    how = ["--verdict", "tokens", "-o", folder / "equal"]
    return _accuses(*_run("compare", *sides, *how, "-v"))


def diagnose(system, seed, folder):
    """Diagnose the comparison."""
    code, text = _run("diagnose", folder / "compared", "-v")
    return Told(code, text, bool(FINDING.search(text)))


def prove(system, seed, folder):
    """Judge B's run of the comparison with the path that it should have taken."""
    if not system.expect:
        return Told(USAGE, "", found=False)
    code, text = _run("judge", folder / "compared/b", "--expect", system.expect)
    return Told(code, text, "path not proven" in text)


def attribute(system, seed, folder):
    """Ask the servers of B's run separately."""
    if not system.may_ask_servers:
        return Told(USAGE, "", found=False)
    how = ["--concurrency", IN_FLIGHT, "--set", f"workers.seed={seed}", "-v"]
    return _accuses(*_run("check", "workers", folder / "compared/b", *how, *system.workers))


def verify(system, seed, folder):
    """Verify B against a reference of A, which is asked once for a seed.

    One over chats takes thousands of requests, so that all trials share two of them.
    """
    kind, seed = ("chat", seed % 2) if system.chat else ("text", seed)
    reference = folder.parents[1] / f"references/{kind}_{seed}.json"
    reference.parent.mkdir(exist_ok=True)
    way = [
        "--model",
        MODEL,
        *(["--set", "protocol.apply_chat_template=true"] if system.chat else []),
    ]
    if not reference.exists():
        how = ["--floor", FLOOR, "--set", f"seed={seed}", "-o", reference.with_suffix("")]
        code, text = _run("verify", system.a, *way, "--register", reference, *how)
        assert reference.exists(), (code, text)
    how = ["--concurrency", system.in_flight, "-v", "-o", folder / "verified"]
    return _accuses(
        *_run("verify", system.b, *way, "--reference", reference, *system.workers, *how)
    )


def load(system, seed, folder):
    """Ask B the same prompts at several loads."""
    plan = _write_plan(system, system.b, seed, folder / "load.yaml", PER_LOAD)
    with system.disturbed(folder / "loads"):
        return _accuses(
            *_run("check", "load", plan, "--concurrency", LOADS, "-o", folder / "loads")
        )


COMMANDS = {
    "compare": compare,
    "equal tokens": find_unequal,
    "verify": verify,
    "diagnose": diagnose,
    "attribute": attribute,
    "load": load,
    "path proof": prove,
}


TRANSFER = r"the transfer of the KV cache between them"
AT_START = (
    r"the first token already differs in|differ from their first token|from its first token on"
)
CACHE = r"ANOTHER MODEL, PRECISION OR CACHE"
FRONT = r"not in the servers as they answer here"
OF_REQUESTS = {
    "compare": AT_START,
    "equal tokens": r"texts part at (always word 0|word 0 in \d+ of)",
    "verify": rf"{TRANSFER}|a fault of single requests",
    "diagnose": AT_START,
    "attribute": FRONT,
}
ONE_OF_TWO = {
    "compare": r"generation server generation_1: ",
    "verify": r"found in .*another model",
    "diagnose": r"generation (server )?generation_1\b",
    "attribute": r"generation server .* wrong, the others",
}
CAUSES = {
    "other requests' blocks for 10 %": OF_REQUESTS,
    "other requests' blocks for 1 %": OF_REQUESTS,
    "last block dropped": {"verify": TRANSFER, "attribute": FRONT},
    "KV files of other prompts for 10 %": {
        "compare": AT_START,
        "equal tokens": OF_REQUESTS["equal tokens"],
        "verify": CACHE,
        "diagnose": AT_START,
    },
    "KV files rounded to four bits": {"verify": CACHE},
    "block sizes 32 and 64": {
        "compare": AT_START,
        "equal tokens": OF_REQUESTS["equal tokens"],
        "verify": TRANSFER,
        "diagnose": AT_START,
        "attribute": r"the transfer between them, or how they fit together",
    },
    "prefill with another template": {"verify": "template|prompt tokens", "diagnose": AT_START},
    "decode prefills again": {
        "compare": r"no KV moved",
        "verify": r"no KV cache crossed the wire",
        "attribute": r"took over no KV cache",
        "path proof": r"no KV moved",
    },
    "one of two with int3": ONE_OF_TWO,
    "one of two with W8A8": {"verify": r"OTHER NUMERICS"},
    "one of two with KV fp8": {
        "compare": r"generation server generation_1: .* failed at first",
        "verify": r"KV transfer of generation_\d .* failed",
        "diagnose": r"generation (server )?generation_1\b",
        "attribute": r"generation server .* failed, the others 0",
        "path proof": r"KV transfer of generation_1 .* failed",
    },
    "decode restarted with int3": {
        "compare": r"generation_0",
        "verify": r"found in .*another model",
        "diagnose": r"generation_0 can no longer be reached",
        "attribute": r"alone\W+server .* wrong, the others",
        "load": r"changed over time|generation_0",
    },
    "prefill killed": {
        "compare": r"context_0",
        "verify": r"context",
        "attribute": r"context",
        "load": r"context_0",
    },
    "prefix cache off": {"path proof": r"prefix_cache refuted"},
    "no draft accepted": {
        "compare": r"speculation accepted nothing",
        "path proof": r"speculation refuted",
    },
}
"""For a fault, the commands that can name it, each with a pattern of its output."""
