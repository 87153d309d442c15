"""Compare the requests and the verdicts of bfcl with those of bfcl-eval, on all rows.

BFCL=DIR names the leaderboard's folder of a checkout of gorilla, or a folder into which bfcl-eval
was installed without its dependencies. Each row is asked for its right answer and changed ones.
"""

import copy
import importlib
import json
import random
import sys
from types import ModuleType, SimpleNamespace

from serve_eval.schema import DataRoots, Response, ToolCall
from serve_eval.tasks._bfcl_checking import fill, read_expectation
from serve_eval.tasks._bfcl_rows import CATEGORIES, CATEGORY
from serve_eval.tasks.bfcl import task
from tests.oracle.part import Compared, checkout, require

CHANGED = 8
"""Changed answers to each row."""
OTHERS = (
    *("", "x", "true", "5", "[1, 2]", "['a']", "{'a': 1}", "42L", "3.5f", "2n"),
    *("new int[]{1, 2}", 'new ArrayList<>(Arrays.asList("a"))', "new Array(1, 2)"),
    *('new HashMap<String, Object>() {{ put("a", true); }}', "{a: 'b', c: [1, x]}"),
    *(0, 1, 1.5, True, None, [], ["a"], [1], [{}], {}, {"a": 1}),
)
"""Values that replace a right one."""


def compare():
    """Compare both modes. Raises Skipped without the folder or a package."""
    require("tenacity", "filelock")
    root = checkout("BFCL", "bfcl-eval", "bfcl_eval/eval_checker/ast_eval/ast_checker.py")
    theirs = _import_theirs(root)
    return [found for mode in ("fc", "prompt") for found in _compare_mode(mode, root, theirs)]


def _import_theirs(root):
    """Import the checker, its readers and its requests, without the clients of all vendors."""
    sys.path.insert(0, str(root))
    models = ModuleType("bfcl_eval.constants.model_config")
    models.MODEL_CONFIG_MAPPING = {
        "fc": SimpleNamespace(underscore_to_dot=True),
        "prompt": SimpleNamespace(underscore_to_dot=False),
    }
    sys.modules[models.__name__] = models
    for name, functions in {
        "java_parser": ["parse_java_function_call"],
        "js_parser": ["parse_javascript_function_call"],
        "json_parser": ["parse_json_function_call"],
        "xml_parser": ["parse_concise_xml_function_call", "parse_verbose_xml_function_call"],
    }.items():
        parser = ModuleType(f"bfcl_eval.model_handler.parser.{name}")
        vars(parser).update(dict.fromkeys(functions))
        sys.modules[parser.__name__] = parser
    return SimpleNamespace(
        check=importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker").ast_checker,
        handler=importlib.import_module("bfcl_eval.model_handler.utils"),
        enums=importlib.import_module("bfcl_eval.constants.enums"),
        types=importlib.import_module("bfcl_eval.constants.type_mappings").GORILLA_TO_OPENAPI,
        utils=importlib.import_module("bfcl_eval.utils"),
    )


def _compare_mode(mode, root, theirs):
    requests = Compared(what=f"requests of bfcl, mode {mode}, by bfcl-eval's")
    verdicts = Compared(what=f"verdicts of bfcl, mode {mode}, by bfcl-eval's")
    made = task(mode=mode)
    count = made.hypothesis.num_samples or 0
    samples = made.load(DataRoots(roots=(root,)), count).samples
    for category in sorted({sample.metadata[CATEGORY] for sample in samples}):
        asked = _by_id(theirs.utils.load_dataset_entry(category))
        rows = _by_id(theirs.utils.load_dataset_entry(category, True, False))
        gold = {}
        if CATEGORIES[category].wanted == "calls":
            gold = _by_id(theirs.utils.load_ground_truth_entry(category))
        for sample in samples:
            if sample.metadata[CATEGORY] == category:
                _compare_request(requests, sample, mode, asked[sample.id], theirs)
                for response in _draw_answers(sample, mode):
                    ours = made.score(sample, response).value == 1.0
                    row, answer = rows[sample.id], gold.get(sample.id)
                    right = _judge(theirs, mode, category, row, answer, response)
                    verdicts.add(f"{sample.id} {response.text}{response.tool_calls}", ours, right)
    return [requests, verdicts]


def _by_id(rows):
    return {row["id"]: row for row in rows}


def _compare_request(result, sample, mode, row, theirs):
    row = copy.deepcopy(row)
    turns = [{"role": turn.role, "content": turn.content} for turn in sample.prompt]
    tools = sample.override.extra["tools"] if sample.override else []
    if mode == "fc":
        style = theirs.enums.ModelStyle.OPENAI_COMPLETIONS
        offered = theirs.handler.convert_to_tool(row["function"], theirs.types, style)
        result.add(f"{sample.id} tools", json.dumps(tools), json.dumps(offered))
        result.add(f"{sample.id} messages", turns, row["question"][0])
    else:
        wanted = theirs.handler.system_prompt_pre_processing_chat_model(
            row["question"][0], row["function"], sample.id
        )
        result.add(f"{sample.id} messages", turns, wanted)


def _draw_answers(sample, mode):
    """Return a refusal, the right answer and changed ones."""
    rng = random.Random(f"{mode} {sample.id}")
    right = [(call.name, fill(call)) for call in read_expectation(sample).calls]
    drawn = [right or [("f", {"a": 1})]]
    drawn += [_change(drawn[0], rng) for _ in range(CHANGED)]
    answers = [Response(text="I cannot do that.", finish_reason="stop")]
    for calls in drawn:
        if mode == "prompt":
            written = ", ".join(f"{name}({_write(given)})" for name, given in calls)
            text = rng.choice(("[{}]", "{}", "```\n[{}]\n```", "Sure: [{}]")).format(written)
            answers.append(Response(text=text, finish_reason="stop"))
        else:
            made = tuple(ToolCall(name, json.dumps(given)) for name, given in calls)
            answers.append(Response(text="", finish_reason="tool_calls", tool_calls=made))
    return answers


def _write(arguments):
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _change(calls, rng):
    """Return the calls with one change: of a call, an argument, or a value."""
    found = copy.deepcopy(list(calls))
    place = rng.randrange(len(found))
    name, given = found[place]
    kind = rng.randrange(9)
    if kind == 0:
        found[place] = (f"{name}_", given)
    elif kind == 1:
        rng.shuffle(found)
    elif kind == 2:
        found.append(found.pop(place) if len(found) > 1 else copy.deepcopy(found[place]))
    elif kind == 3:
        found.pop(place)
    elif kind == 4:
        given["unheard"] = 1
    elif given:
        key = rng.choice(list(given))
        if kind == 5:
            given.pop(key)
        else:
            given[key] = _change_value(given[key], rng)
    return found


def _change_value(value, rng):
    options = [*rng.sample(OTHERS, 3), [value]]
    if isinstance(value, str):
        options += [value.upper(), f" {value}.", value.replace(" ", "-"), value[:-1], f'"{value}"']
    elif isinstance(value, int | float):
        options += [float(value), int(value), str(value), value + 1]
    elif isinstance(value, list):
        options += [value[::-1], [*value, *value[:1]], value[1:]]
        options += [[_change_value(one, rng), *value[1:]] for one in value[:1]]
    elif isinstance(value, dict):
        options += [{**value, "unheard": 1}, dict(list(value.items())[1:])]
        options += [{**value, key: _change_value(one, rng)} for key, one in value.items()]
    return rng.choice(options)


def _judge(
    theirs,
    mode,
    category,
    row,
    gold,
    response,
):
    """Return bfcl-eval's verdict, as its runner combines reading and checking."""
    try:
        if mode == "prompt":
            calls = theirs.handler.default_decode_ast_prompting(response.text)
        elif response.tool_calls:
            calls = [{call.name: json.loads(call.arguments)} for call in response.tool_calls]
        else:
            calls = None
    except Exception:
        calls = None
    if CATEGORIES[category].wanted != "calls":
        called = calls is not None and not theirs.utils.is_empty_output(calls)
        return called is (CATEGORIES[category].wanted == "any call")
    if gold is None or not theirs.utils.is_function_calling_format_output(calls):
        return False
    language = theirs.enums.Language(CATEGORIES[category].language)
    answer = (row["function"], calls, gold["ground_truth"], language, category, mode)
    return bool(theirs.check(*answer)["valid"])
