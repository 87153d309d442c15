"""Offer our client as a model of lm-evaluation-harness.

    python -P -m serve_eval.lm_eval_model run --model serve-eval \\
        --model_args base_url=host:8000,model=NAME --tasks ...

runs lm-eval's own command line with our model registered, since lm-eval cannot load external models
itself. From Python: `lm_eval.simple_evaluate(model=ServeEvalLM(base_url=..., model=...),
tasks=[...])`.
"""

from serve_eval.lm_eval_model.model import ServeEvalLM

__all__ = ["ServeEvalLM"]
