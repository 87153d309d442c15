"""The cold pass against servers with and without a prefix cache, by what they say of it."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._simulated.simulator import SimulatorConfig, _Simulator
from serve_eval.launchers.simulated import probability
from serve_eval.report.document import print_document
from serve_eval.schema import CacheUse, Limits, Plan, Spec
from serve_eval.schema.media import prompt_sha256
from serve_eval.storage import run_folder
from serve_eval.storage.story_results import CacheSalt
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.invariants.cache_use import SHARE, why_not_tested
from serve_eval.workflows.invariants.caching import add_salt, why_unsalted
from serve_eval.workflows.invariants.check import check
from serve_eval.workflows.invariants.document import make_document
from tests.scripted_server import ScriptedServer, answer, external, fail

N = 30
BLOCK = 16


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="simulated",
        launcher=external("http://127.0.0.1:1/v1"),
        tasks=(Spec(name="gsm8k", options={"num_fewshot": 0}),),
        dataset_roots=(str(data_root),),
        limit=N,
        limits=Limits(concurrency=4),
    )


@pytest.fixture(scope="module")
def texts(plan, tmp_path_factory):
    """Return a function from a prompt to its answer, or to None for another prompt."""
    path = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    _write_answers(path, prepare(replace(plan, no_reference=True)), probability(1.0, None, 0))
    known = _Simulator(SimulatorConfig(answers=path)).answers.by_hash

    def of(prompt):
        found = known.get(prompt_sha256(prompt))
        return None if found is None else found.text

    return of


@dataclass
class _Server:
    """A server with a cache of whole blocks, counted in words.

    `takes` says what it does with a cache_salt: honour, ignore or refuse it. `counts` says which
    counts of cached tokens it reports: all, those above 0, or none. With `corrupt`, a prompt with
    cached blocks gets another answer.
    """

    texts: Callable[[str], str | None]
    takes: str = "honour"
    caches: bool = True
    counts: str = "all"
    corrupt: bool = False
    cached: Counter[tuple[str, str]] = field(default_factory=Counter)
    salts: list[tuple[str, str | None]] = field(default_factory=list)

    async def reply(self, request):
        salt = request.body.get("cache_salt")
        text = self.texts(request.prompt)
        if text is not None:
            self.salts.append((request.prompt, salt))
        if salt is not None and self.takes == "refuse":
            refusal = fail(400, "extra fields: cache_salt")
            return await refusal(request)
        key = request.prompt, salt if salt is not None and self.takes == "honour" else ""
        words = len(request.prompt.split())
        had, self.cached[key] = self.cached[key], words // BLOCK * BLOCK if self.caches else 0
        usage = {"prompt_tokens": words, "completion_tokens": 1}
        if self.counts == "all" or (self.counts == "above 0" and had):
            usage["prompt_tokens_details"] = {"cached_tokens": had}
        said = "The answer is 0." if self.corrupt and had else text or "ok"
        return await answer(said, body={"usage": usage})(request)

    def check(self, plan, *folders, between=lambda: None):
        """Check this server, once for each folder; call `between` after each check."""

        async def run():
            found = []
            async with ScriptedServer(self.reply, paths=["/v1/completions"]).serve() as url:
                at = replace(plan, launcher=external(url))
                for one in folders:
                    found.append(await check(at, one, environ={}, chunk_tokens=()))
                    between()
            return found

        return asyncio.run(run())


def _cold(found):
    [one] = [one for one in found.results if one.arm == "cold"]
    assert all(other.cache is None for other in found.results if other is not one)
    return one


def _outcome(found):
    """Return the outcome of the cold pass."""
    conclusions = make_document(found, Path("out")).conclusions
    [outcome] = [one.outcome for one in conclusions if one.name == "cold"]
    return outcome


def _said(found):
    console = Console(file=io.StringIO(), width=300)
    print_document(make_document(found, Path("out")), console, verbose=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("counts", ["all", "above 0"])
def test_a_salt_makes_the_pass_cold_on_a_server_that_knows_all_prompts(
    plan, texts, tmp_path, counts
):
    server = _Server(texts, counts=counts)
    for found in server.check(plan, tmp_path / "one", tmp_path / "two"):
        cold = _cold(found)
        assert (cold.not_tested, cold.cache.unsalted, found.exit_code) == (None, None, PASS)
        assert (cold.cache.cached, cold.cache.tested, cold.cache.prompts) == (0, N, N)
        assert cold.cache.base_cached >= SHARE * cold.cache.prompt_tokens > 0
        assert _outcome(found) == "PASS"
        assert "cold: each prompt had a cache_salt of its own; 0 of" in _said(found)
    salted = [salt for _, salt in server.salts if salt is not None]
    assert len(set(salted)) == len(salted) == 2 * N
    assert not list((tmp_path / "one" / "base" / "report.json").read_text().split("cache_salt"))[1:]
    prints = [run_folder.read_fingerprints(tmp_path / "one" / arm) for arm in ("cold", "base")]
    assert prints[0] == prints[1]


def test_a_cache_that_returns_wrong_data_is_found_on_a_server_that_knows_all_prompts(
    plan, texts, tmp_path
):
    server = _Server(texts)
    server.check(plan, tmp_path / "before")
    server.corrupt = True
    [found] = server.check(plan, tmp_path / "out")
    assert [one.arm for one in found.results if one.broken] == ["cold"]
    assert (_cold(found).not_tested, found.exit_code, _outcome(found)) == (None, FAIL, "FAIL")


@pytest.mark.parametrize(
    ("takes", "told"),
    [
        ("refuse", "restart the server, or empty its cache"),
        ("ignore", "although every request had a cache_salt of its own"),
    ],
)
def test_without_a_salt_only_a_server_that_knows_no_prompt_is_cold(
    plan, texts, tmp_path, takes, told
):
    server = _Server(texts, takes=takes)
    fresh, warm = server.check(plan, tmp_path / "one", tmp_path / "two")
    assert (_outcome(fresh), _outcome(warm)) == ("PASS", "NOT TESTED")
    use = _cold(warm).cache
    assert use.cached == use.base_cached
    why = f"not cold: {use.cached:,} of {use.prompt_tokens:,} prompt tokens came from the cache"
    assert (_cold(warm).not_tested or "").startswith(why)
    assert told in _said(warm)
    refused = "no cache_salt was sent: the server refuses it: " in _said(warm)
    assert refused == (takes == "refuse")
    assert warm.exit_code == PASS
    written = json.loads((tmp_path / "two" / "invariants.json").read_text())
    assert written["results"][0]["not_tested"].startswith("not cold: ")


@pytest.mark.parametrize(
    ("caches", "counts", "told"),
    [
        (False, "all", "nothing was cached: 0 of "),
        (
            False,
            "above 0",
            "it is not known whether prompts were cached: the server reports no cached",
        ),
        (True, "none", "it is not known whether prompts were cached: the server reports no cached"),
    ],
)
def test_a_server_whose_cache_is_off_or_unknown_is_not_said_to_hold(
    plan,
    texts,
    tmp_path,
    caches,
    counts,
    told,
):
    server = _Server(texts, caches=caches, counts=counts)
    [found] = server.check(plan, tmp_path / "out")
    assert (_cold(found).not_tested or "").startswith(told)
    assert (_outcome(found), found.exit_code) == ("NOT TESTED", PASS)
    assert f"cold: {told}" in _said(found)


def test_a_resumed_check_keeps_its_salt_and_fills_the_cache_again(plan, texts, tmp_path):
    server = _Server(texts)

    def forget():
        """Empty the cache as a restart does, and withdraw the passes after the cold one."""
        for arm in ("base", "again"):
            (out / arm / "report.json").unlink(missing_ok=True)
            (out / arm / "samples" / "gsm8k.jsonl").unlink(missing_ok=True)
        server.cached.clear()
        asked.append(list(server.salts))
        server.salts.clear()

    out, asked = tmp_path / "out", list[list[tuple[str, str | None]]]()
    before, after = server.check(plan, out, out, between=forget)
    assert {salt for _, salt in asked[1]} == {None}
    assert len(asked[1]) == 3 * N
    assert _cold(after).cache == _cold(before).cache


def test_a_folder_of_an_older_version_says_that_nothing_was_salted(plan, texts, tmp_path):
    """Its cold pass has answers, and the folder no file of a salt."""
    out = tmp_path / "out"
    forget = partial(Path.unlink, out / "cache_salt.json", missing_ok=True)
    cold = _cold(_Server(texts).check(plan, out, out, between=forget)[1])
    assert (cold.cache.unsalted, cold.not_tested) == ("the pass was begun without one", None)


def test_tasks_that_score_prompts_get_no_salt(plan):
    scored = Spec(name="word_problems", options={"scoring": "loglikelihood"})
    generated = Spec(name="word_problems", options={})
    [one], [other] = (
        prepare(replace(plan, tasks=(task,), limit=3, no_reference=True))
        for task in (scored, generated)
    )
    salt = CacheSalt(value="s")
    assert [p.dataset.samples for p in add_salt([one], salt)] == [one.dataset.samples]
    [salted] = add_salt([other], salt)
    overrides = [sample.override for sample in salted.dataset.samples]
    assert len({str(own.extra["cache_salt"]) for own in overrides if own is not None}) == 3
    assert why_unsalted([one], salt) == {
        "word_problems": "servers compute log-probabilities of a prompt without the cache"
    }
    assert why_unsalted([other], salt) == {"word_problems": None}


def _use(tested, cached, base):
    return CacheUse(
        unsalted=None,
        prompts=40,
        tested=tested,
        prompt_tokens=1000,
        cached=cached,
        base_cached=base,
    )


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (_use(20, 0, 500), None),
        (_use(19, 0, 499), "little was cached: 499 of 1,000 prompt tokens in base"),
        (_use(0, 0, 0), "nothing was cached: 0 of 1,000 prompt tokens"),
        (_use(0, 900, 960), "not cold: 900 of 1,000 prompt tokens came from the cache"),
        (_use(0, None, None), "it is not known whether prompts were cached"),
    ],
)
def test_half_of_the_prompts_must_compare_computed_with_cached_data(use, why):
    told = why_not_tested(use)
    assert told is None if why is None else (told or "").startswith(why)
