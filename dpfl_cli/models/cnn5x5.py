"""The CNN of arXiv 2304.05127 on CIFAR-10 and FEMNIST: two 5x5 convolutions with pooling, then one
or two fully connected layers.

Reference: McMahan et al. 2017 (arXiv 1602.05629), section 3, whose CNN on MNIST it is.
"""

from typing import Annotated

from annotated_types import Len
from torch import nn

from dpfl_cli.config.component import Count, component
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.client_mean import ClientMeanNetwork, ClientMeanSettings
from dpfl_cli.models.images import ImageInputs, image_classes


class Cnn5x5Settings(ClientMeanSettings):
    """Output channels of the convolutions, and the width of the hidden fully connected layer (None:
    there is none).
    """

    channels: Annotated[list[Count], Len(2, 2)]
    hidden: Count | None


@component("model", "cnn5x5", Cnn5x5Settings, revision=2)
class Cnn5x5(ImageInputs, ClientMeanNetwork):
    """Two 5x5 convolutions (padding 2) with ReLU and 2x2 max-pooling, fully connected layers,
    cross-entropy.
    """

    @classmethod
    def network(cls, settings: Cnn5x5Settings, info: DatasetInfo) -> nn.Module:
        channels, height, width, classes = image_classes("cnn5x5", info, 4)
        first, second = settings.channels
        layers: list[nn.Module] = []
        for into, out in ((channels, first), (first, second)):
            layers += [nn.Conv2d(into, out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
        layers.append(nn.Flatten())
        values = second * (height // 4) * (width // 4)
        if settings.hidden is not None:
            layers += [nn.Linear(values, settings.hidden), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(settings.hidden or values, classes))
