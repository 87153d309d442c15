"""Make random JSON schemas, broken ones, and values that mostly or hardly ever follow a schema."""

import json

NAMES = ("a", "b", "name", "a/b", "m~n", "$ref", "items", "type", "é", "😊", "")
TEXTS = ("", "a", "ab", "abc", "x7", "2024-05-01", "é", "😊", "\n", "true", "1")
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    10,
    -10,
    100,
    0.5,
    1.0,
    1.5,
    -2.5,
    0.1,
    0.3,
    1e-7,
    12345678901234567890,
    1e15,
)
PATTERNS = ("^a", "b$", "^[a-z]+$", "[0-9]", "^.{2,4}$", "^$", "é")
KINDS = ("string", "number", "integer", "boolean", "null", "array", "object")
DRAFTS = {
    "$defs": (None, None, None, "https://json-schema.org/draft/2020-12/schema"),
    "definitions": (
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-06/schema#",
    ),
}
"""Keywords for the schemas that a schema refers to, by draft."""


def made(rng):
    """Return a schema with one or two named ones that it and they refer to."""
    place = rng.choice(("$defs", "$defs", "definitions"))
    references = [f"#/{place}/n{i}" for i in range(rng.randrange(3))]
    schema = _schema(rng, 3, references)
    while not isinstance(schema, dict):
        schema = _schema(rng, 3, references)
    if references:
        schema[place] = {one.rpartition("/")[2]: _ended(rng, references) for one in references}
    draft = rng.choice(DRAFTS[place])
    return {"$schema": draft, **schema} if draft else schema


def broken(schema, rng):
    """Return a schema with a fault at some place."""
    faults = [
        {"type": "text"},
        {"type": []},
        {"type": ["string", "string"]},
        {"required": "a"},
        {"required": ["a", "a"]},
        {"minLength": -1},
        {"maxItems": 1.5},
        {"multipleOf": 0},
        {"properties": []},
        {"properties": {"a": 3}},
        {"anyOf": []},
        {"anyOf": {"type": "null"}},
        {"enum": {"a": 1}},
        {"pattern": 3},
        {"items": 7},
        {"$defs": {"x": "y"}, "definitions": {"x": "y"}},
        {"additionalProperties": "no"},
        {"$ref": 3},
        {"uniqueItems": "yes"},
        {"$id": "#user"},
    ]
    copy = json.loads(json.dumps(schema))
    places = [one for one in _schemas(copy) if "$ref" not in one] or [copy]
    rng.choice(places).update(rng.choice(faults))
    return copy


def without_target(schema, rng):
    """Return a schema with a reference to a missing target."""
    copy = json.loads(json.dumps(schema))
    nowhere = (
        "#/$defs/nowhere",
        "#/properties/0/no",
        "#anchor",
        "other.json",
        "http://made.up/x.json#/a",
        "#/%24defs/q",
    )
    rng.choice(list(_schemas(copy)))["$ref"] = rng.choice(nowhere)
    return copy


def values(schema, rng, count):
    """Yield values that mostly follow a schema, each with a changed one."""
    for _ in range(count):
        value = _value(schema, schema, rng, 6)
        yield value
        yield changed(value, rng)


def changed(value, rng):
    """Return a value that differs at one place."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        name = rng.choice(list(value))
        match rng.randrange(4):
            case 0:
                return {key: one for key, one in value.items() if key != name}
            case 1:
                return {**value, rng.choice(NAMES): _any(rng, 1)}
            case _:
                return {**value, name: changed(value[name], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return rng.choice(
            (value[:i], value + value[i:], [*value[:i], changed(value[i], rng), *value[i + 1 :]])
        )
    if isinstance(value, bool):
        return rng.choice((not value, int(value), str(value)))
    if isinstance(value, int | float):
        return rng.choice(
            (value + 1, -value, value * 2, value + 0.5, float(value), str(value), bool(value))
        )
    if isinstance(value, str):
        return rng.choice((value + "a", value[1:], value.upper(), value * 3, None, 0))
    return _any(rng, 1)


def _schemas(schema):
    """Yield a schema and those at the usual places in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for word in ("properties", "$defs", "definitions"):
        for one in (schema.get(word) or {}).values():
            yield from _schemas(one)
    for one in (schema.get("items"), schema.get("additionalProperties"), *schema.get("anyOf", ())):
        yield from _schemas(one)


def _ended(rng, references):
    """Return a schema whose references, also to itself, are only below a property or an item."""
    inner = _schema(rng, 1, references)
    return rng.choice(
        (
            {
                "anyOf": [
                    {"type": "null"},
                    {"type": "object", "properties": {"next": inner}, "required": ["next"]},
                ]
            },
            {
                "type": "object",
                "properties": {"next": {"$ref": rng.choice(references)}, "value": inner},
            },
            {"type": ["array"], "items": {"$ref": rng.choice(references)}},
            _schema(rng, 1, ()),
        )
    )


def _schema(rng, depth, references):
    roll = rng.random()
    if references and roll < 0.15 and depth < 3:
        return {"$ref": rng.choice(references)}
    if roll < 0.2 and depth < 3:
        return rng.choice(
            (True, {}, {"const": _any(rng, 1)}, {"enum": [_any(rng, 1) for _ in range(3)]})
        )
    if roll < 0.35 and depth:
        word = rng.choice(("anyOf", "anyOf", "oneOf", "allOf", "not"))
        some = [_schema(rng, depth - 1, references) for _ in range(rng.randrange(1, 4))]
        return {word: some[0] if word == "not" else some}
    kind = rng.choice(KINDS if depth else KINDS[:5])
    schema = _of_kind(kind, rng, depth, references)
    told = rng.choice(
        (kind, kind, [kind], [kind, rng.choice([other for other in KINDS if other != kind])])
    )
    return {**schema, "type": told} if rng.random() < 0.9 else schema


def _of_kind(kind, rng, depth, references):
    references = (
        (*references, "#") if references else ()
    )  # a list may contain itself only in its items

    def some(**words):
        return {word: value() for word, value in words.items() if rng.random() < 0.35}

    match kind:
        case "string":
            least = rng.randrange(4)
            return some(
                minLength=lambda: least,
                maxLength=lambda: least + rng.randrange(4),
                pattern=lambda: rng.choice(PATTERNS),
                enum=lambda: rng.sample(TEXTS, 3),
            )
        case "number" | "integer":
            least, most = sorted(rng.sample(NUMBERS, 2))
            return some(
                minimum=lambda: least,
                maximum=lambda: most,
                exclusiveMinimum=lambda: least,
                multipleOf=lambda: rng.choice((1, 2, 0.5, 0.1, 3)),
                enum=lambda: rng.sample(NUMBERS, 4),
            )
        case "array":
            least = rng.randrange(3)
            return {
                **({"items": _schema(rng, depth - 1, references)} if rng.random() < 0.8 else {}),
                **some(
                    minItems=lambda: least,
                    maxItems=lambda: least + rng.randrange(3),
                    uniqueItems=lambda: True,
                    contains=lambda: _schema(rng, 0, ()),
                ),
            }
        case "object":
            names = rng.sample(NAMES, rng.randrange(4))
            return {
                "properties": {name: _schema(rng, depth - 1, references) for name in names},
                **some(
                    required=lambda: rng.sample(names, rng.randrange(len(names) + 1)),
                    additionalProperties=lambda: rng.choice(
                        (False, True, _schema(rng, 0, references))
                    ),
                    patternProperties=lambda: {rng.choice(PATTERNS): _schema(rng, 0, ())},
                    propertyNames=lambda: {"maxLength": rng.randrange(1, 5)},
                    minProperties=lambda: rng.randrange(3),
                    maxProperties=lambda: rng.randrange(1, 4),
                ),
            }
    return {}


def _value(schema, root, rng, depth):
    """Return a value for the properties, items, alternatives, types and bounds of a schema.

    Other keywords are ignored.
    """
    if not isinstance(schema, dict) or depth < 0:
        return _any(rng, 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    if isinstance(schema.get("$ref"), str):
        found = root
        for name in schema["$ref"].removeprefix("#").split("/")[1:]:
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return _value(found, root, rng, depth - 1)
    for word in ("anyOf", "oneOf", "allOf"):
        if schema.get(word):
            return _value(rng.choice(schema[word]), root, rng, depth - 1)
    kind = schema.get("type", "object" if "properties" in schema else rng.choice(KINDS))
    match rng.choice(kind) if isinstance(kind, list) else kind:
        case "object":
            named = schema.get("properties", {})
            required = set(schema.get("required", ()))
            given = {
                name: _value(one, root, rng, depth - 1)
                for name, one in named.items()
                if name in required or (depth > 0 and rng.random() < 0.7)
            }
            more = schema.get("additionalProperties", True)
            if more is not False and rng.random() < 0.3:
                given.setdefault(rng.choice(NAMES), _value(more, root, rng, depth - 2))
            return given
        case "array":
            least = min(schema.get("minItems", 0), 20)
            count = rng.randrange(least, min(schema.get("maxItems", least + 3), least + 3) + 1)
            return [
                _value(schema.get("items", True), root, rng, depth - 1)
                for _ in range(count if depth else least)
            ]
        case "string":
            least = min(schema.get("minLength", 0), 50)
            return rng.choice(TEXTS).ljust(least, "a")[: min(schema.get("maxLength", 9), 60)]
        case "integer":
            least = int(schema.get("minimum", schema.get("exclusiveMinimum", -3)))
            return least + rng.randrange(4)
        case "number":
            return rng.choice(
                (
                    schema.get("minimum", 0) + rng.choice((0, 0.5, 1)),
                    schema.get("maximum", 1),
                    0,
                    2.5,
                )
            )
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    return _any(rng, 1)


def _any(rng, depth):
    roll = rng.random()
    if depth and roll < 0.2:
        return [_any(rng, 0) for _ in range(rng.randrange(3))]
    if depth and roll < 0.4:
        return {rng.choice(NAMES): _any(rng, 0) for _ in range(rng.randrange(3))}
    return rng.choice((None, True, False, rng.choice(NUMBERS), rng.choice(TEXTS)))
