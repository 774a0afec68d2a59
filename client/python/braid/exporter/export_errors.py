"""Conversion of errors of PyTorch and of models into ExportError messages."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from braid._export import ExportError
from braid.exporter import source

# Matches the address in "<function relu at 0x7f0a91b4e660>".
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+(?=[^<]*>)")


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, without addresses of objects."""
    lines = str(error).strip().splitlines()
    # Messages of TorchScript's interpreter begin with a traceback.
    line = lines[-1 if isinstance(error, torch.jit.Error) else 0] if lines else ""
    return _ADDRESS.sub("", line)


def describe(error: BaseException) -> str:
    """Returns an error's type and the first line of its message, for example "KeyError: 'x'"."""
    if isinstance(error, torch.jit.Error):
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def describe_data_error(error: BaseException) -> str:
    """Describes in one sentence why data could not be read."""
    while error.__cause__ is not None and not isinstance(error, ExportError):
        error = error.__cause__
    if isinstance(error, ExportError):
        return str(error)
    sentence = first_line(error).partition(". ")[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({sentence})"
    if isinstance(error, KeyError):
        path = error.args[0] if isinstance(error.args[0], tuple) else error.args
        return f"lacks '{'/'.join(map(str, path))}'"
    if isinstance(error, (TypeError, AttributeError)):
        return f"a value has the wrong type ({sentence})"
    return sentence or type(error).__name__


@contextmanager
def wrap_errors(what: str) -> Iterator[None]:
    """Converts any error into an ExportError whose message begins with `what`."""
    try:
        yield
    except Exception as error:
        raise ExportError(f"{what}: {describe_data_error(error)}") from error


def type_with_article(value: Any) -> str:
    """Returns the type of a value with an article, for example "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


_NUMBER_OF_VALUES = (DataDependentOutputException, GuardOnDataDependentSymNode)

# Replacements for PyTorch messages that name no remedy.
_KNOWN = {
    "use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()": (
        "torch.utils.checkpoint with use_reentrant=True cannot be traced (expected "
        "use_reentrant=False)"
    ),
}
_LOOP = "write a Python loop: format='torchscript' exports it, also for training"
_SCAN = "use a recurrent layer, or a Python loop over a fixed size"
# Functions that users call, and what to do instead, by operator name.
_CONTROL_FLOW = {
    "cond": ("torch.cond", "use torch.where, or a Python branch, which TorchScript scripts"),
    "map_impl": ("map", "use torch.vmap, or an operator on the whole tensor"),
    "while_loop": ("while_loop", _LOOP),
    "while_loop_stack_output": ("while_loop", _LOOP),
    "scan": ("scan", _SCAN),
    "associative_scan": ("associative_scan", _SCAN),
}
# AOTInductor and the server run these operators.
_SERVED = {"cond", "map_impl", "while_loop", "while_loop_stack_output"}
_VALUE_AS_NUMBER = (
    "forward() converts a tensor's values to a Python number (expected torch.where or torch.cond "
    "in place of a branch, or format='torchscript')"
)
_LAYER_DROP = (
    "LayerDrop draws a number and decides by it whether a layer runs: set the probability to 0 "
    "(layerdrop, encoder_layerdrop, decoder_layerdrop or encoder_layer_drop)"
)
_SHAPE_BY_VALUES = (
    "use torch.where or a mask of fixed shape, compute every row in each expert of a mixture of "
    "experts, or use format='torchscript'"
)
# Remedies for errors that are raised in a folder of a library.
_RAISED_IN = {
    ("torchvision", "models", "detection"): (
        " (torchvision's detection models take targets in training, and lists: export the backbone "
        "or a module of tensors, and choose boxes in the client)"
    ),
    ("torch", "_higher_order_ops", "scan.py"): f" (exported pairs do not support scan: {_SCAN})",
}
# Raised for quantile() by PyTorch before 2.12.
_WITHOUT_RULE = "Cannot call numel() on tensor with symbolic sizes"


def to_export_error(error: Exception) -> ExportError:
    """Converts an unexpected error of PyTorch, and adds the model's line."""
    if isinstance(error, ExportError):
        return error
    return ExportError(describe(error) + source.as_suffix(source.line_of_error(error)))


def model_error(where: str, error: Exception) -> ExportError:
    """Returns an ExportError for an error of the model, with the model's line."""
    return ExportError(
        f"{where}: {describe(error)}{_remedy(error)}"
        + source.as_suffix(source.line_of_error(error))
    )


def _remedy(error: Exception) -> str:
    files = [Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)]
    for place, remedy in _RAISED_IN.items():
        if any(place in (file[-3:], file[-4:-1]) for file in files):
            return remedy
    return ""


def higher_order_error(operator: HigherOrderOperator, formats_do: str, line: str) -> ExportError:
    """Returns an ExportError for an operator that takes Python functions.

    formats_do: start of the phrase "... not support", for example "exported pairs do".
    """
    unknown = f"torch.ops.higher_order.{operator.name()}", ""
    called, instead = _CONTROL_FLOW.get(operator.name(), unknown)
    if operator.name() in _SERVED:
        instead = f"for inference, use format='aot' or torch.export.save; else {instead}"
    instead = instead and f"; {instead}"
    return ExportError(f"forward() calls {called}, which {formats_do} not support{instead}{line}")


def trace_error(error: Exception, function: str = "") -> ExportError:
    """Returns an ExportError for an error during tracing.

    function: name of the PyTorch function that failed, if known.
    """
    reason = _reason(error)
    if lacks_operator_name(error):
        operator = f"the operator {function}" if function else "an operator"
        reason = f"{operator} has no shape rule for a dynamic batch size"
    return ExportError(reason + source.as_suffix(source.line_of_error(error)))


def lacks_operator_name(error: Exception) -> bool:
    """True if PyTorch's error does not name the function that failed."""
    return _WITHOUT_RULE in str(_causes(error)[-1])


def caught_error(error: Exception) -> ExportError:
    """Returns an ExportError for a tracing error that the model catches."""
    return ExportError(
        f"{_reason(error)}; forward() catches the error, so the trace would differ from eager mode"
        + source.as_suffix(source.line_of_error(error))
    )


def depends_on_values(error: Exception) -> bool:
    """Returns True for an error raised because a trace has no tensor values."""
    kinds = (*_NUMBER_OF_VALUES, DynamicOutputShapeException)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _reason(error: Exception) -> str:
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, _NUMBER_OF_VALUES):
            return _in_library(error) or _VALUE_AS_NUMBER
        if isinstance(cause, DynamicOutputShapeException):
            return (
                f"the output shape of {cause.func} depends on a tensor's values "
                f"({_SHAPE_BY_VALUES})"
            )
        if isinstance(cause, UnsupportedOperatorException):
            return f"the operator {cause.func} cannot be traced"
    for pytorchs, ours in _KNOWN.items():
        if pytorchs in first_line(causes[-1]):
            return ours
    return f"forward() cannot be traced: {describe(causes[-1])}"


def _in_library(error: Exception) -> str:
    """Explains a value-dependent conversion inside modules of a library, with a remedy."""
    for cause in _causes(error):
        for frame in traceback.extract_tb(cause.__traceback__):
            if "layerdrop" in (frame.line or "").lower().replace("_", ""):
                return _LAYER_DROP
            place = (Path(frame.filename).parts[-3:], frame.name)
            if place[0][1:] == ("distributions", "distribution.py"):
                return (
                    "torch.distributions validates values, which a trace does not have: "
                    "remove validate_args=True"
                )
            if place == (("torch", "nn", "functional.py"), "gaussian_nll_loss"):
                return (
                    "gaussian_nll_loss checks that no variance is negative, which needs values: "
                    "write the formula in forward()"
                )
            if place == (("nn", "modules", "transformer.py"), "_detect_is_causal_mask"):
                return (
                    "PyTorch reads the mask's values to detect a causal mask: set is_causal=True "
                    "or False (tgt_is_causal of a TransformerDecoder, both src_is_causal and "
                    "tgt_is_causal of a Transformer)"
                )
            if place == (("nn", "modules", "batchnorm.py"), "forward"):
                return (
                    "a batch norm with momentum=None converts its batch count to a Python number: "
                    "set momentum, or use format='torchscript'"
                )
    return ""


def _causes(error: BaseException) -> list[BaseException]:
    """Returns the error and its causes, the original one last."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
