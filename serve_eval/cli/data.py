"""Run `serve-eval data`: list, fetch and find data sets, and describe a log of requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._address import SetOptions, address_of
from serve_eval.cli._common_options import ListOptions
from serve_eval.cli._options import command
from serve_eval.cli._streams import emit, say
from serve_eval.frozen import freeze
from serve_eval.plan.options import ConnectionOptions
from serve_eval.plan.shared_options import Model
from serve_eval.plugins.setting import Setting
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from serve_eval.datasets.recorded_requests import RecordedLog
    from serve_eval.datasets.source import Source
    from serve_eval.report.document.listing import ListEntry, Listing
    from serve_eval.workflows.requests_log import RefusedLogField


Root = Annotated[
    Path | None,
    typer.Option(
        "--dataset-root",
        metavar="DIR",
        help=("Dataset root (default SERVE_EVAL_DATASET_ROOT, else a folder in the user's cache)."),
    ),
]


def list_sets() -> Listing:
    """Return the known data sets with rows, licence, source and number of known checksums."""
    from serve_eval.datasets.local import find_sources
    from serve_eval.report.document.listing import Listing

    entries = [_make_entry(name, source) for name, source in find_sources().items()]
    return Listing(
        f"{len(entries)} data sets",
        entries,
        next="serve-eval data fetch NAME -o data",
    )


@command()
def fetch(
    shown: ListOptions,
    data_sets: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="Data sets; see `data list datasets`.")
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            "--output-dir",
            "-o",
            metavar="DIR",
            help="Dataset root to fill. It can be copied to another machine.",
        ),
    ] = None,
) -> None:
    """Fetch data sets, check or record their checksums, and print their paths."""
    from serve_eval.cli._ending import print_list
    from serve_eval.datasets import vault
    from serve_eval.report.document.listing import ListEntry, Listing

    root = to or vault.default_root(os.environ)
    root.mkdir(parents=True, exist_ok=True)
    entries = [
        ListEntry(str(found.path), f"sha256 {found.sha256}", keep=True)
        for name, source in _choose(data_sets).items()
        for found in vault.fetch(name, source, root)
    ]
    use = f"a run with --dataset-root {quote_path(root)}"
    print_list(Listing(f"{len(entries)} files in {root}", entries, next=use), shown)


def path(
    data_set: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A data set (default: the root itself).")
    ] = None,
    root: Root = None,
) -> None:
    """Print the dataset root, or the folder of a data set below it.

    For a data set that is missing, it is the folder that `fetch` would create.

    Exit codes: 0 the folder exists, 2 it does not (with a message on standard error).
    """
    from serve_eval.datasets import vault

    root = root or vault.default_root(os.environ)
    folder = root if data_set is None else vault.where(_choose([data_set])[data_set], root)
    _say(str(folder))
    if not folder.is_dir():
        fill = f"serve-eval data fetch {data_set or 'NAME'} -o {quote_path(root)}"
        say(f"the folder does not exist yet. To create it: {fill}")
        raise typer.Exit(2)


def _make_entry(name: str, source: Source) -> ListEntry:
    from serve_eval.report.document.listing import ListEntry

    sums = "checksums are recorded at the first fetch"
    if source.sha256:
        sums = f"{len(source.sha256)} checksums known"
    note = f"; {source.note}" if source.note else ""
    return ListEntry(
        name,
        f"{source.name}, {source.rows}; licence: {source.licence}",
        more=[f"{source.homepage}; {sums}{note}"],
    )


def _choose(names: Sequence[str]) -> dict[str, Source]:
    """Return the data sets with these names. Raises PlanError for an unknown name."""
    from serve_eval.datasets.local import find_sources
    from serve_eval.errors import PlanError
    from serve_eval.plugins import registry

    known = find_sources()
    problems = [
        f"unknown data set {n!r}.{registry.nearest(n, known)}" for n in names if n not in known
    ]
    if problems:
        raise PlanError(problems)
    return {name: known[name] for name in names}


def _say(line: str) -> None:
    from serve_eval.report.text import clean

    emit(f"{clean(line)}\n")


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
    from serve_eval.datasets.recorded_requests import USUAL_FIELDS, read_paths
    from serve_eval.plan.resolve import resolve_address
    from serve_eval.verdicts.exit_code import INTERRUPTED
    from serve_eval.workflows.requests_log import find_refused

    plan = resolve_address(address_of(probed.base_url, probed.model, connection, more), os.environ)
    try:
        return run_async(find_refused(log, read_paths(USUAL_FIELDS), plan))
    except Interrupted:
        raise typer.Exit(INTERRUPTED) from None
