"""Public models that Braid is compared with PyTorch on, by name."""

from e2e.support.public_models import (
    timm_models,
    torchaudio_models,
    torchvision_models,
    transformers_models,
    tutorial_models,
)

ENTRIES = {
    entry.name: entry
    for module in (
        tutorial_models,
        torchvision_models,
        timm_models,
        transformers_models,
        torchaudio_models,
    )
    for entry in module.ENTRIES
}
