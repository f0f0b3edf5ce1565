"""Which daemon: option, environment, files, default, in that order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from fastjournal import SyncClient
from fastjournal.client.core.settings import (
    SYSTEM_FILE,
    config_files,
    find_daemon,
    variables_of,
)
from fastjournal.errors import ConfigError
from fastjournald.testing import FastjournalDaemon
from tests.users import as_user, changes_users


def find_server(option: str | None, environment: dict[str, str], files: list[Path]) -> str:
    """Return the address alone."""
    return find_daemon({"server": option}, environment, files)["server"]


def test_option_then_environment_then_file_then_default(tmp_path: Path) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    second.write_text('server = "second:4"')
    environment = {"FASTJOURNAL_SERVER": "environment:2"}
    assert find_server("option:1", environment, [first, second]) == "option:1"
    assert find_server(None, environment, [first, second]) == "environment:2"
    assert find_server(None, {"FASTJOURNAL_SERVER": ""}, [first, second]) == "second:4"
    first.write_text('server = "unix:/run/first"')
    assert find_server(None, {}, [first, second]) == "unix:/run/first"
    first.write_text("# nothing set")
    assert find_server(None, {}, [first, second]) == "127.0.0.1:9923"
    assert find_server(None, {}, []) == "127.0.0.1:9923"


def test_users_file_stands_before_that_of_the_machine() -> None:
    assert config_files({"XDG_CONFIG_HOME": "/home/u/.config"}) == [
        "/home/u/.config/fastjournal/client.toml",
        SYSTEM_FILE,
    ]
    own = Path(config_files({})[0])
    assert own.is_absolute()
    assert own.parts[-3:] == (".config", "fastjournal", "client.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('servers = "a:1"', "unknown name 'servers' (did you mean server?)"),
        ('colour = "a:1"', "unknown name 'colour' (there are: server, "),
        ("server = 9923", "server is not a string"),
        ("server =", "is not TOML"),
        pytest.param("server = " + "1" * 5000, "is not TOML", id="a number of many digits"),
        pytest.param("server = " + "[" * 5000, "nested too deep", id="nested too deep"),
        ('server = "nowhere"', "'nowhere' is no address"),
    ],
)
def test_wrong_file_is_named_with_what_is_wrong_in_it(
    tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "client.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        find_server(None, {}, [file])
    assert named in str(caught.value)
    assert str(file) in str(caught.value)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b'server = "\xff"')
    for file in (tmp_path, tmp_path / "latin.toml"):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            find_server(None, {}, [file])
        assert caught.value.path == str(file)


@pytest.mark.parametrize(
    ("option", "environment", "source"),
    [("x", {}, "--server"), (None, {"FASTJOURNAL_SERVER": "x"}, "FASTJOURNAL_SERVER")],
)
def test_wrong_address_says_where_it_came_from(
    option: str | None, environment: dict[str, str], source: str
) -> None:
    with pytest.raises(ConfigError, match=source):
        find_server(option, environment, [])


def test_config_variables_lead_another_program_to_the_same_daemon(tmp_path: Path) -> None:
    """Its own configuration file does not count: it has a server by a variable."""
    file = tmp_path / "client.toml"
    file.write_text('server = "tls://h:4"\ntls_ca = "/e/ca"\ntls_key = ""\nauth_file = "token"')
    variables = variables_of(find_daemon({"tls_cert": "/o/cert"}, {}, [file]))
    assert variables == {
        "FASTJOURNAL_SERVER": "tls://h:4",
        "FASTJOURNAL_TLS_CA": "/e/ca",
        "FASTJOURNAL_TLS_CERT": "/o/cert",
        "FASTJOURNAL_AUTH_FILE": str(Path.cwd() / "token"),
    }
    assert find_daemon({}, variables, [file]) == {
        "server": "tls://h:4",
        "tls_ca": "/e/ca",
        "tls_cert": "/o/cert",
        "auth_file": str(Path.cwd() / "token"),
    }


def test_settings_of_a_relative_directory_are_not_taken() -> None:
    assert config_files({"XDG_CONFIG_HOME": "config"}) == [SYSTEM_FILE]
    assert config_files({"HOME": "."}) == [SYSTEM_FILE]
    assert config_files({"HOME": "/home/u"})[0] == "/home/u/.config/fastjournal/client.toml"


@changes_users
def test_settings_in_a_closed_directory_count_as_absent_and_a_closed_file_as_an_error() -> None:
    with tempfile.TemporaryDirectory(prefix="fj-", dir="/tmp") as name:
        own, machine = Path(name, "own", "client.toml"), Path(name, "machine.toml")
        own.parent.mkdir(mode=0o700)
        own.write_text('server = "own:1"')
        machine.write_text('server = "machine:2"')
        machine.chmod(0o644)
        Path(name).chmod(0o755)

        def absent() -> None:
            assert find_server(None, {}, [own, machine]) == "machine:2"

        def unreadable() -> None:
            with pytest.raises(ConfigError, match="cannot be read"):
                find_server(None, {}, [own, machine])

        assert as_user(65534, 65534, absent) == 0
        own.parent.chmod(0o755)
        own.chmod(0o600)
        assert as_user(65534, 65534, unreadable) == 0


def test_settings_of_a_user_change_no_daemon_of_a_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FASTJOURNAL_SERVER", "nowhere")
    monkeypatch.setenv("FASTJOURNAL_AUTH_FILE", "/no/token")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="FASTJOURNAL_SERVER"):
        SyncClient()
    with FastjournalDaemon() as daemon, daemon.sync_client() as client:
        client.set("plain", "1")
        assert client.get("plain").value == b"1"
        daemon.client()  # reads nothing either
