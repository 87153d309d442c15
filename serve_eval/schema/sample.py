"""Define what is asked: content, prompts, sampling parameters, samples and data sets.

Parts have the form in which they are sent. A MediaFile stands for a part whose bytes lie in a
file: it is read when its request is built, so that samples do not hold videos in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from serve_eval.frozen import freeze


class TextPart(Struct, frozen=True, tag="text", tag_field="type"):
    """Text within a turn that also has media."""

    text: str


class ImageUrl(Struct, frozen=True):
    """The URL of an image: here always a `data:image/...;base64,` URL that holds it."""

    url: str


class ImagePart(Struct, frozen=True, tag="image_url", tag_field="type"):
    """An image within a turn."""

    image_url: ImageUrl


class InputAudio(Struct, frozen=True):
    """A sound in base64 with its format: wav or mp3 at OpenAI, others at some servers."""

    data: str
    format: str


class InputAudioPart(Struct, frozen=True, tag="input_audio", tag_field="type"):
    """A sound within a turn, in the form of OpenAI."""

    input_audio: InputAudio


class AudioUrl(Struct, frozen=True):
    """The URL of a sound, as a rule a `data:audio/...;base64,` URL that holds it."""

    url: str


class AudioUrlPart(Struct, frozen=True, tag="audio_url", tag_field="type"):
    """A sound within a turn, in a form of vLLM and trtllm-serve."""

    audio_url: AudioUrl


class VideoUrl(Struct, frozen=True):
    """The URL of a video, as a rule a `data:video/...;base64,` URL that holds it."""

    url: str


class VideoPart(Struct, frozen=True, tag="video_url", tag_field="type"):
    """A video within a turn, in the form of vLLM and trtllm-serve."""

    video_url: VideoUrl


AudioForm = Literal["input_audio", "audio_url"]
MediaForm = Literal["image_url", "input_audio", "audio_url", "video_url"]
"""The type of the part as which a medium is sent."""


class MediaFile(Struct, frozen=True, kw_only=True, tag="local_file", tag_field="type"):
    """An image, a sound or a video in a file, which the client sends as a part of type `form`.

    `size` is in bytes. `sha256` is the checksum of the bytes in hexadecimal.
    """

    form: MediaForm
    path: str
    media_type: str
    size: int
    sha256: str


SentPart = ImagePart | InputAudioPart | AudioUrlPart | VideoPart
"""A medium as it is sent."""
MediaPart = SentPart | MediaFile
Content = str | tuple[TextPart | MediaPart, ...]


@freeze
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


@freeze
class CallMessage(Message):
    """A turn of the model with tool calls, each with its id."""

    tool_calls: tuple[ToolCall, ...]
    call_ids: tuple[str, ...]


@freeze
class ResultMessage(Message):
    """A turn with the result of the tool call that has the id `call_id`."""

    call_id: str


@freeze
class ThoughtMessage(CallMessage):
    """A turn of the model with its thoughts, and with its tool calls if it has any.

    `tagged`: they are sent between tags in the text, as the server sent them.
    """

    reasoning: str
    tagged: bool = False

    @property
    def whole_text(self) -> str:
        """The text as it is sent, with thoughts that are `tagged`."""
        return f"<think>\n{self.reasoning}\n</think>\n\n{self.text}" if self.tagged else self.text


Prompt = str | tuple[Message, ...]
"""A text goes to /v1/completions, messages go to the chat route of the connection."""


class Route(StrEnum):
    """A path below the base URL that answers prompts."""

    COMPLETIONS = "/completions"
    CHAT = "/chat/completions"
    RESPONSES = "/responses"


ChatRoute = Literal["chat", "responses", "responses_by_id"]
"""Route of prompts that are messages: /v1/chat/completions or /v1/responses."""
BY_ID: ChatRoute = "responses_by_id"
"""Route of conversations whose previous turns the server keeps; an id names them."""
CHAT_ROUTES: Mapping[ChatRoute, Route] = {
    "chat": Route.CHAT,
    "responses": Route.RESPONSES,
    BY_ID: Route.RESPONSES,
}


@freeze
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


@freeze
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


HistoryThoughts = Literal["drop", "keep"]
"""The thoughts of earlier turns in the history of a conversation: left out, or sent again."""


@freeze
class UserTurn:
    """A later turn of the user, and the result of each tool that this turn's calls get, by name."""

    message: Message
    results: Mapping[str, str] = field(default_factory=dict)


@freeze
class Conversation:
    """The turns that follow the first one of a sample, whose answers the server gives itself.

    `results` are those of the tools in the first turn. A turn ends when an answer calls no tool,
    or after `rounds` answers with calls. `thoughts` says if those of earlier turns stay in the
    history. With `salted`, each request has a cache_salt of its own instead of that of the sample.
    """

    turns: tuple[UserTurn, ...]
    results: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 8
    thoughts: HistoryThoughts = "drop"
    salted: bool = False


@freeze
class RecordedBody:
    """The body of a request that a client once sent, to be sent again as it was.

    `route` is the path below the base URL. `fields` are those of the body but the model's name.
    """

    route: Route
    fields: Mapping[str, object]

    @property
    def streamed(self) -> bool:
        """True if the client asked for an event stream."""
        return self.fields.get("stream") is True


@freeze
class Sample:
    """One question, or a conversation whose first turn is `prompt`.

    `id` is unique within its task and stable between runs. `group` names what samples share, such
    as a passage, a video or a speaker, so that their answers may fail together (empty: unknown, and
    the sample is on its own). `metadata` is for scorers and tables. Neither is sent. With
    `choices`, continuations of a prompt that is a text, the request asks for the log-probability of
    each of them instead of an answer, one request per choice. The sample has a response if all of
    them were answered. `heads`, if any, are put between the prompt and each choice and belong to
    the context: they are for choices with a context of their own. A sample with a `recorded` body
    sends that; its prompt is for readers.
    """

    id: str
    prompt: Prompt
    target: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    override: Override | None = None
    choices: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    group: str = ""
    conversation: Conversation | None = None
    recorded: RecordedBody | UnsetType = UNSET

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


@freeze
class DataRoots:
    """The places where a task may look for its data.

    `roots` are folders in the order of search. The hub is used only if `allow_hub` is set. With
    `allow_fewer`, a set with fewer rows than the task asks for is no error.
    """

    roots: tuple[Path, ...] = ()
    allow_hub: bool = False
    allow_fewer: bool = False


@freeze
class SourceFile:
    """A file that a data set was read from, with its checksum as `sha256sum` prints it."""

    path: str
    sha256: str


@freeze
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


Obedience = Literal["heeded", "ignored", "refused", "unknown"]
"""The answer of a server to a value in a request: it heeds, ignores or refuses it."""
ServerDefaults = Literal["neutral", "keep"]
"""The policy for sampling defaults: send neutral values in their place, or keep those of the
server."""


class SamplingDefault(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One field that decides an answer, and the server's handling of it.

    `name` is the usual name and `sent_as` the one that this server takes. `obedience` says if a
    value in a request counts. `adds` says if the server puts a value of its own in the place of a
    missing one (None: not known). `neutral` is the value that changes nothing (None: no value is
    known to be safe with this server). `value` is the server's own value, if its log names it.
    """

    name: str
    sent_as: str
    obedience: Obedience
    adds: bool | None = None
    neutral: float | None = None
    value: float | None = None


class SamplingDefaults(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The sampling defaults of an endpoint, and the cost of the probe that found them.

    `unknown` says why something is not known ("": everything is). `log` is the line of a server's
    log that names overridden defaults. `sent` are the neutral values that the run sends, by the
    names that the server takes.
    """

    fields: tuple[SamplingDefault, ...] = ()
    unknown: str = ""
    log: str = ""
    policy: ServerDefaults = "neutral"
    sent: dict[str, float] = {}
    requests: int = 0
    tokens: int = 0
    wall_s: float = 0.0

    @property
    def added(self) -> tuple[SamplingDefault, ...]:
        """The fields to which the server adds a value."""
        return tuple(one for one in self.fields if one.adds)

    @property
    def possible(self) -> tuple[SamplingDefault, ...]:
        """The fields of which it is not known whether the server adds a value."""
        return tuple(one for one in self.fields if one.adds is None)

    def find(self, name: str) -> SamplingDefault | None:
        """Return the field with this usual name, or None."""
        return next((one for one in self.fields if one.name == name), None)
