"""Compare the answers of each pair with those of its two servers alone: the transfer between them.

If both servers answer a prompt right alone and the pair does not, the transfer of the KV cache, or
how the two fit together, is at fault. One context and one generation server are enough for this.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from serve_eval.evidence.attribution.bad_workers import WRONG, wrong
from serve_eval.schema import Attribution, Task, WorkerShare
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.multiplicity import holm
from serve_eval.workflows.attribute.answers import PhaseAnswers

TRANSFER = "transfer"
"""The role of a pair that is compared with its two servers alone."""
Bad = dict[tuple[str, ...], dict[str, bool]]
"""True for each prompt with a bad answer, else False, by the servers that took part."""


def judge_transfer(
    alone: PhaseAnswers, in_pairs: PhaseAnswers, tasks: Mapping[str, Task], alpha: float
) -> Attribution:
    """Return a row for each pair whose two servers also answered alone.

    p is that of McNemar's exact test over the prompts, one-sided: that the pair is no worse than a
    server of it alone. It is the larger of the two servers', so that a pair with one bad server is
    not accused, then corrected by Holm over the pairs. With equal servers and a sound transfer, any
    pair is accused with probability at most `alpha`: the answers of a pair and of a server alone
    are then exchangeable on each prompt.
    """
    of_alone, of_pairs = find_bad([alone, in_pairs], tasks)
    found = [
        row
        for pair, bad in sorted(of_pairs.items())
        if (row := _row(pair, bad, of_alone)) is not None
    ]
    corrected = holm([row.p for row in found])
    rows = tuple(
        WorkerShare(
            worker=row.worker,
            role=row.role,
            measure=row.measure,
            answers=row.answers,
            bad=row.bad,
            others=row.others,
            others_bad=row.others_bad,
            p=row.p,
            p_holm=p,
            accused=p <= alpha,
        )
        for row, p in zip(found, corrected, strict=True)
    )
    asked = sum(len(bad) for bad in of_pairs.values())
    return Attribution(how="asked", joined=asked, planned=asked, alpha=alpha, rows=rows)


def _row(pair: tuple[str, ...], bad: Mapping[str, bool], alone: Bad) -> WorkerShare | None:
    """Return the row of a pair, against that of its servers alone which it exceeds less."""
    sides = []
    for server in pair:
        by_prompt = alone.get((server,), {})
        common = [prompt for prompt in bad if prompt in by_prompt]
        if not common:
            return None
        down = sum(bad[one] and not by_prompt[one] for one in common)
        up = sum(by_prompt[one] and not bad[one] for one in common)
        worse = sum(bad[one] for one in common)
        sides.append(
            (mcnemar(down, up).p_exact, len(common), worse, sum(by_prompt[one] for one in common))
        )
    p, common_prompts, of_pair, of_server = max(sides)
    return WorkerShare(
        worker=" + ".join(pair),
        role=TRANSFER,
        measure=WRONG,
        answers=common_prompts,
        bad=of_pair,
        others=common_prompts,
        others_bad=of_server,
        p=p,
        p_holm=p,
        accused=False,
    )


def find_bad(phases: Sequence[PhaseAnswers], tasks: Mapping[str, Task]) -> list[Bad]:
    """Return which answers of each phase are bad, by one rule for all."""
    found: list[Bad] = [{} for _ in phases]
    for name, task in tasks.items():
        answers = [phase.scores.get(name, []) for phase in phases]
        bad = iter(wrong([value for phase in answers for _, _, value in phase], task.metric))
        for into, phase in zip(found, answers, strict=True):
            for who, prompt, _ in phase:
                servers = tuple(one for one in who if one is not None)
                into.setdefault(servers, {})[prompt] = next(bad)
    return found
