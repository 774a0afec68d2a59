"""Inference through tritonclient, for tests."""

from __future__ import annotations

import numpy as np
import torch
import tritonclient.grpc as triton
from e2e.support.protocol import CALL_SECONDS
from torch import nn

# Older tritonclients map bfloat16 to FP32, so bfloat16 needs a `datatype`.
_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "bfloat16": "BF16",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


def infer_input(name: str, array: np.ndarray, datatype: str | None = None) -> triton.InferInput:
    tensor = triton.InferInput(name, list(array.shape), datatype or _NAMES[array.dtype.name])
    tensor.set_data_from_numpy(array)
    return tensor


def infer(
    client: triton.InferenceServerClient,
    model: str,
    inputs: dict[str, np.ndarray],
    seconds: float = CALL_SECONDS,
    **options,
) -> triton.InferResult:
    """Calls ModelInfer once. seconds: its deadline. options: of InferenceServerClient.infer."""
    tensors = [infer_input(name, array) for name, array in inputs.items()]
    return client.infer(model, tensors, client_timeout=seconds, **options)


def outputs_of(result: triton.InferResult) -> dict[str, np.ndarray]:
    """Returns all outputs of a reply by name, in the reply's order."""
    return {tensor.name: result.as_numpy(tensor.name) for tensor in result.get_response().outputs}


def expected(module: nn.Module, *inputs: np.ndarray) -> torch.Tensor | tuple | dict:
    """Returns PyTorch's outputs, computed as one batch on one thread."""
    with torch.no_grad():
        return module.eval()(*(torch.from_numpy(array) for array in inputs))


def assert_close(
    actual: np.ndarray, wanted: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-6
) -> None:
    """Checks shape, dtype, and values within float32's tolerance."""
    assert actual.dtype == wanted.numpy().dtype
    assert actual.shape == wanted.numpy().shape
    np.testing.assert_allclose(actual, wanted.numpy(), rtol=rtol, atol=atol)
