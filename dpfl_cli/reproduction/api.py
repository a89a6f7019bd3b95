"""All that a paper's module, or a file of one's own, imports."""

from dpfl_cli.reproduction.artifact import (
    Artifact,
    Figure,
    Paper,
    Run,
    Runs,
    Scale,
    Search,
    Size,
    Table,
    sized,
    untrained,
)
from dpfl_cli.reproduction.claim import Claim, Compare, Judge, Prior, Test, claim, every, shape
from dpfl_cli.reproduction.comparison import (
    Comparison,
    Comparisons,
    Sample,
    above,
    below,
    below_share,
    best_by_others,
    each_seed,
    exact,
    falling,
    in_factor,
    level,
    near_paper,
    ratio,
)
from dpfl_cli.reproduction.measure import (
    Best,
    Derived,
    Fact,
    Facts,
    Metric,
    Price,
    Values,
    Where,
)
from dpfl_cli.reproduction.paper_numbers import numbers_in
from dpfl_cli.reproduction.rows import (
    CHOSEN,
    OTHERS,
    Missing,
    Rows,
    between,
    grid,
    listed_labels,
)
