"""Build the log that lm-eval itself would have written of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_eval.errors import ServeEvalError
from serve_eval.harness import seeds
from serve_eval.harness.layout import Logged, Row, mean_stderr, row
from serve_eval.harness.library import quiet
from serve_eval.harness.measures import Documents, Key, Measure, aggregate, mean_of, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """An answered document: `results` of the model, `found` and `filtered` as of lm-eval."""

    results: Sequence[Any]
    found: Mapping[Key, Any]
    filtered: Mapping[str, Sequence[Any]]


def build_log(
    name: str,
    here: Documents,
    measures: Mapping[str, Measure],
    judged: Mapping[str, Judged],
    *,
    planned: int,
    write: Callable[[Iterable[Row]], str],
) -> Logged:
    """Return the log of a task, for the documents in `judged`, by their number.

    `write` takes the rows and returns their hash.
    """
    items: dict[Key, list[Any]] = {}
    for one in judged.values():
        for key, item in one.found.items():
            items.setdefault(key, []).append(item)
    values: dict[Key, float] = {}
    spreads: dict[Key, float | None] = {}
    for key, given in items.items():
        measure = measures.get(key[0]) or mean_of(key[0])
        try:
            values[key] = aggregate(measure, given)
        except ServeEvalError:
            continue  # lm-eval cannot compute it either
        numbers = [value for value in map(number, given) if value is not None]
        plain = len(numbers) == len(given) and measure.is_mean
        spreads[key] = mean_stderr(numbers) if plain else None
    with quiet():
        config, better = here.task.dump_config(), dict(here.task.higher_is_better())
    return Logged(
        task=name,
        version=here.task.VERSION,
        num_fewshot=config.get("num_fewshot") or 0,
        config=config,
        values=values,
        stderrs=spreads,
        higher_is_better=better,
        planned=planned,
        answered=len(judged),
        rows_hash=write(_list_rows(here, judged)),
    )


def _list_rows(here: Documents, judged: Mapping[str, Judged]) -> Iterator[Row]:
    """Yield the rows of all documents for each filter, one filter after the other."""
    for used in dict.fromkeys(name for one in judged.values() for name in one.filtered):
        for doc, one in judged.items():
            if used in one.filtered:
                yield _make_row(here, doc, one, used)


def _make_row(here: Documents, doc: str, one: Judged, used: str) -> Row:
    instances = here.instances[doc]
    metrics = {metric: _plain(item) for (metric, under), item in one.found.items() if under == used}
    with seeds.of_document(doc):
        target = str(here.task.doc_to_target(instances[0].doc))
    return row(
        int(doc),
        dict(instances[0].doc),
        target,
        [list(instance.args) for instance in instances],
        [[result] for result in one.results],
        list(one.filtered[used]),
        used,
        metrics,
    )


def _plain(item: Any) -> Any:
    """Return a figure without numpy types."""
    if isinstance(item, list | tuple):
        return [_plain(one) for one in item]
    return item.tolist() if hasattr(item, "tolist") else item
