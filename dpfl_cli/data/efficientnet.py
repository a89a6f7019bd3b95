"""EfficientNet-Lite0: the forward pass of its published ImageNet weights, as a feature map of pictures.

The network is EfficientNet-B0 (Tan, Le 2019, arXiv 1905.11946, table 1) as its authors changed it for phones: no
squeeze-and-excite, ReLU6 in place of swish. A stem of 32 channels, sixteen inverted bottlenecks (Sandler et al. 2018, arXiv
1801.04381), a head of 1280.
The weights were trained in TensorFlow, whose padding puts the odd row and column at the end ("same"), with a batch norm epsilon
of 1e-3, on pixels (p - 127) / 128: the stem's running variances say so, and the known predictions are surer than under the
means and stds that torchvision's networks take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dpfl_cli.data.convolution import Convolution, WeightsOf

SIDE = 224  # pixels, of the pictures it was trained on
PIXEL_MEAN, PIXEL_STD = 127 / 255, 128 / 255  # of every channel, pixels in [0, 1]
WIDTH = 1280  # of the features
PARAMETERS = 4_652_008  # with the classifier; batch norm's running moments are not counted
BATCH_NORM_EPSILON = 1e-3
# (kernel, stride of the first block, expansion, channels out, blocks) of each stage
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM = 32


@dataclass(frozen=True)
class Block:
    """An inverted bottleneck: expand (absent at expansion 1), depthwise, project; added to its input where shapes agree."""

    expand: Convolution | None
    depthwise: Convolution
    project: Convolution

    def __call__(self, x: Tensor) -> Tensor:
        """x [B, in, H, W] -> [B, out, H / stride, W / stride]."""
        inner = x if self.expand is None else F.relu6(self.expand(x), inplace=True)
        out = self.project(F.relu6(self.depthwise(inner), inplace=True))
        return out.add_(x) if self.depthwise.stride == 1 and out.shape == x.shape else out


@dataclass(frozen=True)
class EfficientNetLite0:
    """The network in eval mode; `features` of pictures, and the `logits` of the 1000 ImageNet classes for checking it."""

    stem: Convolution
    blocks: tuple[Block, ...]
    head: Convolution
    classifier: tuple[Tensor, Tensor]  # weight [1000, 1280], bias [1000]

    def features(self, x: Tensor) -> Tensor:
        """x [B, 3, H, W], normalised -> [B, 1280], after global average pooling."""
        x = F.relu6(self.stem(x.contiguous(memory_format=torch.channels_last)), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.relu6(self.head(x), inplace=True).mean(dim=(2, 3))

    def logits(self, features: Tensor) -> Tensor:
        """[B, 1280] -> [B, 1000]."""
        return F.linear(features, *self.classifier)


def efficientnet_lite0(weights: Mapping[str, Tensor]) -> EfficientNetLite0:
    """The network from a state dict with keys as `_conv_stem.weight`, `_blocks.0._bn1.running_var`.

    Raises:
      DataError: a tensor is absent, has another shape, or is one too many.
    """
    of = WeightsOf("EfficientNet-Lite0", weights, BATCH_NORM_EPSILON)
    stem = of.convolution("_conv_stem", "_bn0", 3, STEM, 3, 2)
    blocks: list[Block] = []
    inside = STEM
    for kernel, first_stride, expansion, out, count in STAGES:
        for number in range(count):
            at, wide = f"_blocks.{len(blocks)}", expansion * inside
            stride = first_stride if number == 0 else 1
            blocks.append(
                Block(
                    of.convolution(f"{at}._expand_conv", f"{at}._bn0", inside, wide) if expansion > 1 else None,
                    of.convolution(f"{at}._depthwise_conv", f"{at}._bn1", wide, wide, kernel, stride, groups=wide),
                    of.convolution(f"{at}._project_conv", f"{at}._bn2", wide, out),
                )
            )
            inside = out
    head = of.convolution("_conv_head", "_bn1", inside, WIDTH)
    classifier = (of.take("_fc.weight", 1000, WIDTH), of.take("_fc.bias", 1000))
    of.check_all_taken()
    return EfficientNetLite0(stem, tuple(blocks), head, classifier)
