"""Start the server with one thread: numpy reads these variables when it is imported."""

from __future__ import annotations

import os

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def main() -> None:
    for name in THREADS:
        os.environ[name] = "1"
    from serve_eval.launchers._embedded.command import main as serve

    serve()


if __name__ == "__main__":
    main()
