"""Features of images: what a frozen backbone makes of the records of another data set
(`backbones`).

The first `fit_records` of the training file are public, whatever the backbone: principal components
and the stand-ins' filters are fitted on them and on nothing else, and they are in no client's
records. So nothing here is taken from private records.

Features are computed by a step that shows its progress (`dpfl data features`, or before the first
round of a run that needs them), kept in the cache folder block by block under what they depend on,
and only of blocks with records that are asked for.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray
from pydantic import NonNegativeInt

import dpfl_cli.data.emnist
import dpfl_cli.data.mnist  # noqa: F401
from dpfl_cli.config.identity import content_id
from dpfl_cli.data.backbones import (
    BATCH,
    Extractor,
    as_images,
    backbone_of,
    extracted,
    principal_components,
    read_weights,
)
from dpfl_cli.data.loading import (
    ConfigError,
    Count,
    Dataset,
    DatasetInfo,
    Kept,
    NamedArrays,
    Records,
    Settings,
    cache_dir,
    cached,
    component,
    digest,
    lookup,
    used,
)

BLOCK = 100  # images whose features are kept in one file
# Begins a step of a title and a number of items, and ends it with the context, whose `advance()`
# says that one item more is done.
Stage = Callable[[str, int], AbstractContextManager[Any]]


class FeatureSettings(Settings):
    """The backbone, what is done to its output, and how many records are used.

    `backbone` and `weights` are not part of a run's identity: what they resolve to and the sha256
      of the weights are.

    Attributes:
      components: so many principal components in place of the features (None: the features; of
        `pca`, 64).
      fit_records: the first so many training records, which are public and not among the private
        ones.
      train_records: the first so many of the others (None: all).
    """

    backbone: str = "auto"
    weights: str | None = None
    components: Count | None = None
    fit_records: NonNegativeInt = 1000
    train_records: Count | None = None
    test_records: Count | None = None

    def identity(self) -> dict[str, Any]:
        return self.model_dump(exclude_defaults=True, exclude={"backbone", "weights"})


class Resolved:
    """What the settings of a data set come to on this machine.

    Attributes:
      settings: how the data set is set.
      base, base_info, images: the data set of the images, what is known of it, and its records by
        split, with pixels in [0, 1].
      weights, weights_sha256: their file and its content, of a backbone that has any.
      components: principal components that are taken, if any.
      used: records of each split that are used; of the training file private ones.
      public: the first records of the training file, where something is fitted on them; else 0.
      needed: records whose features are needed, public ones included.

    Raises:
      ConfigError: more records or components than there are; weights or packages that are needed
        and not given.
      DataError: images or weights are absent or damaged.
    """

    def __init__(self, kind: type["FeatureDataset"], settings: FeatureSettings) -> None:
        self.settings, self.base = settings, lookup("dataset", kind.base)
        whole: Dataset = self.base.target.load(self.base.settings(), 0)
        self.base_info, train, test = whole.info, whole.train, whole.test
        assert test is not None
        self.images = {"train": train, "test": test}
        self.backbone, self.weights = backbone_of(kind.name, settings.backbone, settings.weights)
        backbone, fit, records = self.backbone, settings.fit_records, whole.info.records
        self.components = components = settings.components or backbone.components
        most = min(self.width, fit - 1)
        if fit >= records:
            raise ConfigError(
                f"dataset.fit_records={fit}: {kind.base} has {records} training records; leave "
                "some to train on"
            )
        note = f", besides the first {fit}, which are public (dataset.fit_records)"
        private = used(kind.base, "train_records", settings.train_records, records - fit, note)
        tests = used(kind.base, "test_records", settings.test_records, len(test))
        if components is not None and components > most:
            raise ConfigError(
                f"dataset.components={components}: at most {max(most, 0)} for {backbone.name} "
                f"fitted on {fit} public records (dataset.fit_records); lower it or raise those"
            )
        if backbone.fitted and not fit:
            raise ConfigError(
                f"dataset.fit_records=0: dataset.backbone={backbone.name} is fitted on public "
                "records; raise it"
            )
        self.public = fit if components is not None or backbone.fitted else 0
        self.used = {"train": range(fit, fit + private), "test": range(tests)}
        self.needed = self.used | {"train": range(0 if self.public else fit, fit + private)}
        self.weights_sha256 = self.weights and digest(self.weights).sha256

    @property
    def width(self) -> int:
        """Values of a record, before principal components are taken."""
        return self.backbone.width or prod(self.base_info.feature_shape)

    @cached_property
    def folder(self) -> Path:
        """Where the backbone's output lies, by all that it depends on."""
        key = content_id(
            {
                "base": [self.base.name, self.base.revision, self.base_info.sha256],
                "backbone": [self.backbone.name, self.backbone.revision, self.weights_sha256],
                "fit": self.settings.fit_records if self.backbone.fitted else None,
                "batch": [BATCH, BLOCK],
            }
        )
        return cache_dir() / "features" / key

    @cached_property
    def extractor(self) -> Extractor:
        """The backbone with its weights."""
        weights = {} if self.weights is None else read_weights(self.weights)
        public = self.images["train"].features[: self.public]
        return self.backbone.build(weights, as_images(public))

    def path(self, split: str, number: int) -> Path:
        """The file of a block of a split."""
        return self.folder / f"{split}-{number:04d}.npz"

    def block(self, split: str, number: int) -> ndarray:
        """Features [k, width] of a block, computed where they are not kept."""

        def make() -> NamedArrays:
            images = self.images[split].features[number * BLOCK : (number + 1) * BLOCK]
            return {"features": extracted(self.extractor, images)}

        return cached(self.path(split, number), make)["features"]

    def features(self, split: str, rows: range) -> ndarray:
        """[n, width] of some records of a split."""
        there = blocks(rows)
        whole, first = np.concatenate([self.block(split, one) for one in there]), there[0] * BLOCK
        return whole[rows.start - first : rows.stop - first]

    @cached_property
    def project(self) -> Callable[[ndarray], ndarray]:
        """What is done to the backbone's output: its principal components are taken, if any."""
        if self.components is None:
            return np.asarray
        return principal_components(self.features("train", range(self.public)), self.components)

    def records(self, split: str) -> Records:
        """The records of a split that are used, which are computed when they are looked at."""
        rows = self.used[split]
        return Records(
            lambda: self.project(self.features(split, rows)),
            lambda: self.images[split].targets[rows.start : rows.stop],
        )


def blocks(rows: range) -> range:
    """The numbers of the blocks that these records are in."""
    return range(rows.start // BLOCK, -(-rows.stop // BLOCK))


class FeatureDataset(Kept):
    """Features [N, d] float32 and the labels of the images, in the order of the files."""

    name: str
    base: str  # the data set of the images

    @staticmethod
    def not_covered(settings: FeatureSettings) -> list[str]:
        """The records that count as public."""
        return [
            f"the first {settings.fit_records} training records, which count as public (what is "
            "fitted on them is no secret)"
        ]

    @classmethod
    def content(cls, settings: FeatureSettings) -> Path:
        """Where the features are kept, by all that they depend on; finds and verifies the images'
        files and the weights.
        """
        return Resolved(cls, settings).folder

    @classmethod
    def make(cls, settings: FeatureSettings, folder: Path) -> Dataset:
        """What is not in the cache is computed when it is looked at."""
        found = Resolved(cls, settings)
        base, backbone = found.base_info, found.backbone
        info = DatasetInfo(
            name=cls.name,
            source="standin" if backbone.fitted else base.source,
            sha256=base.sha256,
            feature_shape=(found.components or found.width,),
            classes=base.classes,
            records=len(found.used["train"]),
            details={
                **base.details,
                "base": cls.base,
                "base_source": base.source,
                "base_revision": found.base.revision,
                "backbone": backbone.name,
                "backbone_revision": backbone.revision,
                "weights_sha256": found.weights_sha256,
                "components": found.components,
            },
        )
        return Dataset(info, found.records("train"), found.records("test"))

    @classmethod
    def prepare(cls, settings: FeatureSettings, stage: Stage) -> int:
        """Computes the features that are not in the cache yet, and keeps them; the number of images
        that were looked at.

        Raises:
          DataError: images or weights that cannot be read, or a cache that cannot be written.
          KeyboardInterrupt: after what is finished has been kept.
        """
        found = Resolved(cls, settings)
        whole = [(split, one) for split, rows in found.needed.items() for one in blocks(rows)]
        lacking = [block for block in whole if not found.path(*block).is_file()]
        if not lacking:
            return 0
        title, made = f"features of {cls.base} by {found.backbone.name}, blocks of images", 0
        with stage(title, len(lacking)) as step:
            for block in lacking:
                made += len(found.block(*block))
                step.advance()
        return made


@component("dataset", "mnist_features", FeatureSettings)
class MnistFeatures(FeatureDataset):
    """MNIST as features of a frozen backbone."""

    base = "mnist"


@component("dataset", "fashion_mnist_features", FeatureSettings)
class FashionMnistFeatures(FeatureDataset):
    """Fashion-MNIST as features of a frozen backbone."""

    base = "fashion_mnist"


@component("dataset", "cifar10_features", FeatureSettings)
class Cifar10Features(FeatureDataset):
    """CIFAR-10 as features of a frozen backbone."""

    base = "cifar10"


@component("dataset", "emnist_digits_features", FeatureSettings)
class EmnistDigitsFeatures(FeatureDataset):
    """EMNIST's digits (MNIST where they are absent, labelled) as features of a frozen backbone."""

    base = "emnist_digits"
