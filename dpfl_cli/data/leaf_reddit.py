"""Reddit of LEAF (Caldas et al. 2018, arXiv 1812.01097): comments of December 2017, for next-token
prediction.

Layout: the folder `reddit` with LEAF's preprocessed files train/*.json and test/*.json (see `leaf`;
its val/ is not used). A record x of a user is a comment: a list of sequences of 10 tokens, from
<BOS> to <EOS>, filled up with <PAD>. Its y is an object with target_tokens, the same shifted by
one, and count_tokens, 1 where x is a token and 0 where it is filled up. Files of the older
preprocessing, where x is a comment's plain list of sequences without an object y, are refused.

Tokens become numbers: <PAD> 0, <UNK> 1, then the most frequent other tokens of x in all training
files, ties in the order of the tokens. LEAF's build_vocab numbers the others by rank + 1, which is
the same as long as <PAD> is the most frequent token.

`reddit_synth` stands in: results say source=standin, and numbers on it are none on the real data.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from annotated_types import Len
from numpy import ndarray
from numpy.random import Generator
from pydantic import BaseModel, Field, model_validator

from dpfl_cli.data.leaf import LeafFile, UserRecords, leaf_files, read_users
from dpfl_cli.data.loading import (
    ConfigError,
    Count,
    Dataset,
    DatasetInfo,
    Files,
    FolderDataset,
    Kept,
    NamedArrays,
    Pair,
    Pairs,
    Records,
    SeededSettings,
    component,
    decoded,
    drawn_later,
    some_at_once,
)

LENGTH = 10  # tokens of a sequence
PAD, UNK = 0, 1
IGNORED = -1  # target of a position that does not count
DECODER = 1  # raised when decoding changes
_CLIENTS, _DRAWN = range(2)  # keys of the stream "data"


Tokens = Annotated[list[str], Len(LENGTH, LENGTH)]
CountedTokens = Annotated[list[bool], Len(LENGTH, LENGTH)]


class Targets(BaseModel):
    """What a comment's sequences predict, and which places count."""

    target_tokens: list[Tokens]
    count_tokens: list[CountedTokens]


class Redditor(UserRecords):
    """Comments, and their targets."""

    x: list[list[Tokens]]
    y: list[Targets]

    @model_validator(mode="after")
    def _of_as_many_sequences(self) -> Self:
        for x, y in zip(self.x, self.y, strict=True):
            if not len(x) == len(y.target_tokens) == len(y.count_tokens):
                raise ValueError("a comment has not as many targets or counts as sequences")
        return self


class RedditSettings(SeededSettings):
    """Size of the vocabulary, how many clients the users are dealt to, and sequences that are drawn
    of each (None: all).
    """

    vocabulary: int = Field(default=10_000, ge=3)
    clients: Count = 3
    train_records: Count | None = 28_750
    test_records: Count | None = 11_807


@component("dataset", "reddit", RedditSettings, revision=2)
class Reddit(FolderDataset):
    """Reddit: sequences of 10 tokens of comments, for next-token prediction (LEAF, Caldas et al.
    2018).

    Tokens [N, 10] int64 and next tokens [N, 10] int64, -1 where none counts.
    """

    @staticmethod
    def make(settings: RedditSettings, folder: Path) -> Dataset:
        """Of the files in the folder."""
        files = leaf_files(folder, whole=False)
        sha256, arrays = decoded(
            "reddit",
            files,
            f"{DECODER} vocabulary={settings.vocabulary}",
            lambda: _decode(files, settings.vocabulary),
        )
        clients = settings.clients
        dealt = settings.generator(_CLIENTS)
        owner = dealt.permutation(np.arange(int(arrays["users"])) % clients)

        def drawn(part: str, key: int, wanted: int | None) -> tuple[Records, ndarray]:
            """The sequences of a part that are used, client by client, and their clients."""
            user = arrays[f"{part}_user"]
            chosen = []
            for client in range(clients):
                own = np.flatnonzero(owner[user] == client)
                if len(own) < (wanted or 1):
                    raise ConfigError(
                        f"dataset.{part}_records={'null' if wanted is None else wanted}: client "
                        f"{client} of {clients} has {len(own)} sequences; write at most that (null "
                        "for all of every client), or fewer dataset.clients"
                    )
                draws = settings.generator(_DRAWN, key, client)  # nobody else's
                chosen.append(own if wanted is None else np.sort(draws.permutation(own)[:wanted]))
            rows = np.concatenate(chosen)
            return Records(arrays[f"{part}_x"][rows], arrays[f"{part}_y"][rows]), owner[user[rows]]

        train, natural = drawn("train", 0, settings.train_records)
        test, test_natural = drawn("test", 1, settings.test_records)
        details, shape = {"vocabulary": settings.vocabulary}, (LENGTH,)
        info = DatasetInfo(
            "reddit", "real", sha256, shape, None, len(train), clients, details, shape
        )
        return Dataset(info, train, test, natural, test_natural=test_natural)

    @staticmethod
    def not_covered(settings: RedditSettings) -> list[str]:
        """What is taken from the training data, which no epsilon covers."""
        return [
            f"vocabulary (the {settings.vocabulary - 2} most frequent tokens of the training data)"
        ]


def _decode(files: Files, vocabulary: int) -> NamedArrays:
    """x and y [N, 10] and user [N] of each part, and users: how many there are. Tokens get numbers
    as they come, and those of the vocabulary once all files have been read.
    """
    came, users = {"<PAD>": PAD, "<UNK>": UNK}, dict[str, int]()
    rows: dict[str, list[list[int]]] = {"train": [], "test": []}
    for part, name, user in read_users(files, LeafFile[Redditor], counted=False):
        owner = users.setdefault(name, len(users))
        for x, y in zip(user.x, user.y, strict=True):
            for tokens, targets, counts in zip(x, y.target_tokens, y.count_tokens, strict=True):
                words = [came.setdefault(word, len(came)) for word in (*tokens, *targets)]
                rows[part].append([*words, *counts, owner])
    found = {
        part: np.array(own, np.int64).reshape(-1, 3 * LENGTH + 1) for part, own in rows.items()
    }
    often = np.bincount(found["train"][:, :LENGTH].ravel(), minlength=len(came))
    often[[PAD, UNK]] = 0
    ranked = sorted(came, key=lambda word: (-often[came[word]], word))[: vocabulary - 2]
    kept = [PAD, UNK, *(came[word] for word in ranked if often[came[word]])]
    numbers = np.full(len(came), UNK)
    numbers[kept] = np.arange(len(kept))
    arrays: NamedArrays = {"users": np.array(len(users))}
    for part, whole in found.items():
        both, counting, owners = np.split(whole, (2 * LENGTH, 3 * LENGTH), axis=1)
        arrays[f"{part}_x"], following = np.split(numbers[both], 2, axis=1)
        arrays[f"{part}_y"] = np.where(counting, following, IGNORED)
        arrays[f"{part}_user"] = owners[:, 0]
    return arrays


# --- what stands in -----------------------------------------------------------------------------

# probabilities of a token's successors; what is left is a restart
SUCCESSORS = (0.5, 0.2, 0.1, 0.1, 0.05)
ZIPF = 1.1  # exponent of the tokens' law
PADDED, LONGEST = 0.3, 3  # probability that a sequence begins with padding, and its largest length


class RedditSynthSettings(SeededSettings):
    """Clients, training and test records of each of them, and the seed that they are drawn from.
    `remixed`: share of the tokens whose successors are another draw for each client.
    """

    clients: Count = 3
    train_records: Count = 2000
    test_records: Count = 500
    vocabulary: int = Field(default=200, ge=16)
    remixed: float = Field(default=0.2, ge=0, le=1)


@component("dataset", "reddit_synth", RedditSynthSettings)
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
            shared = _successors(weights, words, settings.generator(0))
            for client in range(clients):
                generator = settings.generator(1 + client)
                successors = shared.copy()
                remixed = generator.permutation(words)[: round(settings.remixed * words)]
                successors[remixed] = _successors(weights, len(remixed), generator)
                count = each + settings.test_records
                tokens, following = _sequences(weights, successors, count, generator)
                yield (tokens[:each], following[:each]), (tokens[each:], following[each:])

        details, shape, records = {"vocabulary": settings.vocabulary}, (LENGTH,), clients * each
        info = DatasetInfo(
            "reddit_synth", "standin", "", shape, None, records, clients, details, shape
        )
        return drawn_later(info, each, settings.test_records, draw)


def _successors(weights: ndarray, count: int, generator: Generator) -> ndarray:
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


def _sequences(weights: ndarray, successors: ndarray, count: int, generator: Generator) -> Pair:
    """tokens [N, 10] and next tokens [N, 10] of a chain."""
    law, choices = np.cumsum(weights) / weights.sum(), np.cumsum(SUCCESSORS)

    def fresh() -> ndarray:
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
