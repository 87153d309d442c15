"""Types of what is asked: prompts, sampling parameters, samples and data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from msgspec import Struct

from serve_eval.schema.content import Content, ImagePart, MediaFile, MediaPart, TextPart


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat prompt: a text, or parts in their order."""

    role: str
    content: Content

    @property
    def text(self) -> str:
        """The text of the turn, without media."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def media(self) -> tuple[MediaPart, ...]:
        """The images, sounds and videos of the turn in their order."""
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if not isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart | MediaFile, ...]:
        return tuple(
            part
            for part in self.media
            if isinstance(part, ImagePart)
            or (isinstance(part, MediaFile) and part.form == "image_url")
        )


class ToolCall(Struct, frozen=True, gc=False):
    """A tool call that an answer asks for.

    `arguments` is the text as received; JSON if it is valid.
    """

    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMessage(Message):
    """A turn of the model with tool calls, each with its id."""

    tool_calls: tuple[ToolCall, ...]
    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMessage(Message):
    """A turn with the result of the tool call that has the id `call_id`."""

    call_id: str


Prompt = str | tuple[Message, ...]
"""A text goes to /v1/completions, messages go to /v1/chat/completions; there is no other switch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters, always sent in full.

    An omitted temperature means sampling at 1.0 on trtllm-serve. None leaves a field out, for
    servers that refuse it, and is then part of the protocol.
    """

    max_tokens: int
    temperature: float | None = 0.0
    top_p: float | None = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """The fields of a request in which a sample differs from its task.

    None keeps the task's own value; `extra` replaces the task's, field by field. Samples with the
    same override share one object.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    def limit(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling of a task with the sample's own limits."""
        max_tokens = sampling.max_tokens if self.max_tokens is None else self.max_tokens
        stop = sampling.stop if self.stop is None else self.stop
        return replace(sampling, max_tokens=max_tokens, stop=stop)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question.

    `id` is unique within its task and stable between runs. `group` names what samples share, such
    as a passage, a video or a speaker, so that their answers may fail together (empty: unknown, and
    the sample is on its own). `metadata` is for scorers and tables. Neither is sent. With
    `choices`, continuations of a prompt that is a text, the request asks for the log-probability of
    each of them instead of an answer, one request per choice. The sample has a response if all of
    them were answered. `heads`, if any, are put between the prompt and each choice and belong to
    the context: they are for choices with a context of their own.
    """

    id: str
    prompt: Prompt
    target: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    override: Override | None = None
    choices: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    group: str = ""

    @property
    def continued(self) -> tuple[tuple[str, str], ...]:
        """Each choice with the text that it continues."""
        prompt, heads = str(self.prompt), self.heads or ("",) * len(self.choices)
        return tuple(
            (prompt + head, choice) for head, choice in zip(heads, self.choices, strict=True)
        )


MEDIUM = "medium"
"""Key of the metadata with the medium that a sample asks about, if it shows others too."""
HOLDOUT = "holdout"
"""Key of the metadata of samples whose texts must not be shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoots:
    """The places where a task may look for its data.

    `roots` are folders in the order of search. The hub is used only if `allow_hub` is set. With
    `allow_fewer`, a set with fewer rows than the task asks for is no error.
    """

    roots: tuple[Path, ...] = ()
    allow_hub: bool = False
    allow_fewer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that a data set was read from, with its checksum as `sha256sum` prints it."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """The samples of one run of a task, in the order of the protocol, and their source files.

    `total` counts the rows before any subset was taken. `deviation` says how the data differs from
    the published set (None: it does not, as far as counts show); other sources' references do not
    apply to it then. `notes` are for the report.
    """

    samples: Sequence[Sample]
    files: tuple[SourceFile, ...]
    total: int
    deviation: str | None = None
    notes: tuple[str, ...] = ()
