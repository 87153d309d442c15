"""Hash what every task asks, over whole sets; `make golden-prompts` updates the file.

Run it after an intended change.

For every task, with every option that changes its requests, golden_prompts.json holds the hash over
the requests and the targets of the samples. It covers the data of made_data, and the real sets if
they are next to the checkout. For made data it also holds the first request, so that a difference
can be read; real sets are not ours to print.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.datasets.generated import write_gsm8k, write_humaneval, write_mmlu
from serve_eval.errors import DatasetError
from serve_eval.plan.prepared_task import request_of
from serve_eval.plugins import registry
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, MediaFile, Spec
from serve_eval.tasks.mmlu import SUBJECTS
from tests.root import ROOT
from tests.tasks.made_data import NAMES, spec_of, write_all
from tests.tasks.mistakes import Mistake, blame

FILE = Path(__file__).with_name("golden_prompts.json")
SHARED = ROOT.parent / "shared" / "data"
CASES = Path(__file__).with_name("golden_cases.yaml")
SHOWN = 1500
"""Characters of the first request that are kept."""

OPTIONS = {
    "aime": [{"year": 2024}, {"year": 2026}, {"random_seed": 1}, {"suite_exact": True}],
    "bfcl": [
        {"mode": "prompt"},
        {"categories": ["parallel", "live_simple"]},
        {"random_seed": 1},
    ],
    "cases": [
        {"prompt": "Name the capital of ${country}."},
        {"system_messages": ["You know capitals."]},
    ],
    "cnn_dailymail": [{"random_seed": 1}],
    "covost2": [{"lang_pair": "de_en", "num_samples": 12}, {"random_seed": 1}],
    "livecodebench": [{"start_date": "2024-01-01"}, {"end_date": "2024-05-12"}],
    "gpqa": [
        {"subset": "main", "num_samples": 12},
        {"subset": "extended", "num_samples": 12},
        {"random_seed": 1},
        {"choice_seed": 1},
        {"suite_exact": True},
    ],
    "gsm8k": [
        {"num_fewshot": 0},
        {"apply_chat_template": True},
        {"apply_chat_template": True, "fewshot_as_multiturn": True},
        {"random_seed": 1},
        {"apply_chat_template": True, "suite_exact": True},
        {"apply_chat_template": True, "fewshot_sampler": "0.4.10"},
    ],
    "gsm8k_inferencemax": [
        {"num_fewshot": 2},
        {"fewshot_as_multiturn": False},
        {"fewshot_as_multiturn": False, "fewshot_sampler": "0.4.10"},
        {"apply_chat_template": False, "fewshot_as_multiturn": False},
        {"random_seed": 1},
        {"suite_exact": True},
    ],
    "gsm8k_inferencex": [
        {"num_fewshot": 2},
        {"fewshot_as_multiturn": False},
        {"fewshot_as_multiturn": False, "fewshot_sampler": "0.4.10"},
        {"apply_chat_template": False, "fewshot_as_multiturn": False},
        {"random_seed": 1},
        {"suite_exact": True},
    ],
    "humaneval": [
        {"metric": "pass@1"},
        {"metric": "pass@1", "apply_chat_template": True},
        {"stop": ["\nclass"]},
    ],
    "json_mode_eval": [
        {"response_format": "json_schema"},
        {"response_format": "none"},
        {"random_seed": 1},
    ],
    "long_context": [
        {"lengths": [1024, 4096], "kinds": ["niah_multikey_3", "vt", "cwe", "fwe"]},
        {"samples_per_cell": 1},
        {"lengths": [2048], "haystack": "essay"},
        {"lengths": [2048], "kinds": ["qa_1", "qa_2"]},
        {"lengths": [2048], "kinds": ["vt", "fwe"], "sizes": {"vt": [9], "fwe": [99] * 5}},
        {"lengths": [2048], "random_seed": 1},
    ],
    "longbench_v1": [{"sets": ["trec", "lcc"]}, {"suite_exact": True}, {"random_seed": 1}],
    "longbench_v2": [{"length": "short", "num_samples": 2}, {"max_input_chars": 600}],
    **{
        f"mixed_modality_{name}{alone}": [
            {"send": "frames", "num_frames": 2, "frame_format": "jpeg", "random_seed": 1}
        ]
        for name in ("omni", "qwen_vl", "video_audio_omni")
        for alone in ("", "_alone")
    },
    "mmlu": [
        {"num_fewshot": 2},
        {"none_cells": "none"},
        {"random_seed": 1},
        {"scoring": "loglikelihood"},
    ],
    "mmlu_pro": [
        {"num_fewshot": 0},
        {"num_fewshot": 0, "apply_chat_template": True},
        {"num_samples": 50, "num_fewshot": 2},
        {"num_samples": 50, "random_seed": 1},
        {"num_samples": 50, "apply_chat_template": True},
    ],
    "mmmu": [
        {"subjects": ["Art", "Math"]},
        {"interleaved": True},
        {"single_image": True},
        {"random_seed": 1},
    ],
    "mmmu_pro": [
        {"num_samples": 50, "subset": "standard_4"},
        {"num_samples": 50, "prompt": "cot"},
        {"num_samples": 50, "interleaved": True},
        {"num_samples": 50, "single_image": True},
        {"num_samples": 50, "random_seed": 1},
    ],
    "passkey_lines": [{"lines": 30}, {"random_seed": 1}],
    "passkey_retrieval_128k": [{"depths": "all"}, {"random_seed": 1}],
    "passkey_retrieval_64k": [{"depths": "all"}, {"random_seed": 1}],
    "passkey_short": [{"sentences": 5}, {"apply_chat_template": True}, {"random_seed": 1}],
    "perplexity": [
        {"min_tokens": 14000, "num_samples": 40},
        {"max_input_tokens": 12000},
        {"random_seed": 1},
    ],
    "tool_calls": [{"kinds": ["regex", "structural_tag"]}, {"random_seed": 1}],
    "videomme": [{"num_frames": 2}, {"frame_format": "jpeg"}, {"send": "video"}],
    "voxpopuli": [],
    "word_problems": [
        {"num_fewshot": 3},
        {"apply_chat_template": True},
        {"random_seed": 1},
        {"scoring": "loglikelihood"},
    ],
    "word_problems_perplexity": [{"random_seed": 1}],
    "zero_scrolls": [{"random_seed": 1}],
}
"""Options that change the requests, by task; each task is also asked without options."""
OF_EVERY_TASK = [
    {
        "apply_chat_template": True,
        "system_prompt": "You are exact.",
        "max_tokens": 77,
        "temperature": 0.5,
        "top_p": 0.9,
    },
]
"""Options that every task takes, tried with gsm8k."""
ASK_THE_SAME = {
    "num_samples": "how many",
    "filter": "how answers are read",
    "post_process": "how answers are read",
    "timeout_s": "how long a program runs",
    "path": "where cases are",
    "name": "of a family's member",
    "group": "which cases share what they ask about",
    "scorer": "how answers are scored",
    "as_biochatter": "how answers are scored",
    "max_expanded": "a bound",
    "prompts": "where LongBench's prompts are",
    "files": "where texts are",
}
"""Options that do not change the requests, and what they set."""


@dataclass(frozen=True)
class Asked:
    """The hash of all requests of a task, their number, and the start of the first one."""

    sha256: str
    requests: int
    first: str


def variants():
    """Return every task with every list of options."""
    own = [(name, options) for name in NAMES for options in ({}, *tried(name))]
    return own + [("gsm8k", options) for options in OF_EVERY_TASK]


def tried(name):
    """Return the options that are tried with a task: those listed, and another value of each other.

    A member stands for a family.
    """
    listed = OPTIONS.get(name, [])
    known = {option for one in listed for option in one} | ASK_THE_SAME.keys()
    made = registry.load("serve_eval.tasks", "cases:capitals" if name == "cases" else name)
    found = {option: _change(one) for option, one in registry.options_of(made).items()}
    more = {
        option: value
        for option, value in found.items()
        if value is not None and option not in known
    }
    return [*listed, *({option: value} for option, value in more.items())]


def find_untried(name):
    """Return the options of a task that are neither tried nor known to change no request."""
    made = registry.load("serve_eval.tasks", "cases:capitals" if name == "cases" else name)
    known = {option for options in tried(name) for option in options} | ASK_THE_SAME.keys()
    return [option for option in registry.options_of(made) if option not in known]


def _change(option):
    """Return another value of a switch, a number or a choice; None for what has to be listed."""
    value = option.default
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    choices = typing.get_args(option.hint) if typing.get_origin(option.hint) is Literal else ()
    return next((one for one in choices if one != value), None)


def label(name, options):
    """Return a variant's name on one line."""
    return " ".join([name, *(f"{key}={json.dumps(value)}" for key, value in options.items())])


def asked(name, options, root):
    """Return the requests of a task on the data below a root.

    Raises DatasetError if the data is missing.
    """
    spec = spec_of(name, root)
    place = {"path": str(CASES)} if name == "cases" else {}
    spec = Spec(name=spec.name, options={**spec.options, **place, **options})
    task = build_task(spec, checked=True)
    dataset = task.load(DataRoots(roots=(root,)), task.hypothesis.num_samples or 1)
    said, first = hashlib.sha256(), ""
    for sample in dataset.samples:
        line = msgspec.json.encode(
            [_without_places(request_of(task, sample)), sample.target, sample.choices],
            order="sorted",
        )
        first = first or line.decode()
        said.update(line + b"\n")
    return Asked(said.hexdigest(), len(dataset.samples), first[:SHOWN])


def _without_places(request):
    """Return a request whose files have the checksums of their contents in place of their paths.

    A picture has that of its pixels: libraries of other versions write other bytes.
    """
    if isinstance(request.prompt, str):
        return request
    prompt = tuple(
        turn
        if isinstance(turn.content, str)
        else replace(turn, content=tuple(map(_without_place, turn.content)))
        for turn in request.prompt
    )
    return msgspec.structs.replace(request, prompt=prompt)


def _without_place(part):
    if not isinstance(part, MediaFile):
        return part
    if part.form != "image_url":
        return msgspec.structs.replace(part, path="")
    from PIL import Image

    with Image.open(part.path) as image:
        pixels = hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()
    return msgspec.structs.replace(part, path="", size=0, sha256=pixels)


def write_made(root):
    """Write the data of every task below a root, as the fixture `data_root` does."""
    write_gsm8k(root / "gsm8k")
    write_mmlu(root / "mmlu", SUBJECTS)
    write_humaneval(root / "humaneval")
    write_all(root)


def _real():
    found = {}
    for name, options in variants() if SHARED.is_dir() else ():
        try:
            found[label(name, options)] = asked(name, options, SHARED).sha256
        except DatasetError:
            continue
    return found


def add_missing(root):
    """Add the variants that the file lacks, on the made data below a root; return their labels.

    Those that it has stay as they are, so that a change of another task is not hidden. Raises
    Mistake, which names the options, if a task refuses values that nobody listed.
    """
    kept = json.loads(FILE.read_text("utf-8"))
    missing = {label(*one): one for one in variants() if label(*one) not in kept["made"]}
    found = {}
    refused = {
        name: {one: f"{name} {one}: no other value than its default is known" for one in untried}
        for name in NAMES
        if (untried := find_untried(name))
    }
    for place, (name, options) in missing.items():
        try:
            found[place] = asked(name, options, root)
        except Exception as error:  # a task does what it likes with a value that it cannot use
            if not options or options in (*OPTIONS.get(name, []), *OF_EVERY_TASK):
                with blame(f"serve_eval/tasks/{name}.py"):
                    raise
            [option] = options
            refused.setdefault(name, {})[option] = f"{place}: {type(error).__name__}: {error}"
    if refused:
        raise Mistake("\n".join(say_refused(*one) for one in refused.items()))
    if missing:
        kept["made"] |= {place: msgspec.to_builtins(one) for place, one in found.items()}
        _write(kept)
    return list(missing)


def say_refused(name, refused):
    """Return which options of a task need a value to try, and the line that lists one of each.

    `refused` has the reason by option.
    """
    listed = [
        ", ".join(f'"{option}": {value!r}' for option, value in one.items())
        for one in OPTIONS.get(name, [])
    ]
    listed += [f'"{option}": VALUE' for option in refused]
    how = "Write this line in place of its own" if name in OPTIONS else "Add this line"
    return "\n".join(
        (
            f"{name}: a value to try is needed for {', '.join(refused)}:",
            *(f"  {line}" for line in refused.values()),
            f"{how} in OPTIONS of {FILE.with_suffix('.py').relative_to(ROOT)}, with a value that"
            " the task takes for VALUE (or name an option in ASK_THE_SAME if it changes nothing):",
            f'    "{name}": [{", ".join(f"{{{one}}}" for one in listed)}],',
        )
    )


def renew():
    """Write the file again and print the changes. Raises Mistake, and then writes nothing."""
    old = json.loads(FILE.read_text()) if FILE.exists() else {"made": {}, "real": {}}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_made(root)
        made = {}
        for name, options in variants():
            with blame(f"serve_eval/tasks/{name}.py"):
                made[label(name, options)] = msgspec.to_builtins(asked(name, options, root))
    new = {"made": made, "real": _real() or old["real"]}
    for kind, table in new.items():
        for one in sorted({*table, *old[kind]}):
            if table.get(one) != old[kind].get(one):
                print(
                    f"{kind} {one}:"
                    f" {'changed' if one in table and one in old[kind] else 'added or removed'}"
                )
    _write(new)


def _write(table):
    FILE.write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
