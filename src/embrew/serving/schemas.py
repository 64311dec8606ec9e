"""Bodies of requests and answers: those of OpenAI and of Text Embeddings Inference, with embrew's extensions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)
from pydantic_core import PydanticCustomError

Text = str | list[int]
Side = Literal["query", "document"]

MAX_ID, MAX_FIELDS = 2**31 - 1, 100
TokenIds = list[Annotated[int, Field(ge=0, le=MAX_ID)]]
NotEmpty = Field(min_length=1)
Inputs = str | Annotated[list[str], NotEmpty] | Annotated[TokenIds, NotEmpty] | Annotated[list[TokenIds], NotEmpty]


def texts_in(value: Any) -> list[Text]:
    """Return the texts of a request: a string, a list of strings, token ids, or a list of lists of token ids.

    Raises:
        ValueError: something else; names the position.
    """
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError("give a string, a list of strings, a list of token ids, or a list of such lists")
    if not value:
        raise ValueError("an empty list; give at least one text")
    if type(value[0]) is int:
        value = [value]
    for index, item in enumerate(value):
        if isinstance(item, list):
            if not set(map(type, item)) <= {int}:  # quick: a body may hold millions
                position = next(i for i, token_id in enumerate(item) if type(token_id) is not int)
                raise ValueError(f"text {index} holds no token id at position {position}; ids are whole numbers")
        elif isinstance(item, str):
            check_unicode(item, f"text {index}")
        else:
            raise ValueError(f"text {index} is neither a string nor a list of token ids")
    return value


def check_unicode(value: str, what: str = "it") -> str:
    """Return a string that is valid Unicode.

    Raises:
        PydanticCustomError: it holds a lone surrogate.
    """
    try:
        value.encode()
    except UnicodeEncodeError as error:
        where = f"{value[error.start]!r} at character {error.start}"
        message = "{what} holds a lone surrogate ({where}), which is not valid Unicode; repair it"
        raise PydanticCustomError("invalid_unicode", message, {"what": what, "where": where}) from None
    return value


Texts = Annotated[list[Text], PlainValidator(texts_in, json_schema_input_type=Inputs)]
Words = Annotated[StrictStr, AfterValidator(check_unicode)]
Stop = Annotated[Words, NotEmpty]
Count = Annotated[StrictInt, Field(ge=1, le=MAX_ID)]
Right = Literal["right", "Right"]


class Strict(BaseModel):
    """An object without other fields than its own."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def few_fields(cls, value: Any) -> Any:
        """Return an object that does not have very many fields: pydantic makes an error of each that is unknown."""
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            raise ValueError(f"{len(value)} fields; see /openapi.json for those that there are")
        return value


class Reading(Strict):
    """Which prompt and which length limit texts are read with."""

    model: StrictStr | None = Field(None, description="Name of the model, where there are several; see /v1/models.")
    input_type: Side | None = Field(
        None, description="Read texts as queries or as documents: with the prompt and the length limit of that side."
    )
    prompt_name: StrictStr | None = Field(
        None, description="Name of a prompt or of a context with demonstrations; see /info."
    )
    prompt: Words | None = Field(None, description="The words of a prompt; they take precedence over its name.")


class Options(Reading):
    """How texts are read, and what is made of their vectors."""

    truncate: StrictBool | None = Field(
        None, description="Truncate texts beyond the limit; false: refuse them with 422. Default: the server's setting."
    )
    normalize: StrictBool | None = Field(None, description="Return vectors of unit length. Default: the model's own.")
    dimensions: Count | None = Field(None, description="Number of leading dimensions to keep. Default: all.")
    num_layers: Count | None = Field(None, description="Number of layers to run. Default: all.")
    precision: Literal["float32", "int8", "binary", "ubinary"] = Field(
        "float32",
        description="Type of the numbers: float32; binary, ubinary: one bit per dimension, packed into int8 or uint8; "
        "int8: codes over the ranges that the server was started with.",
    )


class EmbeddingsRequest(Options):
    """OpenAI's request for embeddings."""

    input: Texts = Field(description="Texts, or the token ids of texts, which the template surrounds.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers in JSON, or float32 in base64, little-endian. Default: float."
    )
    user: StrictStr | None = Field(None, description="Accepted and not used.")


class TeiRequest(Options):
    """Request of Text Embeddings Inference."""

    inputs: Texts = Field(description="Texts, or the token ids of texts.")
    truncation_direction: Right = Field("right", description="Texts lose their end.")


class EmbedAllRequest(Reading):
    """Request for the states of all tokens."""

    inputs: Texts
    truncate: StrictBool | None = None
    truncation_direction: Right = "right"
    num_layers: Count | None = None


class Pairs(Strict):
    """One text and those that it is compared with."""

    source_sentence: Words
    sentences: Annotated[list[Words], FailFast()] = Field(min_length=1)


class SimilarityParameters(Options):
    """Options of a comparison."""

    precision: Literal["float32"] = Field("float32", description="Cosines are of float32 vectors.")
    truncation_direction: Right = "right"


class SimilarityRequest(Strict):
    """Request for cosine similarities."""

    inputs: Pairs
    parameters: SimilarityParameters | None = None


class TokenizeRequest(Reading):
    """Request for tokens."""

    inputs: Texts
    add_special_tokens: StrictBool = Field(True, description="With the template's tokens; else those of the text.")


class EncoderFolder(Strict):
    """An encoder to load."""

    name: StrictStr = Field(min_length=1, max_length=200, description="Name for requests.")
    folder: StrictStr | None = Field(
        None, description="Its folder, within the one that the server was started with. Default: the name."
    )


class EncoderName(Strict):
    """An encoder to unload."""

    name: StrictStr


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: Words


class ChatMessage(Strict):
    """A message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Words | Annotated[list[TextPart], NotEmpty]
    name: StrictStr | None = Field(None, description="Accepted and not used.")

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: StrictBool = False


class ChatRequest(Strict):
    """OpenAI's request for the next message of a chat."""

    messages: list[ChatMessage] = Field(min_length=1)
    model: StrictStr | None = Field(None, description="Name of the language model; see /v1/models.")
    temperature: float = Field(1.0, ge=0, le=2, description="0: the most probable token.")
    top_p: float = Field(1.0, gt=0, le=1)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = Field(None, description="Takes precedence over max_tokens.")
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    seed: Annotated[StrictInt, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    n: Literal[1] | None = None
    user: StrictStr | None = Field(None, description="Accepted and not used.")


class Embedding(BaseModel):
    """One vector."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Tokens that the model read, with those of the template and of prompts and without padding."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """OpenAI's list of embeddings."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class Model(BaseModel):
    """A model by name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "embrew"
    type: Literal["embedding", "chat"] = "embedding"


class Models(BaseModel):
    """The served models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Token(BaseModel):
    """A token, and the characters of the text that it covers, where it covers any."""

    id: int
    text: str
    special: bool
    start: int | None = None
    stop: int | None = None
