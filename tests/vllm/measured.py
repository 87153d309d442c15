"""The commands whose results the tests check, and the line of the table that each adds."""

import json
import time

from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.peers.conftest import MODEL
from tests.vllm.conftest import FLOOR, TABLE


def compare(name, a, b, out, *, limit, seed=0):
    """Compare two endpoints as a user does; return the one task of comparison.json and the exit.

    They are asked few prompts twice, which takes half as long as the default.
    """
    began = time.monotonic()
    ran = serve_eval(
        f"compare {a} {b} --model {MODEL} --tasks word_problems --limit {limit} --set seed={seed}"
        f" --self 20 -o {out}"
    )
    assert (out / "comparison.json").exists(), ran.stderr
    [task] = read_json(out / "comparison.json")["tasks"]
    paired = task["verdict"]["paired"]
    took = time.monotonic() - began
    told = "not asked"
    if seed == 0:
        found = json.loads(serve_eval(f"diagnose {out} --json").stdout)["result"]["between"]
        told = f"{found[0]['rule']}: {found[0]['told']}" if found else "nothing between A and B"
    TABLE.append(
        f"compare {name} | {task['a']['value']:.1f} | {task['b']['value']:.1f} | lost"
        f" {task['worse']}, won {task['better']} | {task['verdict']['outcome']} | p"
        f" {paired['p']:.2g} | {took:.0f} s | diagnose: {told}"
    )
    return task, ran.returncode


def attribute(name, run, *more, samples=15):
    """Ask the servers of a run separately; return who is accused, or the error, and the exit."""
    ran = serve_eval(f"check workers {run} --samples {samples} --concurrency 16", *more)
    if ran.returncode not in (0, 1):
        told = " ".join((ran.stderr + ran.stdout).split())
        TABLE.append(f"attribute {name} | exit {ran.returncode} | {told[-240:]}")
        return told, ran.returncode
    found = read_json(run / "attribution.json")
    accused = [
        f"{row['role']} {row['bad']} of {row['answers']}, others {row['others_bad']}"
        for part in ("alone", "in_pairs", "transfer")
        for row in (found[part] or {"rows": []})["rows"]
        if row["accused"]
    ]
    TABLE.append(
        f"attribute {name} | {'; '.join(accused) or 'nobody'} | {found['requests']} requests |"
        f" {found['wall_s']:.0f} s"
    )
    return accused, ran.returncode


def verify(name, url, reference, out, *parts):
    """Verify a deployment against a registered reference; return verification.json."""
    ran = serve_eval(f"verify {url} --model {MODEL} --reference {reference} -o {out}", *parts)
    assert (out / "verification.json").exists(), ran.stderr
    found = read_json(out / "verification.json")
    side = found["sides"][0]
    requests = sum(one["requests"] for one in found["sides"])
    tokens = sum(one["tokens"] for one in found["sides"])
    TABLE.append(
        f"verify {name} | {side['outcome']} | {side['beyond_floor']} of {side['asked']} beyond"
        f" {FLOOR} nat | {requests} requests, {tokens} tokens | {found['wall_s']:.0f} s |"
        f" {'; '.join(found['named']).partition(': ')[2] or 'no part asked'}"
    )
    return found
