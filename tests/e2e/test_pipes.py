"""A named pipe instead of a model's file does not block loading."""

from __future__ import annotations

import os
from pathlib import Path

import braid
import pytest
import torch
import tritonclient.grpc as triton
from e2e.support.model_control import ask, explicit, write
from torch import nn
from tritonclient.utils import InferenceServerException

SECONDS = 20


@pytest.mark.parametrize("file", ["model.pt", "model.pt2", "model.safetensors"])
def test_named_pipe_is_rejected_and_other_models_are_loaded(tmp_path: Path, file: str) -> None:
    write(tmp_path / "models", "good", 1, 2)
    version = tmp_path / "models" / "pipe" / "1"
    if file == "model.safetensors":
        braid.export(nn.Linear(4, 4), (torch.zeros(2, 4),), version.parent, "pair", precisions=())
        (version / file).unlink()
    else:
        version.mkdir(parents=True)
    os.mkfifo(version / file)
    check(tmp_path, version / file, "not a regular file" if "safe" in file else "is not a regular file")


def test_named_pipe_as_configuration_is_rejected(tmp_path: Path) -> None:
    """The model must describe itself then, which this one cannot."""
    write(tmp_path / "models", "good", 1, 2)
    write(tmp_path / "models", "pipe", 1, 2)
    config = tmp_path / "models" / "pipe" / "config.pbtxt"
    config.unlink()
    os.mkfifo(config)
    check(tmp_path, config, "config.pbtxt")


def check(directory: Path, pipe: Path, reason: str) -> None:
    with explicit(directory) as running:
        client: triton.InferenceServerClient = running.client
        try:
            with pytest.raises(InferenceServerException, match=reason):
                client.load_model("pipe", client_timeout=SECONDS)
            client.load_model("good", client_timeout=SECONDS)
            assert ask(client, "good") == 2
        finally:
            # A thread that waits for a writer would block the exit.
            os.close(os.open(pipe, os.O_RDWR))
