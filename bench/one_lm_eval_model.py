"""Measure lm-eval's call of a model alone.

Run `python bench/one_lm_eval_model.py serve-eval --base-url URL --prompts FILE`. It prints one JSON
line: wall and CPU seconds of the call, after the imports and the creation of the model, and the
number of answers that end as expected.
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cores import CLIENT, pin, raise_open_files
from one_client import Phase

GIVEN = {
    "until": ["Question:", "</s>", "<|im_end|>"],
    "do_sample": False,
    "temperature": 0.0,
    "max_gen_toks": 256,
}


def made(name: str, base_url: str, concurrency: int) -> Any:
    """Return the model with `concurrency` requests in flight."""
    if name == "serve-eval":
        from serve_eval.lm_eval_model import ServeEvalLM

        return ServeEvalLM(base_url=base_url, model="m", concurrency=concurrency)
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        base_url=f"{base_url}/completions",
        model="m",
        num_concurrent=concurrency,
        max_retries=1,
        tokenized_requests=False,
        tokenizer_backend=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=("serve-eval", "local-completions"))
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--concurrency", type=int, required=True)
    given = parser.parse_args()
    pin(CLIENT)
    raise_open_files()
    logging.disable()
    prompts = [json.loads(line)["prompt"] for line in given.prompts.open(encoding="utf-8")]
    requests = [
        SimpleNamespace(args=(prompt, dict(GIVEN)), task_name="t", doc_id=i)
        for i, prompt in enumerate(prompts)
    ]
    model = made(given.name, given.base_url, given.concurrency)
    with Phase() as phase:
        answers = model.generate_until(requests)
    ok = sum(answer.endswith("#### 42") for answer in answers)
    print(json.dumps({"ok": ok, "wall_s": phase.wall_s, "cpu_s": phase.cpu_s}))


if __name__ == "__main__":
    main()
