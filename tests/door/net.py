"""Parts of ``fastjournald.net`` that tests use."""

from __future__ import annotations

from fastjournald.net import connections
from fastjournald.net.accept import accept
from fastjournald.net.credentials import load_grants
from fastjournald.net.listeners import origin_of_host
from fastjournald.net.plain_socket import PlainSocket
from fastjournald.net.polled_transport import PolledTransport
from fastjournald.net.poller import ALONE_PIECES, Poller
from fastjournald.net.session import Session
from fastjournald.net.session_steps import (
    CLOSE,
    COMMIT,
    FLUSH,
    MATCH,
    PASS_ON,
    PENALTY,
    RECEIVE,
    ReadValues,
    RunScan,
    Step,
    TakeSnapshot,
    WaitRoom,
    WaitTurn,
)
from fastjournald.net.shared import Shared
from fastjournald.net.shared_batch import SharedBatch
from fastjournald.net.step_runner import StepRunner
from fastjournald.net.tls import Handshakes, TlsStream, _Ciphertext
