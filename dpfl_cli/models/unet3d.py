"""The 3-D U-Net of FLamby's Fed-IXI (arXiv 2210.04620; F. Perez-Garcia's `unet`), with group for
batch normalisation.

Batch normalisation would let records of a pass meet, and has a state that no release covers.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_cli.config.component import Count, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.client_mean import ClientMeanNetwork, ClientMeanSettings
from dpfl_cli.models.objective import ByName, misfit

EPSILON = 1e-9  # of the loss's denominator


class Unet3dSettings(ClientMeanSettings):
    """Output channels of the first convolution, and groups of a normalisation, which must divide
    twice as many.
    """

    channels: Count
    groups: Count


class Convolution(nn.Conv3d):
    """A 3x3x3 convolution with padding 1. On a CPU, a single volume goes as two halves that share a
    plane on either side.

    PyTorch takes its fast kernels only for two or more records, or large ones: a step on 24x30x24
    is then twice as fast.
    """

    def forward(self, volumes: Tensor) -> Tensor:
        if len(volumes) > 1 or volumes.device.type != "cpu":
            return super().forward(volumes)
        depth = volumes.shape[2]
        half = -(-depth // 2)
        padded = functional.pad(volumes, (0, 0, 0, 0, 1, 1 + 2 * half - depth))
        halves = torch.cat((padded[:, :, : half + 2], padded[:, :, half:]))
        outputs = functional.conv3d(halves, self.weight, self.bias, padding=(0, 1, 1))
        return torch.cat(outputs.split(1), dim=2)[:, :, :depth]


def _block(into: int, out: int, groups: int | None) -> nn.Sequential:
    """A 3x3x3 convolution, normalisation (groups None: none, and a bias in its place) and PReLU."""
    convolution = Convolution(into, out, 3, padding=1, bias=groups is None)
    normalisation = [] if groups is None else [nn.GroupNorm(groups, out)]
    return nn.Sequential(convolution, *normalisation, nn.PReLU())


class Unet(nn.Module):
    """Two levels down and up, with c-2c, 2c-4c and 4c-8c channels; logits [n, labels, x, y, z] of
    volumes [n, 1, x, y, z].
    """

    def __init__(self, channels: int, groups: int, labels: int) -> None:
        super().__init__()
        c, g = channels, groups

        def level(into: int, between: int, out: int) -> nn.Sequential:
            return nn.Sequential(_block(into * c, between * c, g), _block(between * c, out * c, g))

        first = nn.Sequential(_block(1, c, None), _block(c, 2 * c, g))
        self.down = nn.ModuleList([first, level(2, 2, 4)])
        self.bottom = level(4, 4, 8)
        self.up = nn.ModuleList([level(12, 4, 4), level(6, 2, 2)])
        self.classifier = nn.Conv3d(2 * c, labels, 1)

    def forward(self, volumes: Tensor) -> Tensor:
        skipped = []
        for block in self.down:
            volumes = block(volumes)
            skipped.append(volumes)
            volumes = functional.max_pool3d(volumes, 2)
        volumes = self.bottom(volumes)
        for block, skip in zip(self.up, reversed(skipped), strict=True):
            size = skip.shape[-3:]  # twice the side, or one more where it was odd
            larger = functional.interpolate(volumes, size, mode="trilinear", align_corners=False)
            volumes = block(torch.cat((skip, larger), dim=1))
        return self.classifier(volumes)


@component("model", "unet3d", Unet3dSettings, revision=2)
class Unet3d(ClientMeanNetwork):
    """3-D U-Net with group normalisation and PReLU; loss 1 - soft Dice, mean of the labels.
    Metrics: dice, test_error, test_loss.

    Soft Dice of a volume and label: sum p g / (half the sum of p + g), p the softmax's probability,
      g 1 at the label's voxels;
    1 where both are zero everywhere. `dice` is its mean over labels, in percent, `test_error` 100 -
    dice.
    """

    @classmethod
    def network(cls, settings: Unet3dSettings, info: DatasetInfo) -> nn.Module:
        labels = info.details.get("labels")
        if (
            labels is None
            or len(info.feature_shape) != 4
            or info.feature_shape[0] != 1
            or min(info.feature_shape[1:]) < 4
        ):
            needs = "volumes [1, x, y, z] of at least 4x4x4 with labels for all voxels"
            raise misfit("unet3d", needs, info, "dataset=fed_ixi, ixi_synth,")
        if (2 * settings.channels) % settings.groups:
            raise ConfigError(
                f"model.groups={settings.groups}: does not divide {2 * settings.channels}, twice "
                "model.channels; write a divisor"
            )
        return Unet(settings.channels, settings.groups, labels)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n] 1 - the mean over labels of 2 tp / (2 tp + fp + fn + 1e-9), from logits [n, labels,
        ...] and labels [n, ...].
        """
        overlap, total = _sums(outputs, targets)
        return 1.0 - (2.0 * overlap / (total + EPSILON)).mean(dim=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> ByName:
        overlap, total = _sums(outputs, targets)
        dice = 100.0 * torch.where(total > 0, 2.0 * overlap / total, 1.0).mean(dim=1)
        return {
            "dice": dice,
            "test_error": 100.0 - dice,
            "test_loss": self.losses(outputs, targets),
        }


def _sums(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """[n, labels] sums over voxels of p g and of p + g."""
    probabilities = torch.softmax(outputs, dim=1)
    labels = torch.arange(outputs.shape[1], device=outputs.device).reshape(-1, 1, 1, 1)
    truth = (targets.unsqueeze(1) == labels).to(outputs.dtype)
    return (probabilities * truth).sum(dim=(2, 3, 4)), (probabilities + truth).sum(dim=(2, 3, 4))
