"""Print the requests of tasks, one line of JSON each.

The command is `python -m tests.harness.asked WAY FOLDER TASK...`. `ours`: as `lm_eval:TASK`, all in
one process. `theirs`: as lm-eval does, each in its own process with the cache that
HF_DATASETS_CACHE names, or a cold one. `unseeded`: each loaded with other draws, which stay in the
cache.
"""

import json
import logging
import os
import random
import sys
import tempfile
from pathlib import Path


def main(way, folder, names):
    """Print the contexts of each task, document by document."""
    os.chdir(Path(folder) / "lm_eval")
    logging.disable(logging.CRITICAL)
    if way == "ours":
        told = _ours(folder, names)
    else:
        import datasets
        import lm_eval.models  # noqa: F401  (before the fork, since it takes seconds)

        datasets.disable_progress_bars()
        told = {}
        for name in names:
            if os.fork() == 0:
                with tempfile.TemporaryDirectory() as cold:
                    datasets.config.HF_DATASETS_CACHE = Path(
                        os.environ.get("HF_DATASETS_CACHE", cold)
                    )
                    found = _theirs(name) if way == "theirs" else _unseeded(name)
                    print(json.dumps([name, found]), flush=True)
                os._exit(0)
            assert os.wait()[1] == 0, name
    for name, found in told.items():
        print(json.dumps([name, found]))


def _ours(folder, names):
    from serve_eval.plugins import extensions
    from serve_eval.protocol.shared import build_task
    from serve_eval.schema import DataRoots, Spec
    from serve_eval.tasks.lm_eval import load_parts

    extensions.include((folder,))
    random.seed(99)
    before, told = random.getstate(), {}
    for name in names:
        build_task(Spec(name=f"lm_eval:{name}")).load(DataRoots(), 1)
        told[name] = [
            [one.args[0] for one in made] for made in load_parts(name, {})[0].instances.values()
        ]
    assert random.getstate() == before, "the generator of the process was not restored"
    return told


def _theirs(name):
    import lm_eval
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    class Silent(LM):
        def loglikelihood(self, requests):
            return [(-1.0, False)] * len(requests)

        def loglikelihood_rolling(self, requests):
            return [-1.0] * len(requests)

        def generate_until(self, requests):
            return [""] * len(requests)

    manager = TaskManager(include_path=".", include_defaults=False)
    more = {"log_samples": True, "bootstrap_iters": 0}
    rows = lm_eval.simple_evaluate(model=Silent(), tasks=[name], task_manager=manager, **more)[
        "samples"
    ][name]
    by_document = {row["doc_id"]: [argument[0] for argument in row["arguments"]] for row in rows}
    return [by_document[i] for i in sorted(by_document)]


def _unseeded(name):
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks._yaml_loader import load_yaml

    random.seed(99)
    ConfigurableTask(
        config={key: value for key, value in load_yaml(f"{name}.yaml").items() if key != "tag"}
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
