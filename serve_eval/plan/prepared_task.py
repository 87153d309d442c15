"""Hold a task that is ready to run: its data, reference, and the requests for its samples."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from serve_eval.plan.chosen_samples import ShardPart
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Need,
    Plan,
    Reference,
    Request,
    Sample,
    Spec,
    Task,
)
from serve_eval.schema.media import list_media_needs
from serve_eval.verdicts.below_reference import Expected, of_reference
from serve_eval.verdicts.references import AcceptanceLength

CLASSIC = Spec(name="classic")
"""The rule that judges where no other is chosen and no scores are known."""


@dataclass(frozen=True, kw_only=True)
class PreparedTask:
    """A task with its data and the values that it will be compared with.

    * `hypothesis` includes the reference's overrides, and its `num_samples` is the n of the
      formula.
    * `reference` has the value of the prompts in `dataset` if its scores per sample are known,
      and then a note says so.
    * `why_no_reference` is the reason if there is no reference.
    * `protocol` says how well the protocol of the reference is known.
    * `acceptance` is the reference for the acceptance length, if the task names an entry.
    * `earlier` holds the scores expected from a finished run that this run is compared with. It
      replaces the scores of the reference.
    * `rule` is the verdict rule that judges the task, with its options.
    * `wanted` is the number of samples that the task's `load` was asked for.
    * `part` is set for a shard, whose samples are all that `dataset` holds.
    """

    spec: Spec
    task: Task
    dataset: Dataset
    fingerprint: dict[str, str]
    hypothesis: Hypothesis
    reference: Reference | None
    why_no_reference: str | None
    protocol: str | None
    notes: tuple[str, ...]
    rule: Spec = CLASSIC
    acceptance: AcceptanceLength | None = None
    earlier: Expected | None = None
    wanted: int = 0
    part: ShardPart | None = None

    @property
    def expected(self) -> Expected | None:
        """The score of each prompt expected from earlier runs, or None if nothing is known."""
        return self.earlier or of_reference(self.task.metric, self.dataset, self.reference)

    @property
    def chat(self) -> bool:
        return not isinstance(self.dataset.samples[0].prompt, str)

    @property
    def conversations(self) -> bool:
        """True if a sample goes on after its first answer."""
        return any(sample.conversation is not None for sample in self.dataset.samples)

    @cached_property
    def needs(self) -> frozenset[Need]:
        """Abilities that the endpoint needs, from the task's declaration and from its samples."""
        task = self.task
        needs = {*task.requires, Need.CHAT if self.chat else Need.COMPLETIONS}
        if task.prompt_logprobs:
            needs.add(Need.PROMPT_LOGPROBS)
        if self.dataset.samples[0].choices:
            needs.add(Need.CONTINUATION_LOGPROBS)
        for sample in self.dataset.samples:
            if not isinstance(sample.prompt, str):
                needs |= list_media_needs(sample.prompt)
            if task.prompt_logprobs and lacks_context(sample):
                needs.add(Need.FIRST_TOKEN)
        return frozenset(needs)


def lacks_context(sample: Sample) -> bool:
    """Return True if a choice of the sample is judged without any text before it."""
    return bool(sample.choices) and not sample.prompt and (not sample.heads or "" in sample.heads)


DATASET = "dataset"
"""Name in `allow_mismatch` that accepts data other than the published set, or a part of it."""


def find_roots(plan: Plan) -> DataRoots:
    """Return the places where the tasks of a plan look for their data."""
    return DataRoots(
        roots=tuple(map(Path, plan.dataset_roots)),
        allow_hub=plan.allow_hub,
        allow_fewer=DATASET in plan.allow_mismatch,
    )


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
        recorded=sample.recorded,
    )


def derive_seed(seed: int, sample_id: str) -> int:
    """Return the seed of the request for a sample, or for a repeat of it, from that of the run.

    An engine starts its random numbers again for each request. With one seed for all, every prompt
    would be answered by the same numbers: at temperature .8 the values of 15 such runs had a
    standard deviation of 8.8 points where independent answers have 3.3. The same seed and sample
    give the same request on every side of a comparison.
    """
    return zlib.crc32(f"{seed}:{sample_id}".encode()) & 0x7FFFFFFF
