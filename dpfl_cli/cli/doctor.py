"""`dpfl doctor`: what this machine has, and whether dpfl works on it."""

import argparse
import os
import shutil
import time

EPILOG = "exit code 0 if everything needed works, 2 if not"


def execute(args: argparse.Namespace) -> int:
    import numba
    import numpy
    import torch

    from dpfl_cli import __version__
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.config.errors import DpflError
    from dpfl_cli.config.paths import conf_dir, outputs_dir
    from dpfl_cli.simulation.plan import make_plan
    from dpfl_cli.simulation.store import RunStore

    versions = [f"{module.__name__} {module.__version__}" for module in (torch, numpy, numba)]
    print(", ".join([f"dpfl {__version__}", *versions]))
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none"
    print(f"processors {os.cpu_count()}, torch threads {torch.get_num_threads()}, GPU {gpu}")
    print(f"configs {conf_dir()}")
    healthy = True
    try:
        RunStore(outputs_dir()).prepare()
        free = shutil.disk_usage(outputs_dir()).free / 2**30
        print(f"outputs {outputs_dir().resolve()}: writable, {free:.1f} GiB free")
    except DpflError as error:
        print(f"outputs: {error}")
        healthy = False
    start = time.perf_counter()
    plan = make_plan(compose_config([]))
    print(f"default run {plan.id} composes and validates in {time.perf_counter() - start:.2f} s")
    return 0 if healthy else 2
