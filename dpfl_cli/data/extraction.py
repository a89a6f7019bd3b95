"""Features of images by a frozen backbone, and principal components of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from dpfl_cli.data.backbones import Extractor, as_images
from dpfl_cli.data.threads import one_thread_each

AT_ONCE = 500  # rows whose components are computed at once
BATCH = 2  # images at once, by one thread; more leave the cache


def extracted(extract: Extractor, images: np.ndarray) -> np.ndarray:
    """Features [n, width] float32 of images.

    Every batch has one size and one thread, so that an image's features depend neither on how many
    are asked for nor on how many threads there are.
    """
    found: list[np.ndarray] = [np.empty(0)] * -(-len(images) // BATCH)

    def job(number: int) -> None:
        batch = as_images(images[number * BATCH : (number + 1) * BATCH])
        full = torch.cat([batch, batch.new_zeros(BATCH - len(batch), *batch.shape[1:])])
        with torch.inference_mode():
            found[number] = extract(full)[: len(batch)].numpy()

    one_thread_each([partial(job, number) for number in range(len(found))])
    return np.concatenate(found)


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
            ((rows[start : start + AT_ONCE] - mean) @ axes).astype(np.float32)
            for start in range(0, len(rows), AT_ONCE)
        ]
    )
