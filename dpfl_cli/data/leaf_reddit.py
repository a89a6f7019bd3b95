"""Reddit of LEAF (Caldas et al. 2018, arXiv 1812.01097): comments of December 2017, for next-token prediction.

Layout: the folder `reddit` with LEAF's preprocessed files train/*.json and test/*.json (see `leaf`; its val/ is not used). A
record x of a user is a comment: a list of sequences of 10 tokens, from <BOS> to <EOS>, filled up with <PAD>. Its y is an object
with target_tokens, the same shifted by one, and count_tokens, 1 where x is a token and 0 where it is filled up (where y lacks
it, that is computed). Files of the older preprocessing, where x is a comment's plain list of sequences without an object y, are
refused.

Tokens become numbers: <PAD> 0, <UNK> 1, then the most frequent other tokens of x in all training files, ties in the order of the
tokens. LEAF's build_vocab numbers the others by rank + 1, which is the same as long as <PAD> is the most frequent token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.folders import Arrays, decoded, find_folder
from dpfl_cli.data.leaf import User, leaf_parts, read_users
from dpfl_cli.data.streams import stream_generator

LENGTH = 10  # tokens of a sequence
PAD, UNK = 0, 1
IGNORED = -1  # target of a position that does not count
DECODER = 1  # raised when decoding changes
_CLIENTS, _DRAWN = range(2)  # keys of the stream "data"


class RedditSettings(Settings):
    """Size of the vocabulary, how many clients the users are dealt to, and sequences that are drawn of each (None: all)."""

    vocabulary: int = Field(default=10_000, ge=3)
    clients: int = Field(default=3, ge=1)
    train_records: int | None = Field(default=28_750, ge=1)
    test_records: int | None = Field(default=11_807, ge=1)
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "reddit", revision=1, settings=RedditSettings)
class Reddit:
    """Reddit: sequences of 10 tokens of comments, for next-token prediction (LEAF, Caldas et al. 2018)."""

    @staticmethod
    def not_covered(settings: RedditSettings) -> list[str]:
        """What is taken from the training data, which no epsilon covers."""
        return [f"vocabulary (the {settings.vocabulary - 2} most frequent tokens of the training data)"]

    @staticmethod
    def info(settings: RedditSettings) -> DatasetInfo:
        """Reads the files, or what the cache keeps of them; the checksum covers all files."""
        return load_reddit(find_folder("reddit"), settings).info

    @staticmethod
    def load(settings: RedditSettings, seed: int) -> Dataset:
        """Tokens [N, 10] int64 and next tokens [N, 10] int64, -1 where none counts; they do not depend on the run's seed."""
        return load_reddit(find_folder("reddit"), settings)


def sequences_info(name: str, source: Any, sha256: str, vocabulary: int, records: int, clients: int) -> DatasetInfo:
    """Of sequences of tokens and their next tokens: there are no classes to deal records by, but a vocabulary."""
    details = {"vocabulary": vocabulary}
    return DatasetInfo(name, source, sha256, (LENGTH,), None, records, clients, details, target_shape=(LENGTH,))


@lru_cache(maxsize=2)
def load_reddit(folder: Path, settings: RedditSettings) -> Dataset:
    """The data set in a folder; a run keeps what it read first, as files do not change under a run."""
    parts = leaf_parts(folder, whole=False)
    files = {f"{part}/{name}": path for part, named in parts.items() for name, path in named.items()}
    key = f"{DECODER} vocabulary={settings.vocabulary}"
    sha256, arrays = decoded("reddit", files, key, lambda: _decode(parts, settings.vocabulary))
    users = int(arrays["users"])
    owner = stream_generator(settings.data_seed, "data", _CLIENTS).permutation(np.arange(users) % settings.clients)
    chosen = {part: _drawn(arrays[f"{part}_user"], owner, part, settings) for part in parts}
    train, test = (Records(arrays[f"{part}_x"][rows], arrays[f"{part}_y"][rows]) for part, rows in chosen.items())
    natural, test_natural = (owner[arrays[f"{part}_user"][rows]] for part, rows in chosen.items())
    info = sequences_info("reddit", "real", sha256, settings.vocabulary, len(train), settings.clients)
    return Dataset(info, train, test, natural, test_natural=test_natural)


def _drawn(user: np.ndarray, owner: np.ndarray, part: str, settings: RedditSettings) -> np.ndarray:
    """Numbers of the sequences that are used, client by client."""
    wanted = settings.train_records if part == "train" else settings.test_records
    generator = stream_generator(settings.data_seed, "data", _DRAWN, ("train", "test").index(part))
    chosen = []
    for client in range(settings.clients):
        own = np.flatnonzero(owner[user] == client)
        if len(own) < (wanted or 1):
            raise ConfigError(
                f"dataset.{part}_records={'null' if wanted is None else wanted}: client {client} of {settings.clients} has "
                f"{len(own)} sequences; write at most that (null for all of every client), or fewer dataset.clients"
            )
        chosen.append(own if wanted is None else np.sort(generator.permutation(own)[:wanted]))
    return np.concatenate(chosen)


def _decode(parts: dict[str, dict[str, Path]], vocabulary: int) -> Arrays:
    """x and y [N, 10] and user [N] of each part, and users: how many there are. Two passes: the vocabulary comes first."""
    counter: Counter[str] = Counter()
    for path in parts["train"].values():
        for x, _, _ in (sequence for user in read_users(path, counted=False) for sequence in _sequences(user)):
            counter.update(x)
    for reserved in ("<PAD>", "<UNK>"):
        counter.pop(reserved, None)
    ranked = sorted(counter.items(), key=lambda item: (-item[1], item[0]))[: vocabulary - 2]
    numbers = {"<PAD>": PAD, "<UNK>": UNK, **{token: rank + 2 for rank, (token, _) in enumerate(ranked)}}
    users: dict[str, int] = {}
    arrays: Arrays = {}
    for part, files in parts.items():
        xs, ys, owners = [], [], []
        for path in files.values():
            for user in read_users(path, counted=False):
                number = users.setdefault(user.name, len(users))
                for x, y, counts in _sequences(user):
                    xs.append([numbers.get(token, UNK) for token in x])
                    ys.append([numbers.get(token, UNK) if count else IGNORED for token, count in zip(y, counts, strict=True)])
                    owners.append(number)
        arrays[f"{part}_x"] = np.array(xs, np.int64).reshape(-1, LENGTH)
        arrays[f"{part}_y"] = np.array(ys, np.int64).reshape(-1, LENGTH)
        arrays[f"{part}_user"] = np.array(owners, np.int64)
    return {**arrays, "users": np.array(len(users))}


def _sequences(user: User) -> Iterator[tuple[list[str], list[str], list[Any]]]:
    """tokens, next tokens and whether they count, sequence by sequence; a DataError names the file and user."""
    for place, (comment, labels) in enumerate(zip(user.x, user.y, strict=True)):
        where = f"{user.where}, comment {place + 1}"
        targets = labels.get("target_tokens") if isinstance(labels, dict) else None
        if not isinstance(comment, list) or not isinstance(targets, list) or len(comment) != len(targets):
            raise DataError(f"{where}: needs a list of sequences x and as many target_tokens in y")
        counts = labels.get("count_tokens")
        if counts is None and all(isinstance(x, list) for x in comment):
            counts = [[token != "<PAD>" for token in x] for x in comment]
        if not isinstance(counts, list) or len(counts) != len(comment):
            raise DataError(f"{where}: count_tokens is not one list for each of its {len(comment)} sequences")
        for x, y, count in zip(comment, targets, counts, strict=True):
            if not all(isinstance(part, list) and len(part) == LENGTH for part in (x, y, count)):
                raise DataError(f"{where}: a sequence of tokens, targets or counts that is not of length {LENGTH}")
            if not all(isinstance(token, str) for token in (*x, *y)) or not all(one in (0, 1) for one in count):
                raise DataError(f"{where}: tokens are not words, or counts not 0 and 1")
            yield x, y, count
