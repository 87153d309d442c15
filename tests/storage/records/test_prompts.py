"""Keep prompts in a run folder: whole, masked, private, and what they share only once."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.client.connection import SecretMask
from serve_eval.errors import RunFolderError
from serve_eval.schema import (
    HOLDOUT,
    Connection,
    ImagePart,
    ImageUrl,
    MediaFile,
    Message,
    Prompt,
    Sample,
    TextPart,
)
from serve_eval.storage.file_names import prompts_file
from serve_eval.storage.records.prompts import OVERLAP, KeptPrompt, read_prompts, write_prompts

SECRET = "qX7-pL2_vN9.kR4~wT8"
MASK = SecretMask(Connection(), {"OPENAI_API_KEY": SECRET})


def _sample(name: str, prompt: Prompt, **more: object) -> Sample:
    return Sample(id=name, prompt=prompt, target="", **more)  # type: ignore[arg-type]


def _kept(run: Path, *samples: Sample) -> list[KeptPrompt]:
    write_prompts(run, "t", samples, MASK, texts=True)
    return list(read_prompts(run, "t"))


PIECES = st.lists(st.sampled_from(["examples " * 20, "more " * 60, 'é\n"\\', "Q", "日本 " * 70]))
TEXTS = PIECES.map("".join)
PROMPTS = st.one_of(
    TEXTS,
    st.lists(TEXTS, min_size=1, max_size=3).map(
        lambda texts: tuple(Message(role="user", content=text) for text in texts)
    ),
)


@settings(max_examples=40)
@given(prompts=st.lists(PROMPTS, max_size=8))
def test_prompts_are_read_as_they_were_written(
    prompts: list[Prompt], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    samples = [_sample(str(i), prompt) for i, prompt in enumerate(prompts)]
    assert [(one.id, one.prompt) for one in _kept(run, *samples)] == [
        (sample.id, sample.prompt) for sample in samples
    ]


@pytest.mark.parametrize("chat", [False, True])
def test_examples_that_many_prompts_share_are_kept_once(chat: bool, tmp_path: Path) -> None:
    def make(number: int) -> Sample:
        subject = number // 50
        system = "Answer the question with one letter. " * 11
        text = f"{system}{f'Example of subject {subject}. ' * 100}Question {number}?"
        prompt: Prompt = (Message(role="user", content=text),) if chat else text
        return _sample(str(number), prompt)

    samples = [make(number) for number in range(150)]
    assert [one.prompt for one in _kept(tmp_path, *samples)] == [one.prompt for one in samples]
    file = prompts_file(tmp_path, "t")
    assert file.stat().st_size < 30_000  # three examples twice, and a line for each question
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("before", [0, 200, OVERLAP * 3])
def test_secrets_are_masked_wherever_they_are(before: int, tmp_path: Path) -> None:
    head = "example " * (before // 8)
    cut = 10
    samples = [
        _sample("first", f"{head}{SECRET[:cut]}x"),
        _sample("second", f"{head}{SECRET}, and so on"),
        _sample("chat", (Message(role="system", content=f"{head} {SECRET}"),)),
        _sample("parts", (Message(role="user", content=(TextPart(f"see {SECRET}"),)),)),
        _sample("choices", "Which?", choices=("a", SECRET)),
        _sample("last", f"{head}{SECRET}, and so on again"),
    ]
    kept = {one.id: one for one in _kept(tmp_path, *samples)}
    assert SECRET.encode() not in prompts_file(tmp_path, "t").read_bytes()
    assert SECRET not in repr(kept)
    assert str(kept["second"].prompt).endswith("***, and so on")
    assert kept["choices"].choices == ("a", "***")


def test_images_are_kept_as_a_description(tmp_path: Path) -> None:
    image = ImagePart(ImageUrl("data:image/png;base64,AAAA"))
    other = ImagePart(ImageUrl("data:image/png;base64,AAAB"))
    parts = (TextPart("What is it?"), image, other)
    [kept] = _kept(tmp_path, _sample("1", (Message(role="user", content=parts),)))
    assert isinstance(kept.prompt, tuple)
    files = [part for part in kept.prompt[0].images if isinstance(part, MediaFile)]
    assert [(one.media_type, one.size, one.path) for one in files] == [("image/png", 3, "")] * 2
    assert files[0].sha256 == hashlib.sha256(b"\0\0\0").hexdigest() != files[1].sha256
    assert kept.prompt[0].text == "What is it?"


def test_of_hold_out_samples_only_the_ids_are_kept(tmp_path: Path) -> None:
    shared = "example " * 50
    samples = [
        _sample("1", f"{shared}one"),
        _sample("2", f"{shared}hidden", metadata={HOLDOUT: "yes"}, choices=("hidden",)),
        _sample("3", f"{shared}two"),
    ]
    kept = _kept(tmp_path, *samples)
    assert [one.prompt for one in kept] == [f"{shared}one", None, f"{shared}two"]
    assert b"hidden" not in prompts_file(tmp_path, "t").read_bytes()
    write_prompts(tmp_path, "t", samples, MASK, texts=False)
    assert [one.id for one in read_prompts(tmp_path, "t")] == ["2"]


def test_choices_have_the_context_of_their_own(tmp_path: Path) -> None:
    sample = _sample("1", "Which?", choices=(" a", " b"), heads=("x", "y"))
    assert _kept(tmp_path, sample)[0].choices == ("x a", "y b")


def test_a_damaged_line_is_told_with_its_place(tmp_path: Path) -> None:
    assert list(read_prompts(tmp_path, "t")) == []
    _kept(tmp_path, _sample("1", "one"))
    file = prompts_file(tmp_path, "t")
    file.write_bytes(file.read_bytes() + b'{"id":\n')
    with pytest.raises(RunFolderError, match=r"t\.jsonl:2: a damaged record"):
        list(read_prompts(tmp_path, "t"))


def test_memory_does_not_grow_with_the_number_of_prompts(tmp_path: Path) -> None:
    def make(n: int) -> Iterator[Sample]:
        return (_sample(str(i), f"{'example ' * 100}{i}") for i in range(n))

    peaks = []
    tracemalloc.start()
    try:
        for n in (50, 1000):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            write_prompts(tmp_path, "t", make(n), MASK, texts=True)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0] + 50_000
