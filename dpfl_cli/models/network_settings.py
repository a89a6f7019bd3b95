"""What all networks can be asked."""

from dpfl_cli.config.component import ClientNumber, Count, Settings


class NetworkSettings(Settings):
    """Settings of every `Network`.

    Attributes:
      watched_client: a client (from 0) whose own mean train loss at the global model is a metric,
        which no epsilon covers; 0 where it has no records.
      train_loss_records: train losses are means over the first so many records of every client; an
        evaluation on all of them can take longer than a short run of minibatches.
    """

    watched_client: ClientNumber = None
    train_loss_records: Count | None = None
