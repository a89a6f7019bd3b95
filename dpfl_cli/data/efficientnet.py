"""EfficientNet-Lite0: the forward pass of its published ImageNet weights, as a feature map of
pictures.

The network is EfficientNet-B0 (Tan, Le 2019, arXiv 1905.11946, table 1) as its authors changed it
for phones: no squeeze-and-excite, ReLU6 in place of swish. A stem of 32 channels, sixteen inverted
bottlenecks (Sandler et al. 2018, arXiv 1801.04381), a head of 1280. The weights were trained in
TensorFlow, whose padding puts the odd row and column at the end ("same"), with a batch norm epsilon
of 1e-3, on pixels (p - 127) / 128: the stem's running variances say so, and the known predictions
are surer than under the means and stds that torchvision's networks take.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from dpfl_cli.data.frozen import frozen

SIDE = 224  # pixels, of the pictures it was trained on
PIXEL_MEAN, PIXEL_STD = 127 / 255, 128 / 255  # of every channel, pixels in [0, 1]
WIDTH = 1280  # of the features
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


class Convolution(nn.Conv2d):
    """Without bias, of an odd kernel, padded as TensorFlow's "same": zeros so that ceil(n / stride)
    outputs fit, the odd one at the end.
    """

    def __init__(
        self, inside: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        even = kernel // 2 if stride == 1 else 0  # at stride 1 the padding is as PyTorch's
        super().__init__(inside, out, kernel, stride, even, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in, H, W] -> [B, out, ceil(H / stride), ceil(W / stride)]."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride > 1:
            totals = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[:1:-1]]
            x = F.pad(x, [part for total in totals for part in (total // 2, total - total // 2)])
        return super().forward(x)


class Block(nn.Module):
    """An inverted bottleneck: expand (absent at expansion 1), depthwise, project; added to its
    input where shapes agree.
    """

    def __init__(self, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = expansion * inside
        self.expanded, self.added = expansion > 1, stride == 1 and inside == out
        if self.expanded:
            self._expand_conv, self._bn0 = Convolution(inside, wide), _norm(wide)
        self._depthwise_conv = Convolution(wide, wide, kernel, stride, wide)
        self._bn1 = _norm(wide)
        self._project_conv, self._bn2 = Convolution(wide, out), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in, H, W] -> [B, out, H / stride, W / stride]."""
        inner = F.relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expanded else x
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)), inplace=True)
        out = self._bn2(self._project_conv(inner))
        return out.add_(x) if self.added else out


class EfficientNetLite0(nn.Module):
    """`features` of pictures, and the `logits` of the 1000 ImageNet classes for checking it."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem, self._bn0 = Convolution(3, STEM, 3, 2), _norm(STEM)
        blocks, inside = [], STEM
        for kernel, first_stride, expansion, out, count in STAGES:
            for number in range(count):
                stride = 1 if number else first_stride
                blocks.append(Block(inside, out, kernel, stride, expansion))
                inside = out
        self._blocks = nn.Sequential(*blocks)
        self._conv_head, self._bn1 = Convolution(inside, WIDTH), _norm(WIDTH)
        self._fc = nn.Linear(WIDTH, 1000)

    def features(self, x: Tensor) -> Tensor:
        """x [B, 3, H, W], normalised -> [B, 1280], after global average pooling."""
        x = self._blocks(F.relu6(self._bn0(self._conv_stem(x)), inplace=True))
        return F.relu6(self._bn1(self._conv_head(x)), inplace=True).mean(dim=(2, 3))

    def logits(self, features: Tensor) -> Tensor:
        """[B, 1280] -> [B, 1000]."""
        found: Tensor = self._fc(features)
        return found


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


def efficientnet_lite0(weights: Mapping[str, Tensor]) -> EfficientNetLite0:
    """The network from a state dict with keys as `_conv_stem.weight`, `_blocks.0._bn1.running_var`.

    Raises:
      DataError: a tensor is absent, has another shape, or is one too many.
    """
    network = EfficientNetLite0()
    frozen(network, "EfficientNet-Lite0", weights)
    return network
