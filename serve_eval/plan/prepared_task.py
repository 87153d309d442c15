"""Hold a task that is ready to run: its data and its reference."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from serve_eval.plan.shard import ShardPart
from serve_eval.schema import Dataset, Hypothesis, Need, Reference, Sample, Spec, Task
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
