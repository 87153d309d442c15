"""Test the manifest of the Job against the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.cli.command import serve_eval

VERSIONS = ("1.29", "1.34", "1.37")
"""Versions of Kubernetes whose schemas the manifest must satisfy."""


def manifest(data: Path, *options: str) -> str:
    """Return the text of job.yaml, as the dry run prints it."""
    settings = [
        word for one in ("service=llama", *options) for word in ("--set", f"launcher.{one}")
    ]
    done = serve_eval(
        "run", "--launcher", "kubernetes", "--model", "org/model", "--tasks", "gsm8k",
        "--dataset-root", data, "--no-reference", *settings, "--dry-run", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [(path, text)] = json.loads(done.stdout)["files"].items()
    assert path == "logs/job.yaml"
    return str(text)


def objects(text: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


MORE = ("namespace=serving", "job_claim=runs", "job_data_claim=data", "job_secret=key",
        "job_shards=4", "port=http")  # fmt: skip


@pytest.mark.parametrize("options", [(), MORE], ids=["least", "most"])
def test_the_manifest_is_valid_by_the_schemas(options: tuple[str, ...], data_root: Path) -> None:
    found = objects(manifest(data_root, *options))
    assert list(found) == ["ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job"]
    for version in VERSIONS:
        for one in found.values():
            assert kubernetes_validate.validate(one, version, strict=True) == version


def test_the_job_runs_the_plan_at_the_address_in_the_cluster(data_root: Path) -> None:
    text = manifest(data_root, "kubeconfig=~/.kube/x", "context=prod", "job_image=reg/serve-eval:1")
    found = objects(text)
    plan = yaml.safe_load(found["ConfigMap"]["data"]["plan.yaml"])
    assert plan["launcher"] == {"name": "kubernetes", "service": "llama", "address": "cluster"}
    assert plan["dataset_root"] == [str(data_root)]
    assert f"# dataset_root: {data_root} is of this machine" in text
    assert "# The run folder goes with the pod" in text
    [container] = found["Job"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "reg/serve-eval:1"
    assert container["args"] == ["run", "/etc/serve-eval/plan.yaml", "-o", "/runs/serve-eval-llama"]
    assert "env" not in container
    assert found["Job"]["spec"]["backoffLimit"] == 0


def test_shards_share_an_order_and_each_has_its_folder(data_root: Path) -> None:
    found = objects(manifest(data_root, *MORE))
    spec = found["Job"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    [container] = spec["template"]["spec"]["containers"]
    assert container["args"][2:] == [
        "--shard",
        "auto/4",
        "-o",
        "/runs/shard-$(JOB_COMPLETION_INDEX)",
    ]
    group, key = container["env"]
    assert group == {
        "name": "SERVE_EVAL_SHARD_GROUP",
        "valueFrom": {
            "fieldRef": {"fieldPath": "metadata.labels['batch.kubernetes.io/controller-uid']"}
        },
    }
    assert key["valueFrom"] == {"secretKeyRef": {"name": "key", "key": "OPENAI_API_KEY"}}
    plan = yaml.safe_load(found["ConfigMap"]["data"]["plan.yaml"])
    assert plan["dataset_root"] == ["/data"]
    assert plan["launcher"] == {
        "name": "kubernetes", "service": "llama", "namespace": "serving", "port": "http",
        "address": "cluster",
    }  # fmt: skip


def test_the_account_may_only_read(data_root: Path) -> None:
    rules = objects(manifest(data_root))["Role"]["rules"]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list"}
    assert {one for rule in rules for one in rule["resources"]} == {"pods", "services", "pods/log"}


def test_the_plan_of_the_manifest_is_read_back(data_root: Path, tmp_path: Path) -> None:
    """The pod runs this file, so that it must be a plan that serve-eval accepts."""
    found = objects(manifest(data_root, "port=8000"))
    (path := tmp_path / "plan.yaml").write_text(found["ConfigMap"]["data"]["plan.yaml"])
    done = serve_eval("run", path, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["launcher"]["address"] == "cluster"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("job_shards=0", "launcher.job_shards: 0 is not 1 or more"),
        ("job_shards=4", "without launcher.job_claim the folders of the shards go with their pods"),
        ("service=../x", "launcher.service: '../x' is not a name of Kubernetes"),
        ("address=nodeport", "address"),
    ],
)
def test_impossible_options_are_refused(option: str, told: str, data_root: Path) -> None:
    done = serve_eval(
        "run", "--launcher", "kubernetes", "--model", "m", "--tasks", "gsm8k", "--no-reference",
        "--dataset-root", data_root, "--set", "launcher.service=x", "--set", f"launcher.{option}",
        "--dry-run",
    )  # fmt: skip
    assert done.returncode == 2
    assert told in done.stderr
