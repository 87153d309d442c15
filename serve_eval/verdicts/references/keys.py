"""Keys of reference files, and how a specification reads in a line."""

from __future__ import annotations

from serve_eval.schema import AccuracySpec

SPEC_KEYS = ("dtype", "quant_algo", "kv_cache_quant_algo", "spec_dec_algo", "extra_acc_spec")
METRICS = ("accuracy", "wer", "perplexity", "rouge1", "pass_at_1")


def value_key(metric: str) -> str:
    """The key under which the value of a metric is written: its own, or `accuracy`, which stands
    for any.
    """
    return metric if metric in METRICS else "accuracy"


def spec_text(spec: AccuracySpec) -> str:
    """The values of a spec that are not the default, such as "quant_algo=FP8
    kv_cache_quant_algo=FP8", or "default".
    """
    default = AccuracySpec()
    values = {key: getattr(spec, key) for key in SPEC_KEYS}
    return (
        " ".join(
            f"{key}={value}" for key, value in values.items() if value != getattr(default, key)
        )
        or "default"
    )
