"""Says in the user's words, and with the model's line, why a module could not be traced."""

from __future__ import annotations

import traceback
from pathlib import Path

from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from braid._export import ExportError
from braid.exporter import source, wording


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


def of_error(error: Exception) -> ExportError:
    """What PyTorch raised where nobody expected it to, and the model's line."""
    if isinstance(error, ExportError):
        return error
    return ExportError(wording.named(error) + source.at(source.of_error(error)))


def of_failure(where: str, error: Exception) -> ExportError:
    """Refusal for an error of the model, with the model's line."""
    return ExportError(f"{where}: {wording.named(error)}" + source.at(source.of_error(error)))


def of_higher_order(operator: HigherOrderOperator, formats_do: str, line: str) -> ExportError:
    """Refusal for an operator that runs functions of Python. formats_do: as in "pairs do"."""
    name = _CONTROL_FLOW.get(operator.name())
    instead = "; for inference, use format='aot' or torch.export.save" if name else ""
    called = name or f"torch.ops.higher_order.{operator.name()}"
    return ExportError(f"forward() calls {called}, which {formats_do} not support{instead}{line}")


def of_trace(error: Exception, function: str = "") -> ExportError:
    """function: the name of the one that failed, if it is known."""
    reason = _reason(error)
    if needs_name(error):
        said = f"the operator {function}" if function else "an operator"
        reason = f"{said} has no rule for batches of any number of rows"
    return ExportError(reason + source.at(source.of_error(error)))


def needs_name(error: Exception) -> bool:
    """True if PyTorch's error does not name the function that failed."""
    return _WITHOUT_RULE in str(_causes(error)[-1])


def of_caught(error: Exception) -> ExportError:
    """What the model did not let out of forward."""
    return ExportError(
        f"{_reason(error)}; forward catches the error and goes on otherwise than with values"
        + source.at(source.of_error(error))
    )


def is_of_values(error: Exception) -> bool:
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
        if pytorchs in wording.first_line(causes[-1]):
            return ours
    return f"forward cannot be traced: {wording.named(causes[-1])}"


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
