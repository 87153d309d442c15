"""Write files as other tools do, with the fields of their versions, for prompts and scores."""

import json
import struct
import zipfile
import zlib

import yaml
import zstandard

STAMP = "2026-03-04T05-06-07.000008"
_HASHES = {"doc_hash": "a", "prompt_hash": "b", "target_hash": "c"}


def write_json(file, content):
    """Write a JSON file with its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def write_jsonl(file, rows):
    """Write a file of JSON lines with its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def mean(answers):
    """Return the mean of the scores."""
    return sum(score for _, score in answers) / len(answers)


def lm_eval_results(answers, version, **more):
    """Return the content of results_*.json for GSM8K without shots, asked for completions."""
    value, args = mean(answers), {"model": "org/m", "base_url": "http://host/v1/completions"}
    figures = {
        "alias": "gsm8k",
        "exact_match,strict-match": value,
        "exact_match_stderr,strict-match": "N/A",
        "exact_match,flexible-extract": value,
        "exact_match_stderr,flexible-extract": float("nan"),
    }
    return {
        "results": {"gsm8k": figures},
        "group_subtasks": {"gsm8k": []},
        "configs": {
            "gsm8k": {
                "task": "gsm8k",
                "output_type": "generate_until",
                "generation_kwargs": {"until": ["Question:"], "do_sample": False},
                "filter_list": [{"name": "strict-match"}, {"name": "flexible-extract"}],
            }
        },
        "versions": {"gsm8k": 3.0},
        "n-shot": {"gsm8k": 0},
        "n-samples": {"gsm8k": {"original": 1319, "effective": len(answers)}},
        "config": {
            "model": "local-completions",
            "model_args": args
            if version == "0.4.13"
            else ",".join(f"{name}={text}" for name, text in args.items()),
            "gen_kwargs": {"max_gen_toks": 64} if version == "0.4.13" else "max_gen_toks=64",
            "fewshot_seed": 7,
        },
        "date": 1772600767.0,
        "lm_eval_version": version,
        "system_instruction": None,
        "chat_template": None,
        "fewshot_as_multiturn": False,
        **more,
    }


def write_lm_eval(folder, answers, version, **more):
    """Write results and samples, and return the results. Old versions do not name the filters."""
    rows = []
    for under in ("strict-match", "flexible-extract"):
        for number, (prompt, score) in enumerate(answers):
            named = {"filter": under, "metrics": ["exact_match"]} if version != "0.4.3" else {}
            arguments = {"gen_args_0": {"arg_0": prompt, "arg_1": {"until": ["Question:"]}}}
            rows.append(
                {
                    "doc_id": number,
                    "doc": {"question": "q"},
                    "target": "1",
                    "arguments": arguments if version != "0.4.3" else [[prompt, {}]],
                    "resps": [["text"]],
                    "filtered_resps": ["1"],
                    **named,
                    **_HASHES,
                    "exact_match": score,
                }
            )
    write_jsonl(folder / f"samples_gsm8k_{STAMP}.jsonl", rows)
    return write_json(folder / f"results_{STAMP}.json", lm_eval_results(answers, version, **more))


def inspect_log(answers, epochs=1):
    """Return a log of inspect; each odd prompt is an attachment."""
    samples = [
        {
            "id": number,
            "epoch": epoch,
            "input": prompt,
            "target": "1",
            "messages": [
                {"role": "user", "source": "input", "content": f"attachment://{number}"}
                if number % 2
                else {"role": "user", "content": [{"type": "text", "text": prompt}]},
                {"role": "assistant", "source": "generate", "content": "1"},
            ],
            "scores": {"match": {"value": {0.0: "I", 1.0: "C"}.get(score, score)}},
            "attachments": {str(number): prompt},
        }
        for epoch in range(1, epochs + 1)
        for number, (prompt, score) in enumerate(answers)
    ]
    metrics = {"stderr": {"value": 0.1}, "accuracy": {"value": mean(answers)}}
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "created": "2026-03-04T05:06:07+00:00",
            "task": "inspect_evals/gsm8k",
            "task_args": {"fewshot": 0},
            "model": "openai/org-m",
            "config": {"epochs": epochs},
            "packages": {"inspect_ai": "0.3.154"},
        },
        "plan": {"steps": [], "config": {"temperature": 0.0, "max_tokens": 64}},
        "results": {
            "completed_samples": len(samples),
            "scores": [{"name": "match", "metrics": metrics}],
        },
        "samples": samples,
    }


def write_eval(file, log):
    """Write a log as an .eval archive."""
    file.parent.mkdir(parents=True, exist_ok=True)
    header = {name: value for name, value in log.items() if name != "samples"}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_journal/start.json", "{}")
        for one in log["samples"]:
            archive.writestr(f"samples/{one['id']}_epoch_{one['epoch']}.json", json.dumps(one))
        archive.writestr("header.json", json.dumps(header))
    return file


def compress_again(file):
    """Compress the parts of an archive by zstandard, as inspect does since 2026."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, zstandard.ZstdCompressor().compress(content))
        places = {info.filename: info.header_offset for info in archive.infolist()}
    raw = bytearray(file.read_bytes())
    for name, content in parts.items():
        central = raw.rindex(b"PK\x01\x02", 0, raw.rindex(name.encode()))
        for start, method, size in ((places[name], 8, 14), (central, 10, 16)):
            struct.pack_into("<H", raw, start + method, 93)
            struct.pack_into("<I", raw, start + size, zlib.crc32(content))
            struct.pack_into("<I", raw, start + size + 8, len(content))
    file.write_bytes(raw)
    return file


def nemo_results(value, count):
    """Return the content of results.yml."""
    score = {"micro": {"value": value, "stats": {"count": count, "stderr": 0.1}}}
    return {
        "command": "lm-eval --model local-completions\n",
        "config": {
            "type": "lm-evaluation-harness.gsm8k",
            "params": {"temperature": 0.0, "max_new_tokens": 64, "extra": {"num_fewshot": 0}},
        },
        "target": {"api_endpoint": {"model_id": "org/m", "type": "completions"}},
        "results": {"tasks": {"gsm8k": {"metrics": {"exact_match": {"scores": score}}}}},
    }


def write_nemo(file, value, count):
    """Write results.yml."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(nemo_results(value, count)))
    return file


def write_nemo_bundle(folder, answers):
    """Write a bundle and its answers."""
    rows = [
        {"problem_idx": number, "repeat": 0, "reward": score, "prompt": prompt}
        for number, (prompt, score) in enumerate(answers)
    ]
    write_jsonl(folder / "results.jsonl", rows)
    scores = {"pass@1": {"value": mean(answers), "stderr": 0.1}}
    content = {
        "benchmark": {"name": "gsm8k", "samples": len(answers), "repeats": 1, "scores": scores},
        "config": {"model": "org/m", "temperature": 0.0, "max_tokens": 64, "num_fewshot": 0},
        "timestamp": "2026-03-04T05:06:07Z",
    }
    return write_json(folder / "eval-gsm8k.json", content)


def sgl_metrics(value, **more):
    """Return the content of sgl-eval's metrics.json."""
    return {
        "name": "gpqa",
        "num_examples": 198,
        "n_repeats": 8,
        "aggregate": {"pass@1": value, "pass@1_std": 0.01, "majority@8": 0.9},
        "timestamp": "20260304-050607",
        "model": "org/m",
        "gen": {
            "temperature": 1.0,
            "top_p": 0.95,
            "max_tokens": 4096,
            "chat_template_kwargs": {"thinking": True},
        },
        "sgl_eval_version": "0.0.1",
        **more,
    }


def srt_gsm8k(value):
    """Return what srt-slurm's evaluation of GSM8K saves."""
    return {
        "accuracy": value,
        "invalid_rate": 0.0,
        "latency": 10.5,
        "num_questions": 1319,
        "num_shots": 5,
        "max_tokens": 256,
        "model": "org/m",
        "temperature": 0.0,
        "seed": 42,
    }


def write_evalscope(run, answers):
    """Write the configuration, the reviews and the report of a run, and return the report."""
    config = {
        "generation_config": {"temperature": 0.0, "max_tokens": 64},
        "dataset_args": {"gsm8k": {"few_shot_num": 0}},
    }
    (run / "configs").mkdir(parents=True, exist_ok=True)
    (run / "configs/task_config_1.yaml").write_text(yaml.safe_dump(config))
    rows = [
        {
            "index": number,
            "input": f"**User**: \n{prompt}",
            "target": "1",
            "sample_score": {"score": {"value": {"acc": score}}, "sample_id": number},
        }
        for number, (prompt, score) in enumerate(answers)
    ]
    write_jsonl(run / "reviews/org_m/gsm8k_main.jsonl", rows)
    metric = {"name": "mean_acc", "num": len(answers), "score": round(mean(answers), 4)}
    report = {"dataset_name": "gsm8k", "model_name": "org/m", "metrics": [metric]}
    return write_json(run / "reports/org_m/gsm8k.json", report)
