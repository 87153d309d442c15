"""Build the request for a sample from its task and the sample's overrides. Pure."""

from __future__ import annotations

import zlib
from dataclasses import replace

from serve_eval.schema import Request, Sample, Task


def request_of(task: Task, sample: Sample) -> Request:
    """Return the request for one sample."""
    own, sampling, extra = sample.override, task.sampling, task.extra
    if own is not None:
        sampling = own.limit(sampling)
        extra = {**extra, **own.extra}
    if sampling.seed is not None and sampling.temperature != 0:
        sampling = replace(sampling, seed=derive_seed(sampling.seed, sample.id))
    return Request(
        sample_id=sample.id,
        prompt=sample.prompt,
        sampling=sampling,
        extra=extra,
        prompt_logprobs=task.prompt_logprobs,
    )


def derive_seed(seed: int, sample_id: str) -> int:
    """Return the seed of the request for a sample, or for a repeat of it, from that of the run.

    An engine starts its random numbers again for each request. With one seed for all, every prompt
    would be answered by the same numbers: at temperature .8 the values of 15 such runs had a
    standard deviation of 8.8 points where independent answers have 3.3. The same seed and sample
    give the same request on every side of a comparison.
    """
    return zlib.crc32(f"{seed}:{sample_id}".encode()) & 0x7FFFFFFF
