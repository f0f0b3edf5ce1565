"""Message of a task: the value of its job, a JSON text.

    {"fj": 1, "task": "shop.mails.send", "args": {"order_id": 7}, "headers": {"trace": "..."}}

``fj`` comes first: the version of this form. ``args`` are by the names of the parameters; those
that were not given are left out, so that the function's own defaults hold. ``headers`` are texts
for middleware, such as the id of a trace.

The producer encodes the arguments and decodes what it has encoded, by the annotations of the
function: so an argument that the worker could not read fails where it was given. A conversion of
the objects would not do, since it does not look into an object that is of the type already.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fastjournal.errors import BadRequestError
from fastjournal.protocol import ValueType

VERSION: Final = 1

OPTIONS: Final = ("delay", "not_before", "expires", "unique", "uri", "headers")
"""Words of ``enqueue`` beside the arguments, so that no parameter may have such a name."""

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

_FOREIGN: Final = (
    "another program enqueued it: give that a queue of its own, or enqueue with task.enqueue"
)


class TaskMessage(msgspec.Struct):
    """Message of a task as middleware sees it."""

    task: str
    """Name of the task."""
    args: dict[str, Any]
    """Arguments by the names of the parameters: Python objects."""
    headers: dict[str, str]
    """Texts beside the arguments; ``on_enqueue`` of a middleware adds to them."""
    queue: str = ""
    """Queue of the task; not written, for the job is in it."""


class Envelope(msgspec.Struct):
    """Message as it is written; the arguments are JSON that the task itself decodes."""

    fj: int
    task: str
    args: msgspec.Raw
    headers: dict[str, str] = {}


_decoder = msgspec.json.Decoder(Envelope)
_encoder = msgspec.json.Encoder()


def encode_message(task: str, args: bytes, headers: dict[str, str]) -> str:
    """Return the value of a job.

    Args:
        task: Name of the task.
        args: Its arguments as JSON.
        headers: Texts beside them.

    Raises:
        BadRequestError: ``bad-headers``: one of them is no text.
    """
    for name, text in headers.items():
        if not (isinstance(name, str) and isinstance(text, str)):
            raise BadRequestError(f"header {name!r}={text!r} is no text", code="bad-headers")
    return _encoder.encode(Envelope(VERSION, task, msgspec.Raw(args), headers)).decode()


def decode_message(value: bytes, value_type: int) -> Envelope:
    """Return the message in the value of a job.

    Raises:
        BadRequestError: ``bad-message``: it is none; the sentence says what to do.
    """
    if value_type not in (ValueType.STRING, ValueType.BUFFER):
        raise _bad_message("no message of a task: its value is no text", _FOREIGN)
    try:
        message = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_message(f"no message of a task: {error}", _FOREIGN) from error
    if message.fj != VERSION:
        why = f"message of version {message.fj}, and this worker reads version {VERSION}"
        raise _bad_message(why, "update fastjournal where the worker runs, then kick the job")
    return message


def _bad_message(why: str, hint: str) -> BadRequestError:
    return BadRequestError(why, code="bad-message", hint=hint)


def bad_task(why: str, hint: str) -> BadRequestError:
    """Return the error of a function that cannot be a task."""
    return BadRequestError(why, code="bad-task", hint=hint)


class Arguments:
    """Parameters of a function that is a task.

    Args:
        name: Name of the task, for errors.
        function: It.

    Raises:
        BadRequestError: ``bad-task``: a parameter cannot be sent; the sentence says which and why.
    """

    def __init__(self, name: str, function: Callable[..., object]) -> None:
        self._name = name
        self._signature = inspect.signature(function)
        self.names = frozenset(self._signature.parameters)
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError, AttributeError) as error:
            raise self._bad_task(
                f"its annotations cannot be read: {error}",
                "import the types of its parameters at run time, not under TYPE_CHECKING",
            ) from error
        fields: list[Any] = []
        for parameter in self._signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            self._check(parameter, hint)
            if parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                given: Any = typing.Union[hint, msgspec.UnsetType]  # noqa: UP007 - of two values
                fields.append((parameter.name, given, msgspec.UNSET))
        try:
            struct: Any = msgspec.defstruct(
                "Arguments", fields, forbid_unknown_fields=True, kw_only=True
            )
            self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(struct)
        except TypeError as error:
            raise self._bad_task(str(error), "give its parameters other types") from error

    def _check(self, parameter: inspect.Parameter, hint: Any) -> None:
        name = parameter.name
        if parameter.kind not in _BY_NAME:
            why = f"parameter {name!r} is {parameter.kind.description}"
            raise self._bad_task(why, "arguments are sent by name: name each")
        if name in OPTIONS:
            raise self._bad_task(f"{name!r} is a word of enqueue", "rename this parameter")
        info = msgspec.inspect.type_info(hint)
        for each in info.types if isinstance(info, msgspec.inspect.UnionType) else (info,):
            if isinstance(each, msgspec.inspect.CustomType):
                raise self._bad_task(
                    f"parameter {name!r} is a {each.cls.__name__}, which has no JSON form",
                    "send its id, a dataclass or a msgspec.Struct",
                )

    def _bad_task(self, why: str, hint: str) -> BadRequestError:
        return bad_task(f"task {self._name}: {why}", hint)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name.

        Raises:
            BadRequestError: ``bad-arguments``: one is missing, or there is one too many.
        """
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise self._bad_arguments(str(error)) from error

    def with_defaults(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return all arguments with which the function would be called."""
        bound = self._signature.bind(**arguments)
        bound.apply_defaults()
        return bound.arguments

    def encode(self, arguments: dict[str, Any]) -> bytes:
        """Return arguments as JSON, once it is sure that the worker can read them.

        Raises:
            BadRequestError: ``bad-arguments``: one has no JSON form, or is of another type.
        """
        try:
            data = msgspec.json.encode(arguments)
            if b"null" in data:  # it may be nan or infinity, which json refuses
                json.dumps(msgspec.to_builtins(arguments), allow_nan=False)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise self._bad_arguments(str(error)) from error
        self.decode(data)
        return data

    def decode(self, data: bytes | msgspec.Raw) -> dict[str, Any]:
        """Return the arguments in JSON as objects of the annotated types.

        Raises:
            BadRequestError: ``bad-arguments``: they are not those of the function.
        """
        try:
            found: dict[str, Any] = msgspec.structs.asdict(self._decoder.decode(data))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._bad_arguments(str(error).replace("`$.", "`")) from error
        except Exception as error:  # foreign code: __post_init__ of a type of an argument
            raise self._bad_arguments(repr(error)) from error
        return {name: value for name, value in found.items() if value is not msgspec.UNSET}

    def _bad_arguments(self, why: str) -> BadRequestError:
        return BadRequestError(
            f"wrong arguments for task {self._name}: {why}",
            code="bad-arguments",
            hint=f"its parameters are {self._signature}",
        )
