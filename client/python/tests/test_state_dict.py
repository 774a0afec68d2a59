"""Assembly of state dicts from pieces; incomplete ones are errors."""

import grpc
import numpy as np
import pytest

import braid


@pytest.fixture
def trainer(client):
    return client.create_trainer("fashion", loss="mse", optimizer="SGD")


def test_tensors_are_assembled_in_order(server, trainer):
    server.state = {
        "b.weight": np.arange(35, dtype=np.float32).reshape(5, 7),
        "a.scale": np.array(2.5, np.float32),
        "a.empty": np.empty((0, 3), np.float32),
        "a.num_batches_tracked": np.array(7, np.int64),
    }
    state = trainer.state_dict()
    assert list(state) == list(server.state)
    for name, array in server.state.items():
        assert state[name].dtype == array.dtype
        assert state[name].shape == array.shape
        np.testing.assert_array_equal(state[name], array)
    state["b.weight"] += 1  # Writable.


def test_bfloat16_is_returned_as_float32(server, trainer):
    server.state = {"w": np.array([[0x3F80, 0xC040]] * 9, np.uint16)}
    np.testing.assert_array_equal(
        trainer.state_dict()["w"], np.array([[1.0, -3.0]] * 9, np.float32)
    )


def test_model_without_tensors_has_an_empty_state_dict(server, trainer):
    server.state = {}
    assert trainer.state_dict() == {}


def test_state_dict_loads_into_a_module(server, trainer):
    torch = pytest.importorskip("torch")
    module = torch.nn.BatchNorm1d(5)
    server.state = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    state = {name: torch.from_numpy(array) for name, array in trainer.state_dict().items()}
    module.load_state_dict(state, strict=True)


def test_broken_stream_restarts_from_the_beginning(server, trainer):
    server.fail("GetStateDict", grpc.StatusCode.UNAVAILABLE)
    np.testing.assert_array_equal(trainer.state_dict()["weight"], server.state["weight"])
    assert len(server.received("GetStateDict")) == 2


def test_error_in_the_stream_is_raised(server, trainer):
    server.fail("GetStateDict", grpc.StatusCode.INTERNAL, "device lost")
    with pytest.raises(braid.Internal, match="device lost"):
        trainer.state_dict()


# "weight" has 48 bytes: three pieces of 16.
@pytest.mark.parametrize("edit, message", [
    (lambda pieces: pieces[:-1], "incomplete"),
    (lambda pieces: pieces[1:], r"bytes 16 to 32 \(expected those from 0 of 48\)"),
    (lambda pieces: [pieces[0], pieces[2]], r"bytes 32 to 48 \(expected those from 16"),
    (lambda pieces: pieces + [pieces[-1]], r"\(expected those from 48 of 48\)"),
    (lambda pieces: pieces + pieces, r"\(expected those from"),
], ids=["last missing", "first missing", "middle missing", "last twice", "all twice"])
def test_incomplete_stream_is_data_loss(server, trainer, edit, message):
    server.edit_pieces = edit
    with pytest.raises(braid.DataLoss, match=f"weight: .*{message}"):
        trainer.state_dict()


def test_duplicate_tensor_is_data_loss(server, trainer):
    server.state = {"a": np.zeros(2, np.float32), "b": np.zeros(2, np.float32)}
    server.edit_pieces = lambda pieces: [pieces[0], pieces[1], pieces[0]]
    with pytest.raises(braid.DataLoss, match="a: received twice"):
        trainer.state_dict()


def test_truncated_tensor_is_data_loss(server, trainer):
    server.state = {"a": np.zeros(8, np.float32), "b": np.zeros(2, np.float32)}
    server.edit_pieces = lambda pieces: [pieces[0], pieces[2]]
    with pytest.raises(braid.DataLoss, match="a: incomplete"):
        trainer.state_dict()
