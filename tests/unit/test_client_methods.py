"""The methods of both clients: the same ones, with the arguments and words of their calls."""

from __future__ import annotations

import inspect
import pydoc
import re
from collections.abc import Callable

import pytest

from fastjournal import Client, Job, SyncClient, SyncJob
from fastjournal.client.core import calls
from fastjournal.client.core.calls.described_methods import ClientMethods
from fastjournal.client.core.leased_job import JobMethods
from fastjournal.protocol import Function

BUILDERS = {
    name.rstrip("_"): getattr(calls, name)
    for name in calls.__all__
    if inspect.isfunction(getattr(calls, name))
}
HELPERS = {"quit", "refusal", "silence_allowed_s"}
HELPERS |= {"listening", "cancellation"}


@pytest.mark.parametrize("client", [SyncClient, Client])
@pytest.mark.parametrize("name", sorted(set(BUILDERS) - HELPERS))
def test_call_is_a_method_with_its_arguments_and_docstring(client: type, name: str) -> None:
    method, build = getattr(client, name), BUILDERS[name]
    assert method.__name__ == name
    assert inspect.getdoc(method) == inspect.getdoc(build)
    parameters = inspect.signature(method).parameters
    assert list(parameters) == ["self", *inspect.signature(build).parameters]
    scans = inspect.signature(build).return_annotation.startswith("PagedCall[")
    assert inspect.iscoroutinefunction(method) == (client is Client and not scans)


@pytest.mark.parametrize(
    ("method", "returns"),
    [
        (SyncClient.set, "Written"),
        (Client.get, "Entry"),
        (SyncClient.release, "None"),
        (Client.stats, "dict[str, Any]"),
        (SyncClient.range, "Iterator[Entry]"),
        (Client.regex, "AsyncIterator[Entry]"),
        (SyncClient.listen, "SyncListener"),
        (Client.listen, "Listener"),
    ],
)
def test_help_says_what_a_method_returns(method: Callable[..., object], returns: str) -> None:
    assert inspect.signature(method).return_annotation == returns
    shown = pydoc.render_doc(method, renderer=pydoc.plaintext).replace("'", "")
    assert f") -> {returns}\n" in shown


def test_clients_have_the_same_methods() -> None:
    def public(client: type) -> set[str]:
        return {name for name in dir(client) if not name.startswith("_")}

    sync_only, trio_only = (
        {"call_until", "close", "entries_of", "now_s", "waiting"},
        {"mirror", "start_soon"},
    )
    assert public(SyncClient) - sync_only == public(Client) - trio_only


@pytest.mark.parametrize("method", [SyncClient.listen, Client.listen])
def test_listening_has_the_arguments_of_its_call(method: Callable[..., object]) -> None:
    assert inspect.getdoc(method) == inspect.getdoc(calls.listening)
    parameters = inspect.signature(method).parameters
    assert list(parameters) == ["self", *inspect.signature(calls.listening).parameters]


@pytest.mark.parametrize("client", [SyncClient, Client])
def test_loop_over_jobs_describes_all_of_its_arguments_once_and_in_their_order(
    client: type[SyncClient | Client],
) -> None:
    text = inspect.getdoc(client.jobs) or ""
    described = re.findall(
        r"^    (\w+): ", text.partition("\nArgs:\n")[2].partition("\n\n")[0], re.M
    )
    assert described == list(inspect.signature(client.jobs).parameters)[1:]
    assert "\nRaises:\n    LeaseLostError: " in text


@pytest.mark.parametrize(
    ("owner", "base"),
    [
        (SyncJob, JobMethods),
        (Job, JobMethods),
        (SyncClient, ClientMethods),
        (Client, ClientMethods),
    ],
)
def test_inherited_docstring_is_the_same_in_both_clients(owner: type, base: type) -> None:
    named = sorted(name for name in vars(base) if not name.startswith("_"))
    assert len(named) > 4
    for name in named:
        assert inspect.getdoc(getattr(owner, name)) == inspect.getdoc(getattr(base, name))
    public = {name for name in dir(owner) if not name.startswith("_")}
    assert [name for name in public if not inspect.getdoc(getattr(owner, name))] == []


def test_function_has_a_method() -> None:
    assert len(set(BUILDERS)) >= len(Function)
