"""`create_trainer`: existing trainers and arguments that the client checks."""

import pytest

import braid

ARGUMENTS = {"loss": "cross_entropy", "optimizer": "SGD"}


def create(client, **changes):
    return client.create_trainer("fashion", **{**ARGUMENTS, **changes})


def test_existing_trainer_continues_with_exist_ok(server, client):
    def step(trainer):
        return trainer.step({"x": [[1.0]]}, {"target": [0]})

    assert step(create(client, exist_ok=True)).sequence == 1
    assert step(create(client, exist_ok=True)).sequence == 2
    with pytest.raises(braid.AlreadyExists, match="exists$"):
        create(client)
    assert [request.exist_ok for request in server.received("CreateTrainer")] == [True, True, False]
    assert list(server.trainers) == ["fashion"]


@pytest.mark.parametrize("version", [0, -1, "stable", 1.5, True])
def test_version_is_a_number_from_1(server, client, version):
    with pytest.raises(ValueError, match=f"version: {version!r} .expected a number from 1"):
        create(client, version=version)
    with pytest.raises(ValueError, match="version: "):
        client.pin("fashion", version)
    assert server.received("CreateTrainer") == server.received("Pin") == []
