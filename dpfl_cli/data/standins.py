"""Generated data in the shapes of FEMNIST and Reddit, for runs without the real ones.

They stand in: results say source=standin, and numbers on them are no numbers on the real data. All
of them come with clients and with test records of each client, depend on `dataset.data_seed` and
not on the run's seed, and are kept in the process.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.random import Generator
from pydantic import Field

from dpfl_cli.config.component import Count, Seed, Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.emnist import ORIGINS, characters, origin_sha256
from dpfl_cli.data.federation import Dataset, DatasetInfo
from dpfl_cli.data.leaf_femnist import CLASSES
from dpfl_cli.data.leaf_reddit import IGNORED, LENGTH, PAD, sequences_info
from dpfl_cli.data.loading import Kept, Pair, Pairs, drawn_later
from dpfl_cli.data.mnist import SIDE, Part
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.threads import slices

AT_ONCE = 1 << 22  # numbers that a step works on at once


class EqualSettings(Settings):
    """Clients, training and test records of each of them, and the seed that the data are drawn
    from.
    """

    clients: Count
    train_records: Count
    test_records: Count
    data_seed: Seed = 0


def some_at_once(count: int, values: int) -> list[slice]:
    """Slices of `count` records of so many values each that a step works on at once."""
    return slices(count, max(1, AT_ONCE // values))


class FemnistSynthSettings(EqualSettings):
    """Settings of `femnist_synth`."""

    clients: Count = 6
    train_records: Count = 6129
    test_records: Count = 684


@component("dataset", "femnist_synth", revision=1, settings=FemnistSynthSettings)
class FemnistSynth(Kept):
    """Stands in for FEMNIST: 62 classes of 28x28 images made of MNIST and Fashion-MNIST; there are
    no writers.

    The classes are those of `characters`. No image is used twice; the test records are made of the
    test images. Records are dealt evenly at random (iid).
    """

    sources = ORIGINS

    @staticmethod
    def content(settings: FemnistSynthSettings) -> str:
        """The checksum of the files of MNIST and Fashion-MNIST."""
        return origin_sha256(ORIGINS, "femnist_synth is made of it")

    @staticmethod
    def make(settings: FemnistSynthSettings, sha256: str) -> Dataset:
        """Images [N, 28, 28] float32 in [0, 1] and labels [N] int64."""
        clients, each = settings.clients, (settings.train_records, settings.test_records)

        def drawn(part: Part, key: int) -> Pair:
            generator = stream_generator(settings.data_seed, "data", key)
            labels = generator.permutation(np.arange(clients * each[key]) % CLASSES)
            images = characters(part, labels, partial(_another, part, generator))
            return np.divide(images, np.float32(255), dtype=np.float32), labels

        shape, records = (SIDE, SIDE), clients * settings.train_records
        info = DatasetInfo("femnist_synth", "standin", sha256, shape, CLASSES, records, clients)
        return drawn_later(info, *each, lambda: [(drawn("train", 0), drawn("test", 1))])


def _another(
    part: Part, generator: Generator, source: int, here: np.ndarray, own: np.ndarray
) -> np.ndarray:
    """Another image for each place; a ConfigError where there are not so many."""
    if len(here) > len(own):
        raise ConfigError(
            f"dataset.{part}_records: femnist_synth needs {len(here)} images of class "
            f"{source % 10} of {ORIGINS[source // 10]}, which has {len(own)}; write less, or fewer "
            "dataset.clients"
        )
    return generator.permutation(own)[: len(here)]


# probabilities of a token's successors; what is left is a restart
SUCCESSORS = (0.5, 0.2, 0.1, 0.1, 0.05)
ZIPF = 1.1  # exponent of the tokens' law
PADDED, LONGEST = 0.3, 3  # probability that a sequence begins with padding, and its largest length


class RedditSynthSettings(EqualSettings):
    """Settings of `reddit_synth`. `remixed`: share of the tokens whose successors are another draw
    for each client.
    """

    vocabulary: int = Field(default=200, ge=16)
    clients: Count = 3
    train_records: Count = 2000
    test_records: Count = 500
    remixed: float = Field(default=0.2, ge=0, le=1)


@component("dataset", "reddit_synth", revision=1, settings=RedditSynthSettings)
class RedditSynth(Kept):
    """Stands in for Reddit: sequences of a Markov chain on tokens, most of it shared by the
    clients.

    Token 0 is <PAD> and 1 <UNK>, which never occurs; token r + 1, r = 1, 2, .., has the weight
    r^-1.1. Every token has five successors, drawn by these weights, with the probabilities .5, .2,
    .1, .1 and .05; else the chain restarts by the weights. A client's chain has other successors
    for a share of the tokens. A sequence of 11 tokens, begun by the weights, is ten tokens and
    their ten next ones; with probability .3 padding takes its first 1, 2 or 3 places. The best
    prediction is right about every second time.
    """

    @staticmethod
    def make(settings: RedditSynthSettings, content: None) -> Dataset:
        """Tokens [N, 10] int64 and next tokens [N, 10] int64, -1 where the next is padding."""
        clients, each = settings.clients, settings.train_records

        def draw() -> Iterator[Pairs]:
            words = settings.vocabulary - 2
            weights = np.arange(1, words + 1) ** -ZIPF
            shared = _successors(weights, words, stream_generator(settings.data_seed, "data", 0))
            for client in range(clients):
                generator = stream_generator(settings.data_seed, "data", 1 + client)
                successors = shared.copy()
                remixed = generator.permutation(words)[: round(settings.remixed * words)]
                successors[remixed] = _successors(weights, len(remixed), generator)
                count = each + settings.test_records
                tokens, following = _sequences(weights, successors, count, generator)
                yield (tokens[:each], following[:each]), (tokens[each:], following[each:])

        vocabulary, records = settings.vocabulary, clients * each
        info = sequences_info("reddit_synth", "standin", "", vocabulary, records, clients)
        return drawn_later(info, each, settings.test_records, draw)


def _successors(weights: np.ndarray, count: int, generator: Generator) -> np.ndarray:
    """[k, 5] different successors of k tokens, drawn one after the other by weight.

    The first of a weighted draw without replacement are those with the smallest E / weight, E
    exponential.
    """
    drawn = np.empty((count, len(SUCCESSORS)), np.int64)
    for some in some_at_once(count, len(weights)):
        times = generator.standard_exponential((some.stop - some.start, len(weights))) / weights
        first = np.argpartition(times, len(SUCCESSORS), axis=1)[:, : len(SUCCESSORS)]
        order = np.argsort(np.take_along_axis(times, first, axis=1), axis=1)
        drawn[some] = np.take_along_axis(first, order, axis=1)
    return drawn


def _sequences(
    weights: np.ndarray, successors: np.ndarray, count: int, generator: Generator
) -> tuple[np.ndarray, np.ndarray]:
    """tokens [N, 10] and next tokens [N, 10] of a chain."""
    law, choices = np.cumsum(weights) / weights.sum(), np.cumsum(SUCCESSORS)

    def fresh() -> np.ndarray:
        return np.minimum(np.searchsorted(law, generator.random(count), side="right"), len(law) - 1)

    states = [fresh()]
    for _ in range(LENGTH):
        choice = np.searchsorted(choices, generator.random(count), side="right")
        followed = successors[states[-1], np.minimum(choice, len(SUCCESSORS) - 1)]
        states.append(np.where(choice < len(SUCCESSORS), followed, fresh()))
    sequences = np.stack(states, axis=1) + 2
    padding = np.where(
        generator.random(count) < PADDED, generator.integers(1, LONGEST + 1, count), 0
    )
    sequences[np.arange(LENGTH + 1) < padding[:, None]] = PAD
    following = sequences[:, 1:]
    return sequences[:, :-1].copy(), np.where(following == PAD, IGNORED, following)
