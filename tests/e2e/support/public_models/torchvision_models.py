"""Models of torchvision, smaller than the published ones where their classes allow it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torchvision
from e2e.support.public_models.entry import ADAMW, CLASSES, SGD, Data, Entry, image_classes
from e2e.support.reference import Batch
from torch import Tensor, nn
from torchvision import models

SOURCE = "torchvision"
SIZES = ({"height": 32, "width": 32}, {"height": 32, "width": 64})
_height, _width = (torch.export.Dim(name, min=1, max=4) for name in ("height", "width"))
ANY_SIZE = {"x": {2: 32 * _height, 3: 32 * _width}}


def _resnet(**options) -> nn.Module:
    # Without zero_init_residual, the first steps amplify rounding errors.
    block = models.resnet.BasicBlock
    return models.ResNet(block, [1, 1, 1, 1], CLASSES, zero_init_residual=True, **options)


def _vit() -> nn.Module:
    return models.VisionTransformer(16, 8, 2, 4, 32, 64, num_classes=CLASSES)


def _densenet() -> nn.Module:
    return models.DenseNet(8, (2, 2), 8, num_classes=CLASSES)


def _efficientnet() -> nn.Module:
    config = partial(models.efficientnet.MBConvConfig, width_mult=1.0, depth_mult=1.0)
    blocks = [config(1, 3, 1, 8, 8, 1), config(4, 3, 2, 8, 16, 1), config(4, 5, 2, 16, 24, 1)]
    return models.EfficientNet(blocks, 0.0, 0.0, CLASSES, last_channel=64)


def _convnext() -> nn.Module:
    config = models.convnext.CNBlockConfig
    return models.ConvNeXt([config(8, 16, 1), config(16, None, 1)], num_classes=CLASSES)


def _swin() -> nn.Module:
    return models.SwinTransformer(
        [2, 2], 8, [2, 2], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES
    )


def _regnet() -> nn.Module:
    params = models.regnet.BlockParams.from_init_params(
        depth=3, w_0=16, w_a=8.0, w_m=2.0, group_width=8
    )
    return models.RegNet(params, CLASSES, stem_width=8)


class FeaturePyramid(nn.Module):
    """The backbone of a detector: a feature map per level."""

    def __init__(self) -> None:
        super().__init__()
        backbone = _resnet()
        layers = {"layer2": "0", "layer3": "1", "layer4": "2"}
        self.body = models._utils.IntermediateLayerGetter(backbone, layers)
        self.fpn = torchvision.ops.FeaturePyramidNetwork([128, 256, 512], 16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {f"level{name}": each for name, each in self.fpn(self.body(x)).items()}


def _pyramids(data: Data) -> Batch:
    x = data.normal(3, 32, 32)
    return {"x": x}, {"first": data.normal(16, 4, 4), "last": data.normal(16, 1, 1)}


class Segmentation(nn.Module):
    """Returns the logits of a torchvision segmentation model, which returns a dict."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)["out"]


def _deeplab() -> nn.Module:
    body = models._utils.IntermediateLayerGetter(_resnet(), {"layer2": "out"})
    head = models.segmentation.deeplabv3.DeepLabHead(128, 2, atrous_rates=(1, 2, 3))
    return models.segmentation.DeepLabV3(body, head)


def _lraspp() -> nn.Module:
    return models.segmentation.lraspp_mobilenet_v3_large(
        num_classes=2, weights_backbone=None
    )


def _segments(data: Data, height: int, width: int) -> Batch:
    x = data.normal(3, height, width)
    return {"x": x}, {"target": (x[:, 0] > 0).long()}


def _video() -> nn.Module:
    from torchvision.models.video import resnet

    return resnet.VideoResNet(
        resnet.BasicBlock,
        [resnet.Conv2Plus1D] * 4,
        [1, 1, 1, 1],
        resnet.R2Plus1dStem,
        num_classes=CLASSES,
        zero_init_residual=True,
    )


def _clips(data: Data) -> Batch:
    labels = data.indices(CLASSES)
    return {"x": data.normal(3, 4, 8, 8) + labels[:, None, None, None, None]}, {"target": labels}


class Detector(nn.Module):
    """A whole detector, which chooses boxes by their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.detector = models.detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=2
        )

    def forward(self, x: Tensor) -> list:
        return self.detector(list(x))


# Batch norm over few values per channel amplifies rounding errors. With SGD's learning rate, two
# runs of plain PyTorch whose weights differ by 1e-15 differ by 1 after 20 steps.
STABLE = {**SGD, "lr": 1e-4}


def _classifier(name: str, make: Callable[[], nn.Module], side: int = 16, **options) -> Entry:
    return Entry(name, SOURCE, "image classification", make, image_classes(3, side), **options)


ENTRIES = [
    _classifier("resnet", _resnet),
    _classifier(
        "mobilenet_v3_small", partial(models.mobilenet_v3_small, num_classes=CLASSES)
    ),
    _classifier("vit", _vit, optimizer=ADAMW),
    _classifier("densenet", _densenet, 32),
    _classifier("efficientnet", _efficientnet),
    _classifier("convnext", _convnext, optimizer=ADAMW),
    _classifier("swin", _swin, optimizer=ADAMW),
    _classifier("regnet", _regnet),
    _classifier("squeezenet1_1", partial(models.squeezenet1_1, num_classes=CLASSES), 32),
    _classifier(
        "shufflenet_v2_x0_5",
        partial(models.shufflenet_v2_x0_5, num_classes=CLASSES),
        64,
        optimizer=STABLE,
    ),
    Entry("r2plus1d", SOURCE, "video classification", _video, _clips, optimizer=STABLE),
    Entry(
        "resnet_fpn",
        SOURCE,
        "detection backbone",
        FeaturePyramid,
        _pyramids,
        loss=[
            {"name": "mse", "output": "level0", "target": "first"},
            {"name": "mse", "output": "level2", "target": "last"},
        ],
    ),
    Entry(
        "ssdlite",
        SOURCE,
        "detection",
        Detector,
        lambda data: ({"x": data.normal(3, 64, 64)}, {}),
        alternative="the backbone, as in `resnet_fpn`; boxes are chosen in the client",
    ),
    Entry(
        "deeplabv3",
        SOURCE,
        "segmentation",
        lambda: Segmentation(_deeplab()),
        _segments,
        SIZES,
        dynamic=ANY_SIZE,
    ),
    Entry(
        "lraspp_mobilenet_v3_large",
        SOURCE,
        "segmentation",
        lambda: Segmentation(_lraspp()),
        _segments,
        SIZES[:1],
    ),
]
