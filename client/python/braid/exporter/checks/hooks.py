"""Functions of Python's that PyTorch calls with gradients: a server has none to call."""

from __future__ import annotations

from torch import nn

from braid._export import ExportError


def check_parameters(module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        kinds = {
            "register_hook": parameter._backward_hooks,
            "register_post_accumulate_grad_hook": parameter._post_accumulate_grad_hooks,
        }
        for register, hooks in kinds.items():
            if hooks:
                raise ExportError(
                    f"the parameter '{name}' has a hook ({register}), which no package keeps: "
                    f"remove it, and have forward do the same, as by a mask or a "
                    f"torch.autograd.Function that the parameter goes through"
                )


def check_modules(module: nn.Module) -> None:
    """Of TorchScript, which forgets them. A trace of forward and backward has them."""
    for path, each in module.named_modules():
        if getattr(each, "_backward_hooks", None) or getattr(each, "_backward_pre_hooks", None):
            said = f"the submodule '{path}'" if path else "the module"
            raise ExportError(f"{said} has a backward hook, which TorchScript does not keep")
