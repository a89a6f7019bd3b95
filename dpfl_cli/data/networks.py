"""Networks whose published weights serve as feature maps of pictures, under the names that their
weights have.

EfficientNet-Lite0 is EfficientNet-B0 (Tan, Le 2019, arXiv 1905.11946, table 1) as its authors
changed it for phones: no squeeze-and-excite, ReLU6 in place of swish. A stem of 32 channels,
sixteen inverted bottlenecks (Sandler et al. 2018, arXiv 1801.04381), a head of 1280. The weights
were trained in TensorFlow, whose padding puts the odd row and column at the end ("same"), with a
batch norm epsilon of 1e-3, on pixels (p - 127) / 128: the stem's running variances say so, and the
known predictions are surer than under the means and stds that torchvision's networks take.

ResNet-44 (He et al. 2016, arXiv 1512.03385, section 4.2) is for small pictures, as
chenyaofo/pytorch-cifar-models has it: three stages of seven basic blocks.
"""

from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dpfl_cli.config.errors import DataError

SIDE = 224  # pixels, of the pictures that EfficientNet-Lite0 was trained on
PIXEL_MEAN, PIXEL_STD = 127 / 255, 128 / 255  # of every channel, pixels in [0, 1]
WIDTH = 1280  # of its features
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


def frozen(network: nn.Module, name: str, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network with these weights, in evaluation mode, channels last; each batch norm, which
    comes after a convolution, is folded into that in float64.

    Raises:
      DataError: a tensor is absent, has another shape, or is one too many.
    """
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        reason = " ".join(str(error).split("\n\t")[1].split())[:160]
        raise DataError(f"the weights are not those of {name}: {reason}") from error
    network.double().eval().requires_grad_(False)
    for parent in list(network.modules()):
        before = ""
        for part, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, before, fuse_conv_bn_eval(getattr(parent, before), child))
                setattr(parent, part, nn.Identity())
            before = part
    return network.float().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


class Same(nn.Conv2d):
    """Without bias, of an odd kernel and stride 1 or 2, padded as TensorFlow's "same" where the
    stride divides the sides: zeros so that n / stride outputs fit, the odd one at the end.
    """

    def __init__(
        self, inside: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        even = kernel // 2 if stride == 1 else 0  # at stride 1 the padding is as PyTorch's
        super().__init__(inside, out, kernel, stride, even, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [B, in, H, W] -> [B, out, H / stride, W / stride]."""
        if self.stride[0] > 1:
            after = self.kernel_size[0] // 2
            x = F.pad(x, 2 * [after - 1, after])
        return super().forward(x)


_norm = partial(nn.BatchNorm2d, eps=1e-3)
_relu6 = partial(nn.ReLU6, inplace=True)


class Bottleneck(nn.Sequential):
    """An inverted bottleneck: expand (absent at expansion 1), depthwise, project; added to its
    input where shapes agree. [B, in, H, W] -> [B, out, H / stride, W / stride].
    """

    def __init__(self, inside: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        wide = expansion * inside
        expand = {"_expand_conv": Same(inside, wide), "_bn0": _norm(wide), "expanded": _relu6()}
        super().__init__(
            OrderedDict(
                **(expand if expansion > 1 else {}),
                _depthwise_conv=Same(wide, wide, kernel, stride, wide),
                _bn1=_norm(wide),
                filtered=_relu6(),
                _project_conv=Same(wide, out),
                _bn2=_norm(out),
            )
        )
        self.added = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = super().forward(x)
        return out.add_(x) if self.added else out


def efficientnet_lite0() -> nn.Sequential:
    """[B, 3, H, W], normalised -> [B, 1000] logits of ImageNet's classes, of [B, 1280] features."""
    blocks, inside = [], STEM
    for kernel, first_stride, expansion, out, count in STAGES:
        for number in range(count):
            blocks.append(Bottleneck(inside, out, kernel, 1 if number else first_stride, expansion))
            inside = out
    return nn.Sequential(
        OrderedDict(
            _conv_stem=Same(3, STEM, 3, 2),
            _bn0=_norm(STEM),
            begun=_relu6(),
            _blocks=nn.Sequential(*blocks),
            _conv_head=Same(inside, WIDTH),
            _bn1=_norm(WIDTH),
            ended=_relu6(),
            pooled=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            _fc=nn.Linear(WIDTH, 1000),
        )
    )


class Basic(nn.Module):
    """A basic block (section 3), projected at a stride."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        projected = nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out)
        self.downsample = nn.Sequential(*projected) if stride > 1 else nn.Sequential()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.downsample(x))


def resnet44() -> nn.Sequential:
    """[B, 3, H, W], normalised -> [B, 100] logits of CIFAR-100's classes, of [B, 64] features."""
    layers = {}
    for number, (inside, out) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
        first = Basic(inside, out, 1 if number == 1 else 2)
        layers[f"layer{number}"] = nn.Sequential(first, *(Basic(out, out, 1) for _ in range(6)))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, 16, 3, 1, 1, bias=False),
            bn1=nn.BatchNorm2d(16),
            begun=nn.ReLU(),
            **layers,
            pooled=nn.AdaptiveAvgPool2d(1),
            flat=nn.Flatten(),
            fc=nn.Linear(64, 100),
        )
    )
