"""Write the MMLU prompts of TensorRT-LLM's evaluator.

The command is `python -m tests.oracle._suite_mmlu CHECKOUT DATA OUT`. The evaluator's file is
loaded from the user's checkout. The rest of the package, and torch, are replaced by empty modules,
since prompts need none of them.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import types
from pathlib import Path

PACKAGE = "tensorrt_llm"
NEEDED = ("mmlu", "interface")
NUM_SAMPLES = 4096


class _Empty(types.ModuleType):
    """A module with any attribute: classes for capitalised names, functions for others."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {}) if name[0].isupper() else lambda *_, **__: None


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports the needed files from the checkout, and gives an empty module for any other name."""

    def __init__(self, checkout):
        self.files = {
            f"{PACKAGE}.evaluate.{name}": checkout / PACKAGE / f"evaluate/{name}.py"
            for name in NEEDED
        }

    def find_spec(self, fullname, path, target=None):
        if fullname in self.files:
            return importlib.util.spec_from_file_location(fullname, self.files[fullname])
        if fullname.partition(".")[0] in (PACKAGE, "torch"):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        """Do nothing: an empty module has no code."""


def main(checkout, data, out):
    """Write prompt, letter and subject of every question that the suite's task asks."""
    sys.meta_path.insert(0, _Finder(Path(checkout)))
    evaluator = importlib.import_module(f"{PACKAGE}.evaluate.mmlu").MMLU
    made = evaluator(dataset_path=data, num_samples=NUM_SAMPLES, random_seed=0)
    asked = [[prompt, label, subject] for prompt, _, label, subject in made.generate_samples()]
    Path(out).write_text(json.dumps(asked))


if __name__ == "__main__":
    main(*sys.argv[1:])
