"""Run `serve-eval data requests`: say what a log of requests holds, before any of them is sent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._address import SetOptions, address_of
from serve_eval.cli._common_options import ListOptions
from serve_eval.cli._options import command
from serve_eval.frozen import freeze
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import Model
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.datasets.recorded_requests import RecordedLog
    from serve_eval.workflows.requests_log import RefusedLogField


@freeze
class ProbedOptions:
    """Choose the endpoint that is asked for the fields that it refuses."""

    title: ClassVar[str] = "Probe"
    base_url: Annotated[
        str | None,
        Setting(
            "Endpoint whose refused fields a few tiny requests find. Not set: nothing is sent.",
            "URL",
            variable="never",
        ),
    ] = None
    model: Model = None


@freeze
class ProbeConnectionOptions(ConnectionOptions):
    """Choose how requests reach the endpoint."""

    plan_only: ClassVar[tuple[str, ...]] = ("api_key_env", "header")


@command()
def data_requests(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded requests, one a line.")],
    probed: ProbedOptions,
    connection: ProbeConnectionOptions,
    more: SetOptions,
    shown: ListOptions,
) -> None:
    """Say what a log of requests holds: routes, lengths, duplicates, answers and times.

    Exit codes: 0 all lines are requests and no field is refused, 1 some line or field is not, 2
    usage, 4 the endpoint cannot be reached, 130 interrupted.
    """
    from serve_eval.cli._ending import print_list
    from serve_eval.datasets.recorded_requests import read_log
    from serve_eval.workflows.requests_log import describe_log

    log = read_log(file)
    refused = [] if probed.base_url is None else _probe(log, probed, connection, more)
    print_list(describe_log(log, refused, asked=probed.base_url or ""), shown)
    if refused or log.broken:
        raise typer.Exit(1)


def _probe(
    log: RecordedLog,
    probed: ProbedOptions,
    connection: ProbeConnectionOptions,
    more: SetOptions,
) -> list[RefusedLogField]:
    """Return the refused fields. Personal fields and keys are masked here too."""
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.datasets.masked_fields import USUAL_FIELDS, read_paths
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.requests_log import find_refused

    plan = resolve_address(address_of(probed.base_url, probed.model, connection, more), os.environ)
    try:
        return run_async(find_refused(log, read_paths(USUAL_FIELDS), plan))
    except Interrupted:
        raise typer.Exit(INTERRUPTED) from None
