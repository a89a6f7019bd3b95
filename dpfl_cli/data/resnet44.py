"""ResNet-44 for small pictures, as chenyaofo/pytorch-cifar-models names its weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Basic(nn.Module):
    """A basic block (He et al. 2016, arXiv 1512.03385, section 3), projected at a stride."""

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


class ResNet44(nn.Module):
    """Three stages of seven basic blocks (section 4.2); what it gives [B, 64] are means over all
    places, and `fc` is not used.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for number, (inside, out) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            first = Basic(inside, out, 1 if number == 1 else 2)
            stage = nn.Sequential(first, *(Basic(out, out, 1) for _ in range(6)))
            setattr(self, f"layer{number}", stage)
        self.fc = nn.Linear(64, 100)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        for number in (1, 2, 3):
            x = getattr(self, f"layer{number}")(x)
        return x.mean(dim=(2, 3))
