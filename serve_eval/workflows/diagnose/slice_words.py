"""Put a finding about a slice into words, with the server's sizes that fit it.

They come from the command lines of servers that the run started, their config files, and what
servers report of themselves. An advice about a length fits a server only if one of its sizes does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from serve_eval.schema import ServerInfo
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.workflows.diagnose import candidates
from serve_eval.workflows.diagnose.breakdown import describe_verify
from serve_eval.workflows.diagnose.candidates import Slice
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    OTHER_MODEL,
    WEIGHTS,
    AskedSample,
    Finding,
    capsule_of,
)

if TYPE_CHECKING:
    from serve_eval.stats.largest_statistic import FoundSlice


BLOCKS, CHUNKS, WINDOWS = "blocks", "chunked prefill", "attention window or rope scaling"
NAMES = {
    "tokens_per_block": BLOCKS,
    "block_size": BLOCKS,
    "max_num_tokens": CHUNKS,
    "max_num_batched_tokens": CHUNKS,
    "long_prefill_token_threshold": CHUNKS,
    "sliding_window": WINDOWS,
    "max_attention_window": WINDOWS,
    "original_max_position_embeddings": WINDOWS,
    "max_position_embeddings": WINDOWS,
}
"""Names of sizes in configs, and in command lines with dashes, and the mechanism of each."""
FITS = 0.1
"""Share by which the length at which a slice begins may differ from a size: a chat template adds
tokens, and not every length occurs."""


def find_sizes(info: ServerInfo) -> dict[str, set[int]]:
    """Return the known sizes by their mechanism."""
    found: dict[str, set[int]] = {}
    for name, size in _list_sizes(info):
        found.setdefault(NAMES[name], set()).add(size)
    return found


def list_fitting(length: int, sizes: Mapping[str, set[int]]) -> list[str]:
    """Return the mechanisms that begin at about a length: a chunk or a window of that size."""
    return [
        name
        for name in (CHUNKS, WINDOWS)
        if any(abs(length - size) <= FITS * size for size in sizes.get(name, ()))
    ]


def is_multiple(modulus: int, sizes: Mapping[str, set[int]]) -> bool:
    """Return True if blocks or chunks of a known size begin at a multiple of the modulus."""
    return any(size % modulus == 0 for name in (BLOCKS, CHUNKS) for size in sizes.get(name, ()))


def _list_sizes(info: ServerInfo) -> Iterator[tuple[str, int]]:
    for words in info.commands or ():
        yield from _read_words(words)
    for server in info.workers:
        for told in (server.config, server.server_info):
            yield from _read_values(told)


def _read_words(words: Sequence[str]) -> Iterator[tuple[str, int]]:
    for word, after in pairwise([*words, ""]):
        name, _, value = word.lstrip("-").partition("=")
        name, value = name.replace("-", "_"), value or after
        if word.startswith("-") and name in NAMES and value.isdecimal():
            yield name, int(value)


def _read_values(told: Any) -> Iterator[tuple[str, int]]:
    if isinstance(told, Mapping):
        for name, value in told.items():
            if name in NAMES:
                values = value if isinstance(value, list) else [value]
                yield from ((name, one) for one in values if _is_size(one))
            yield from _read_values(value)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


RULE = "slice"
SHOWN = 3
"""Number of sample ids in a finding."""
ELSEWHERE_LEVEL, ELSEWHERE_SHARE = 0.01, 0.25
"""Level of a loss outside a slice, and its least share of the loss per sample inside."""
_ADVICE = {
    candidates.WORKER: ("{attribute}", "restart that server, or take it out"),
    candidates.PAIR: (
        "{attribute}",
        "check the transfer of KV caches between these two servers",
    ),
    candidates.CACHED: (
        "serve-eval check invariants {url}, rows cold and warm",
        "a server without prefix cache (trtllm-serve: enable_block_reuse: false; vLLM:"
        " --no-enable-prefix-caching)",
    ),
    candidates.RESIDUE: ("serve-eval check invariants {url}",),
    candidates.LOAD: ("--concurrency 1, then a higher one", "--max_batch_size of the server"),
    candidates.PLACE: (
        "restart the server and ask again",
        "read the logs of the servers from that time on",
    ),
    candidates.STREAM: ("--set limits.stream=false",),
    candidates.STEPS: ("compare with a server without speculative decoding",),
}
_BLOCK_ADVICE = (
    "compare with a server of another block or chunk size (trtllm-serve: tokens_per_block,"
    " --max_num_tokens; vLLM: --block-size)"
)
_LENGTH_ADVICE = {
    CHUNKS: (
        "serve-eval check invariants {url} --tasks word_problems, row chunks",
        "compare with a server without chunked prefill",
    ),
    WINDOWS: ("compare with the model's own attention window and rope scaling",),
}
"""Advice about a length at which something of the server begins."""


def report_slice(
    run: Evidence,
    task: TaskEvidence,
    one: Slice,
    named: FoundSlice,
    asked: Sequence[AskedSample],
    fell: Collection[int] | None,
    *,
    leads: bool = True,
    good: str = "GOOD",
) -> Finding:
    """Return the finding about a slice.

    `fell` are the places of the samples with a lower score than in the reference; None: there is no
    reference. Without `leads`, many answers turned right too, as with another model. `good` is the
    address of a server to compare with.
    """
    places = one.inside.nonzero()[0].tolist()
    inside = [asked[i] for i in places]
    if fell is None:
        lost = [sample for sample in inside if sample.lost]
    else:
        lost = [asked[i] for i in places if i in fell]
    told = _describe(task, one, named, len(inside), len(asked), paired=fell is not None)
    change = (*_advise(run, one, good), capsule_of(run, task, lost))
    rather = ""
    if fell is not None and _lose_elsewhere(named, len(inside), len(asked)):
        more, less = named.all_lost - named.lost, named.all_gained - named.gained
        told += (
            f"; the others lose score too ({more} lost, {less} gained), so {WEIGHTS} are likelier"
            " than a fault of these samples"
        )
        rather = WEIGHTS
        change = tuple(dict.fromkeys((describe_verify(run, good), *change)))
    if not leads:
        told += f"; {OTHER_MODEL}"
    return Finding(
        RULE,
        told,
        change=change,
        count=named.lost,
        of=named.all_lost,
        explains=sum(sample.lost for sample in lost),
        lost=len(task.lost),
        task=task.name,
        samples=tuple([sample.id for sample in lost if sample.shown][:SHOWN]),
        p=named.p,
        p_below=named.p <= named.least_p,
        rather=rather,
        leads=leads,
    )


def _lose_elsewhere(named: FoundSlice, size: int, n: int) -> bool:
    """Return True if the samples outside a slice lose a good part of what those inside lose."""
    lost, gained = named.all_lost - named.lost, named.all_gained - named.gained
    outside, inside = (lost - gained) / (n - size), (named.lost - named.gained) / size
    clear = lost > gained and mcnemar(lost, gained).p_exact <= ELSEWHERE_LEVEL
    return clear and outside >= ELSEWHERE_SHARE * inside


def _describe(
    task: TaskEvidence, one: Slice, named: FoundSlice, size: int, n: int, *, paired: bool
) -> str:
    if paired:
        told = (
            f"{one.told}: {named.lost} of the {named.all_lost} prompts that lost score, and"
            f" {named.gained} of the {named.all_gained} that gained, in {size / n:.1%} of the"
            " samples"
        )
    else:
        told = (
            f"{one.told}: {named.lost} of {size} are wrong or missing, compared with"
            f" {named.all_lost - named.lost} of {n - size} others"
        )
    if one.kind in (candidates.WORKER, candidates.PAIR) and not paired:
        told += "; a router may send it the prompts of hard subjects"
    if task.repeats > 1:
        told += " (first answers only)"
    return told


def _advise(run: Evidence, one: Slice, good: str) -> tuple[str, ...]:
    advice = _ADVICE.get(one.kind, ())
    sizes = find_sizes(run.info)
    if one.kind == candidates.LENGTH and one.edge is not None:
        fitting = list_fitting(one.edge, sizes)
        advice = tuple(text for name in fitting for text in _LENGTH_ADVICE[name])
        if not advice:
            return (describe_verify(run, good),)
    if one.kind == candidates.RESIDUE and one.edge is not None and is_multiple(one.edge, sizes):
        advice = (_BLOCK_ADVICE, *advice)
    return tuple(text.format(attribute=run.attribute, url=run.address) for text in advice)
