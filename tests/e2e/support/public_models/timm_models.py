"""Models of timm, smaller than the published ones where their classes allow it."""

from __future__ import annotations

from typing import Any

from e2e.support.public_models.entry import ADAMW, CLASSES, SGD, Entry, image_classes
from torch import nn

SOURCE = "timm"


def _make(model: str, **options: Any) -> nn.Module:
    """model: a name of timm.create_model, or a module and class of timm.models."""
    import timm

    if "." not in model:
        return timm.create_model(model, num_classes=CLASSES, **options)
    module, name = model.split(".")
    return getattr(getattr(timm.models, module), name)(num_classes=CLASSES, **options)


# Adam enlarges rounding errors in the gradient of a bias before batch norm, so such models use SGD.
def _entry(name: str, model: str, side: int = 16, optimizer: Any = ADAMW, **options: Any) -> Entry:
    return Entry(
        name,
        SOURCE,
        "image classification",
        lambda: _make(model, **options),
        image_classes(3, side),
        optimizer=optimizer,
    )


_PATCHES = {"img_size": 16, "patch_size": 8, "embed_dim": 32}

ENTRIES = [
    _entry("deit", "deit_tiny_patch16_224", num_heads=2, depth=2, **_PATCHES),
    _entry("xcit", "xcit_nano_12_p8_224", optimizer=SGD, num_heads=2, depth=2, **_PATCHES),
    _entry("mlp_mixer", "mlp_mixer.MlpMixer", num_blocks=2, **_PATCHES),
    _entry(
        "convmixer",
        "convmixer.ConvMixer",
        optimizer=SGD,
        dim=16,
        depth=2,
        kernel_size=5,
        patch_size=4,
    ),
    _entry("resnet10t", "resnet10t", 32, SGD),
    _entry("fastvit", "fastvit_t8", 32, SGD, embed_dims=(8, 16, 16, 16), layers=(1, 1, 1, 1)),
]
