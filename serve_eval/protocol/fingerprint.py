"""Compute the protocol fingerprint of a task: every field that decides what its number means.

Two results are comparable if their fingerprints are equal. If they are not, the differing fields
can be named.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec
from msgspec import UNSET

from serve_eval.schema import MEAN, Dataset, Sample, Task
from serve_eval.schema.media import put_checksums

KEY_BYTES = 6
"""Bytes of hash per sample: two of 14042 samples collide once in three million data sets."""

SCORER_OPTIONS = "scorer_options"
"""Field of the options that scorers of cases have. `samples` depends on them too."""
SERVER_ADDS = "server_adds"
"""Field with the sampling fields that the server adds and that nothing replaces. It is present only
if there are some, and known only once the endpoint is probed."""
ROUTE = "route"
"""Field with the route of prompts that are messages. It is present only if it is not chat's."""
CASES = "cases"
"""Field of a reference with the number of cases and a checksum of their expected values."""


def fingerprint(task: Task, dataset: Dataset) -> dict[str, str]:
    """Return the fields with their values in canonical JSON.

    `samples` is the number of samples and a checksum of ids, prompts, targets, choices and
    overrides. It depends on what is asked, not on the format and the place of the files.
    `aggregation` is present if the value is not the mean of the scores.
    """
    content = hashlib.sha256()
    for sample in dataset.samples:
        content.update(_content(sample))
    aggregation = {} if task.aggregation is MEAN else {"aggregation": task.aggregation.name}
    return {
        "task": task.name,
        "version": str(task.version),
        **{name: canonical(value) for name, value in task.protocol.items()},
        **aggregation,
        "samples": f"{len(dataset.samples)} sha256:{content.hexdigest()}",
    }


def sample_key(sample: Sample) -> bytes:
    """Return KEY_BYTES that identify a sample: its id, what is asked and what is expected."""
    return hashlib.sha256(_content(sample)).digest()[:KEY_BYTES]


def _content(sample: Sample) -> bytes:
    prompt = sample.prompt
    if not isinstance(prompt, str):
        prompt = tuple(map(put_checksums, prompt))
    content = msgspec.json.encode((sample.id, prompt, sample.target))
    if sample.override is not None:
        content += msgspec.json.encode(sample.override, order="sorted")
    if sample.recorded is not UNSET:
        content += msgspec.json.encode(sample.recorded, order="sorted")
    if sample.choices:
        content += msgspec.json.encode(sample.choices)
    if (talk := sample.conversation) is not None:
        turns = [(put_checksums(one.message), one.results) for one in talk.turns]
        content += msgspec.json.encode((turns, talk.results, talk.rounds), order="sorted")
    return content + msgspec.json.encode(sample.heads) if sample.heads else content


def canonical(value: object) -> str:
    """Return the JSON of a value with sorted keys, so that equal values have equal texts."""
    return msgspec.json.encode(value, order="sorted").decode()


def protocol_differences(run: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names of the fields of `other` in which `run` differs, in the order of `other`."""
    return [name for name, value in other.items() if name not in run or run[name] != value]
