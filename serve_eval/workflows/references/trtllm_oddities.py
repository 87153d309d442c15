"""Find oddities of imported entries: remarkable rows, and several names for the same thing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.workflows.references.trtllm_rows import OVERRIDES, Row

_ALGORITHMS = ("quant_algo", "kv_cache_quant_algo", "spec_dec_algo")
_MANY_EQUAL = 4
_LONG_NAME = 8


def oddities_of_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what is remarkable in single rows, and in the rows of one model."""
    with_floats = {row.file for row in rows if isinstance(row.value, float)}
    for row in rows:
        if row.metric != "accuracy":
            yield row.odd(f"the value is named {row.metric!r}")
        elif row.value == 0:
            yield row.odd("accuracy 0 never gates")
        if isinstance(row.value, int) and row.file in with_floats:
            yield row.odd(f"the integer {row.value} among floats")
        yield from (
            row.odd(f"{key} is set to {row.entry[key]}") for key in OVERRIDES if key in row.entry
        )
    equal = Counter((row.file, row.model, row.value) for row in rows)
    for (file, model, value), count in equal.items():
        if count >= _MANY_EQUAL:
            yield (
                f"{file}: {model}: {count} rows have the same value {value}: declared equal, hardly"
                " measured"
            )


def oddities_across(rows: Sequence[Row]) -> Iterator[str]:
    """Yield names that differ between rows although they seem to mean the same thing."""
    for key in _ALGORITHMS:
        named = [(row.entry[key], row.file) for row in rows if row.entry.get(key) is not None]
        yield from _variants(
            ((str.casefold(name), name, file) for name, file in named),
            f"{key} is spelt in several ways",
        )
    models = ((same, row.model, row.file) for row in rows for same in _plain_names(row.model))
    yield from _variants(models, "several names for what seems to be one model")


def _variants(named: Iterable[tuple[str, str, str]], text: str) -> Iterator[str]:
    """Yield a line for every group of (group, name, file) with more than one name."""
    groups: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for group, name, file in named:
        groups[group][name].add(file)
    several = [sorted(files.items()) for files in groups.values() if len(files) > 1]
    lines = [
        f"*: {' / '.join(name for name, _ in names)}: {text} "
        f"({'; '.join(name + ' in ' + ', '.join(sorted(files)) for name, files in names)})"
        for names in several
    ]
    yield from dict.fromkeys(lines)


def _plain_names(model: str) -> set[str]:
    """Return a model's name without case and punctuation, with and without its owner.

    gpt-oss is published as MXFP4, so that suffix is dropped.
    """
    owner, _, name = model.casefold().removesuffix("-mxfp4").rpartition("/")
    return {
        plain
        for part in (owner + name, name)
        if len(plain := re.sub("[^a-z0-9]", "", part)) >= _LONG_NAME
    }
