"""llama-server from the wheel of xllamacpp, which has its code but no executable.

It accepts only the flags that our launcher sets, and needs only that package.
"""

import argparse
import os
import threading

import xllamacpp

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    given = parser.parse_args()
    settings = xllamacpp.CommonParams()
    settings.model.path, settings.model_alias = given.model, {given.alias}
    settings.hostnames, settings.port = [given.host], given.port
    settings.n_parallel, settings.n_ctx, settings.cpuparams.n_threads = (
        given.parallel,
        given.ctx_size,
        given.threads,
    )
    settings.cpuparams_batch.n_threads = given.threads
    server = xllamacpp.Server(settings)
    threading.Event().wait()
