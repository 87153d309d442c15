"""Record the requests that lm-eval sends to the embedded model, as a gateway would.

    python -m tests.recorded.lm_eval_requests OUT.jsonl LM_EVAL [COUNT]

LM_EVAL is the command of an environment with lm-eval and transformers. It asks word problems by
local-chat-completions and local-completions, and by log-probabilities two choices of each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from serve_eval.launchers.embedded import WEIGHTS
from tests.recorded.make_requests import list_problems, record

COMMON = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
GENERATED = """
task: words
output_type: generate_until
doc_to_target: "0"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 60}
metric_list: [{metric: exact_match}]
"""
CHOSEN = """
task: choices
output_type: multiple_choice
doc_to_choice: [" 12", " 13"]
doc_to_target: 0
metric_list: [{metric: acc}]
"""


def write_tasks(folder, count):
    """Write two tasks with word problems as their data."""
    data = folder / "data.jsonl"
    problems = list_problems(count, 11)
    data.write_text("".join(json.dumps({"question": one}) + "\n" for one in problems))
    for name, text in (("words", GENERATED), ("choices", CHOSEN)):
        (folder / f"{name}.yaml").write_text(text + COMMON.format(data=data))


def ask(command, folder, kind, url, task):
    """Run one task by one of the models of lm-eval."""
    chat = "chat" in kind
    path = "/chat/completions" if chat else "/completions"
    tokenizer = "" if chat else f",tokenizer={WEIGHTS},tokenizer_backend=huggingface"
    subprocess.run(
        [
            *(command, "run", "--model", kind, "--tasks", task, "--include_path", folder),
            *("--model_args", f"model=embedded,base_url={url}{path},num_concurrent=4{tokenizer}"),
            *(["--apply_chat_template"] if chat else []),
        ],
        check=True,
        env={"OPENAI_API_KEY": "none", "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
    )


def make_requests(out, command, count=60):
    """Write the requests of three runs to a file, in the order of their arrival."""

    def send(url):
        with tempfile.TemporaryDirectory() as folder:
            write_tasks(Path(folder), count)
            for kind, task in (
                ("local-chat-completions", "words"),
                ("local-completions", "words"),
                ("local-completions", "choices"),
            ):
                ask(command, folder, kind, url, task)

    return record(out, send)


if __name__ == "__main__":
    wanted = int(sys.argv[3]) if len(sys.argv) > 3 else 60
    print(f"{make_requests(sys.argv[1], sys.argv[2], wanted)} requests in {sys.argv[1]}")
