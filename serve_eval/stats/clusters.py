"""Number the clusters of prompts: groups whose prompts may be answered right or wrong together.

Questions about one passage share its misreading, utterances of a speaker his accent. Every test
that takes such prompts for independent counts one mistake several times (Miller 2024, "Adding Error
Bars to Evals", section 2.2; Cameron and Miller 2015, "A Practitioner's Guide to Cluster-Robust
Inference"). Here the cluster is the unit instead: its sides are exchanged, its differences summed,
as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence


def cluster_keys(names: Sequence[str]) -> list[Hashable] | None:
    """Return a key per prompt, the same for prompts of one name; None if no two share a name.

    A prompt without a name is a cluster of its own.
    """
    named = Counter(name for name in names if name)
    if not any(count > 1 for count in named.values()):
        return None
    return [name or place for place, name in enumerate(names)]


def two_sided_p(signs: Sequence[int], names: Sequence[str]) -> float:
    """Return the exact two-sided p of "as many prompts change upwards as downwards".

    `signs` has -1 or 1 for each prompt that changed. The signs of a cluster are flipped together;
    for independent prompts this is McNemar's test.
    """
    from serve_eval.stats.mcnemar import mcnemar
    from serve_eval.stats.permutation import sign_flip_test

    keys = cluster_keys(names)
    if keys is None:
        down = sum(sign < 0 for sign in signs)
        return mcnemar(down, len(signs) - down).p_exact_two_sided
    net = Counter[Hashable]()
    for key, sign in zip(keys, signs, strict=True):
        net[key] += sign
    sums = [float(one) for one in net.values()]
    sides = (sums, [-one for one in sums])
    return min(1.0, 2.0 * min(sign_flip_test(side).p_exact for side in sides))
