"""Test that the slice in which score is lost is named, with advice about lengths."""

import asyncio
import random
from dataclasses import replace

import numpy
import pytest

from serve_eval.schema import DeployedServer, DeploymentInfo, ServerInfo, Spec
from serve_eval.stats.largest_statistic import FoundSlice
from serve_eval.verdicts.exit_code import FAIL
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare
from serve_eval.workflows.diagnose.candidates import (
    LENGTH,
    RESIDUE,
    KnownSamples,
    Slice,
    describe_rest,
    list_prompt_slices,
    reduce_modulus,
)
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.slice_words import (
    BLOCKS,
    CHUNKS,
    WINDOWS,
    _lose_elsewhere,
    find_sizes,
    is_multiple,
    list_fitting,
)
from serve_eval.workflows.diagnose.slicing import compare_slices, find_slices
from serve_eval.workflows.diagnose.story import diagnose, find_leads
from serve_eval.workflows.references import register
from tests.cli.command import serve_eval
from tests.workflows.diagnose.server import (
    Server,
    answers_to,
    plan_for,
    run,
    sound,
)
from tests.workflows.diagnose.slice_trials import (
    FAULTS,
    UNRELATED,
    break_all,
    break_none,
    build_data,
    build_evidence,
    count_named,
    draw_pair,
    draw_prompts,
    run_other_model,
    run_trial,
)
from tests.workflows.diagnose.test_levels import healthy

SEEDS = range(2)


def choose_size(name):
    """Return a number of prompts with at least fifteen losses."""
    return 1000 if name == "residue of the prompt length" else 500


@pytest.mark.parametrize("name", FAULTS)
def test_the_slice_of_a_fault_is_named(name):
    broken, words = FAULTS[name]
    assert count_named(words, choose_size(name), broken, SEEDS) == len(SEEDS)


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_reference_only_what_does_not_come_with_difficulty_is_named(name):
    broken, words = FAULTS[name]
    expected = 0 if name in ("only above a length", "one subject") else 1
    assert count_named(words, choose_size(name), broken, [0], alone=True) == expected


@pytest.mark.parametrize(("same", "rate"), [(0.0, 0.3), (0.9, 0.05), (0.9, 0.3)])
@pytest.mark.parametrize("alone", [False, True])
def test_a_loss_that_is_the_same_everywhere_names_no_slice(same, rate, alone):
    """Easy prompts lose more, and hard prompts are long and of certain subjects."""
    found = [run_trial(s, 500, break_all, alone=alone, same=same, rate=rate) for s in range(2)]
    assert sum(map(bool, found)) == 0


@pytest.mark.parametrize("share", UNRELATED)
@pytest.mark.parametrize("n", [100, 400])
def test_another_model_names_no_slice(n, share):
    """It is right on a share of all prompts, and so loses most where the prompts are easy."""
    found = [run_trial(s, n, break_none, unrelated=share) for s in range(5)]
    assert sum(map(bool, found)) == 0


@pytest.mark.parametrize(("accuracy", "seed"), [(0.7, 11), (0.75, 12), (0.75, 16)])
def test_the_line_about_another_model_names_no_cause(tmp_path, accuracy, seed):
    report, cause = run_other_model(tmp_path / "run", accuracy, seed)
    assert report.exit_code == FAIL
    assert cause == ""


@pytest.mark.parametrize("alone", [False, True])
def test_healthy_runs_are_accused_in_at_most_one_of_a_hundred(alone):
    """Both sides answer each prompt independently. At most .12 of 60 are accused on average."""
    found = [run_trial(s, 120, break_none, alone=alone, same=0.0) for s in range(60)]
    assert sum(map(bool, found)) <= 1


def test_the_length_modulo_a_large_block_is_no_other_word_for_the_length():
    """All prompts have fewer than 512 tokens, and the long ones are lost."""
    generator = numpy.random.default_rng(2)
    prompts = draw_prompts(generator, 600)
    prompts = replace(prompts, tokens=prompts.tokens % 500)
    right = generator.random(600) > numpy.where(prompts.tokens > 400, 0.9, 0.1)
    run_ = build_evidence(generator, prompts, right, numpy.ones(600))
    assert list(find_slices(run_, (), {})) == []


def test_answers_that_become_longer_than_wrong_ones_are_named():
    found = run_trial(0, 400, break_all, rate=0.2, longer=8.0)
    assert [one.told.partition(":")[0] for one in found] == ["answers of more than 128 tokens"]


def test_a_rule_that_says_more_about_a_slice_takes_its_place():
    generator, (broken, words) = numpy.random.default_rng(1), FAULTS["from n in flight"]
    prompts = draw_prompts(generator, 500)
    a, b = draw_pair(generator, prompts, broken(prompts), same=0.9)
    data = build_data(prompts)
    [found] = compare_slices(a, b, (), data)
    assert found.told.startswith(words)
    for rule, left in (("concurrency", 0), ("worker", 1)):
        other = Finding(rule=rule, told="", change=(), count=1, of=1, task=found.task)
        assert len(list(compare_slices(a, b, (other,), data))) == left


def test_the_smallest_block_and_the_length_come_first():
    """All prompts with 6 modulo 16 tokens have 6 modulo 32 and more, or only one length."""
    asked = healthy(random.Random(1), 60).tasks[0].asked
    known = KnownSamples(
        asked=asked,
        lengths=[38 if i % 3 else 40 for i in range(60)],
        metadata={},
        loads=[None] * 60,
        pairs=[(None, None)] * 60,
    )
    told = [one.told for one in list_prompt_slices(known)]
    assert "prompts of at most 38 tokens" in told
    assert not any("modulo" in one for one in told)
    lengths = [22 + 16 * (i % 5) if i % 3 else 20 + i % 50 for i in range(60)]
    told = [one.told for one in list_prompt_slices(replace(known, lengths=lengths))]
    assert "prompts whose length leaves 6 modulo 16" in told


def tell(asked):
    """Answer soundly, with what the server reports of a prompt."""
    prompt = str(asked.body["prompt"])
    return replace(
        sound(asked),
        prompt_tokens=len(prompt),
        cached=16 if asked.chance("cache") < 0.25 else 0,
        servers=("c0", f"g{int(4 * asked.chance('server'))}"),
    )


def break_if(hit):
    return lambda asked: replace(tell(asked), text="0") if hit(asked) else tell(asked)


REAL = {
    "residue": (
        lambda asked: len(str(asked.body["prompt"])) % 16 == 12,
        "prompts whose length leaves 12 modulo 16",
    ),
    "length": (lambda asked: len(str(asked.body["prompt"])) > 150, "prompts of more than 1"),
    "cached": (
        lambda asked: asked.chance("cache") < 0.25,
        "prompts with tokens from the prefix cache",
    ),
    "metadata": (lambda asked: asked.target.count("\n") == 2, "samples with steps '2'"),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a plan and the run of a sound endpoint under it."""
    folder = tmp_path_factory.mktemp("good")
    plan = replace(plan_for(folder, num_samples=250), no_reference=True, references_dir=None)
    run(plan, Server(act=tell, answers=answers_to(plan.tasks[0])), folder / "a")
    return plan, folder / "a"


def compare_with(good, act, out):
    """Return the folder of the comparison of the sound run with another one."""
    plan, a = good
    run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), out / "b")
    sides = [CompareSide(plan=plan, folder=folder) for folder in (a, out / "b")]
    rules = CompareRules(rule=Spec(name="paired"), again=0)
    asyncio.run(compare(sides[0], sides[1], rules, out / "comparison", environ={}, show_flips=0))
    return out / "comparison"


@pytest.mark.parametrize("name", REAL)
def test_a_real_comparison_names_the_slice(name, good, tmp_path):
    hit, words = REAL[name]
    folder = compare_with(good, break_if(hit), tmp_path)
    [found] = [one for one in diagnose(folder).between if one.rule == "slice"]
    assert found.told.startswith(words)
    assert 0.9 * found.of <= found.count == found.explains
    assert len(found.samples) == 3
    assert found.change[-1].startswith("serve-eval show ")
    assert " --capsule " in found.change[-1]
    [line] = find_leads(read_folder(folder)).places
    assert line == f"word_problems: the loss lies in one slice: {found.told}"


def test_one_real_server_is_named_once(good, tmp_path):
    folder = compare_with(good, break_if(lambda asked: asked.chance("server") < 0.25), tmp_path)
    diagnosis = diagnose(folder)
    found = [*diagnosis.runs[1].findings, *diagnosis.between]
    named = [one for one in found if one.rule in ("worker", "slice")]
    assert len(named) == 1
    assert "g0" in named[0].told


def test_the_slice_is_printed_below_a_red_comparison(good, tmp_path):
    hit, words = REAL["cached"]
    plan, a = good
    run(plan, Server(act=break_if(hit), answers=answers_to(plan.tasks[0])), tmp_path / "b")
    compared = serve_eval(f"compare {a} {tmp_path}/b -o {tmp_path}/comparison", exits=1)
    assert f"where the loss lies in one slice: {words}" in " ".join(compared.stdout.split())


def test_equal_sides_have_no_slice(good, tmp_path):
    folder = compare_with(good, tell, tmp_path)
    assert diagnose(folder).between == ()
    assert find_leads(read_folder(folder)).places == ()


def test_a_run_is_compared_with_the_scores_of_its_registered_reference(good, tmp_path):
    """Without these scores, a slice by metadata is never named."""
    plan, a = good
    register([a], tmp_path / "own")
    plan = replace(plan, no_reference=False, references_dir=str(tmp_path / "own"))
    hit, words = REAL["metadata"]
    run(plan, Server(act=break_if(hit), answers=answers_to(plan.tasks[0])), tmp_path / "b")
    [found] = [one for one in diagnose(tmp_path / "b").runs[0].findings if one.rule == "slice"]
    assert found.told.startswith(words)


@pytest.mark.parametrize(
    ("lost", "elsewhere", "gained", "expected"),
    [
        (60, 0, 0, False),
        (60, 25, 0, True),
        (60, 25, 24, False),  # as many gained outside: noise
        (60, 12, 0, False),  # a border that is not quite that of the fault
        (60, 16, 0, True),
        (12, 5, 0, False),  # too few to be sure
    ],
)
def test_a_loss_outside_the_slice_is_noticed(lost, elsewhere, gained, expected):
    named = FoundSlice(
        place=0,
        p=1e-4,
        least_p=1e-4,
        statistic=5.0,
        lost=lost,
        all_lost=lost + elsewhere,
        gained=0,
        all_gained=gained,
    )
    assert _lose_elsewhere(named, 200, 400) is expected


@pytest.mark.parametrize(
    ("p", "below", "said"),
    [
        (1 / 3000, True, "< 0.0004"),
        (1 / 4800, True, "< 0.0003"),
        (1 / 1000, True, "< 0.002"),
        (0.00098, True, "< 0.001"),
        (1 / 3000, False, "= 0.0003"),
        (2.4e-9, False, "= 2e-09"),
    ],
)
def test_the_least_p_of_the_draws_is_a_bound(p, below, said):
    finding = Finding(rule="slice", told="here", change=(), count=1, of=1, p=p, p_below=below)
    assert finding.brief == f"here (p {said})"


LENGTHS = [random.Random(i).randrange(20, 600) for i in range(800)]


@pytest.mark.parametrize(
    ("fault", "found", "told"),
    [
        ((8, 3), (16, 11), (8, 3)),  # of blocks of 8, one rest modulo 16 stood out
        ((8, 3), (64, 3), (8, 3)),
        ((16, 5), (16, 5), (16, 5)),
        ((32, 21), (32, 21), (32, 21)),
        ((2, 1), (16, 7), (2, 1)),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_the_smallest_modulus_that_explains_a_loss_is_named(fault, found, told, rate):
    rng = random.Random(1)
    fell = [i for i, n in enumerate(LENGTHS) if n % fault[0] == fault[1] and rng.random() < rate]
    inside = numpy.array([n % found[0] == found[1] for n in LENGTHS])
    one = Slice(RESIDUE, describe_rest(found[1], found[0]), inside, found[0])
    reduced = reduce_modulus(one, LENGTHS, fell)
    assert reduced.told == f"prompts whose length leaves {told[1]} modulo {told[0]}"
    assert reduced.inside.tolist() == [n % told[0] == told[1] for n in LENGTHS]


def test_other_slices_stay():
    several = numpy.array([n % 16 in (1, 2) for n in LENGTHS])
    for one in (
        Slice(RESIDUE, "1 to 2", several, 16),
        Slice(LENGTH, "more", numpy.array(LENGTHS) > 300, 300),
    ):
        assert reduce_modulus(one, LENGTHS, [0]) is one


@pytest.mark.parametrize(
    ("told", "sizes"),
    [
        ({"commands": (("vllm", "serve", "m", "--block-size", "32"),)}, {BLOCKS: {32}}),
        ({"commands": (("x", "--max-num-batched-tokens=2048"),)}, {CHUNKS: {2048}}),
        ({"commands": (("x", "--max_num_tokens", "many"),)}, {}),
        (
            {
                "deployment": DeploymentInfo(
                    workers=(
                        DeployedServer(
                            name="c",
                            url="http://h:1",
                            config={
                                "kv_cache_config": {
                                    "tokens_per_block": 64,
                                    "max_attention_window": [4096, 32768],
                                }
                            },
                            server_info={"max_num_tokens": 8192, "sliding_window": None},
                        ),
                    )
                )
            },
            {BLOCKS: {64}, WINDOWS: {4096, 32768}, CHUNKS: {8192}},
        ),
    ],
)
def test_sizes_are_read_from_commands_and_configs(told, sizes):
    assert find_sizes(ServerInfo(**told)) == sizes


@pytest.mark.parametrize(
    ("length", "fits"),
    [(38, []), (2048, [CHUNKS]), (2000, [CHUNKS]), (4096, [WINDOWS]), (3000, [])],
)
def test_an_advice_about_a_length_needs_a_size_that_fits(length, fits):
    """Fails if every length gets one: chunked prefill for "prompts of more than 38 tokens"."""
    assert list_fitting(length, {CHUNKS: {2048}, WINDOWS: {4096}, BLOCKS: {32}}) == fits
    assert list_fitting(length, {}) == []


def test_a_modulus_fits_blocks_of_its_multiples():
    assert is_multiple(16, {BLOCKS: {32}})
    assert is_multiple(32, {CHUNKS: {2048}})
    assert not is_multiple(64, {BLOCKS: {32}})
    assert not is_multiple(16, {})
