"""Write a job script for sbatch. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.schema import JobSize

PLAIN = re.compile(r"[\w@%+=:,./~^-]+", re.ASCII)
"""Matches what sbatch reads in a #SBATCH line as it stands."""
HETEROGENEOUS = re.compile(r"(?::|hetjob|packjob|--(?:het|pack)-group(?:=.*)?)")
"""Matches the words with which sbatch and srun separate the parts of a heterogeneous job."""
NO_HETEROGENEOUS = "heterogeneous jobs are not supported"
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
    name: str = "serve-eval",
    manages_gpus: bool | None = None,
    array: int | None = None,
    work_dir: Path | None = None,
    log_dir: Path | None = None,
) -> str:
    """Return a script that runs a command line in a job of this size.

    `manages_gpus`: whether the cluster knows GPUs as resources (None: not known). `array` makes a
    job array of tasks 1 to `array`. The job runs in `work_dir` and writes its output to a file in
    `log_dir` (None: those of sbatch). `sbatch_args` come last, so that they replace ours.

    Raises PlanError for arguments that a script cannot have.
    """
    options = [f"--job-name={name}", f"--nodes={size.nodes}"]
    options += [f"--ntasks-per-node={size.tasks_per_node}"]
    if size.whole_nodes:
        options += ["--exclusive", "--mem=0"]  # the second asks for all memory of the nodes
    if size.gpus_per_node and manages_gpus is not False:
        options.append(f"--gpus-per-node={size.gpus_per_node}")
    if array is not None:
        options.append(f"--array=1-{array}")
    if work_dir is not None:
        options.append(f"--chdir={work_dir}")
    if log_dir is not None:
        place = str(log_dir).replace("%", "%%")
        options.append(f"--output={place}/%x-{'%A_%a' if array is not None else '%j'}.log")
    lines = [*(_quote(one) for one in options), *sbatch_lines(sbatch_args)]
    known = size.gpus_per_node == 0 or manages_gpus is not None
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            *(f"# {note}" for note in size.notes),
            *(() if known else (NO_GPUS_KNOWN,)),
            AGAIN,
            f"exec {command}",
            "",
        ]
    )


def sbatch_lines(arguments: Sequence[str]) -> list[str]:
    """Return a line for each option among sbatch's arguments, quoted as sbatch reads a script.

    A word that does not begin with a dash is the value of the option before it. Raises PlanError.
    """
    found: list[list[str]] = []
    for word in arguments:
        if HETEROGENEOUS.fullmatch(word.strip()):
            raise PlanError(
                f"sbatch_args: {word.strip()!r}: {NO_HETEROGENEOUS}",
                hint="Ask for one kind of node: all servers of a plan run on nodes of one job.",
            )
        if not word or not word.isprintable():
            raise PlanError(
                f"sbatch_args: {word!r} is empty, or has characters that a script cannot have"
            )
        if word.startswith("-"):
            found.append([_quote(word)])
        elif found:
            found[-1].append(_quote(word))
        else:
            raise PlanError(
                f"sbatch_args: {word!r} is no option",
                hint="Begin with an option, such as --partition=NAME.",
            )
    return [" ".join(words) for words in found]


def _quote(word: str) -> str:
    """Return a word as sbatch reads it: in double quotes, with backslashes before special ones."""
    if PLAIN.fullmatch(word):
        return word
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
