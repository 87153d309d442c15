"""Hold what is asked: prompts, sampling parameters, samples and data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """Text within a turn that has images too. Parts have the form in which they are sent."""

    text: str


class ImageUrl(Struct, frozen=True):
    """Where an image is: for us always a `data:image/...;base64,` URL that holds it."""

    url: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """An image within a turn."""

    image_url: ImageUrl


Content = str | tuple[TextPart | ImagePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat prompt: a text, or parts in their order."""

    role: str
    content: Content

    @property
    def text(self) -> str:
        """The text of it, without images."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        return (
            ()
            if isinstance(self.content, str)
            else tuple(p for p in self.content if isinstance(p, ImagePart))
        )


Prompt = str | tuple[Message, ...]
"""A text goes to /v1/completions, messages go to /v1/chat/completions; there is no other switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Always sent in full: an omitted temperature means sampling at 1.0 on trtllm-serve. None
    leaves a field out, for servers that refuse it, and is then part of the protocol.
    """

    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """What a sample asks otherwise than its task. None leaves the task's own; `extra` goes over the
    task's, field by field. Samples that ask alike share one.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question. `id` is unique within its task and stable between runs. `metadata` is for
    scorers and tables, and never sent.

    With `choices`, continuations of a prompt that is a text, no answer is asked for, but how likely
    each of them is: by a request of its own for each. The sample has a response when all of them
    were answered. `heads`, where there are any, stand one before each choice and behind the prompt,
    and belong to what is given: choices that have a context of their own.
    """

    id: str
    prompt: Prompt
    target: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    override: Override | None = None
    choices: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    @property
    def continued(self) -> tuple[tuple[str, str], ...]:
        """Each choice behind the text that it continues."""
        prompt, heads = str(self.prompt), self.heads or ("",) * len(self.choices)
        return tuple(
            (prompt + head, choice) for head, choice in zip(heads, self.choices, strict=True)
        )


HOLDOUT = "holdout"
"""Key of the metadata of samples whose texts are not to be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoots:
    """Where a task may look for its data: folders in the order of search, and the hub only when
    asked for.
    """

    roots: tuple[Path, ...] = ()
    allow_hub: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that a data set was read from, with its checksum as `sha256sum` prints it."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The samples of one run of a task, in the order of the protocol, and the files they were read
    from.

    `total` counts the rows before any subset was taken. `deviation` says how the data differs from
    the published set (None: not, as far as counts tell): the references of others do not apply to
    it then. `notes` are for the report.
    """

    samples: Sequence[Sample]
    files: tuple[SourceFile, ...]
    total: int
    deviation: str | None = None
    notes: tuple[str, ...] = ()
