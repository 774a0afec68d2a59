"""Messages of ExportError, made from errors of PyTorch and of models."""

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
    # TorchScript's interpreter begins with a traceback.
    line = lines[-1 if isinstance(error, torch.jit.Error) else 0] if lines else ""
    return _ADDRESS.sub("", line)


def describe(error: BaseException) -> str:
    """Returns an error's type and the first line of its message, as in "KeyError: 'x'"."""
    if isinstance(error, torch.jit.Error):
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"


def describe_data_error(error: BaseException) -> str:
    """Returns what is wrong with data that could not be read, in one sentence."""
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
    """Raises ExportError, which begins with `what`, for any error that damaged data causes."""
    try:
        yield
    except Exception as error:
        raise ExportError(f"{what}: {describe_data_error(error)}") from error


def type_with_article(value: Any) -> str:
    """Returns the type of a value with its article, as in "an int"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


_NUMBER_OF_VALUES = (DataDependentOutputException, GuardOnDataDependentSymNode)

# Messages of PyTorch that do not say what to do.
_KNOWN = {
    "use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()": (
        "torch.utils.checkpoint with use_reentrant=True cannot be traced: give it "
        "use_reentrant=False"
    ),
}
# Functions that users call, by operator name. AOTInductor and the server run these operators.
_CONTROL_FLOW = {
    "cond": "torch.cond",
    "map_impl": "map",
    "while_loop": "while_loop",
    "while_loop_stack_output": "while_loop",
}
# Raised for quantile() by PyTorch before 2.12.
_WITHOUT_RULE = "Cannot call numel() on tensor with symbolic sizes"


def to_export_error(error: Exception) -> ExportError:
    """What PyTorch raised where nobody expected it to, and the model's line."""
    if isinstance(error, ExportError):
        return error
    return ExportError(describe(error) + source.as_suffix(source.line_of_error(error)))


def model_error(where: str, error: Exception) -> ExportError:
    """Refusal for an error of the model, with the model's line."""
    return ExportError(
        f"{where}: {describe(error)}" + source.as_suffix(source.line_of_error(error))
    )


def higher_order_error(operator: HigherOrderOperator, formats_do: str, line: str) -> ExportError:
    """Refusal for an operator that runs functions of Python. formats_do: as in "pairs do"."""
    name = _CONTROL_FLOW.get(operator.name())
    instead = "; for inference, use format='aot' or torch.export.save" if name else ""
    called = name or f"torch.ops.higher_order.{operator.name()}"
    return ExportError(f"forward() calls {called}, which {formats_do} not support{instead}{line}")


def trace_error(error: Exception, function: str = "") -> ExportError:
    """function: the name of the one that failed, if it is known."""
    reason = _reason(error)
    if lacks_operator_name(error):
        said = f"the operator {function}" if function else "an operator"
        reason = f"{said} has no rule for batches of any number of rows"
    return ExportError(reason + source.as_suffix(source.line_of_error(error)))


def lacks_operator_name(error: Exception) -> bool:
    """True if PyTorch's error does not name the function that failed."""
    return _WITHOUT_RULE in str(_causes(error)[-1])


def caught_error(error: Exception) -> ExportError:
    """What the model did not let out of forward."""
    return ExportError(
        f"{_reason(error)}; forward catches the error and goes on otherwise than with values"
        + source.as_suffix(source.line_of_error(error))
    )


def depends_on_values(error: Exception) -> bool:
    """Of a trace, which does not have a tensor's values."""
    kinds = (*_NUMBER_OF_VALUES, DynamicOutputShapeException)
    return any(isinstance(cause, kinds) for cause in _causes(error))


def _reason(error: Exception) -> str:
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, _NUMBER_OF_VALUES):
            return _in_pytorch(error) or (
                "forward makes a Python number of a tensor's values, on which its course depends"
            )
        if isinstance(cause, DynamicOutputShapeException):
            return f"the shape of what {cause.func} gives depends on a tensor's values"
        if isinstance(cause, UnsupportedOperatorException):
            return f"the operator {cause.func} cannot be traced"
    for pytorchs, ours in _KNOWN.items():
        if pytorchs in first_line(causes[-1]):
            return ours
    return f"forward cannot be traced: {describe(causes[-1])}"


def _in_pytorch(error: Exception) -> str:
    """What PyTorch's own modules make a number of, and what to do about it."""
    for cause in _causes(error):
        for frame in traceback.extract_tb(cause.__traceback__):
            place = (Path(frame.filename).parts[-3:], frame.name)
            if place[0][1:] == ("distributions", "distribution.py"):
                return (
                    "torch.distributions looks at values, to find out whether a distribution can "
                    "have them: leave validate_args=True away"
                )
            if place == (("torch", "nn", "functional.py"), "gaussian_nll_loss"):
                return (
                    "gaussian_nll_loss looks at the variances, to find out whether one is "
                    "negative: write the formula out in forward"
                )
            if place == (("nn", "modules", "transformer.py"), "_detect_is_causal_mask"):
                return (
                    "PyTorch looks at the mask's values, to find out whether it is causal: say "
                    "so by is_causal=True or False (tgt_is_causal of a TransformerDecoder, both "
                    "src_is_causal and tgt_is_causal of a Transformer)"
                )
            if place == (("nn", "modules", "batchnorm.py"), "forward"):
                return (
                    "a batch norm with momentum=None makes a Python number of how many batches "
                    "it has seen: give it a momentum, or take TorchScript"
                )
    return ""


def _causes(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from, and so on to the first."""
    causes: list[BaseException] = []
    while error is not None and error not in causes:
        causes.append(error)
        error = error.__cause__ or error.__context__
    return causes
