"""Advice of fj-cli: errors say what to write on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastjournal.client import calls
from fastjournal.client.core.failures import CERTIFICATE_HINT
from fastjournal.errors import BadRequestError, CannotConnectError, ConfigError, RefusedError
from fastjournal.keys import build_journal_key, domain_of
from fastjournal.private import read_private
from fastjournal.protocol import ErrorCode
from fj_cli.advice import advise
from fj_cli.main import run

SENTENCE_SUFFICES = [
    "stale",
    "lease-lost",
    "not-owner",
    "overflow",
    "too-large",
    "unknown-function",
    "clock-skew",
    "read-only",
    "busy",
    "shutting-down",
    "bad-request",
    "bad-key",
    "bad-value",
    "bad-cursor",
    "unsupported-version",
    "not-persisted",
    "not-readable",
]
"""Codes whose sentence says what to do, or that no command of fj-cli gets by what is typed."""


@pytest.mark.parametrize("code", ErrorCode)
def test_advice_is_there_for_each_refusal_that_has_none(code: str) -> None:
    error = RefusedError("a sentence", code=code)
    advise(error)
    assert (error.hint is None) is (code in SENTENCE_SUFFICES)


def test_advice_speaks_of_options_and_not_of_arguments_of_python() -> None:
    with pytest.raises(BadRequestError) as refused:
        calls.set_("pages:300:0:x")
    untrusted = CannotConnectError("refused", hint=CERTIFICATE_HINT)
    for error, word in ((refused.value, "--plain"), (untrusted, "--tls-ca")):
        assert word not in str(error)
        advise(error)
        assert word in str(error)
    other = BadRequestError("wrong", hint="as it is")
    advise(other)
    assert other.hint == "as it is"


def test_advice_stands_in_errors_of_domains_and_files(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match=r"^domain 'a:b' .* \(write a colon as %3A"):
        build_journal_key(b"a:b", "x")
    with pytest.raises(BadRequestError, match=r"^'mailto:x@y' has no host \(name the domain"):
        domain_of(b"mailto:x@y")
    with pytest.raises(ConfigError, match="give the path of a file"):
        read_private(tmp_path / "none", 10)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["gett", "k"], "No such command 'gett': did you mean 'get'?"),
        (["log", "verfy"], "No such command 'verfy': did you mean 'verify'?"),
        (["zzzz"], "No such command 'zzzz': see --help"),
    ],
)
def test_advice_names_the_subcommand_that_was_meant(
    typed: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed) == 2
    assert said in capsys.readouterr().err
