"""All that a paper's module, or a file of one's own, imports."""

from dpfl_cli.reproduction.artifact import (
    Artifact,
    Figure,
    Mark,
    Paper,
    PaperNumbers,
    Run,
    Runs,
    Scale,
    Search,
    Size,
    Table,
    untrained,
)
from dpfl_cli.reproduction.claim import Claim, Judge, Prior, claim
from dpfl_cli.reproduction.measure import (
    Best,
    Derived,
    Fact,
    Facts,
    Metric,
    Price,
    Where,
)
from dpfl_cli.reproduction.paper_numbers import printed
from dpfl_cli.reproduction.rows import (
    Missing,
    Rows,
    between,
    grid,
)
from dpfl_cli.reproduction.verdict import (
    Comparison,
    Comparisons,
    Sample,
    above,
    below,
    best_by_others,
    each_seed,
    exact,
    in_factor,
    level,
    near_paper,
)
