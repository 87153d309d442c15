"""Test the prompts of long_context and of passkeys, their lengths and scores.

Requests stay the same for a data version, and are new to every prefix cache.
"""

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.errors import DatasetError, PlanError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Message, Outcome, Response, Sample, Spec
from serve_eval.tasks import _passkey, _ruler_ingredients, _ruler_kinds
from serve_eval.tasks._passkey import NOISE as PASSKEY_LINES_NOISE
from serve_eval.tasks._passkey import NOISE as PASSKEY_NOISE
from serve_eval.tasks._passkey import keys, passkey_retrieval_64k, passkey_retrieval_128k
from serve_eval.tasks._ruler_ingredients import (
    CLOSE,
    MOST_COUNTS,
    NOISE,
    estimate_tokens,
    find_size,
)
from serve_eval.tasks.long_context import SUBJECT, task

QUICK = {"lengths": [2048, 4096], "samples_per_cell": 2}


def count_words(prompt):
    """Return the words of a prompt: the tokens of a simple endpoint."""
    turns = [prompt] if isinstance(prompt, str) else [turn.text for turn in prompt]
    return sum(len(text.split()) for text in turns)


def test_one_needle_is_asked_for_in_the_singular():
    needle = _ruler_kinds.NEEDLE.format(type="numbers", key="red-lamp", value="1234567")
    context = _ruler_kinds.insert_in_lines([NOISE] * 2, [needle], [1])
    assert _ruler_kinds.format_needle_prompt("numbers", context, ["red-lamp"], several=False) == (
        "A special magic number is hidden within the following text. Make sure to memorize it. I"
        " will quiz you about the number afterwards.\n"
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back"
        " again.\n"
        "One of the special magic numbers for red-lamp is: 1234567.\n"
        "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back"
        " again.\n"
        "What is the special magic number for red-lamp mentioned in the provided text? The special"
        " magic number for red-lamp mentioned in the provided text is"
    )


def test_several_needles_are_asked_for_in_the_plural():
    asked = _ruler_kinds.format_needle_prompt("uuids", "TEXT", ["a", "b", "c"], several=True)
    assert asked == (
        "Some special magic uuids are hidden within the following text. Make sure to memorize it."
        " I will quiz you about the uuids afterwards.\nTEXT\n"
        "What are all the special magic uuids for a, b, and c mentioned in the provided text? The"
        " special magic uuids for a, b, and c mentioned in the provided text are"
    )


def test_needles_in_an_essay_follow_a_part_of_its_sentences():
    text = "One. Two! Three? Four."
    assert _ruler_kinds.insert_in_sentences(text, ["A.", "B."], [0, 50]) == (
        " A. One. Two! B. Three? Four."
    )
    assert _ruler_kinds.insert_in_sentences(text, ["A."], [100]) == "One. Two! Three? Four. A. "


def test_a_chain_of_variables_follows_a_solved_one():
    chain = ["VAR A = 1", "VAR B = VAR A "]
    asked = _ruler_kinds.format_prompt(chain, [0, 2], "1", 3)
    assert asked == (
        "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
        f"VAR A = 1\n{NOISE}\n{NOISE}\nVAR B = VAR A \n{NOISE}\n"
        "Question: Find all variables that are assigned the value 1 in the text above. Answer:"
        " According to the chain(s) of variable assignment in the text above, 2 variables are"
        " assigned the value 1, they are: "
    )
    whole = _ruler_kinds.format_with_example("SOLVED: ", ["A", "B"], asked)
    assert whole == f"SOLVED:  A B\n\n{asked}"


def test_coded_words_have_the_frequencies_of_zeta():
    text = _ruler_kinds.repeat_by_rank(["...", "a", "b", "c", "d"], 1000)
    assert [text.count(word) for word in ("...", "a", "b", "c", "d")] == [607, 151, 67, 37, 24]


def test_documents_are_numbered_between_the_request_and_the_question():
    assert _ruler_ingredients.format_prompt(["First.", "Second."], "Who?") == (
        "Answer the question based on the given documents. Only give me the answer and do not"
        " output any other words.\n\nThe following are given documents.\n\n"
        "Document 1:\nFirst.\n\nDocument 2:\nSecond.\n\n"
        "Answer the question based on the given documents. Only give me the answer and do not"
        " output any other words.\n\nQuestion: Who? Answer:"
    )


@given(
    fixed=st.integers(0, 500),
    rate=st.floats(0.3, 80),
    least=st.integers(1, 40),
    budget=st.integers(64, 1_000_000),
    first=st.none() | st.integers(1, 100_000),
)
def test_a_size_uses_nearly_the_whole_budget(fixed, rate, least, budget, first):
    counted = []

    def tokens(size):
        counted.append(size)
        return fixed + int(rate * size)

    size = find_size(tokens, least, budget, first)
    assert len(counted) <= MOST_COUNTS
    assert min(counted) >= least
    if size is None:
        assert tokens(least) > budget
    else:
        used = tokens(size)
        assert used <= budget
        assert used >= budget * (1 - CLOSE) or tokens(size + 1) > budget


@pytest.mark.parametrize("chat", [False, True])
def test_prompts_have_their_lengths_by_the_tokens_of_the_endpoint(data_root, chat):
    """None is longer with its answer, and none has less than 95 % of its length."""
    every = ["niah_single_1", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "vt", "cwe"]
    every += ["niah_multikey_3", "niah_multivalue", "niah_multiquery", "fwe", "qa_1", "qa_2"]
    system = "Be exact. " * 100
    options = {**QUICK, "kinds": every, "system_prompt": system, "apply_chat_template": chat}
    if not chat:
        options.pop("system_prompt")
    roots = DataRoots(roots=(data_root,))
    first = build_task(Spec(name="long_context", options=options))
    found = first.fit(count_words, None, roots)
    fitted = build_task(Spec(name="long_context", options={**options, **found}))
    assert fitted.fit is None
    assert found["lengths"] == QUICK["lengths"]
    samples = fitted.load(roots, 10_000).samples
    assert len(samples) == len(every) * 2 * 2
    for sample in samples:
        assert isinstance(sample.prompt, str) is not chat
        used = count_words(sample.prompt) + (sample.override.max_tokens or 0)
        length = int(sample.metadata["length"])
        assert 0.95 * length <= used <= length, (sample.id, used)


def test_the_needles_with_the_most_letters_decide_the_size():
    """One prompt of such kinds is counted, and no other one is longer, even by characters."""
    options = {"lengths": [3000], "samples_per_cell": 30, "kinds": ["niah_multiquery"]}
    fit, counted = task(**options).fit, []
    assert fit is not None

    def count(prompt):
        counted.append(prompt)
        return len(prompt)

    sizes = fit(count, None, DataRoots())["sizes"]
    samples = task(**options, sizes=sizes).load(DataRoots(), 100).samples
    assert len(counted) < 10
    for sample in samples:
        assert len(sample.prompt) + (sample.override.max_tokens or 0) <= 3000, sample.id


def test_an_estimate_has_rather_too_many_tokens():
    assert estimate_tokens("The grass is green.") == 7
    assert estimate_tokens("7. lamp 12345. hydrolyse ...") == 14


def test_what_is_hidden_does_not_depend_on_the_tokens_of_the_endpoint():
    samples = [
        task(lengths=[2048], kinds=["niah_multiquery", "vt", "fwe"], sizes=sizes)
        .load(DataRoots(), 100)
        .samples
        for sizes in (
            {"niah_multiquery": [9], "vt": [9], "fwe": [200]},
            {"niah_multiquery": [20], "vt": [30], "fwe": [300]},
        )
    ]
    assert [s.target for s in samples[0]] == [s.target for s in samples[1]]
    assert all(a.prompt != b.prompt for a, b in zip(*samples, strict=True))


def test_the_usual_lengths_are_those_that_the_context_holds():
    fit = task(kinds=["niah_single_1"], samples_per_cell=1).fit
    assert fit(count_words, 20_000, DataRoots())["lengths"] == [4096, 8192, 16384]
    assert fit(count_words, None, DataRoots())["lengths"] == [4096, 8192, 16384, 32768]
    with pytest.raises(PlanError, match="the context of the endpoint has 512 tokens"):
        fit(count_words, 512, DataRoots())


def test_a_longer_answer_leaves_the_prompts_less_of_the_context():
    options = {"kinds": ["niah_single_1"], "samples_per_cell": 1, "max_tokens": 4224}
    fit = build_task(Spec(name="long_context", options=options)).fit
    assert fit(count_words, 20_479, DataRoots())["lengths"] == [4096, 8192]
    assert fit(count_words, 20_480, DataRoots())["lengths"] == [4096, 8192, 16384]


def test_a_kind_that_no_prompt_of_a_length_holds_is_refused():
    fit = task(lengths=[256, 2048], samples_per_cell=1, kinds=["niah_single_1", "vt", "cwe"]).fit
    assert fit is not None
    with pytest.raises(PlanError, match=r"vt, cwe: not even the shortest .* 256 tokens") as raised:
        fit(count_words, None, DataRoots())
    assert "niah_single_1:" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kinds": ["niah"]}, "unknown kinds: niah"),
        ({"kinds": []}, "at least one kind"),
        ({"kinds": ["niah_single_2"]}, "differs from niah_single_1 by its essays alone"),
        ({"lengths": [8192, 4096]}, "ascending order"),
        ({"lengths": [63]}, "from 64 to 1048576"),
        ({"lengths": []}, "one or more numbers"),
        ({"samples_per_cell": 0}, "1 or more"),
        ({"sizes": {"vt": [9]}}, "sizes need lengths"),
        ({"kinds": ["vt"], "lengths": [4096], "sizes": {"vt": [4]}}, r"5 or more .* \[4\]"),
        ({"kinds": ["vt"], "lengths": [4096], "sizes": {}}, "not None"),
        ({"kinds": ["vt"], "lengths": [4096], "sizes": {"vt": [9, 9]}}, "1 or 5 numbers"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, told):
    with pytest.raises(PlanError, match=told):
        task(**options)


def test_data_that_is_missing_is_named_with_the_command_that_fetches_it(data_root):
    asked = task(lengths=[2048], kinds=["qa_1"])
    assert asked.datasets == ("long_context",)
    with pytest.raises(DatasetError, match="RULER was not found") as raised:
        asked.load(DataRoots(), 10)
    assert "serve-eval data fetch long_context" in raised.value.hint
    essays = task(lengths=[2048], haystack="essay")
    assert "niah_single_2" in essays.protocol["kinds"]
    with pytest.raises(DatasetError, match="RULER was not found") as raised:
        essays.load(DataRoots(), 10)
    assert "PaulGrahamEssays.json" in raised.value.hint
    assert task(lengths=[2048]).datasets == ()
    read = asked.load(DataRoots(roots=(data_root,)), 10)
    assert [Path(file.path).name for file in read.files] == ["squad.json"]
    assert {sample.group for sample in read.samples} == {f"squad.json-{i}" for i in range(5)}


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "ruler").mkdir()
    (tmp_path / "ruler/squad.json").write_text('{"data": [{"title": "No paragraphs"}]}')
    with pytest.raises(DatasetError, match=r"squad\.json: not in the form of squad\.json"):
        task(lengths=[2048], kinds=["qa_1"]).load(DataRoots(roots=(tmp_path,)), 10)


@pytest.mark.parametrize(
    ("kind", "values", "answer", "value", "outcome"),
    [
        ("vt", ["ABCDE", "FGHIJ"], " abcde and FGHIJ.", 1.0, Outcome.CORRECT),
        ("vt", ["ABCDE", "FGHIJ"], "ABCDE", 0.5, Outcome.PARTIAL),
        ("vt", ["ABCDE", "FGHIJ"], "KLMNO", 0.0, Outcome.WRONG),
        ("vt", ["ABCDE"], " \n\x00 ", 0.0, Outcome.EMPTY),
        ("niah_single_1", ["1234567"], "It is 1234567890", 1.0, Outcome.CORRECT),
        ("niah_single_1", ["1234567"], "123\t4567", 0.0, Outcome.WRONG),
        ("qa_1", ["in Paris", "Paris"], "paris", 1.0, Outcome.CORRECT),
        ("qa_1", ["in Paris", "Paris"], "Rome", 0.0, Outcome.WRONG),
    ],
)
def test_an_answer_scores_the_share_of_its_values(kind, values, answer, value, outcome):
    sample = Sample(id="1", prompt="", target="\n".join(values), metadata={SUBJECT: kind})
    found = task(lengths=[2048]).score(sample, Response(text=answer, finish_reason="stop"))
    assert (found.value, found.outcome) == (value, outcome)


def test_the_value_is_broken_down_by_length_and_kind_in_their_order():
    asked = task(lengths=[2048, 16384], kinds=["niah_multikey_1", "vt"], samples_per_cell=1)
    samples = list(asked.load(DataRoots(), 10).samples)
    random.Random(0).shuffle(samples)
    table = asked.breakdown((s, float(s.metadata[SUBJECT] == "vt")) for s in samples)
    assert {name: list(part) for name, part in table.items()} == {
        "length": ["2048", "16384"],
        "kind": ["niah_multikey_1", "vt"],
        "kind at length": [
            "niah_multikey_1 at 2048",
            "niah_multikey_1 at 16384",
            "vt at 2048",
            "vt at 16384",
        ],
    }
    assert table["length"] == {
        "2048": {"value": 50.0, "scored": 2},
        "16384": {"value": 50.0, "scored": 2},
    }


def test_a_chat_has_the_whole_prompt_in_its_turn():
    options = {"lengths": [2048], "kinds": ["vt"], "apply_chat_template": True}
    sample = build_task(Spec(name="long_context", options=options)).load(DataRoots(), 1).samples[0]
    assert isinstance(sample.prompt, tuple)
    assert [type(turn) for turn in sample.prompt] == [Message]
    assert sample.prompt[0].text.endswith("they are: ")


def test_the_keys_are_the_golden_ones():
    found = keys(20, 0)
    assert found[:6] == ["66048", "76475", "93824", "21948", "92411", "57815"]
    assert found[19] == "01868"


@pytest.mark.parametrize(
    ("task", "lines", "step"),
    [(passkey_retrieval_64k, 2610, 45), (passkey_retrieval_128k, 5220, 90)],
)
def test_the_first_twenty_lie_in_the_first_depths_of_59(task, lines, step):
    dataset = task().load(DataRoots(), 20)
    assert (dataset.total, len(dataset.samples), dataset.deviation) == (295, 20, None)
    for i, sample in enumerate(dataset.samples):
        text = sample.prompt
        assert text.count(PASSKEY_NOISE) == lines
        before, _, after = text.partition(f"The pass key is {sample.target}. Remember it.")
        assert before.count(PASSKEY_NOISE) == i // 5 * step
        assert after.count(PASSKEY_NOISE) == lines - i // 5 * step
        assert text.endswith(
            "Here we go. There and back again.\n\n\nWhat is the pass key?\n\nThe pass key is"
        )
    assert [s.metadata["depth"] for s in dataset.samples[::5]] == [
        "0.0 %",
        "1.7 %",
        "3.4 %",
        "5.2 %",
    ]


def test_all_depths_reach_from_the_first_line_to_the_last():
    made = passkey_retrieval_64k(depths="all", num_samples=12)
    dataset = made.load(DataRoots(), 12)
    depths = [float(s.metadata["depth"].split()[0]) for s in dataset.samples]
    assert (depths[0], depths[-1], sorted(depths)) == (0.0, 100.0, depths)
    assert len(set(depths)) == 12
    assert len({s.id for s in dataset.samples}) == 12
    table = made.breakdown((s, float(i > 0)) for i, s in enumerate(dataset.samples))
    assert table["depth"]["0.0 %"] == {"value": 0.0, "scored": 1}


def test_every_sample_counts_and_one_miss_fails():
    made = passkey_retrieval_64k()
    assert (made.hypothesis.sigma, made.hypothesis.alpha) == (0.0, 0.5)
    assert made.sampling.max_tokens == 6
    sample = made.load(DataRoots(), 1).samples[0]
    assert made.score(sample, Response(text=" 66048. The", finish_reason="length")).value == 1.0
    with pytest.raises(PlanError, match="1 to 295"):
        passkey_retrieval_64k(num_samples=296)


def test_texts_differ_by_length_in_nothing_but_noise_and_title():
    short, long = (
        _passkey.passkey_lines(lines=lines).load(DataRoots(), 22).samples for lines in (30, 34)
    )
    assert [a.target for a in short] == [b.target for b in long]
    assert [a.metadata for a in short] == [b.metadata for b in long]
    for a, b in zip(short, long, strict=True):
        assert isinstance(a.prompt, str)
        assert isinstance(b.prompt, str)
        assert (a.prompt.count(PASSKEY_LINES_NOISE), b.prompt.count(PASSKEY_LINES_NOISE)) == (
            30,
            34,
        )
        assert a.prompt.count(a.target) == 2
    titles = [str(one.prompt).split("\n", 1)[0] for one in (*short, *long)]
    assert len(set(titles)) == len(titles)


def test_the_texts_of_this_data_version():
    prompts = [str(one.prompt) for one in _passkey.passkey_lines().load(DataRoots(), 55).samples]
    digest = hashlib.sha256("\0".join(prompts).encode()).hexdigest()[:16]
    assert (_passkey.LINES_VERSION, digest) == (1, "bf2845eba61dfaaa")


def test_options_out_of_range_are_refused():
    for options in ({"lines": 0}, {"num_samples": 0}):
        with pytest.raises(PlanError, match="1 or more"):
            _passkey.passkey_lines(**options)
