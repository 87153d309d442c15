"""Run solutions with LiveCodeBench's own lcb_runner: CHECKOUT ASKED.json SAID.json.

The packages that it imports for other purposes are replaced by empty modules.
"""

import json
import os
import sys
import types
from pathlib import Path

NOT_NEEDED = {"datasets": ("load_dataset",), "anthropic": ("HUMAN_PROMPT", "AI_PROMPT")}
"""Packages, each with the names that lcb_runner imports from it."""


def main(checkout, asked, said):
    """Write prompts, tests, code and outcomes."""
    told = json.loads(Path(asked).read_text())
    os.chdir(checkout)  # it reads files by relative paths when it is imported
    sys.path.insert(0, checkout)
    for name, names in NOT_NEEDED.items():
        module = types.ModuleType(name)
        vars(module).update(dict.fromkeys(names))
        sys.modules[name] = module
    from lcb_runner.benchmarks.code_generation import CodeGenerationProblem
    from lcb_runner.lm_styles import LMStyle
    from lcb_runner.prompts.code_generation import format_prompt_generation
    from lcb_runner.utils.extraction_utils import extract_code

    problems = [CodeGenerationProblem(**row) for row in told["rows"]]
    tests = [
        [[test.input, test.output] for test in one.public_test_cases + one.private_test_cases]
        for one in problems
    ]
    found = {
        "prompts": [format_prompt_generation(one, LMStyle.OpenAIChat) for one in problems],
        "tests": tests,
        "code": [extract_code(text, LMStyle.OpenAIChat) for text in told["texts"]],
        "passed": [_passes(one, told["limit_s"]) for one in told["solutions"]],
    }
    Path(said).write_text(json.dumps(found))


def _passes(solution, limit_s):
    from lcb_runner.evaluation.compute_code_generation_metrics import check_correctness

    _, function, tests, code = solution
    inputs, outputs = zip(*tests, strict=True)
    asked = {"inputs": inputs, "outputs": outputs, "fn_name": function}
    try:
        results, _ = check_correctness(
            {"input_output": json.dumps(asked)}, code, timeout=limit_s, debug=False
        )
    except Exception:  # it counts as a failure there, too
        return False
    return all(one > 0 for one in results)


if __name__ == "__main__":
    main(*sys.argv[1:])
