"""Error table of CreateTrainer, and of methods for unknown trainers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from e2e.support.error_checks import Rejection, assigner, ids, number
from e2e.support.protocol import Stub, channel, message
from e2e.support.raw_trainer import SERVICE
from e2e.support.server import Server
from e2e.support.trainer_error_cases import LOSS_ROWS, OPTION_ROWS

CODES = grpc.StatusCode


def valid_request() -> Any:
    return message("braid.v1.CreateTrainerRequest")(
        model="chain",
        name="never",
        losses=[{"name": "cross_entropy"}],
        optimizer={"sgd": {"lr": 0.1}},
    )


def clear(field: str) -> Callable[[Any], None]:
    return lambda request: request.ClearField(field)


def bad_name(name: str) -> Rejection:
    # The message quotes at most 128 characters and escapes non-ASCII characters.
    shown = ("name", name[:128]) if name.isascii() else ("name",)
    return Rejection(f"name {name[:9]!a}", assigner(name=name), shown, "name")


def nesterov_with(**values: float) -> Callable[[Any], None]:
    fields = {"nesterov": True, **values}
    return assigner(**{f"optimizer__sgd__{field}": value for field, value in fields.items()})


ROWS = [
    Rejection("model", assigner(model="nosuch"), ("nosuch",), None, CODES.NOT_FOUND),
    Rejection("version", assigner(version=7), ("chain", "7"), None, CODES.NOT_FOUND),
    Rejection("negative version", assigner(version=-1), ("version", "-1"), "version"),
    *[bad_name(name) for name in ("../up", "a/b", ".hidden", "spa ce", "ümlaut", "x" * 129)],
    Rejection("no loss", clear("losses"), ("losses", "at least one"), "losses"),
    Rejection(
        "unknown loss",
        assigner(losses__0__name="hinge"),
        ("hinge", "cross_entropy", "mse"),
        "losses[0].name",
    ),
    Rejection(
        "unknown output",
        assigner(losses__0__output="nosuch"),
        ("nosuch", "output__0"),
        "losses[0].output",
    ),
    Rejection("unknown reduction", assigner(losses__0__reduction=7), ("7",), "losses[0].reduction"),
    number("losses[0].label_smoothing", 1.5),
    number("losses[0].label_smoothing", -0.5),
    number("losses[0].label_smoothing", math.nan),
    Rejection(
        "smoothing of mse",
        assigner(losses__0__name="mse", losses__0__label_smoothing=0.5),
        ("label_smoothing", "mse"),
        "losses[0].label_smoothing",
    ),
    Rejection(
        "index ignored by mse",
        assigner(losses__0__name="mse", losses__0__ignore_index=3),
        ("ignore_index", "mse"),
        "losses[0].ignore_index",
    ),
    Rejection("no optimizer", clear("optimizer"), ("optimizer",), "optimizer"),
    number("optimizer.sgd.lr", -0.5),
    number("optimizer.sgd.lr", math.nan),
    number("optimizer.sgd.lr", math.inf),
    number("optimizer.sgd.momentum", -0.5),
    number("optimizer.sgd.momentum", math.inf),
    number("optimizer.sgd.dampening", math.nan),
    number("optimizer.sgd.weight_decay", -0.5),
    Rejection(
        "nesterov without momentum",
        nesterov_with(),
        ("nesterov", "momentum"),
        "optimizer.sgd.nesterov",
    ),
    Rejection(
        "nesterov with dampening",
        nesterov_with(momentum=0.9, dampening=0.1),
        ("nesterov", "dampening"),
        "optimizer.sgd.nesterov",
    ),
    number("optimizer.adamw.lr", -0.5),
    number("optimizer.adamw.beta1", 1.0),
    number("optimizer.adamw.beta1", -0.5),
    number("optimizer.adamw.beta2", 1.5),
    number("optimizer.adamw.eps", -0.5),
    number("optimizer.adamw.weight_decay", -0.5),
    number("optimizer.adamw.weight_decay", math.nan),
    *[
        number(f"optimizer.{name}", value)
        for name, value in (
            ("adam.lr", math.inf),
            ("adam.beta1", 1.0),
            ("adam.beta2", -0.5),
            ("adam.eps", math.nan),
            ("adam.weight_decay", -0.5),
            ("rmsprop.lr", -0.5),
            ("rmsprop.alpha", -0.5),
            ("rmsprop.eps", -0.5),
            ("rmsprop.weight_decay", math.nan),
            ("rmsprop.momentum", -0.5),
            ("adagrad.lr", -0.5),
            ("adagrad.lr_decay", -0.5),
            ("adagrad.weight_decay", -0.5),
            ("adagrad.initial_accumulator_value", -0.5),
            ("adagrad.eps", -0.5),
        )
    ],
    *LOSS_ROWS,
    *OPTION_ROWS,
]


@pytest.fixture(scope="module")
def stub(serve: Callable[[str], Server]) -> Stub:
    return Stub(channel(serve("cpu*2").address), SERVICE)


def names(stub: Stub) -> list[str]:
    return [trainer.name for trainer in stub.ListTrainers(ListRequest()).trainers]


ListRequest = message("braid.v1.ListTrainersRequest")
DeleteRequest = message("braid.v1.DeleteTrainerRequest")


@pytest.mark.parametrize("row", ROWS, ids=ids(ROWS))
def test_invalid_request_is_rejected(stub: Stub, row: Rejection) -> None:
    before = names(stub)
    row.expect(stub.CreateTrainer, valid_request())
    assert names(stub) == before
    created = stub.CreateTrainer(valid_request()).trainer
    assert created.name == "never"
    stub.DeleteTrainer(DeleteRequest(name="never"))


def test_duplicate_trainer_name_is_rejected(stub: Stub) -> None:
    request = valid_request()
    request.request_id = "mine"
    first = stub.CreateTrainer(request).trainer
    taken = Rejection(
        "name taken", assigner(request_id="other"), ("never",), None, CODES.ALREADY_EXISTS
    )
    taken.expect(stub.CreateTrainer, valid_request())
    no_id = Rejection("name taken", clear("request_id"), ("never",), None, CODES.ALREADY_EXISTS)
    no_id.expect(stub.CreateTrainer, valid_request())
    # A retry of the same call whose reply was lost succeeds.
    assert stub.CreateTrainer(request).trainer == first
    assert names(stub).count("never") == 1
    stub.DeleteTrainer(DeleteRequest(name="never"))


@pytest.mark.parametrize(
    ("method", "field"),
    [
        ("GetTrainer", "name"),
        ("DeleteTrainer", "name"),
        ("OptimStep", "trainer"),
        ("Publish", "trainer"),
    ],
)
def test_unknown_trainer_is_not_found(stub: Stub, method: str, field: str) -> None:
    request = message(f"braid.v1.{method}Request")(**{field: "nosuch"})
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request)
    assert caught.value.code() == CODES.NOT_FOUND
    assert "nosuch" in caught.value.details()


def test_weights_of_unknown_trainer_are_not_found(stub: Stub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.GetStateDict(message("braid.v1.GetStateDictRequest")(trainer="nosuch")))
    assert caught.value.code() == CODES.NOT_FOUND
    assert "nosuch" in caught.value.details()
