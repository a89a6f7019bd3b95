"""Backbones: maps from images to features, whose last layer is left to the methods under study.

Real ones are networks trained on other data, eval mode, features after global average pooling:
EfficientNet-Lite0 (ImageNet; its weights come in a registry package), and the paper's own two,
ResNet-50 (ImageNet, torchvision's) and ResNet-44 (CIFAR-100, chenyaofo/pytorch-cifar-models), for
whoever has their weights. Stand-ins, always labelled so: `rcf`, convolutions with patches of public
  images (Coates, Ng, Lee 2011, AISTATS), and `pca`, principal components of the pixels.

Images are [B, C, H, W] float32 in [0, 1]. For the networks, grey ones are repeated to three
channels, and all are resized to the network's side by bilinear interpolation (half-pixel centres,
no antialiasing) before the pixels are normalised.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy import ndarray
from torch import Tensor, nn

from dpfl_cli.config.errors import ConfigError, DataError, nearest
from dpfl_cli.config.paths import expanded
from dpfl_cli.data.loading import warn_once
from dpfl_cli.data.networks import (
    PIXEL_MEAN,
    PIXEL_STD,
    SIDE,
    WIDTH,
    efficientnet_lite0,
    frozen,
    resnet44,
)
from dpfl_cli.data.sources import locate, read_uncompressed, status
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.threads import one_thread_each, slices

EFFICIENTNET = "efficientnet_lite0"  # in the catalogue, too
STANDIN = "rcf"  # of `auto`, where no weights are here
# means and stds of torchvision's networks
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR100 = (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2761)  # of pytorch-cifar-models
PATCH, FILTERS, OFFSET = 6, 512, 0.25  # of rcf
PATCHES_PER_IMAGE, LEAST_PATCHES = 100, 4096
WHITENING = 0.01  # of rcf: added to the patches' variances, in mean variances
AT_ONCE = 500  # rows whose components are computed at once
BATCH = 2  # images at once, by one thread; more leave the cache

Extractor = Callable[[Tensor], Tensor]
Weights = Mapping[str, Tensor]
Build = Callable[[Weights, Tensor], Extractor]


class Backbone(NamedTuple):
    """A map from images to features, before it has its weights.

    Attributes:
      revision: raised whenever its code changes the features.
      width: of the features; None: as many as an image has pixels.
      build: (weights, public images [n, C, H, W] where `fitted`) -> [B, C, H, W] -> [B, width].
      weights: where they come from: the catalogue, a file of the user's, or nowhere.
      fitted: whether it is a stand-in, which is fitted on public images.
      components: principal components that are taken unless others are asked for; None: the
        features as they are.
    """

    name: str
    revision: int
    width: int | None
    build: Build
    weights: Literal["catalogue", "path"] | None = None
    fitted: bool = False
    components: int | None = None


def as_images(features: ndarray) -> Tensor:
    """[n, H, W] or [n, C, H, W] float32 in [0, 1] as [n, C, H, W]."""
    images = features[:, None] if features.ndim == 3 else features
    return torch.from_numpy(np.ascontiguousarray(images, np.float32))


def read_weights(path: Path) -> Weights:
    """The state dict in a file of torch.save's; tensors only, no code is run.

    Raises:
      DataError: the file cannot be read, or holds something else.
    """
    content = io.BytesIO(read_uncompressed(path))
    try:
        values: Any = torch.load(content, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # there is no list of what reading a damaged one raises
        raise DataError(
            f"{path}: damaged, or not only tensors; give a state dict written by torch.save"
        ) from error
    if not isinstance(values, Mapping):
        raise DataError(f"{path}: holds a {type(values).__name__}, not a state dict")
    return values


def network_input(
    images: Tensor, side: int, means: Sequence[float], stds: Sequence[float]
) -> Tensor:
    """[B, 1 or 3, H, W] in [0, 1] -> [B, 3, side, side], normalised, channels last."""
    if images.shape[-2:] != (side, side):
        images = F.interpolate(images, (side, side), mode="bilinear", align_corners=False)
    mean, std = (torch.tensor(values)[:, None, None] for values in (means, stds))
    x = (images.expand(-1, 3, -1, -1) - mean) / std
    return x.contiguous(memory_format=torch.channels_last)


def _network(
    make: Callable[[], nn.Module], called: str, side: int, *scale: Sequence[float]
) -> Build:
    """The features of a network: all but its last layer. `scale`: means and stds of its pixels."""

    def build(weights: Weights, public: Tensor) -> Extractor:
        network = frozen(make(), called, weights)
        *_, last = (name for name, _ in network.named_children())
        setattr(network, last, nn.Identity())
        return lambda images: network(network_input(images, side, *scale))

    return build


def _torchvision() -> Any:
    """Its models; a ConfigError where it cannot be imported."""
    try:
        return import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # RuntimeError: it was built for another torch
        reason = " ".join(str(error).split())[:120]
        raise ConfigError(
            "dataset.backbone=resnet50_imagenet: torchvision cannot be imported "
            f"({reason}); install the one that fits your torch (pip install torchvision), or write "
            "dataset.backbone=auto"
        ) from error


def _rcf(weights: Weights, public: Tensor) -> Extractor:
    """Random convolutional features: responses of whitened patches, max(|.| - 0.25, 0), averaged
    over the four quadrants.

    Patches are taken at random places of the public images, centred, and whitened by ZCA; the
    filters are 512 random ones of those above the median contrast (below it, digits have blank
    patches, which are all the same filter), scaled to unit norm.
    """
    generator = stream_generator(0, "data")
    n, channels, height, width = public.shape
    count = max(PATCHES_PER_IMAGE * n, LEAST_PATCHES)
    image, top, left = (
        generator.integers(0, high, count) for high in (n, height - PATCH + 1, width - PATCH + 1)
    )
    windows = np.lib.stride_tricks.sliding_window_view(public.numpy(), (PATCH, PATCH), (2, 3))
    patches = windows[image, :, top, left].reshape(count, -1).astype(np.float64)
    contrast = patches.std(axis=1)
    centre = patches.mean(axis=0)
    patches -= centre
    variances, axes = np.linalg.eigh(patches.T @ patches / count)
    variances = np.maximum(variances, 0.0) + WHITENING * max(float(variances.mean()), 1e-12)
    whitening = (axes / np.sqrt(variances)) @ axes.T
    rich = np.argsort(-contrast, kind="stable")[: count // 2]
    filters = patches[generator.choice(rich, FILTERS, replace=False)] @ whitening
    filters /= np.maximum(np.linalg.norm(filters, axis=1, keepdims=True), 1e-12)
    kernels = filters @ whitening  # the response of filter f to patch p is f . W (p - centre)
    weight = torch.from_numpy(kernels.reshape(FILTERS, channels, PATCH, PATCH)).float()
    bias = torch.from_numpy(-kernels @ centre).float()

    def features(images: Tensor) -> Tensor:
        responses = F.conv2d(images, weight, bias).abs_().sub_(OFFSET).clamp_(min=0.0)
        return F.adaptive_avg_pool2d(responses, 2).flatten(1)

    return features


LITE0 = _network(efficientnet_lite0, "EfficientNet-Lite0", SIDE, [PIXEL_MEAN], [PIXEL_STD])
RESNET50 = _network(
    lambda: _torchvision().resnet50(weights=None), "torchvision's resnet50", 224, *IMAGENET
)
RESNET44 = _network(resnet44, "cifar100_resnet44", 32, *CIFAR100)
BACKBONES: dict[str, Backbone] = {
    one.name: one
    for one in (
        Backbone(EFFICIENTNET, 2, WIDTH, LITE0, "catalogue"),
        Backbone("resnet50_imagenet", 2, 2048, RESNET50, "path"),
        Backbone("resnet44_cifar100", 2, 64, RESNET44, "path"),
        Backbone("rcf", 2, 4 * FILTERS, _rcf, fitted=True),
        Backbone("pca", 1, None, lambda *_: nn.Flatten(), fitted=True, components=64),
    )
}


def extracted(extract: Extractor, images: ndarray) -> ndarray:
    """Features [n, width] float32 of images.

    Every batch has one size and one thread, so that an image's features depend neither on how many
    are asked for nor on how many threads there are.
    """
    whole = as_images(images)
    lacking = whole.new_zeros(-len(whole) % BATCH, *whole.shape[1:])
    batches = torch.cat([whole, lacking]).split(BATCH)

    def features(batch: Tensor) -> ndarray:
        with torch.inference_mode():
            return extract(batch).numpy()

    return np.concatenate(one_thread_each(features, zip(batches)))[: len(images)]


def principal_components(public: ndarray, components: int) -> Callable[[ndarray], ndarray]:
    """The map of rows [n, d] to their coordinates [n, components] along the principal axes of
    public rows.

    Computed in float64, given as float32. An axis points where its largest entry is positive.
    """
    mean = public.mean(axis=0, dtype=np.float64)
    centred = public - mean
    small = len(public) < public.shape[1]
    values, vectors = np.linalg.eigh(centred @ centred.T if small else centred.T @ centred)
    axes = vectors[:, ::-1][:, :components]
    if small:
        largest = np.maximum(values[::-1][:components], np.finfo(float).tiny)
        axes = centred.T @ axes / np.sqrt(largest)
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])
    return lambda rows: np.concatenate(
        [((rows[some] - mean) @ axes).astype(np.float32) for some in slices(len(rows), AT_ONCE)]
    )


def backbone_of(name: str, chosen: str, given: str | None) -> tuple[Backbone, Path | None]:
    """The backbone and its weights' file for a data set's settings; `auto` takes the stand-in where
    EfficientNet-Lite0's are nowhere, and says so.

    Raises:
      ConfigError: no such backbone; weights or packages that are needed and not given, or not
        needed and given.
      DataError: weights that are absent or damaged.
    """
    asked = chosen
    if chosen == "auto":
        found = status(EFFICIENTNET)
        chosen = EFFICIENTNET
        if found.missing and found.problem is None:
            warn_once(
                f"{name}: no ImageNet weights are here, and {STANDIN} STANDS IN for the backbone; "
                f"results say source=standin (to have them: dpfl data fetch {EFFICIENTNET})"
            )
            chosen = STANDIN
    if chosen not in BACKBONES:
        known = nearest(chosen, ["auto", *BACKBONES])
        raise ConfigError(f"dataset.backbone={chosen}: no such backbone; {known}")
    backbone = BACKBONES[chosen]
    if given is not None and backbone.weights != "path":
        needing = " or ".join(one.name for one in BACKBONES.values() if one.weights == "path")
        raise ConfigError(
            f"dataset.weights={given}: dataset.backbone={asked} takes no file of "
            f"yours; write dataset.backbone={needing}, or dataset.weights=null"
        )
    file = None if given is None else expanded(given)
    if backbone.build is RESNET50:
        _torchvision()
    if backbone.weights == "catalogue":
        (file,) = locate(chosen).values()
    elif backbone.weights == "path" and file is None:
        raise ConfigError(
            f"dataset.weights=null: dataset.backbone={chosen} needs the file of its weights; write "
            "dataset.weights=PATH, or dataset.backbone=auto"
        )
    return backbone, file
