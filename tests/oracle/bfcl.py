"""Compare the requests and the verdicts of bfcl with those of bfcl-eval, on all rows.

BFCL=DIR names the leaderboard's folder of a checkout of gorilla, or a folder into which bfcl-eval
was installed without its dependencies. Each row is asked for its right answer and changed ones.

Then compare the verdicts of ifeval with lm-eval's, and those of ifbench with allenai/IFBench's.

Every instruction of both data sets is checked on answers to other prompts, recorded and changed.
NLTK=DIR names NLTK's data, in the layout of its downloader: archives, and the same unpacked.
IFBENCH=DIR names a checkout of IFBench.
"""

import copy
import importlib
import json
import logging
import os
import random
import sys
from types import ModuleType, SimpleNamespace

from serve_eval.schema import DataRoots, Response, ToolCall
from serve_eval.tasks import _instructions_checks as instructions_checks
from serve_eval.tasks._bfcl_checking import fill, read_expectation
from serve_eval.tasks._bfcl_rows import CATEGORIES, CATEGORY
from serve_eval.tasks._ifbench_forms import FORMS
from serve_eval.tasks._ifbench_words import WORDS
from serve_eval.tasks._instructions_following import variants
from serve_eval.tasks.bfcl import task
from serve_eval.tasks.ifeval import IFEVAL
from tests.oracle.part import Compared, Skipped, checkout, require, shared

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


ANSWERS = 12
"""Answers that each prompt's instructions are checked on."""
DRAWN = ("1122", "1129")
"""Prompts of IFEval with a sign that is no letter: the original draws a letter at random."""
CHANGES = (
    str,
    str.upper,
    str.lower,
    str.title,
    lambda text: f'"{text}"',
    lambda text: text.replace(",", ""),
    lambda text: text.replace(" ", "\n"),
    lambda text: text.replace(". ", "? "),
    lambda text: text.replace(". ", " \U0001f600. "),
    lambda text: text[:60],
    lambda text: "\n".join(" " * i + line for i, line in enumerate(text.split("\n"))),
    lambda text: "".join(random.Random(text).choices("ab .,!?\n*-\"'()[]{}<>1\u65e5", k=40)),
)


def compare_instructions():
    """Compare both, the second one if its checkout is named.

    Raises Skipped without data, a package or a folder.
    """
    require("lm_eval", "nltk", "langdetect", "emoji", "syllapy", "immutabledict")
    folder = checkout("NLTK", "NLTK's data", "tokenizers/punkt_tab.zip")
    checkout("NLTK", "NLTK's data", "tokenizers/punkt_tab/english/abbrev_types.txt")
    os.environ["NLTK_DATA"] = str(folder)
    import langdetect
    import nltk

    nltk.data.path.insert(0, str(folder))
    nltk.download = lambda *names, **options: False  # both originals ask for data when imported
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)  # it names texts without a language
    langdetect.DetectorFactory.seed = instructions_checks.LANGUAGE_SEED
    english = instructions_checks.load(DataRoots(roots=(folder,)), *instructions_checks.FOLDERS)
    answers = [row["response"] for row in _rows("ifbench", "sample_output.jsonl")]
    from lm_eval.tasks.ifeval import utils

    result = Compared(what=f"verdicts of ifeval by lm-eval's, not of prompts {' and '.join(DRAWN)}")
    rows = [row for row in _rows("ifeval", "input_data.jsonl") if str(row["key"]) not in DRAWN]
    _check(result, rows, answers, IFEVAL, english, utils, lambda said: said)
    try:
        place = checkout("IFBENCH", "allenai/IFBench", "evaluation_lib.py")
    except Skipped as skipped:
        result.notes.append(f"ifbench: skipped: {skipped}")
        return [result]
    sys.path.insert(0, str(place))
    theirs = importlib.import_module("evaluation_lib")
    other = Compared(what="verdicts of ifbench by IFBench's own")
    rows = _rows("ifbench", "IFBench_test.jsonl")
    _check(other, rows, answers, {**WORDS, **FORMS}, english, theirs, _Anything)
    return [result, other]


class _Anything(dict[str, str]):
    """The same answer to every prompt, as IFBench looks answers up."""

    def __init__(self, text):
        self._text = text

    def __contains__(self, prompt):
        return True

    def __getitem__(self, prompt):
        return self._text


def _check(
    result,
    rows,
    answers,
    checks,
    english,
    theirs,
    as_answer,
):
    """Add the verdicts at both levels on all instructions of the rows.

    `as_answer` turns a text into what the functions of the original take.
    """
    rng = random.Random(57)
    for row in rows:
        kinds = row["instruction_id_list"]
        kwargs = [
            {name: one for name, one in some.items() if one is not None} for some in row["kwargs"]
        ]
        asked = theirs.InputExample(
            key=row["key"], instruction_id_list=kinds, prompt=row["prompt"], kwargs=kwargs
        )
        for _ in range(ANSWERS):
            text = rng.choice(CHANGES)(rng.choice(answers))
            for level, said in (("strict", [text]), ("loose", variants(text))):
                judge = getattr(theirs, f"test_instruction_following_{level}")
                verdicts = judge(asked, as_answer(text)).follow_instruction_list
                for kind, arguments, verdict in zip(kinds, kwargs, verdicts, strict=True):
                    ours = any(
                        one.strip() and checks[kind].follows(one, arguments, english)
                        for one in said
                    )
                    result.add(f"{row['key']} {kind} {level} {text[:60]!r}", ours, verdict)


def _rows(folder, name):
    file = shared(folder) / name
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
