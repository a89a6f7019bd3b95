"""What models of images share."""

from torch import Tensor

from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.objective import misfit


class ImageInputs:
    """For networks of images, before their base: grey images get their channel."""

    @staticmethod
    def inputs(features: Tensor) -> Tensor:
        """[n, channels, height, width]."""
        return features if features.ndim == 4 else features.unsqueeze(1)


def image_classes(model: str, info: DatasetInfo, smallest: int) -> tuple[int, int, int, int]:
    """channels, height, width and classes of a dataset of images; a ConfigError where it is none,
    or they are too small.
    """
    shape = info.feature_shape if len(info.feature_shape) == 3 else (1, *info.feature_shape)
    if len(shape) != 3 or info.classes is None or info.target_shape or min(shape[1:]) < smallest:
        sizes = f"images [channels, height, width] or [height, width] of at least {smallest}x"
        raise misfit(model, f"{sizes}{smallest} with classes", info, "dataset=mnist")
    channels, height, width = shape
    return channels, height, width, info.classes
