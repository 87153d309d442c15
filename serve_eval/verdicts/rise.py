"""Test a rise, of which a verdict has no p: its own is that of "no drop"."""

from __future__ import annotations

from serve_eval.schema import PairedComparison


def find_rise_p(paired: PairedComparison) -> float:
    """Return the one-sided p of "no rise"; 1 if there is none, or if it cannot be tested.

    1 - p would ignore ties, which count on both sides. With one run of right or wrong answers on
    each side it is McNemar's mid-p, else that of the paired t test.
    """
    if paired.difference <= 0.0:
        return 1.0
    single = paired.reference_runs == paired.candidate_runs == 1 and paired.inflation == 1.0
    if single and paired.down is not None and paired.up is not None:
        from serve_eval.stats.mcnemar import mcnemar

        return mcnemar(paired.up, paired.down).p_mid
    if not paired.se:
        return 1.0
    from serve_eval.stats.paired_t import PairedT

    return PairedT(-paired.difference, paired.se, paired.df or max(1, paired.pairs - 1)).p
