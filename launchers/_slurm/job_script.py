"""Write a job script for sbatch. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.launchers._process import environment
from serve_eval.schema import JobSize

PLAIN = re.compile(r"[\w@%+=:,./~^-]+", re.ASCII)
"""Matches what sbatch reads in a #SBATCH line as it stands."""
HETEROGENEOUS = re.compile(r"(?::|hetjob|packjob|--(?:het|pack)-group(?:=.*)?)")
"""Matches the words with which sbatch and srun separate the parts of a heterogeneous job."""
NO_HETEROGENEOUS = "heterogeneous jobs are not supported"
SPLIT = re.compile(r"(--[\w-]+|-\w) +(\S.*)", re.ASCII)
"""Matches an option and its value in one word: `-p batch`."""
ARRAY = re.compile(r"--array(?:=.*)?|-a.*")
MEMORY = re.compile(r"--mem(?:-per-[cg]pu)?(?:=.*)?")
"""Matches sbatch's options for memory; it refuses two different ones."""
NO_GPUS_KNOWN = (
    "# Leave out --gpus-per-node if SLURM manages no GPUs; account,"
    " partition, time: launcher.sbatch_args."
)
AGAIN = "# After a time limit or scancel, submit it again: finished answers are kept."


def job_script(
    size: JobSize,
    command: str,
    *,
    sbatch_args: Sequence[str] = (),
    manages_gpus: bool | None = None,
    array: int | None = None,
    work_dir: Path | None = None,
    log_dir: Path | None = None,
    before: Sequence[str] = (),
) -> str:
    """Return a script that runs a command line in a job of this size.

    `manages_gpus`: whether the cluster knows GPUs as resources (None: not known). `array` makes a
    job array of tasks 1 to `array`. The job runs in `work_dir` and writes its output to a file in
    `log_dir` (None: those of sbatch). `sbatch_args` come last, so that they replace ours. The lines
    `before` come before the command.

    Raises PlanError for arguments that a script cannot have, and for an array that is none of
    shards: all its tasks would run the same plan in the same folder.
    """
    lines_of_user = sbatch_lines(sbatch_args)
    if array is None and any(ARRAY.fullmatch(line.split(" ")[0]) for line in lines_of_user):
        raise PlanError(
            "sbatch_args: --array: every task would run the whole plan in the same folder",
            hint="--job-array N makes an array of N tasks with a part of the samples each.",
        )
    options = ["--job-name=serve-eval", f"--nodes={size.nodes}"]
    options += [f"--ntasks-per-node={size.tasks_per_node}"]
    if size.whole_nodes:
        options.append("--exclusive")
        if not any(MEMORY.fullmatch(line.split(" ")[0]) for line in lines_of_user):
            options.append("--mem=0")  # all memory of the nodes
    if size.gpus_per_node and manages_gpus is not False:
        options.append(f"--gpus-per-node={size.gpus_per_node}")
    if array is not None:
        options.append(f"--array=1-{array}")
    if work_dir is not None:
        options.append(f"--chdir={work_dir}")
    if log_dir is not None:
        place = str(log_dir).replace("%", "%%")
        options.append(f"--output={place}/%x-{'%A_%a' if array is not None else '%j'}.log")
    lines = [*(_quote(one) for one in options), *lines_of_user]
    known = size.gpus_per_node == 0 or manages_gpus is not None
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            *(f"# {' '.join(note.split())}" for note in size.notes),
            *(() if known else (NO_GPUS_KNOWN,)),
            AGAIN,
            *before,
            f"exec {command}",
            "",
        ]
    )


def sbatch_lines(arguments: Sequence[str]) -> list[str]:
    """Return a line for each option among sbatch's arguments, quoted as sbatch reads a script.

    A word that does not begin with a dash is the value of the option before it, and so is what
    follows the first blank after an option's name. Raises PlanError.
    """
    environment.check_words(arguments, "sbatch_args")
    found: list[list[str]] = []
    check_one_part(arguments, "sbatch_args")
    for word in arguments:
        if not word or not word.isprintable():
            raise PlanError(
                f"sbatch_args: {word!r} is empty, or has characters that a script cannot have"
            )
        if parts := SPLIT.fullmatch(word):
            found.append([parts[1], _quote(parts[2])])
        elif word.startswith("-"):
            found.append([_quote(word)])
        elif found:
            found[-1].append(_quote(word))
        else:
            raise PlanError(
                f"sbatch_args: {word!r} is no option",
                hint="Begin with an option, such as --partition=NAME.",
            )
    return [" ".join(words) for words in found]


def check_one_part(words: Sequence[str], where: str) -> None:
    """Raise PlanError for a word that begins another part of a heterogeneous job."""
    for word in words:
        if HETEROGENEOUS.fullmatch(word.strip()):
            raise PlanError(
                f"{where}: {word.strip()!r}: {NO_HETEROGENEOUS}",
                hint="Ask for one kind of node: all servers of a plan run on nodes of one job.",
            )


def _quote(word: str) -> str:
    """Return a word as sbatch reads it: in double quotes, with backslashes before special ones."""
    if PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
