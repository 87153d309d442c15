"""Build the request for a sample from its task and the sample's overrides. Pure."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.schema import Request, Sample, Task


def request_of(task: Task, sample: Sample) -> Request:
    """Return the request for one sample."""
    own, sampling, extra = sample.override, task.sampling, task.extra
    if own is not None:
        max_tokens = sampling.max_tokens if own.max_tokens is None else own.max_tokens
        stop = sampling.stop if own.stop is None else own.stop
        sampling = replace(sampling, max_tokens=max_tokens, stop=stop)
        extra = {**extra, **own.extra}
    return Request(
        sample_id=sample.id,
        prompt=sample.prompt,
        sampling=sampling,
        extra=extra,
        prompt_logprobs=task.prompt_logprobs,
    )
