"""`dpfl new KIND NAME`: a commented file with an algorithm, a mechanism, a model, a data set, a
partitioner or an artifact of yours to begin from, and its test.
"""

import argparse
import re
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.options import component_names
from dpfl_cli.data.files import write_output

TEMPLATES = Path(__file__).parent / "templates"
TRY = {  # how a file is tried
    "algorithm": "dpfl run --plugin {name}.py algorithm={name} dp=cdp",
    "mechanism": "dpfl run --plugin {name}.py mechanism={name} dp=ldp dp.mode=paper "
    "accountant=pure algorithm=fedavg dp.epsilon=8",
    "model": "dpfl run model=torch model.path={name}.py:{Name} dataset=mnist partitioner=iid "
    "algorithm=fedavg dp=cdp",
    "dataset": "dpfl run dataset=arrays dataset.path={name}.py:{Name} partitioner=natural "
    "algorithm=fedavg dp=cdp",
    "partitioner": "dpfl run --plugin {name}.py partitioner={name} dataset=quadratic "
    "algorithm=fedavg dp=cdp",
    "artifact": "dpfl reproduce {name}.py scale=smoke",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=list(TRY))
    parser.add_argument("name", help="of the file and of what is in it, as my_method")


def execute(args: argparse.Namespace) -> int:
    """Writes NAME.py and test_NAME.py into the working folder; nothing is overwritten."""
    name: str = args.name
    if not re.fullmatch("(?!test_)[a-z][a-z0-9_]*", name):
        raise ConfigError(
            f"new: {name}: write small letters, digits and _, as my_{args.kind}; test_ is for tests"
        )
    names = {"name": name, "Name": "".join(part.capitalize() for part in name.split("_"))}
    paths = {Path(f"{test}{name}.py"): f"{test}{args.kind}.txt" for test in ("", "test_")}
    for path in paths:
        if path.exists():
            raise ConfigError(f"new: {path}: is there already; choose another name")
    taken = name in component_names(args.kind) or find_spec(name) is not None
    if taken or iskeyword(name):
        raise ConfigError(f"new: {name}: means something else already; choose another name")
    for path, template in paths.items():
        text = Template((TEMPLATES / template).read_text()).substitute(names)
        write_output(path, text.encode())
        print(path)
    print(f"try it: {TRY[args.kind].format(**names)}")
    print(f"test it: python -m pytest test_{name}.py")
    return 0
