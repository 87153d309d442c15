"""Use the servers behind a Service of a Kubernetes cluster; start and stop nothing.

Before a launch: find out what this process has for reaching pods, without importing it. Instead of
one: write the manifest of a Job that runs serve-eval inside the cluster.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from serve_eval.errors import PlanError, install_hint
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, LaunchContext

PACKAGES = ("kr8s", "httpx_ws")
IN_A_POD = "KUBERNETES_SERVICE_HOST"
"""Variable that the cluster sets in every container."""


def check_packages(what: str) -> None:
    """Raise PlanError if a package is missing that `what` needs."""
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise PlanError(f"{what} needs the package {package}", hint=install_hint("kubernetes"))


def needs_tunnels(environ: Mapping[str, str]) -> bool:
    """Return True if the addresses of a cluster cannot be reached from here."""
    return not environ.get(IN_A_POD)


LONGEST_NAME = 50
"""Characters of a name: the cluster adds to it, and labels have at most 63."""
RUNS, DATA, PLAN = "/runs", "/data", "/etc/serve-eval"
GROUP_LABEL = "batch.kubernetes.io/controller-uid"
LABELS = {"app.kubernetes.io/name": "serve-eval"}
LOCAL_PATHS = ("dataset_root", "references_dir", "include_path")
"""Keys of a plan that name folders of this machine."""
NOT_IN_CLUSTER = ("kubeconfig", "context", "address")
"""Options of the launcher that a pod has no use for; those that begin with job_ are for the
manifest alone."""


@freeze
class JobSettings:
    """The settings of the Job, as the launcher's options describe them."""

    service: str
    namespace: str | None
    image: str
    claim: str | None
    data_claim: str | None
    secret: str | None
    shards: int


class _Dumper(yaml.SafeDumper):
    """Write texts of several lines as blocks, without aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _write_text)


def write_manifest(settings: JobSettings, plan_file: Mapping[str, object]) -> str:
    """Return the manifest as YAML: comments, then the objects.

    `plan_file` is the plan in the form of its file.
    """
    plan, notes = _plan_for_cluster(settings, plan_file)
    objects = list_objects(settings, plan)
    # A path may hold a line break, which would end the comment.
    comments = "".join(f"# {' '.join(line.split())}\n" for line in _head(settings, notes))
    texts = [yaml.dump(one, Dumper=_Dumper, sort_keys=False, width=100) for one in objects]
    return comments + "---\n" + "---\n".join(texts)


def _name(settings: JobSettings) -> str:
    return f"serve-eval-{settings.service}"[:LONGEST_NAME].rstrip("-.")


def _head(settings: JobSettings, notes: list[str]) -> Iterator[str]:
    where = f" -n {settings.namespace}" if settings.namespace else ""
    yield f"Runs serve-eval in the cluster: kubectl apply{where} -f job.yaml"
    yield f"Its output: kubectl logs{where} -f job/{_name(settings)}"
    yield (
        f"The image {settings.image} must hold serve-eval with the extra kubernetes;"
        " docs/clusters.md has a Dockerfile."
    )
    if settings.claim is None:
        yield (
            "The run folder goes with the pod, since launcher.job_claim is not set: the result is"
            " only in its output."
        )
    else:
        yield f"The run folder is in the volume of the claim {settings.claim}."
    if settings.shards > 1:
        yield (
            f"{settings.shards} pods share the samples and write one folder each."
            + (" Set launcher.job_claim to keep the folders." if settings.claim is None else "")
        )
    yield from notes


def _plan_for_cluster(
    settings: JobSettings, plan_file: Mapping[str, object]
) -> tuple[dict[str, object], list[str]]:
    """Return the plan as the Job runs it, and notes on what differs from here."""
    plan, notes = dict(plan_file), []
    launcher = plan.get("launcher")
    options = dict(launcher) if isinstance(launcher, Mapping) else {"name": "kubernetes"}
    kept = {
        key: value
        for key, value in options.items()
        if key not in NOT_IN_CLUSTER and not key.startswith("job_")
    }
    plan["launcher"] = {**kept, "address": "cluster"}
    if plan.get("dataset_root") and settings.data_claim:
        notes.append(
            f"The claim {settings.data_claim} must hold the data sets of"
            f" {_join(plan['dataset_root'])}."
        )
        plan["dataset_root"] = [DATA]
    for path in LOCAL_PATHS:
        if plan.get(path) and plan[path] != [DATA]:
            notes.append(
                f"{path}: {_join(plan[path])} is of this machine: put it into the image at the same"
                " path" + (", or set launcher.job_data_claim." if path == "dataset_root" else ".")
            )
    key = _key_variable(plan)
    if settings.secret is None and key:
        notes.append(
            f"The Job has no API key: launcher.job_secret can name a Secret that holds {key}."
        )
    return plan, notes


def _join(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def list_objects(settings: JobSettings, plan: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the objects in the order in which they are created."""
    name = _name(settings)
    account = {"kind": "ServiceAccount", "name": name}
    if settings.namespace:
        account["namespace"] = settings.namespace
    rules = [
        {"apiGroups": [""], "resources": ["pods", "services"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    ]
    rbac = "rbac.authorization.k8s.io"
    text = yaml.dump(dict(plan), Dumper=_Dumper, sort_keys=False, width=100)
    return [
        _object(settings, "v1", "ServiceAccount", {}),
        _object(settings, f"{rbac}/v1", "Role", {"rules": rules}),
        _object(
            settings,
            f"{rbac}/v1",
            "RoleBinding",
            {
                "roleRef": {"apiGroup": rbac, "kind": "Role", "name": name},
                "subjects": [account],
            },
        ),
        _object(settings, "v1", "ConfigMap", {"data": {"plan.yaml": text}}),
        _object(settings, "batch/v1", "Job", {"spec": _job(settings, plan)}),
    ]


def _object(
    settings: JobSettings, version: str, kind: str, content: Mapping[str, Any]
) -> dict[str, Any]:
    name = _name(settings)
    meta: dict[str, Any] = {"name": name}
    if settings.namespace:
        meta["namespace"] = settings.namespace
    meta["labels"] = {**LABELS, "app.kubernetes.io/instance": name}
    return {"apiVersion": version, "kind": kind, "metadata": meta, **content}


def _job(settings: JobSettings, plan: Mapping[str, object]) -> dict[str, Any]:
    name = _name(settings)
    volumes: list[dict[str, Any]] = [
        {"name": "plan", "configMap": {"name": name}},
        {"name": "runs", **_volume(settings.claim)},
    ]
    if settings.data_claim:
        volumes.append({"name": "data", **_volume(settings.data_claim)})
    spec = {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "containers": [_container(settings, plan)],
        "volumes": volumes,
    }
    shards = settings.shards
    indexed = {"completionMode": "Indexed", "completions": shards, "parallelism": shards}
    return {
        "backoffLimit": 0,
        **(indexed if shards > 1 else {}),
        "template": {
            "metadata": {"labels": LABELS},
            "spec": spec,
        },
    }


def _volume(claim: str | None) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}


def _key_variable(plan: Mapping[str, object]) -> str | None:
    """Return the name of the variable with the API key; None if no key is sent."""
    connection = plan.get("connection")
    key = connection.get("api_key_env") if isinstance(connection, Mapping) else None
    return str(key) if key else None


def _container(settings: JobSettings, plan: Mapping[str, object]) -> dict[str, Any]:
    args = ["run", f"{PLAN}/plan.yaml"]
    env: list[dict[str, Any]] = []
    if settings.shards > 1:
        args += [
            "--shard",
            f"auto/{settings.shards}",
            "-o",
            f"{RUNS}/shard-$(JOB_COMPLETION_INDEX)",
        ]
        label = {"fieldPath": f"metadata.labels['{GROUP_LABEL}']"}
        env.append({"name": "SERVE_EVAL_SHARD_GROUP", "valueFrom": {"fieldRef": label}})
    else:
        args += ["-o", f"{RUNS}/{_name(settings)}"]
    key = _key_variable(plan)
    if settings.secret and key:
        found = {"name": settings.secret, "key": key}
        env.append({"name": key, "valueFrom": {"secretKeyRef": found}})
    mounts = [
        {"name": "plan", "mountPath": PLAN, "readOnly": True},
        {"name": "runs", "mountPath": RUNS},
        *([{"name": "data", "mountPath": DATA, "readOnly": True}] if settings.data_claim else []),
    ]
    return {
        "name": "serve-eval",
        "image": settings.image,
        "command": ["serve-eval"],
        "args": args,
        **({"env": env} if env else {}),
        "volumeMounts": mounts,
    }


MANIFEST = "job.yaml"
NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
NAMES = ("service", "namespace", "job_claim", "job_data_claim", "job_secret")
"""Options that name an object of the cluster."""


@dataclass(frozen=True, kw_only=True)
class ManifestOptions:
    """Choose what the Job needs that a dry run prints."""

    job_image: Annotated[
        str, Setting("Image with serve-eval for the Job that --dry-run prints.")
    ] = "serve-eval:latest"
    job_claim: Annotated[
        str | None,
        Setting("PersistentVolumeClaim for the Job's run folder. Not set: it goes with the pod."),
    ] = None
    job_data_claim: Annotated[
        str | None, Setting("PersistentVolumeClaim with the data sets of the Job.")
    ] = None
    job_secret: Annotated[
        str | None, Setting("Secret that holds the API key, under the name of its variable.")
    ] = None
    job_shards: Annotated[
        int, Setting("Number of pods of the Job, which share the samples of the run.")
    ] = 1


@dataclass(frozen=True, kw_only=True)
class KubernetesOptions(ManifestOptions):
    """Choose the Service, and the way to reach the pods behind it."""

    service: Annotated[str, Setting("Name of the Service that selects the pods of the servers.")]
    port: Annotated[
        int | str | None,
        Setting("Port of the Service, by number or name. Not set: the only one."),
    ] = None
    namespace: Annotated[
        str | None, Setting("Namespace of the Service. Not set: that of the context or the pod.")
    ] = None
    context: Annotated[
        str | None, Setting("Context of the kubeconfig. Not set: the current one.")
    ] = None
    kubeconfig: Annotated[
        str | None,
        Setting("Kubeconfig file. Not set: KUBECONFIG, ~/.kube/config, or the pod's account."),
    ] = None
    address: Annotated[
        Literal["port-forward", "cluster"] | None,
        Setting(
            "Way to the pods: port-forward through the API server, or cluster for the Service's"
            " own address. Not set: cluster inside a pod, else port-forward."
        ),
    ] = None
    also_watch: Annotated[
        str | None,
        Setting(
            "Label selector of further pods that work for the Service's, as in app=worker: the"
            " launcher waits for them, watches, logs and records them too."
        ),
    ] = None
    ready_timeout_s: Annotated[float, Setting("Seconds until all pods must be Ready.")] = 600.0
    answer_timeout_s: Annotated[float, Setting("Seconds that the first completion may take.")] = (
        600.0
    )


def commands(context: LaunchContext, options: KubernetesOptions) -> list[list[str]]:
    """Return no command line, as nothing is started.

    Raises PlanError for an impossible option, and if the packages of the extra are missing.
    """
    check_packages("the launcher kubernetes")
    for name in NAMES:
        if (value := getattr(options, name)) is not None and not NAME.fullmatch(value):
            raise PlanError(f"launcher.{name}: {value!r} is not a name of Kubernetes")
    if options.job_shards < 1:
        raise PlanError(f"launcher.job_shards: {options.job_shards} is not 1 or more")
    if options.job_shards > 1 and options.job_claim is None:
        raise PlanError(
            "launcher.job_shards: without launcher.job_claim the folders of the shards go with"
            " their pods, and cannot be merged",
            hint="Name a PersistentVolumeClaim that several nodes can write.",
        )
    return []


def files(context: LaunchContext, options: KubernetesOptions) -> Mapping[Path, str]:
    """Return the manifest of a Job that runs the plan inside the cluster.

    `launch` does not write it.
    """
    if context.plan_file is None:
        return {}
    settings = JobSettings(
        service=options.service,
        namespace=options.namespace,
        image=options.job_image,
        claim=options.job_claim,
        data_claim=options.job_data_claim,
        secret=options.job_secret,
        shards=options.job_shards,
    )
    return {context.log_dir / MANIFEST: write_manifest(settings, context.plan_file)}


@asynccontextmanager
async def launch(context: LaunchContext, options: KubernetesOptions) -> AsyncIterator[Endpoint]:
    """Wait until the pods are Ready and answer, watch them, and yield their endpoint.

    Raises PlanError as `commands` does. Raises LaunchError if the Service, its pods or the cluster
    are not there in time, and if a pod ends, restarts or is replaced during the block.
    """
    commands(context, options)
    from serve_eval.launchers._kubernetes.attach import ChosenService, attach

    wanted = ChosenService(
        kubeconfig=options.kubeconfig,
        context=options.context,
        namespace=options.namespace,
        service=options.service,
        port=options.port,
        also_watch=options.also_watch,
        tunnels=(
            needs_tunnels(os.environ)
            if options.address is None
            else options.address == "port-forward"
        ),
        ready_timeout_s=options.ready_timeout_s,
        answer_timeout_s=options.answer_timeout_s,
    )
    async with attach(context, wanted) as endpoint:
        yield endpoint
