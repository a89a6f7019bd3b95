"""Features of images: what a frozen backbone makes of the records of another data set
(`backbones`).

The first `fit_records` of the training file are public, whatever the backbone: principal components
and the stand-ins' filters are fitted on them and on nothing else, and they are in no client's
records. So nothing here is taken from private records.

Features are computed by a step that shows its progress (`dpfl data features`, or before the first
round of a run that needs them), kept in the cache folder block by block under what they depend on,
and only for the records that are asked for (`extraction`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

import dpfl_cli.data.cifar
import dpfl_cli.data.emnist
import dpfl_cli.data.mnist  # noqa: F401
from dpfl_cli.config.component import Component, Settings, component, lookup
from dpfl_cli.config.errors import ConfigError, DataError, nearest
from dpfl_cli.config.identity import content_id
from dpfl_cli.config.paths import expanded
from dpfl_cli.data.backbones import (
    BACKBONES,
    EFFICIENTNET,
    Backbone,
    as_images,
    check_packages,
    read_weights,
)
from dpfl_cli.data.base import Stages
from dpfl_cli.data.extraction import BATCH, Unseen, fill, principal_components
from dpfl_cli.data.feature_cache import BLOCK, FeatureCache, Split, blocks_of
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.sources import cache_dir, digest, locate, status

logger = logging.getLogger("dpfl")

STANDIN = "rcf"  # of `auto`, where no weights are here
SPLITS: tuple[Split, ...] = ("train", "test")


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
    components: int | None = Field(default=None, ge=1)
    fit_records: int = Field(default=1000, ge=0)
    train_records: int | None = Field(default=None, ge=1)
    test_records: int | None = Field(default=None, ge=1)

    @field_validator("backbone")
    @classmethod
    def _known(cls, name: str) -> str:
        if name != "auto" and name not in BACKBONES:
            raise ValueError(f"no such backbone; {nearest(name, ['auto', *BACKBONES])}")
        return name

    def identity(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in super().identity().items()
            if name not in ("backbone", "weights")
        }


@dataclass(frozen=True)
class Resolved:
    """What settings come to on this machine.

    Attributes:
      base: the data set of the images, and what is known of all of it.
      weights: their file and its sha256, of a backbone that has any.
      components: principal components that are taken, if any.
      train: records [start, stop) of the training file that are private.
      public: the first records of the training file, where something is fitted on them; else 0.
    """

    settings: FeatureSettings
    backbone: Backbone
    base: Component
    base_info: DatasetInfo
    weights: Path | None
    weights_sha256: str | None
    components: int | None
    train: tuple[int, int]
    public: int

    @property
    def width(self) -> int:
        """Values of a record, before principal components are taken."""
        return self.backbone.width(self.base_info.feature_shape)

    @property
    def cache(self) -> FeatureCache:
        """Where the backbone's output lies, by all that it depends on."""
        key = content_id(
            {
                "base": [self.base.name, self.base.revision, self.base_info.sha256],
                "backbone": [self.backbone.name, self.backbone.revision, self.weights_sha256],
                "fit": self.settings.fit_records if self.backbone.fitted else None,
                "batch": [BATCH, BLOCK],
            }
        )
        return FeatureCache(cache_dir() / "features" / key, self.width)

    def records(self, train: int | None, test: int | None) -> tuple[Records, Records]:
        """The first images of the base, pixels in [0, 1]."""
        data = self.base.target.load(_settings_of(self.base, train, test), 0)
        assert data.test is not None
        return data.train, data.test

    def tests(self) -> int:
        """Number of test records."""
        return self.settings.test_records or len(self.records(1, None)[1])

    def needed(self) -> dict[tuple[Split, int], int]:
        """(split, number) of the blocks with records that are needed -> how many of the block's
        first records these are.
        """
        train = [*blocks_of(0, self.public), *blocks_of(*self.train)]
        found: dict[tuple[Split, int], int] = {}
        for number, rows in train:
            found["train", number] = max(rows, found.get(("train", number), 0))
        return found | {("test", number): rows for number, rows in blocks_of(0, self.tests())}


class FeatureDataset:
    """Features [N, d] float32 and the labels of the images, in the order of the files."""

    name: ClassVar[str]
    base: ClassVar[str]  # the data set of the images

    @staticmethod
    def not_covered(settings: FeatureSettings) -> list[str]:
        """The records that count as public."""
        return [
            f"the first {settings.fit_records} training records, which count as public (what is "
            "fitted on them is no secret)"
        ]

    @classmethod
    def info(cls, settings: FeatureSettings) -> DatasetInfo:
        """Finds and verifies the images' files and the weights; no image is looked at."""
        found = resolve(cls.name, cls.base, settings)
        standin = "standin" in (found.backbone.source, found.base_info.source)
        return DatasetInfo(
            name=cls.name,
            source="standin" if standin else "real",
            sha256=found.base_info.sha256,
            feature_shape=(found.components or found.width,),
            classes=found.base_info.classes,
            records=found.train[1] - found.train[0],
            clients=None,
            details={
                **found.base_info.details,
                "base": cls.base,
                "base_source": found.base_info.source,
                "base_revision": found.base.revision,
                "backbone": found.backbone.name,
                "backbone_revision": found.backbone.revision,
                "weights_sha256": found.weights_sha256,
                "components": found.components,
            },
        )

    @classmethod
    def prepare(cls, settings: FeatureSettings, progress: Stages) -> int:
        """Computes the features that are not in the cache yet, and keeps them; the number of images
        that were looked at.

        Raises:
          DataError: images or weights that cannot be read, or a cache that cannot be written.
          KeyboardInterrupt: after what is finished has been kept.
        """
        return _extract(resolve(cls.name, cls.base, settings), progress)

    @classmethod
    def folder(cls, settings: FeatureSettings) -> Path:
        """Where the features are kept."""
        return resolve(cls.name, cls.base, settings).cache.folder

    @classmethod
    def outline(cls, settings: FeatureSettings, seed: int) -> Dataset:
        """The training records' labels, with features of no width: enough to deal them, and nothing
        is computed.
        """
        found = resolve(cls.name, cls.base, settings)
        first, last = found.train
        labels = found.records(last, 1)[0].targets[first:last]
        return Dataset(
            cls.info(settings), Records(np.empty((len(labels), 0), np.float32), labels), None
        )

    @classmethod
    def load(cls, settings: FeatureSettings, seed: int) -> Dataset:
        """The records; they do not depend on the seed. What is not in the cache is computed
        first.
        """
        info = cls.info(settings)
        return Dataset(
            info,
            *_records(
                cls.name,
                cls.base,
                settings,
                content_id([info.sha256, dict(info.details)]),
                cache_dir(),
            ),
        )


def _settings_of(base: Component, train: int | None, test: int | None) -> Settings:
    """Of the base, for the first so many of its records."""
    return base.settings.model_validate({"train_records": train, "test_records": test})


def resolve(name: str, base_name: str, settings: FeatureSettings) -> Resolved:
    """Settings against the files of this machine.

    Raises:
      ConfigError: more records or components than there are; weights or packages that are needed
        and not given.
      DataError: images or weights are absent or damaged.
    """
    base = lookup("dataset", base_name)
    base_info: DatasetInfo = base.target.info(_settings_of(base, None, settings.test_records))
    backbone, weights = _backbone(name, settings)
    fit, records = settings.fit_records, base_info.records
    if fit >= records:
        raise ConfigError(
            f"dataset.fit_records={fit}: {base_name} has {records} training records; leave some to "
            "train on"
        )
    if settings.train_records is not None and fit + settings.train_records > records:
        raise ConfigError(
            f"dataset.train_records={settings.train_records}: {base_name} has {records} training "
            f"records, of which the first {fit} are public (dataset.fit_records); write at most "
            f"{records - fit}, or null for all"
        )
    components = settings.components or backbone.components
    most = min(backbone.width(base_info.feature_shape), fit - 1)
    if components is not None and components > most:
        raise ConfigError(
            f"dataset.components={components}: at most {max(most, 0)} for {backbone.name} fitted "
            f"on {fit} public records (dataset.fit_records); lower it or raise those"
        )
    if backbone.fitted and not fit:
        raise ConfigError(
            f"dataset.fit_records=0: dataset.backbone={backbone.name} is fitted on public records; "
            "raise it"
        )
    stop = records if settings.train_records is None else fit + settings.train_records
    return Resolved(
        settings=settings,
        backbone=backbone,
        base=base,
        base_info=base_info,
        weights=weights,
        weights_sha256=None if weights is None else digest(weights).sha256,
        components=components,
        train=(fit, stop),
        public=fit if components is not None or backbone.fitted else 0,
    )


def _backbone(name: str, settings: FeatureSettings) -> tuple[Backbone, Path | None]:
    """The backbone and its weights' file; `auto` takes the stand-in where EfficientNet-Lite0's are
    nowhere, and says so.
    """
    chosen, given = settings.backbone, settings.weights
    if chosen == "auto":
        found = status(EFFICIENTNET)
        chosen = EFFICIENTNET
        if found.missing and found.problem is None:
            _warn(name)
            chosen = STANDIN
    backbone = BACKBONES[chosen]
    if given is not None and backbone.weights != "path":
        needing = " or ".join(one.name for one in BACKBONES.values() if one.weights == "path")
        raise ConfigError(
            f"dataset.weights={given}: dataset.backbone={settings.backbone} takes no file of "
            f"yours; write dataset.backbone={needing}, or dataset.weights=null"
        )
    file = None if given is None else expanded(given)
    if file is not None and not file.is_file():
        raise DataError(
            f"{file}: cannot be read (no such file); dataset.weights names the file of the weights"
        )
    check_packages(chosen)
    if backbone.weights == "catalogue":
        file = next(iter(locate(chosen).values()))
    elif backbone.weights == "path" and file is None:
        raise ConfigError(
            f"dataset.weights=null: dataset.backbone={chosen} needs the file of its weights; write "
            "dataset.weights=PATH, or dataset.backbone=auto"
        )
    return backbone, file


@lru_cache(maxsize=16)
def _warn(name: str) -> None:
    """Once in a process."""
    logger.warning(
        "WARNING: %s: no ImageNet weights are here, and %s STANDS IN for the backbone; results say "
        "source=standin (to have them: dpfl data fetch %s)",
        name,
        STANDIN,
        EFFICIENTNET,
    )


def _extract(found: Resolved, progress: Stages) -> int:
    """Makes every block hold what is needed of it; the number of images looked at."""
    cache, needed = found.cache, found.needed()
    lacking = {place: rows - cache.held(*place) for place, rows in needed.items()}
    lacking = {place: count for place, count in lacking.items() if count > 0}
    if not lacking:
        return 0
    ends = {"train": 0, "test": 0}
    for (split, number), rows in needed.items():
        ends[split] = max(ends[split], number * BLOCK + rows)
    images = dict(zip(SPLITS, found.records(ends["train"], ends["test"]), strict=True))
    weights = {} if found.weights is None else read_weights(found.weights)
    extract = found.backbone.build(weights, as_images(images["train"].features[: found.public]))
    title = f"features of {found.base.name} by {found.backbone.name}, images"
    made = 0
    with progress.stage(title, sum(lacking.values())) as stage:
        for place, count in lacking.items():
            with cache.lock():
                rows, records = needed[place], images[place[0]]
                new = fill(cache, place, rows, records, extract, stage.advance)
            stage.advance(count - new)  # what another process made meanwhile
            made += new
    return made


@lru_cache(maxsize=4)
def _records(
    name: str, base: str, settings: FeatureSettings, content: str, cache: Path
) -> tuple[Records, Records]:
    """Training and test records; kept by content and place, which is why these are arguments."""
    found = resolve(name, base, settings)
    _extract(found, Unseen())
    test = found.tests()
    rows = [found.cache.rows("train", *found.train), found.cache.rows("test", 0, test)]
    if found.components is not None:
        project = principal_components(
            found.cache.rows("train", 0, found.public).features, found.components
        )
        rows = [Records(project(part.features), part.targets) for part in rows]
    return rows[0], rows[1]


@component("dataset", "mnist_features", revision=1, settings=FeatureSettings)
class MnistFeatures(FeatureDataset):
    """MNIST as features of a frozen backbone."""

    name, base = "mnist_features", "mnist"


@component("dataset", "fashion_mnist_features", revision=1, settings=FeatureSettings)
class FashionMnistFeatures(FeatureDataset):
    """Fashion-MNIST as features of a frozen backbone."""

    name, base = "fashion_mnist_features", "fashion_mnist"


@component("dataset", "cifar10_features", revision=1, settings=FeatureSettings)
class Cifar10Features(FeatureDataset):
    """CIFAR-10 as features of a frozen backbone."""

    name, base = "cifar10_features", "cifar10"


@component("dataset", "emnist_digits_features", revision=1, settings=FeatureSettings)
class EmnistDigitsFeatures(FeatureDataset):
    """EMNIST's digits (MNIST where they are absent, labelled) as features of a frozen backbone."""

    name, base = "emnist_digits_features", "emnist_digits"
