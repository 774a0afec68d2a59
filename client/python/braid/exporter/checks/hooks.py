"""Rejection of Python gradient hooks, which a server cannot call."""

from __future__ import annotations

from torch import nn

from braid._export import ExportError


def check_parameters(module: nn.Module) -> None:
    """Raises ExportError if a parameter has a gradient hook."""
    for name, parameter in module.named_parameters():
        kinds = {
            "register_hook": parameter._backward_hooks,
            "register_post_accumulate_grad_hook": parameter._post_accumulate_grad_hooks,
        }
        for register, hooks in kinds.items():
            if hooks:
                raise ExportError(
                    f"the parameter '{name}' has a hook ({register}), which a package cannot "
                    f"contain: remove it, and do the same in forward(), for example with a mask or "
                    f"a torch.autograd.Function"
                )


def check_modules(module: nn.Module) -> None:
    """Raises ExportError for backward hooks of modules, which TorchScript drops.

    A trace of forward and backward includes them.
    """
    for path, each in module.named_modules():
        if getattr(each, "_backward_hooks", None) or getattr(each, "_backward_pre_hooks", None):
            subject = f"the submodule '{path}'" if path else "the module"
            raise ExportError(f"{subject} has a backward hook, which TorchScript does not support")
