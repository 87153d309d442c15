"""Use the servers behind a Service of a Kubernetes cluster; start and stop nothing."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from serve_eval.errors import PlanError
from serve_eval.launchers._kubernetes.job import JobSettings, write_manifest
from serve_eval.launchers._kubernetes.surroundings import check_packages, needs_tunnels
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, LaunchContext

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
