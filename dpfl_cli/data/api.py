"""Everything that the file of a data set needs, in one import."""

from dpfl_cli.config.component import Count, Seed, SeedOrNone, Settings, Share, component, lookup
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.config.own_files import OwnPath
from dpfl_cli.config.paths import expanded
from dpfl_cli.data.federation import Dataset, DatasetInfo, Partition, Records
from dpfl_cli.data.loading import (
    FolderDataset,
    HeldOut,
    Kept,
    NamedArrays,
    Pair,
    Pairs,
    UsedSettings,
    cached,
    decoded,
    drawn_later,
    files_below,
    fraction_of,
    held_out,
    lazy_records,
    own_paths,
    ranks,
    some_at_once,
    split_dataset,
    unit_rows,
    used,
    warn_once,
)
from dpfl_cli.data.sources import (
    FOLDERS,
    cache_dir,
    catalogue_entry,
    content_sha256,
    digest,
    locate,
    read_uncompressed,
    status,
)
from dpfl_cli.data.streams import stream_generator
from dpfl_cli.data.tables import read_table
from dpfl_cli.data.threads import slices
