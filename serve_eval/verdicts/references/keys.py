"""Keys of reference files, and the one-line form of a specification."""

from __future__ import annotations

from serve_eval.schema import AccuracySpec

SPEC_KEYS = ("dtype", "quant_algo", "kv_cache_quant_algo", "spec_dec_algo", "extra_acc_spec")
IMPORTED = "imported: "
"""Beginning of the source of a reference that was imported from results of another tool."""
METRICS = ("accuracy", "wer", "perplexity", "rouge1", "pass_at_1")


def value_key(metric: str) -> str:
    """Return the key of a metric's value: its own name, or `accuracy` for any other metric."""
    return metric if metric in METRICS else "accuracy"


def spec_text(spec: AccuracySpec) -> str:
    """Return the values of a spec that differ from the default, or "default".

    For example "quant_algo=FP8 kv_cache_quant_algo=FP8".
    """
    default = AccuracySpec()
    values = {key: getattr(spec, key) for key in SPEC_KEYS}
    return (
        " ".join(
            f"{key}={value}" for key, value in values.items() if value != getattr(default, key)
        )
        or "default"
    )
