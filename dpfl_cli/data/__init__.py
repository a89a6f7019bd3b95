"""Data: sources, datasets, partitioners, the federation and the named random streams.

What a dataset and a partitioner are: the two contracts of this room's components, classes with
these static or class methods.

A dataset:
- info(settings) -> DatasetInfo: what is known before records are read; finds and verifies the
  files. DataError: files are absent or damaged; ConfigError: the settings ask for what they do not
  hold.
- load(settings, seed) -> Dataset: that of a run with this seed; kept in the process, so callers
  must not write to its arrays. Features and targets that take long to read or compute are made
  when they are looked at (`Records`): plans ask for clients, counts and labels alone.
- prepare(settings, stage: Stage), of data whose records take long to compute: computes and keeps
  them; called before runs start, where it is seen, and harmless to call again.

A partitioner:
- clients(settings, info) -> int: number of clients M, before anything is read; a ConfigError where
  settings and dataset do not fit.
- partition(settings, dataset, seed) -> Partition: the clients' segments, drawn from the stream
  "partition" of the run's seed.
"""
