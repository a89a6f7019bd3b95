"""Computing features of images and keeping them, block by block."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import takewhile

import numpy as np
import torch

from dpfl_cli.data.backbones import Extractor, as_images
from dpfl_cli.data.base import Stage
from dpfl_cli.data.feature_cache import BLOCK, FeatureCache, Split
from dpfl_cli.data.federation import Records
from dpfl_cli.data.threads import one_thread_each

BATCH = 2  # images at once, by one thread; divides BLOCK. More leave the cache


class Unseen:
    """Progress for nobody."""

    def stage(self, title: str, total: int) -> nullcontext[Stage]:
        return nullcontext(self)

    def advance(self, steps: int = 1) -> None:
        pass


def fill(
    cache: FeatureCache,
    place: tuple[Split, int],
    rows: int,
    records: Records,
    extract: Extractor,
    advance: Callable[[int], None],
) -> int:
    """Computes what a block lacks of its first `rows` records, and keeps it even where this is
    interrupted; how many it lacked.

    Every batch of images has one size, one place in the block and one thread, so that a record's
    features depend neither on how many are asked for nor on how many threads there are.
    """
    known, first = cache.read(*place), place[1] * BLOCK
    have = 0 if known is None else len(known)
    if have >= rows:
        return 0
    begins = range(have // BATCH * BATCH, rows, BATCH)
    made: list[np.ndarray | None] = [None] * len(begins)

    def job(number: int) -> None:
        begin = begins[number]
        end = min(begin + BATCH, rows)
        images = as_images(records.features[first + begin : first + end])
        full = torch.cat([images, images.new_zeros(begin + BATCH - end, *images.shape[1:])])
        with torch.inference_mode():
            made[number] = extract(full)[: end - begin].numpy()
        advance(end - max(begin, have))

    try:
        one_thread_each([partial(job, number) for number in range(len(begins))])
    finally:
        done = [part for part in takewhile(lambda part: part is not None, made) if part is not None]
        count = begins.start + sum(map(len, done))
        if count > have:
            features = [] if known is None else [known.features[: begins.start]]
            targets = records.targets[first : first + count]
            cache.write(*place, Records(np.concatenate([*features, *done]), targets))
    return rows - have


def principal_components(public: np.ndarray, components: int) -> Callable[[np.ndarray], np.ndarray]:
    """The map of rows [n, d] to their coordinates [n, components] along the principal axes of
    public rows.

    Computed in float64, given as float32. An axis points where its largest entry is positive.
    """
    mean = public.mean(axis=0, dtype=np.float64)
    centred = public - mean
    small = len(public) < public.shape[1]
    values, vectors = np.linalg.eigh(centred @ centred.T if small else centred.T @ centred)
    top = vectors[:, ::-1][:, :components]
    axes = (
        centred.T @ top / np.sqrt(np.maximum(values[::-1][:components], np.finfo(float).tiny))
        if small
        else top
    )
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(components)])
    return lambda rows: np.concatenate(
        [
            ((rows[start : start + BLOCK] - mean) @ axes).astype(np.float32)
            for start in range(0, len(rows), BLOCK)
        ]
    )
