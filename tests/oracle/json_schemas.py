"""Compare our handling of JSON schemas with the package jsonschema, and runs over HTTP.

Both use JSON schemas.

The schemas are real ones of tool parameters, and made ones. Three things are compared: the validity
of schemas, the validity of values under them, and the figures of runs whose cases offer tools of
these schemas or whose requests ask for JSON of them.
"""

import asyncio
import json
import random
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from serve_eval.errors import DatasetError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Message, Plan, Response, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.scorers import json_schema
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.json_schema import VALID, exact_match
from tests.harness.made_tasks import served
from tests.oracle._schemas import broken, changed, made, values, without_target
from tests.oracle.part import Compared, Skipped, shared


def run_of_tools(pairs, rng):
    """Compare scores of calls with the cost of their errors.

    The tools are compared with those that the server received.
    """
    result, calls = Compared(what="a run of cases with tools: scores, values and tools sent"), []
    for i, pair in enumerate(pairs):
        parameters, arguments = _as_object(*pair)
        called, score = _erring(arguments, i, rng)
        calls.append((f"t{i}", parameters, arguments, called, score))
    cases = [
        {
            "case": name,
            "input": {"prompt": f"Call {name}.", "tools": [_tool(name, parameters)]},
            "expected": {"name": name, "arguments": arguments},
        }
        for name, parameters, arguments, _, _ in calls
    ]
    said = {
        f"Call {name}.": json.dumps({"tool_calls": [{"name": name, "arguments": called}]})
        for name, _, _, called, _ in calls
    }
    with TemporaryDirectory() as folder:
        file = Path(folder, "tools.yaml")
        text = {"tools": {"scorer": "tool_call", "sampling": {"max_tokens": 2000}, "cases": cases}}
        file.write_text(json.dumps(text, ensure_ascii=False), encoding="utf-8")
        value, scores, bodies = _run(
            Spec(name="cases:tools", options={"path": str(file)}), said, Path(folder)
        )
    sent = {body["messages"][-1]["content"]: body["tools"] for body in bodies if "tools" in body}
    by_name = {record["id"].partition("#")[0]: record["value"] for record in scores}
    for name, parameters, _, _, score in calls:
        result.add_number(name, next(v for key, v in by_name.items() if key == name), score)
        result.add(f"tools of {name}", sent[f"Call {name}."], [_tool(name, parameters)])
    result.add_number("value", value, 100 * fmean(score for *_, score in calls))
    result.notes.append(
        f"value {value:.3f}; {sum(score == 1.0 for *_, score in calls)} of {len(calls)} calls are"
        " right"
    )
    return result


def run_of_json(pairs, others):
    """Compare json_mode_eval's scores with the results of jsonschema and Python.

    The schemas are compared with those that the server received.
    """
    result, said, rows = (
        Compared(what="a run of json_mode_eval: scores, value and schemas sent"),
        {},
        [],
    )
    for i, ((schema, value), other) in enumerate(zip(pairs, others, strict=True)):
        question = f"Give the JSON number {i}."
        text = json.dumps(value)
        said[question] = (text, json.dumps(other), text[:-1] + ";")[i % 3]
        prompt = [{"role": "user", "content": question}]
        rows.append({"prompt": prompt, "schema": json.dumps(schema), "completion": text})
    with TemporaryDirectory() as folder:
        data = Path(folder, "data/json_mode_eval/train.jsonl")
        data.parent.mkdir(parents=True)
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = Spec(name="json_mode_eval", options={"num_samples": len(rows)})
        value, scores, bodies = _run(spec, said, Path(folder))
    by_row = {int(record["id"].rpartition("-")[2]): record for record in scores}
    sent = {body["messages"][-1]["content"]: body.get("response_format") for body in bodies}
    exact = []
    for i, ((schema, wanted), text) in enumerate(zip(pairs, said.values(), strict=True)):
        valid, same = _judged(schema, wanted, text)
        exact.append(float(valid and same))
        result.add(
            f"row {i}",
            (by_row[i]["value"], by_row[i]["parts"]["schema_valid"]),
            (exact[-1], float(valid)),
        )
        result.add(
            f"schema {i}", sent[f"Give the JSON number {i}."], {"type": "json", "schema": schema}
        )
    result.add_number("value", value, 100 * fmean(exact))
    result.notes.append(f"value {value:.3f}")
    return result


def _judged(schema, wanted, text):
    try:
        found = json.loads(text)
    except ValueError:
        return False, False
    return validator_for(schema)(schema).is_valid(found), found == wanted


def _as_object(schema, value):
    """Return parameters and arguments of a tool, which must be objects.

    Any other value becomes the only argument.
    """
    if isinstance(value, dict):
        return dict(schema), value
    inner = {name: one for name, one in schema.items() if name not in ("$defs", "$id")}
    parameters = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return {**parameters, "$defs": schema.get("$defs", {})}, {"value": value}


def _tool(name, parameters):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def _erring(arguments, i, rng):
    """Return the arguments of a call, every other one with an error, and the expected score.

    The name and each argument are worth one point each.
    """
    most = 1 + len(arguments)
    if i % 2 == 0:
        return dict(arguments), 1.0
    if i % 3 == 0 or not arguments:
        return {**arguments, "not wanted": 1}, most / (most + 1)
    name = rng.choice(list(arguments))
    rest = {key: one for key, one in arguments.items() if key != name}
    if i % 3 == 1:
        return rest, (most - 1) / most
    other = next(
        one
        for one in iter(lambda: changed(arguments[name], rng), ...)
        if not _same(one, arguments[name])
    )
    return {**rest, name: other}, (most - 1) / most


def _same(one, other):
    """Return whether both are the same JSON, by jsonschema."""
    return bool(validator_for({})({"const": one}).is_valid(other))


def _run(spec, said, folder):
    """Run against a server with the given answers.

    Returns the value of the run, the scores, and the request bodies.
    """
    answers = folder / "answers.jsonl"
    answers.write_text("".join(f"{json.dumps(line)}\n" for line in _lines(said)))
    with served(answers=answers) as (url, stats):
        plan = Plan(
            model="simulated",
            launcher=Spec(name="external", options={"base_url": url}),
            tasks=(spec,),
            dataset_roots=(str(folder / "data"),),
            no_reference=True,
        )
        report = asyncio.run(evaluate(plan, folder / "run", environ={}))
        bodies = list(stats.bodies)
    [task] = report.tasks
    assert task.result.value is not None
    assert task.result.scored == len(said)
    [file] = (folder / "run/scores").iterdir()
    return task.result.value, [json.loads(line) for line in file.read_text().splitlines()], bodies


def _lines(said):
    for prompt, text in said.items():
        key = prompt_sha256((Message(role="user", content=prompt),))
        yield {"sha256": key, "right": text, "wrong": "", "probability": 1.0}


MADE, BROKEN, LOST = 2000, 500, 200
"""Numbers of made schemas, of broken ones and of those with a lost reference."""


def compare():
    """Compare everything; without the real schemas, only the made ones."""
    rng = random.Random(11)
    try:
        real = [
            json.loads(line)
            for file in sorted(shared("tool_schemas").glob("*.jsonl"))
            for line in file.open()
        ]
    except Skipped as skipped:
        real, missing = [], [f"without real schemas: {skipped}"]
    else:
        missing = []
    own = [made(rng) for _ in range(MADE)]
    faulty = [broken(rng.choice(own), rng) for _ in range(BROKEN)]
    lost = [without_target(rng.choice(own), rng) for _ in range(LOST)]
    sound = [schema for schema in (*real, *own) if _theirs(schema) is None]
    results = [
        _acceptance(
            f"{len(real)} real, {MADE} made and {BROKEN} broken ones", [*real, *own, *faulty]
        ),
        _references(lost),
        _values(
            "values under real schemas", [one for one in real if _theirs(one) is None], 20, rng
        ),
        _values("values under made schemas", own, 4, rng),
        *_runs(sound[: len(real)] or sound[:200], rng),
    ]
    results[0].notes += missing
    return results


def _acceptance(what, schemas):
    result = Compared(what=f"whether they are schemas: {what}")
    refused = 0
    for schema in schemas:
        theirs, ours = _theirs(schema), _ours(schema)
        refused += theirs is not None
        result.add(json.dumps(schema)[:200], ours, theirs and f"not a JSON schema: {theirs}")
    result.notes.append(f"{refused} are none, for the same reason in the same words")
    return result


def _references(schemas):
    """Check that we refuse schemas with lost references.

    jsonschema notices these only if a value uses them.
    """
    result = Compared(what="schemas that refer to what they do not hold, all refused")
    for schema in schemas:
        ours = _ours(schema) or "taken"
        result.add(json.dumps(schema)[:200], ours.endswith("which is not in it"), True)
    return result


def _values(what, schemas, each, rng):
    """Compare the scorer json_schema and the metric of json_mode_eval with jsonschema."""
    result, followed = Compared(what=f"{what}, by both scorers and jsonschema"), 0
    score = json_schema.scorer().score
    for schema in schemas:
        validator = validator_for(schema)(schema)
        text = json.dumps(schema)
        for value in values(schema, rng, each):
            said = json.dumps(value)
            theirs = validator.is_valid(value)
            scored = score({"schema": schema}, Response(text=said, finish_reason="stop"))
            exact = exact_match(said, said, text)
            result.add(
                f"{text[:150]} {said[:150]}", (scored.value, exact.parts[VALID]), (theirs, theirs)
            )
            followed += theirs
    result.notes.append(f"{followed} follow their schema")
    return result


def _runs(schemas, rng):
    pairs = [(schema, value) for schema in schemas for value in _valid(schema, rng)]
    yield run_of_tools(pairs, rng)
    yield run_of_json(pairs, [changed(value, rng) for _, value in pairs])


def _valid(schema, rng, tries=50):
    """Return a value that follows a schema, if one of several tries does."""
    validator = validator_for(schema)(schema)
    return [one for one in values(schema, rng, tries) if validator.is_valid(one)][:1]


def _theirs(schema):
    """Return jsonschema's reason for refusing the schema, or None."""
    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        return str(error).splitlines()[0]
    return None


def _ours(schema):
    try:
        check_schema(json.dumps(schema))
    except DatasetError as error:
        return str(error)
    return None
