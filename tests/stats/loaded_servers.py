"""Simulate the times of answers at servers that get unlike amounts of work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy

from serve_eval.evidence.attribution.latency import Timed

SHORT, LONG, ANSWER = 200, 4000, 50
"""Tokens of prompts and of an answer. A generated token takes as long as ten of a prompt."""
IN_FLIGHT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A deployment of generation servers, and the work that each of them gets.

    Requests are dealt by `shares`. Of `prompts` (None: all are different), each goes to the server
    that its hash names. Long prompts, `long` of all, stick to server g0 if `sticky`, and so do all
    prompts that are not in a prefix cache if `cached`. A server works on all its requests at once,
    which share its speed, or on one after the other if `queued`. Server g1 is `slower` than others.
    Work varies by a log-normal factor of standard deviation `spread`.
    """

    shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    answers: int = 400
    prompts: int | None = None
    long: float = 0.0
    sticky: bool = False
    cached: bool = False
    queued: bool = False
    slower: float = 1.0
    spread: float = 0.5


def serve(random: numpy.random.Generator, setting: Served) -> list[Timed]:
    """Return the times of all answers of a run that keeps IN_FLIGHT requests in flight."""
    n, servers = setting.answers, len(setting.shares)
    prompts = setting.prompts or n
    prompt = numpy.arange(n) % prompts
    home = random.choice(servers, size=prompts, p=setting.shares)
    is_long = random.random(prompts) < setting.long
    if setting.sticky:
        home = numpy.where(is_long, 0, random.integers(1, servers, size=prompts))
    computed = numpy.where(is_long, LONG, SHORT)
    if setting.cached:
        computed = numpy.where(home == 0, SHORT, SHORT // 10)
    hard = numpy.exp(setting.spread * random.standard_normal(prompts))
    work = (computed[prompt] / 10 + ANSWER) * hard[prompt]
    work *= numpy.exp(0.2 * random.standard_normal(n))
    server = home[prompt]
    speed = numpy.where(numpy.arange(servers) == 1, 1.0 / setting.slower, 1.0)
    taken, started = _pass(server, work / 1000, speed, queued=setting.queued)
    return [
        Timed(
            "c0",
            f"g{server[i]}",
            f"{prompt[i]}",
            float(taken[i]),
            ANSWER,
            int(computed[prompt[i]]),
            float(started[i]),
        )
        for i in range(n)
    ]


def _pass(
    server: numpy.ndarray, work: numpy.ndarray, speed: numpy.ndarray, *, queued: bool
) -> tuple[numpy.ndarray, numpy.ndarray]:
    """Return the seconds that each request takes, and its start."""
    n, now = len(server), 0.0
    taken, started, left = numpy.zeros(n), numpy.zeros(n), work.astype(float).copy()
    at: list[list[int]] = [[] for _ in speed]
    sent = 0
    while True:
        while sent < n and sum(map(len, at)) < IN_FLIGHT:
            at[server[sent]].append(sent)
            started[sent] = now
            sent += 1
        ends = []
        for place, here in enumerate(at):
            if here:
                done = here[0] if queued else min(here, key=lambda i: left[i])
                pace = speed[place] if queued else speed[place] / len(here)
                ends.append((left[done] / pace, place, done))
        if not ends:
            return taken, started
        step, where, first = min(ends)
        for place, here in enumerate(at):
            for i in here[:1] if queued else here:
                left[i] -= step * speed[place] / (1 if queued else len(here))
        now += step
        taken[first] = now - started[first]
        at[where].remove(first)
