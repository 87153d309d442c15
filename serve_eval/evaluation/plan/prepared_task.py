"""Hold a task that is ready to be asked: its data, and what it will be compared with."""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.schema import Dataset, Hypothesis, Need, Reference, Sample, Spec, Task
from serve_eval.verdicts.below_reference import Expected, of_reference
from serve_eval.verdicts.references import AcceptanceLength


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedTask:
    """A task with its data and what it will be compared with.

    `hypothesis` has the reference's overrides applied and its `num_samples` set to the n of the
    formula. The value of `reference` is that of the prompts in `dataset` where its scores per
    sample are known, and a note says so; None comes with the reason in `why_no_reference`.
    `protocol` says how well the reference's own is known. `acceptance` is what the acceptance
    length is compared with, where the task names an entry. `earlier` is what a finished run lets
    expect that this one is compared with: it stands in for the reference's scores. `wanted` is what
    the task's `load` was asked for.
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
    acceptance: AcceptanceLength | None = None
    earlier: Expected | None = None
    wanted: int = 0

    @property
    def expected(self) -> Expected | None:
        """Return what earlier runs tell of each prompt's score; None where nothing does."""
        return self.earlier or of_reference(self.task.metric, self.dataset, self.reference)

    @property
    def chat(self) -> bool:
        return not isinstance(self.dataset.samples[0].prompt, str)

    @property
    def needs(self) -> frozenset[Need]:
        """What the endpoint must be able to do: what the task declares, and what its first request
        tells.
        """
        task, prompt = self.task, self.dataset.samples[0].prompt
        needs = {*task.requires, Need.CHAT if self.chat else Need.COMPLETIONS}
        if task.prompt_logprobs:
            needs.add(Need.PROMPT_LOGPROBS)
        if self.dataset.samples[0].choices:
            needs.add(Need.CONTINUATION_LOGPROBS)
        if task.prompt_logprobs and any(lacks_context(sample) for sample in self.dataset.samples):
            needs.add(Need.FIRST_TOKEN)
        if not isinstance(prompt, str) and any(turn.images for turn in prompt):
            needs.add(Need.IMAGES)
        return frozenset(needs)


def lacks_context(sample: Sample) -> bool:
    """Return True for a sample of which a choice is judged with nothing before it."""
    return bool(sample.choices) and not sample.prompt and (not sample.heads or "" in sample.heads)
