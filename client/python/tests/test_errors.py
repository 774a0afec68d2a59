"""Conversion of gRPC status codes to exceptions with message and field."""

import pickle
import socket
import traceback

import grpc
import numpy as np
import pytest

import braid

X = {"x": np.ones((4, 2), np.float32)}
CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_each_code_has_its_own_class(server, client, code):
    for _ in range(5):  # UNAVAILABLE is retried.
        server.fail("ModelInfer", code, "because")
    with pytest.raises(braid.BraidError, match="because") as caught:
        client.infer("fashion", X)
    assert caught.value.code is code
    assert type(caught.value).__name__.upper() == code.name.replace("_", "")
    assert getattr(braid, type(caught.value).__name__) is type(caught.value)


def test_bad_request_names_the_fields(server, client):
    server.fail("ModelInfer", grpc.StatusCode.INVALID_ARGUMENT, "two fields are wrong", violations=[
        ("inputs[0].shape", "expected [-1, 784], got [4, 2]"), ("inputs[1].name", "unknown"),
    ])
    with pytest.raises(braid.InvalidArgument) as caught:
        client.infer("fashion", X)
    error = caught.value
    assert error.field == "inputs[0].shape"
    assert error.violations[0][1] == "expected [-1, 784], got [4, 2]"
    assert error.violations[1] == ("inputs[1].name", "unknown")
    assert str(error) == error.message == "two fields are wrong"


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff not a status"])
def test_unreadable_details_give_no_field(server, client, details):
    server.fail("ModelInfer", grpc.StatusCode.INVALID_ARGUMENT, "wrong", details=details)
    with pytest.raises(braid.InvalidArgument, match="^wrong$") as caught:
        client.infer("fashion", X)
    assert caught.value.field is None
    assert caught.value.violations == ()


def test_status_without_a_message_has_a_default(server, client):
    server.fail("ModelInfer", grpc.StatusCode.INTERNAL, "")
    with pytest.raises(braid.Internal, match="INTERNAL without a message"):
        client.infer("fashion", X)


def test_traceback_hides_grpc_errors(server, client):
    server.fail("ModelInfer", grpc.StatusCode.NOT_FOUND, "unknown model")
    with pytest.raises(braid.NotFound) as caught:
        client.infer("fashion", X)
    shown = "".join(traceback.format_exception(caught.value))
    assert "unknown model" in shown
    assert "RpcError" not in shown and "grpc/_channel" not in shown


def test_errors_can_be_pickled():
    error = braid.InvalidArgument("wrong", (("lr", "negative"),), attempts=2)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is braid.InvalidArgument
    assert (copy.message, copy.field, copy.attempts) == ("wrong", "lr", 2)


def test_missing_server_is_unavailable():
    with socket.socket() as bound:  # Bound but not listening, so the port stays free.
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with braid.connect(address) as client:
            assert not client.is_ready()
            with pytest.raises(braid.Unavailable, match=address):
                client.server_metadata()
        with pytest.raises(braid.DeadlineExceeded, match=f"{address}: not ready after 0.3"):
            braid.connect(address, wait_ready=0.3)


def test_closed_client_raises_value_error(server):
    client = braid.connect(server.address)
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.server_metadata()
