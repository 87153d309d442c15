"""The stand-in as a process, with the command lines of trtllm-serve.

It reads these variables:

* STANDIN_FLAVOUR: v12 (default), old or main; the words --flavour FLAVOUR before all others
  take precedence.
* STANDIN_REHEARSAL: 1 lets the reported version end in +stand-in.
* STANDIN_LOAD_S: seconds of loading.
* STANDIN_ANSWERS: an answer file of the simulated endpoint. STANDIN_SEED and STANDIN_RUN choose
  among its answers. With STANDIN_RUN=new each start draws other answers; with STANDIN_VARIED=1
  each request and each worker does.
* STANDIN_FAULTS: see `faults`.
* STANDIN_POLL_S: seconds between an orchestrator's checks of its workers' health (3, as in the real
  one).
* STANDIN_MPI: 1 starts tp * pp * cp ranks of real MPI with mpi4py: see `ranks`.
* STANDIN_START_TIMEOUT_RC: exit code of an orchestrator whose workers do not appear (0 in the 1.2
  line, 3 on main).
"""

from __future__ import annotations

import os
import sys
from typing import Any

from serve_eval.launchers._standin import options
from serve_eval.launchers._standin.options import Flavour


def main() -> None:
    """Run the command line as the flavour reads it."""
    given = os.environ.get("STANDIN_FLAVOUR")
    if sys.argv[1:2] == ["--flavour"]:
        given = sys.argv[2]
        del sys.argv[1:3]
    flavour: Flavour = "main" if given == "main" else "old" if given == "old" else "v12"

    def run(command: str, params: dict[str, Any], given: frozenset[str]) -> None:
        # Slow imports come after the command line is parsed.
        from serve_eval.launchers._standin.serving import Ended

        try:
            if command == "serve":
                from serve_eval.launchers._standin.server_processes import run_worker

                run_worker(params, given, flavour)
            elif command == "disaggregated":
                from serve_eval.launchers._standin.server_processes import run_orchestrator

                run_orchestrator(params, flavour)
            else:
                raise NotImplementedError(f"the stand-in has no {command}")
        except Ended as end:
            sys.exit(end.code)

    options.group(flavour, run)(prog_name="trtllm-serve")


if __name__ == "__main__":
    main()
