from dpfl_cli.cli.python import ConfigError as ConfigError
from dpfl_cli.cli.python import DpflError as DpflError
from dpfl_cli.cli.python import account as account
from dpfl_cli.cli.python import audit as audit
from dpfl_cli.cli.python import calibrate as calibrate
from dpfl_cli.cli.python import curves as curves
from dpfl_cli.cli.python import ledger as ledger
from dpfl_cli.cli.python import model as model
from dpfl_cli.cli.python import reproduce as reproduce
from dpfl_cli.cli.python import run as run
from dpfl_cli.cli.python import runs as runs
from dpfl_cli.simulation.store import RunRecord

Run = RunRecord

__version__: str
