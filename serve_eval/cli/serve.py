"""Run `serve-eval serve`: start the servers of a launcher, for other clients to use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._common_options import ScreenOptions
from serve_eval.cli._options import command, lines_of
from serve_eval.cli._streams import emit, say
from serve_eval.errors import LaunchError, PlanError, RunFolderError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plan.shared_options import IncludePath, Rehearse, absolute_all
from serve_eval.plugins.setting import Setting
from serve_eval.schema import REHEARSAL, Plan
from serve_eval.shell_words import join_words

if TYPE_CHECKING:
    from serve_eval.errors import ServeEvalError
    from serve_eval.workflows.servers import Held


EXAMPLES = (
    ("Show the command lines, and start nothing:", "serve-eval serve PLAN.yaml --dry-run"),
    ("Keep a small real model up for other clients:", "serve-eval serve embedded --detach"),
    ("Start trtllm-serve on two GPUs:", "serve-eval serve trtllm --model NAME --set launcher.tp=2"),
    ("Stop the servers of an id that --list shows:", "serve-eval serve --stop ID"),
)


@freeze
class ServerOptions:
    """Choose how the servers are started."""

    title: ClassVar[str] = "Start"
    model: Annotated[
        str | None,
        Setting(
            "Model name, if the plan has none.",
            flags=("--model", "-m"),
            metavar="NAME",
            variable="always",
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set an option of the launcher: launcher.tp=2. Repeatable.",
            flags=("--set",),
            metavar="launcher.OPTION=VALUE",
        ),
    ] = None
    include_path: IncludePath = None
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder for the logs (default: see --list).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    rehearse: Rehearse = None
    detach: Annotated[
        bool, Setting("Return when the servers are ready, and keep them up in the background.")
    ] = False
    dry_run: Annotated[bool, Setting("Show commands and files; start nothing.")] = False


@freeze
class HeldOptions:
    """List and stop running servers."""

    title: ClassVar[str] = "Running servers"
    listed: Annotated[
        bool, Setting("List the servers kept up on this machine.", flags=("--list",))
    ] = False
    stop: Annotated[
        str | None, Setting("Stop the servers with this id, or all.", metavar="ID|all")
    ] = None


@command(examples=EXAMPLES)
def serve(
    asked: ServerOptions,
    held: HeldOptions,
    shown: ScreenOptions,
    what: Annotated[
        str | None,
        typer.Argument(metavar="NAME|PLAN.yaml", help="A launcher, or a plan file that names one."),
    ] = None,
) -> None:
    """Start the servers of a launcher and keep them up until Ctrl-C or SIGTERM.

    Exit codes: 0 stopped on request, 2 usage, 4 a server did not start or exited, 130 interrupted
    during the start.
    """
    from serve_eval.report.text import clean

    if (what is not None) + held.listed + (held.stop is not None) != 1:
        raise PlanError(
            "give one of: a launcher, a plan file, --list, --stop",
            hint="serve-eval data list launchers shows them.",
        )
    if held.listed:
        from serve_eval.workflows import servers

        _show(list(servers.entries(servers.registry())), shown)
        return
    if held.stop is not None:
        raise typer.Exit(_stop(held.stop, shown))
    assert what is not None
    plan = _resolve(what, asked.model, asked.settings, absolute_all(asked.include_path or ()))
    if asked.rehearse:
        from serve_eval.plan.launcher import rehearse_plan

        plan = rehearse_plan(plan)
    if asked.dry_run:
        from serve_eval.cli._dry_run import list_commands, preview
        from serve_eval.storage.file_names import LOGS

        told = [*list_commands(*preview(plan, Path(LOGS))), "nothing was started"]
        emit(clean("".join(f"{line}\n" for line in told)))
        return
    if asked.rehearse:
        check_rehearsed_gpus(plan, asked.output_dir)
    raise typer.Exit(_hold(plan, what, asked.output_dir, shown, detach=asked.detach))


def _resolve(
    what: str, model: str | None, settings: list[str] | None, include_path: Sequence[str] = ()
) -> Plan:
    from serve_eval.plan.resolve import resolve_launcher
    from serve_eval.yaml_source import read

    # SERVE_EVAL_SET also holds options for runs.
    given = settings or [
        line for line in lines_of("SERVE_EVAL_SET") if line.startswith("launcher.")
    ]
    chosen: dict[str, Any] = {"set": given, **({} if model is None else {"model": model})}
    if include_path:
        chosen["include_path"] = list(include_path)
    if not _is_file(what):
        return resolve_launcher({"launcher": what}, chosen, os.environ)
    document = read(Path(what), PlanError)
    if not isinstance(document.value, dict):
        raise PlanError(f"{what}: expected a mapping of keys such as model and launcher")
    return resolve_launcher(
        document.value, chosen, os.environ, lambda *path: f"{what}:{document.line(*path)}: "
    )


def _is_file(what: str) -> bool:
    return Path(what).suffix in (".yaml", ".yml") or Path(what).is_file()


def _hold(
    plan: Plan, what: str, output_dir: Path | None, shown: ScreenOptions, *, detach: bool
) -> int:
    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.verdicts.exit_code import INTERRUPTED, PASS
    from serve_eval.workflows.servers import daemon

    if output_dir is not None:
        try:
            output_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(
                f"{output_dir}: cannot write: {error.strerror}", hint="Choose another with -o."
            ) from error
    was_ready = False

    def ready(entry: Held) -> None:
        nonlocal was_ready
        was_ready = True
        _record(output_dir, what, plan, entry)
        if shown.as_json:
            _show([entry], shown)
        else:
            emit(_describe(entry, what, detached=detach))

    try:
        if detach:
            ready(run_async(daemon.start(plan, folder=output_dir, notify=say, attach=True)))
        else:
            run_async(daemon.hold(plan, folder=output_dir, notify=say, ready=ready))
    except (LaunchError, PlanError) as error:
        if not was_ready:
            _record(output_dir, what, plan, error)
        raise
    except Interrupted:
        if was_ready:
            return PASS
        say("Interrupted; the servers that were started have been stopped")
        return INTERRUPTED
    return PASS


def _record(folder: Path | None, what: str, plan: Plan, ended: Held | ServeEvalError) -> None:
    """Write into the folder that servers started, or why not, where `runs view` reads it.

    The holder of `--detach` is given the plan that the command wrote, and the command records it.
    """
    from datetime import UTC, datetime

    from serve_eval.storage.json_files import pretty_json, write_private
    from serve_eval.storage.story_files import SERVE

    if folder is None or Path(what).absolute() == (folder / "plan.yaml").absolute():
        return
    failed = isinstance(ended, ServeEvalError)
    url = None if isinstance(ended, ServeEvalError) or ended.endpoint is None else ended.endpoint
    found = {
        "name": Path(what).name,
        "plan": what if _is_file(what) else "",
        "started_at": datetime.now(UTC).isoformat(),
        "base_url": "" if url is None else url.base_url,
        "exit_code": ended.exit_code if isinstance(ended, ServeEvalError) else 0,
        "error": str(ended) if failed else "",
        "rehearsal": plan.launcher.name == REHEARSAL,
    }
    write_private(folder / SERVE.result, pretty_json(found))


def _describe(entry: Held, what: str, *, detached: bool) -> str:
    """Return the lines that a user of the servers needs."""
    assert entry.endpoint is not None
    base_url = entry.endpoint.base_url
    # The embedded model was made for word_problems; every dataset root has the others.
    tasks = "word_problems" if entry.launcher == "embedded" else "gsm8k,mmlu"
    rest = ["--model", entry.model, "--tasks", tasks]
    words = [what, "--base-url", base_url] if _is_file(what) else ["--base-url", base_url, *rest]
    end = f"serve-eval serve --stop {entry.id}"
    lines = {
        "base URL": base_url,
        "model": entry.model,
        "id": entry.id,
        "logs": entry.log_dir,
        "evaluate": f"serve-eval run {join_words(words)}",
        "stop": end if detached else f"Ctrl-C, or {end}",
    }
    return "".join(f"{name + ':':<10}{text}\n" for name, text in lines.items())


def _show(entries: Sequence[Held], shown: ScreenOptions, *, stopped: bool = False) -> None:
    """Print servers that are kept up, or were stopped."""
    from serve_eval.cli._ending import print_result
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.servers import describe_servers, make_document

    figures = pretty_json(describe_servers(entries))
    print_result(make_document(entries, stopped=stopped), shown, figures)


def _stop(wanted: str, shown: ScreenOptions) -> int:
    """Ask all of the wanted servers to stop before waiting for any."""
    import asyncio

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.verdicts.exit_code import INTERRUPTED, PASS
    from serve_eval.workflows import servers
    from serve_eval.workflows.servers import daemon

    known = list(servers.entries(servers.registry()))
    chosen = [entry for entry in known if wanted in (entry.id, "all")]
    if not chosen and wanted != "all":
        running = ", ".join(entry.id for entry in known) or "none"
        raise PlanError(f"--stop: no servers {wanted} run on this machine; running: {running}")

    async def stop_all() -> None:
        await asyncio.gather(*(daemon.stop(entry, notify=say) for entry in chosen))

    try:
        run_async(stop_all())
    except Interrupted:
        say("Interrupted; serve-eval serve --list shows the servers that still run")
        return INTERRUPTED
    _show(chosen, shown, stopped=True)
    return PASS


def check_rehearsed_gpus(plan: Plan, output_dir: Path | None) -> None:
    """Raise PlanError if rehearsed servers with a folder next to this one name the same GPUs.

    Real servers of both plans would not start together, and stand-ins need no GPU.
    """

    own = _list_gpus(plan.launcher.options)
    if output_dir is None or not own:
        return
    for folder, other in _list_others(output_dir.absolute()):
        if shared := own & _list_gpus(other):
            numbers = ", ".join(map(str, sorted(shared)))
            raise PlanError(
                f"launcher.gpus: the servers in {folder}, which are up, have the same GPUs:"
                f" {numbers}",
                hint="Give each of two plans that run together GPUs of its own.",
            )


def _list_others(own: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the folders of rehearsals next to this one that are up, with their options."""
    from serve_eval import yaml_source
    from serve_eval.workflows import servers

    for entry in servers.entries(servers.registry()):
        folder = Path(entry.log_dir).parent
        elsewhere = folder == own or folder.parent != own.parent
        if entry.launcher != REHEARSAL or entry.state == "ended" or elsewhere:
            continue
        with suppress(PlanError, OSError):
            found = yaml_source.read(folder / "plan.yaml", PlanError).value
            yield folder, found["launcher"]


def _list_gpus(launcher: Mapping[str, Any]) -> set[Any]:
    """Return the GPUs that the options of a rehearsal name, or none if they leave the choice."""
    gpus = launcher.get("options", {}).get("gpus")
    return set(gpus) if isinstance(gpus, list) else set()
