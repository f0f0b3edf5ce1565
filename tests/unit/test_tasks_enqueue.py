"""Tasks at the producer: decoration, arguments, unique keys, headers, and where they are sent."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from fastjournal.client import Written
from fastjournal.errors import BadRequestError
from fastjournal.keys import parse_journal_key
from fastjournal.protocol import ValueType
from fastjournal.tasks import Middleware, TaskMessage, Tasks
from fastjournal.tasks.messages import OPTIONS, decode_message, encode_message
from fastjournald.testing import FastjournalDaemon


@dataclass
class Address:
    street: str
    number: int


class Model:
    """A type without a JSON form."""


@pytest.fixture
def daemon() -> Iterator[FastjournalDaemon]:
    with FastjournalDaemon() as daemon:
        yield daemon


@pytest.fixture
def app(daemon: FastjournalDaemon) -> Tasks:
    return Tasks(producer=daemon.sync_client())


def waiting(daemon: FastjournalDaemon, queue: str = "default") -> list[dict[str, Any]]:
    client = daemon.sync_client()
    return [msgspec.json.decode(entry.value) for entry in client.peek(queue, count=100)]


def uniques(daemon: FastjournalDaemon, queue: str = "default") -> list[bytes | None]:
    return [entry.unique for entry in daemon.sync_client().peek(queue, count=100)]


# --- decoration -------------------------------------------------------------------------------


def test_key_of_a_job_has_the_name_of_its_task(app: Tasks) -> None:
    @app.task(name="mails.send", queue="mails", priority=7)
    def send(number: int) -> None: ...

    keys = [send.enqueue(1).key, send.enqueue(1, unique="1").key]
    for key in keys:
        parts = parse_journal_key(key)
        assert parts is not None
        assert (parts.domain, parts.priority) == (b"mails", 7)
        assert parts.id.startswith(b"mails.send-")
    assert len(set(keys)) == 2


def test_decorated_function_is_still_called_as_itself(app: Tasks) -> None:
    @app.task
    def double(number: int) -> int:
        """Double it."""
        return 2 * number

    assert double(number=4) == 8
    assert double.__doc__ == "Double it."
    assert double.name.endswith("double")
    assert double.queue == "default"
    assert not double.is_async


@pytest.mark.parametrize("name", OPTIONS)
def test_decoration_refuses_parameters_that_are_words_of_enqueue(app: Tasks, name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def work({name}): ...", scope)
    with pytest.raises(BadRequestError, match=rf"'{name}' is a word of enqueue.*rename"):
        app.task(scope["work"])


def test_decoration_refuses_what_cannot_be_sent_by_name(app: Tasks) -> None:
    def positional(a: int, /) -> None: ...

    def several(*a: int) -> None: ...

    def any_name(**a: int) -> None: ...

    def model(user: Model | None) -> None: ...

    def unknown(user: NotThere) -> None: ...  # type: ignore[name-defined] # noqa: F821

    for function, words in (
        (positional, "'a' is positional-only"),
        (several, "'a' is variadic positional"),
        (any_name, "'a' is variadic keyword"),
        (model, "'user' is a Model, which has no JSON form .*send its id"),
        (unknown, "annotations cannot be read: name 'NotThere'.*TYPE_CHECKING"),
    ):
        with pytest.raises(BadRequestError, match=words) as caught:
            app.task(function)
        assert caught.value.code == "bad-task"


def test_words_of_other_libraries_are_errors_that_name_ours(app: Tasks) -> None:
    task: Any = app.task
    with pytest.raises(TypeError, match=r"no option max_retries; .*\(did you mean retries\?\)"):
        task(max_retries=3)
    with pytest.raises(TypeError, match=r"name, queue, unique, retries, .* timeout, priority$"):
        task(zzzz=3)

    @app.task
    def work() -> None: ...

    for name in ("delay", "apply_async"):
        with pytest.raises(AttributeError, match=r"task\.enqueue\(\.\.\., delay=60\)"):
            getattr(work, name)
    with pytest.raises(AttributeError, match=r"no attribute 'zzzz'$"):
        getattr(work, "zzzz")  # noqa: B009 - checkers know that it is not there


def test_decoration_refuses_generators_and_options_out_of_range(app: Tasks) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(BadRequestError, match="decorate a def or async def"):
        app.task(numbers)

    def work() -> None: ...

    for options, words in (
        ({"retries": -1}, "retries -1 is not 0 to"),
        ({"retry_delay": -1}, "retry_delay -1 is negative"),
        ({"retry_delay": [1, -2]}, "retry_delay -2 is negative"),
        ({"retry_delay": []}, "retry_delay is empty"),
        ({"timeout": 0}, "timeout 0 is not above 0"),
        ({"priority": 256}, "priority 256 is not 0 to 255"),
        ({"queue": "a:b"}, "'a:b' is empty or holds ':'"),
        ({"unique": ["nobody"]}, "unique=.*names no parameters"),
        ({"unique": []}, "unique=.*names no parameters"),
    ):
        with pytest.raises(BadRequestError, match=words):
            app.task(**options)(work)  # type: ignore[call-overload]
    assert app.by_name == {}
    with pytest.raises(BadRequestError, match="'a:b' is empty or holds ':'"):
        Tasks(queue="a:b")


def first(number: int) -> None: ...


def second(number: int) -> None: ...


def test_two_functions_with_one_name_are_refused_in_one_application_and_in_two() -> None:
    one, other = Tasks("127.0.0.1:1"), Tasks("127.0.0.1:1")
    kept = one.task(name="number")(first)
    words = "two tasks have the name number: .*first and .*second .*another name="
    with pytest.raises(BadRequestError, match=words):
        one.task(name="number")(second)
    with pytest.raises(BadRequestError, match=words):
        other.task(name="number")(second)
    Tasks("127.0.0.1:2").task(name="number")(second)  # another daemon has it
    other.task(name="number")(first)  # as a module that is loaded twice has it
    assert one.by_name == {"number": kept}


def test_name_of_a_task_of_a_program_is_that_by_which_a_worker_imports_it(tmp_path: Path) -> None:
    program = tmp_path / "mails.py"
    program.write_text(
        "from fastjournal.tasks import Tasks\napp = Tasks()\n"
        "@app.task\ndef send() -> None: ...\nprint(send.name)\n"
    )
    for arguments in (["mails.py"], ["-m", "mails"], ["-c", "import mails"]):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == "mails.send\n"


# --- arguments --------------------------------------------------------------------------------


def test_message_has_the_arguments_by_name_and_leaves_defaults_out(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task(name="send")
    def send(order_id: int, address: Address | None = None, *, copies: int = 1) -> None: ...

    send.enqueue(7)
    send.enqueue(order_id=8, address=Address("Main", 1), copies=2, headers={"trace": "t"})
    assert waiting(daemon) == [
        {"fj": 1, "task": "send", "args": {"order_id": 7}, "headers": {}},
        {
            "fj": 1,
            "task": "send",
            "args": {
                "order_id": 8,
                "address": {"street": "Main", "number": 1},
                "copies": 2,
            },
            "headers": {"trace": "t"},
        },
    ]
    [first, _] = daemon.sync_client().peek("default", count=2)
    assert first.value.startswith(b'{"fj":1,"task":"send",')
    assert first.value_type == ValueType.STRING


def test_wrong_arguments_fail_at_the_producer_and_nothing_is_enqueued(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task(name="send")
    def send(
        order_id: Annotated[int, msgspec.Meta(ge=1)],
        address: Address | None = None,
        weight: float | None = None,
        extra: Any = None,
    ) -> None: ...

    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "missing a required argument: 'order_id'"),
        ((1, 2, 3, 4, 5), {}, "too many positional arguments"),
        ((1,), {"colour": 1}, "unexpected keyword argument 'colour'"),
        (("7",), {}, r"Expected `int`, got `str` - at `order_id`"),
        ((0,), {}, "Expected `int` >= 1 - at `order_id`"),
        ((1,), {"address": Address("Main", "one")}, "at `address.number`"),  # type: ignore[arg-type]
        ((1,), {"weight": math.nan}, "Out of range float values are not JSON compliant"),
        ((1,), {"extra": {"a": [{"b": math.inf}]}}, "not JSON compliant"),
        ((1,), {"extra": object()}, "Encoding objects of type object is unsupported"),
        ((1,), {"extra": "\ud800"}, "surrogates not allowed"),
    ]
    for args, kwargs, words in wrong:
        with pytest.raises(BadRequestError, match=words) as caught:
            send.enqueue(*args, **kwargs)
        assert caught.value.code == "bad-arguments"
        assert "its parameters are (order_id: " in str(caught.value)
    with pytest.raises(BadRequestError, match="header 'a'=1 is no text"):
        send.enqueue(1, headers={"a": 1})
    assert waiting(daemon) == []


def test_arguments_come_back_as_their_annotated_types(app: Tasks) -> None:
    @app.task
    def send(at: datetime, to: Address, tags: set[str], raw: bytes, gap: timedelta) -> None: ...

    given = {
        "at": datetime(2030, 1, 1, tzinfo=UTC),
        "to": Address("Main", 1),
        "tags": {"a", "b"},
        "raw": b"\xff",
        "gap": timedelta(minutes=1),
    }
    message = decode_message(send.call(**given).request.value, ValueType.STRING)
    assert send.arguments.decode(message.args) == given


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"\x80\x04pickle", "no message of a task: .*queue of its own"),
        (b"[]", "no message of a task: Expected `object`"),
        (b'{"id": 1, "task": "a", "args": [1]}', "missing required field `fj`"),
        (b'{"fj": 1, "task": 3, "args": {}}', r"Expected `str`, got `int` - at `\$.task`"),
        (b'{"fj": 2, "task": "a", "args": {}}', "message of version 2, .* reads version 1 .*kick"),
        (b"[" * 100_000, "no message of a task"),
    ],
)
def test_value_of_another_program_is_no_message(value: bytes, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        decode_message(value, ValueType.BUFFER)


def test_value_that_is_a_number_is_no_message() -> None:
    with pytest.raises(BadRequestError, match="its value is no text"):
        decode_message(bytes(8), ValueType.INTEGER)


def test_message_is_read_back_as_it_was_written() -> None:
    text = encode_message("t", b'{"a":1}', {"trace": "ä"})
    message = decode_message(text.encode(), ValueType.STRING)
    assert (message.fj, message.task, bytes(message.args)) == (1, "t", b'{"a":1}')
    assert message.headers == {"trace": "ä"}


# --- options ----------------------------------------------------------------------------------


def test_unique_by_all_arguments_by_some_and_by_a_function(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    def work(order_id: int, urgent: bool = False) -> None: ...

    full = app.task(name="full", queue="full", unique=True)(work)
    some = app.task(name="some", queue="some", unique=["order_id"])(work)
    named = app.task(name="named", queue="named", unique=lambda order_id, urgent: f"o{order_id}")(
        work
    )
    for task in (full, some, named):
        task.enqueue(7)
        task.enqueue(order_id=7, urgent=False)
        task.enqueue(7, True)
    assert uniques(daemon, "full") == [
        b'full:{"order_id":7,"urgent":false}',
        b'full:{"order_id":7,"urgent":true}',
    ]
    assert uniques(daemon, "some") == [b'some:{"order_id":7}']
    assert uniques(daemon, "named") == [b"o7"]
    some.enqueue(7, unique="mine")
    some.enqueue(7, uri="https://example.org/7")
    assert uniques(daemon, "some") == [b'some:{"order_id":7}', b"mine", None]


def test_unique_value_that_is_long_is_hashed(app: Tasks, daemon: FastjournalDaemon) -> None:
    @app.task(name="index", unique=True)
    def index(text: str) -> None: ...

    for text in ("a" * 5000, "b" * 5000, "a" * 5000):
        index.enqueue(text)
    found = uniques(daemon)
    assert len(found) == 2
    assert all(each is not None and len(each) == len("index:") + 32 for each in found)


def test_delay_priority_and_expiry_reach_the_daemon(app: Tasks, daemon: FastjournalDaemon) -> None:
    @app.task(priority=3)
    def work() -> None: ...

    now_us = int(daemon.now.timestamp() * 1e6)
    written = work.enqueue(delay=60, expires=daemon.now + timedelta(hours=1))
    key = parse_journal_key(written.key)
    assert key is not None
    assert key.priority == 3
    assert 0 <= key.not_before_us - now_us - 60_000_000 < 1_000_000
    assert waiting(daemon) == []
    daemon.advance(61)
    assert len(waiting(daemon)) == 1
    daemon.advance(3600)
    assert waiting(daemon) == []


class Trace(Middleware):
    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[TaskMessage] = []

    def on_enqueue(self, message: TaskMessage) -> None:
        self.seen.append(message)
        message.headers["path"] = message.headers.get("path", "") + self.name


def test_middleware_adds_headers_in_order(daemon: FastjournalDaemon) -> None:
    traces = [Trace("a"), Trace("b")]
    app = Tasks(producer=daemon.sync_client(), middleware=traces)

    @app.task(name="work")
    def work(number: int) -> None: ...

    mine = {"path": "-"}
    work.enqueue(number=3, headers=mine)
    [message] = waiting(daemon)
    assert message["headers"] == {"path": "-ab"}
    assert mine == {"path": "-"}
    assert [(each.task, each.args) for each in traces[1].seen] == [("work", {"number": 3})]


# --- where they are sent ----------------------------------------------------------------------


def test_calls_are_sent_together(app: Tasks, daemon: FastjournalDaemon) -> None:
    @app.task
    def work(number: int) -> None: ...

    client = daemon.sync_client()
    results = client.call_many([work.call(number=number) for number in range(3)])
    assert all(isinstance(each, Written) for each in results)
    assert [message["args"]["number"] for message in waiting(daemon)] == [0, 1, 2]


def test_a_spool_takes_what_is_enqueued(daemon: FastjournalDaemon, tmp_path: Path) -> None:
    app = Tasks()

    @app.task
    def work(number: int) -> None: ...

    with daemon.spool(tmp_path) as spool, app.using(spool):
        written = work.enqueue(number=1)
        asyncio.run(_aenqueue(work.aenqueue, 2))
        assert written.outcome is None
        assert daemon.forward(spool) == 2
    assert written.key in [entry.key for entry in daemon.sync_client().peek("default", count=9)]
    assert [message["args"]["number"] for message in waiting(daemon)] == [1, 2]


async def _aenqueue(aenqueue: Any, number: int) -> Written:
    written: Written = await aenqueue(number)
    return written


def test_async_enqueue_by_the_client_in_use_or_by_a_blocking_one(
    app: Tasks, daemon: FastjournalDaemon
) -> None:
    @app.task
    def work(number: int) -> None: ...

    async def enqueue() -> None:
        await work.aenqueue(number=1)
        async with daemon.client() as client:
            with app.using(client):
                await work.aenqueue(number=2)
                work.enqueue(number=3)  # a Client serves no code that blocks

    asyncio.run(enqueue())
    assert [message["args"]["number"] for message in waiting(daemon)] == [1, 2, 3]
