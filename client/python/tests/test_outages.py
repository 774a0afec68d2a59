"""The client logs once that it waits for an unreachable server, and once that it reconnected."""

import logging

import grpc
import numpy as np
import pytest

import braid
from braid import _channel
from braid._channel import RetryPolicy

X = {"x": np.ones((4, 2), np.float32)}
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(autouse=True)
def fast(client, monkeypatch):
    client._channel.retry = RetryPolicy(attempts=8, initial_backoff=0.001, max_backoff=0.002)
    monkeypatch.setattr(_channel, "_SILENT_SECONDS", 0.0)


def fail(server, times):
    for _ in range(times):
        server.fail("ModelInfer", UNAVAILABLE, "restarting")


def logged(caplog):
    for record in caplog.records:
        assert (record.name, record.levelno) == ("braid", logging.WARNING)
    return [record.getMessage() for record in caplog.records]


def test_outage_is_logged_once(server, client, caplog):
    for _ in range(2):
        fail(server, 4)
        client.infer("fashion", X)
        client.infer("fashion", X)
    away, back, *again = logged(caplog)
    assert away == f"{server.address}: waiting for the server (restarting)"
    assert back.startswith(f"{server.address}: reconnected (after ")
    assert len(again) == 2


def test_outage_beyond_a_call_is_logged_once(server, client, caplog):
    fail(server, 20)
    for _ in range(2):
        with pytest.raises(braid.Unavailable):
            client.infer("fashion", X)
    assert len(logged(caplog)) == 1
    client.infer("fashion", X)
    assert len(logged(caplog)) == 2


def test_call_that_is_not_repeated_logs_nothing(server, client, caplog):
    server.fail("ServerReady", UNAVAILABLE)
    assert not client.is_ready()
    assert not logged(caplog)


def test_short_outage_is_not_logged(server, client, caplog, monkeypatch):
    monkeypatch.setattr(_channel, "_SILENT_SECONDS", 60.0)
    fail(server, 4)
    client.infer("fashion", X)
    assert not logged(caplog)


def test_waiting_for_a_server_that_has_not_started_is_logged(server, caplog):
    for _ in range(3):
        server.fail("ServerReady", UNAVAILABLE, "starting")
    with braid.connect(server.address, wait_ready=10):
        away, back = logged(caplog)
    assert away == f"{server.address}: waiting for the server (starting)"
