"""Files of a user's: configs, arrays, partitions, modules, plugins."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.wrong_inputs import LONG, SMALL, Input

OF_ARRAYS = ("run", "dataset=arrays", "dataset.path=good.npz", "rounds=2")
ALIASES = "name: fedavg\na: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghi")
)
CONFIGS = {
    "twice": "name: fedavg\nlocal_lr: 1\nlocal_lr: 2\n",
    "itself": "name: &a\n  b: *a\n",
    "itself_listed": "name: fedavg\nx: &a [*a]\n",
    "tab": "name:\tfedavg\n\tx: 1",
    "list": "- 1\n- 2\n",
    "null_byte": "\0",
    "latin": "name: \udce9\n",
    "empty": "",
    "scalar": "5",
    "code": "name: !!python/object/apply:os.system ['true']",
    "deep": "a: " + "[" * 3000,
    "aliases": ALIASES,
    "long": f"name: fedavg\nlocal_lr: {LONG}\n",
    "long_key": f"{LONG}: 3\nname: fedavg\n",
    "hexadecimal": f"name: fedavg\nlocal_lr: 0x{'f' * 5000}\n",
    "date": "name: fedavg\nlocal_lr: 2020-99-99\n",
    "unnamed": "name: fedavg\nlocal_lr: *nothing\n",
    "defaults": "defaults: [nope]\n",
    "unknown": "name: nope\n",
    "number": "name: 5\n",
    "key": "1: 2\nname: fedavg\n",
    "null": "name: null\n",
}
FEATURES = np.random.default_rng(0).normal(size=(40, 6)).astype("f")
TARGETS, CLIENTS = np.arange(40) % 3, np.arange(40) % 4
HOLED = np.where(np.arange(240).reshape(40, 6) == 20, np.nan, FEATURES)
ARRAYS: dict[str, dict[str, object]] = {
    "nan": {"features": HOLED, "targets": TARGETS},
    "infinite": {"features": np.nan_to_num(HOLED, nan=np.inf), "targets": TARGETS},
    "short": {"features": FEATURES, "targets": TARGETS[:10]},
    "few_clients": {"features": FEATURES, "targets": TARGETS, "clients": CLIENTS[:5]},
    "no_targets": {"features": FEATURES},
    "no_features": {"targets": TARGETS},
    "flat": {"features": FEATURES[:, 0], "targets": TARGETS},
    "two_targets": {"features": FEATURES, "targets": np.stack([TARGETS, TARGETS], 1)},
    "one_class": {"features": FEATURES, "targets": TARGETS * 0},
    "objects": {"features": FEATURES.astype(object), "targets": TARGETS},
    "complex": {"features": FEATURES.astype(complex), "targets": TARGETS},
    "no_records": {"features": FEATURES[:0], "targets": TARGETS[:0]},
    "nothing": {},
    "no_columns": {"features": FEATURES[:, :0], "targets": TARGETS},
    "texts": {"features": FEATURES.astype(str), "targets": TARGETS},
    "dates": {"features": FEATURES, "targets": TARGETS.astype("M8[D]")},
    "scalars": {"features": np.float32(1), "targets": np.int64(1)},
    "nan_targets": {"features": FEATURES, "targets": np.where(TARGETS == 1, np.nan, TARGETS)},
    "nan_clients": {
        "features": FEATURES,
        "targets": TARGETS,
        "clients": np.where(CLIENTS == 1, np.nan, CLIENTS),
    },
    "records_of_fields": {"features": np.zeros(40, dtype=[("a", "f4")]), "targets": TARGETS},
}
PARTITIONS: dict[str, object] = {
    "short": CLIENTS[:10],
    "nan": np.full(40, np.nan),
    "halves": CLIENTS + 0.5,
    "objects": CLIENTS.astype(object),
    "texts": CLIENTS.astype(str),
    "two": np.stack([CLIENTS, CLIENTS], 1),
    "many": CLIENTS + 10**8,
    "huge": CLIENTS + 10**15,
    "unsigned": CLIENTS.astype("u8") + np.uint64(2**63),
    "scalar": np.int64(3),
    "empty": CLIENTS[:0],
    "nobody": np.full(40, -1),
    "repeated": {"indices": np.zeros(40, int), "offsets": np.array([0, 20, 40])},
    "negative": {"indices": np.arange(40) - 1, "offsets": np.array([0, 20, 40])},
    "backwards": {"indices": np.arange(40), "offsets": np.array([0, 30, 20, 40])},
    "outside": {"indices": np.arange(40) + 5, "offsets": np.array([0, 40])},
    "no_offsets": {"indices": np.arange(40)},
    "fractions": {"indices": np.arange(40) + 0.5, "offsets": np.array([0, 40])},
    "square": {"indices": np.zeros((4, 10), int), "offsets": np.array([0, 40])},
    "nobody_of_none": {"indices": np.arange(0), "offsets": np.array([0])},
}
ABSENT = ("absent.npz", "text.npz", "zero.npz", "cut.npz", "locked.npz", "folder.npz", "loop.npz")
STRANGE = (
    *ABSENT,
    "bomb.npz",
    "",
    "null",
    "/dev/null",
    "x" * 5000,
    "~no.such.user/x",
    "[1]",
    "a.py:X",
)
NET = "from torch import nn\nimport sys, torch\nclass Net(nn.Module):\n    def __init__(self):\n"
NET += "        super().__init__()\n        self.layer = nn.Linear(6, 3)\n"
MODULES = {
    "syntax": "def (",
    "raises": "raise ValueError('a\\nb')",
    "exits": "import sys; sys.exit(0)",
    "imports": "import nothing_at_all",
    "interrupts": "raise KeyboardInterrupt",
    "none": "Net = None",
    "number": "Net = 5",
    "function": "def Net(): return 5",
    "argument": NET.replace("(self)", "(self, a)"),
    "no_forward": "from torch import nn\nclass Net(nn.Module): pass",
    "no_parameters": "from torch import nn\nNet = nn.Flatten",
    "normed": "from torch import nn\n"
    "def Net(): return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))",
    "shape": "from torch import nn\ndef Net(): return nn.Linear(5, 3)",
    "outputs": "from torch import nn\ndef Net(): return nn.Linear(6, 4)",
    "mixes": f"{NET}    def forward(self, x): return self.layer(x) + x.mean()",
    "keeps": f"{NET}    def forward(self, x): self.k = x.mean(); return self.layer(x)",
    "exits_late": f"{NET}    def forward(self, x): sys.exit(0)",
    "tuple": f"{NET}    def forward(self, x): return self.layer(x), 1",
    "complex": "from torch import nn\nimport torch\n"
    "def Net(): return nn.Linear(6, 3, dtype=torch.complex64)",
    "lazy": "from torch import nn\ndef Net(): return nn.LazyLinear(3)",
    "itself": "def Net(): return Net()",
    "bomb": "import torch\ndef Net(): return torch.zeros(10**14)",
    "bytes": "\0\1",
    "items_raise": "class Net:\n    def __len__(self): return 3\n"
    "    def __getitem__(self, i): raise ValueError('x\\ny')",
    "no_items": "class Net:\n    def __len__(self): return 0\n"
    "    def __getitem__(self, i): return 1",
    "ragged": "class Net:\n    def __len__(self): return 4\n"
    "    def __getitem__(self, i): return [1.] * (i + 1), i % 2",
}
NO_DATA = (*list(MODULES)[:9], "bytes", "items_raise", "no_items", "ragged")
PLUGINS = {
    "no_revision": "@component('algorithm', 'x')\nclass X: pass",
    "no_parts": "@component('algorithm', 'x', revision=1, settings=Settings)\nclass X: pass",
    "no_group": "@component('foo', 'x', revision=1, settings=Settings)\nclass X: pass",
    "taken": "@component('model', 'torch', revision=1, settings=Settings)\nclass X: pass",
}


def made_files() -> None:
    """Writes all files of trials into the working folder."""
    np.savez("good.npz", features=FEATURES, targets=TARGETS, clients=CLIENTS)
    np.savez("regression.npz", features=FEATURES, targets=TARGETS.astype(float))
    for name, arrays in ARRAYS.items():
        np.savez(f"{name}.npz", **arrays)  # type: ignore[arg-type]
    for name, deal in PARTITIONS.items():
        if isinstance(deal, dict):
            np.savez(f"deal_{name}.npz", **deal)
        else:
            np.save(f"deal_{name}.npz.npy", deal)  # type: ignore[arg-type]
            os.rename(f"deal_{name}.npz.npy", f"deal_{name}.npz")
    good = bytearray(Path("good.npz").read_bytes())
    Path("text.npz").write_text("hello")
    Path("zero.npz").write_bytes(b"")
    Path("cut.npz").write_bytes(good[:600])
    good[6] |= 1  # encrypted, says the member's header, and the archive's list of members
    good[good.find(b"PK\1\2") + 8] |= 1
    Path("locked.npz").write_bytes(good)
    Path("folder.npz").mkdir()
    Path("loop.npz").symlink_to("loop.npz")
    shape = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 6), }"
    with zipfile.ZipFile("bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", f"\x93NUMPY\1\0v\0{shape:<118}".encode("latin-1"))
    imports = "from dpfl_cli.config.component import Settings, component\n"
    for name, text in {**MODULES, **{k: imports + v for k, v in PLUGINS.items()}}.items():
        Path(f"m_{name}.py").write_text(text)
    for name, text in CONFIGS.items():
        folder = Path(f"conf_{name}/algorithm")
        folder.mkdir(parents=True)
        (folder / "own.yaml").write_text(text, errors="surrogateescape")


def files() -> Iterator[Input]:
    for name in CONFIGS:
        for grid in ((), ("-m",)):
            words = ("run", *grid, "--config-dir", f"conf_{name}", "algorithm=own", *SMALL)
            yield Input("configs", words)
    for name in [f"{one}.npz" for one in ARRAYS] + list(STRANGE):
        yield Input("arrays", ("run", "dataset=arrays", f"dataset.path={name}", "rounds=2"))
        if name not in ("one_class.npz", "few_clients.npz", "nan_clients.npz", "", "null"):
            yield Input(
                "arrays", (*OF_ARRAYS, f"dataset.test_path={name}", "partitioner.clients=4")
            )
    for name in [f"deal_{one}.npz" for one in PARTITIONS] + list(STRANGE):
        words = ("partitioner=file", f"partitioner.path={name}")
        yield Input("partitions", (*OF_ARRAYS, *words))
    for option in ("alpha=0", "alpha=nan", "alpha=foo", "kind=foo", "shards=0", "clients=41"):
        words = ("partitioner=dirichlet", f"partitioner.{option}")
        yield Input("partitions", (*OF_ARRAYS, *words))
    for name in MODULES:
        code = 130 if name == "interrupts" else 2
        model = ("model=torch", f"model.path=m_{name}.py:Net", "partitioner.clients=4")
        yield Input("modules", (*OF_ARRAYS, *model, "algorithm=fedavg"), code)
    for name in NO_DATA:
        code = 130 if name == "interrupts" else 2
        yield Input("datasets", ("run", "dataset=arrays", f"dataset.path=m_{name}.py:Net"), code)
    for name in ("syntax", "raises", "exits", "imports", "interrupts", "bytes", *PLUGINS):
        code = 130 if name == "interrupts" else 2
        plugin = ("--plugin", f"m_{name}.py")
        for command in (["run", *SMALL, "algorithm=x"], ["list"], ["calibrate", "algorithm=x"]):
            yield Input("plugins", (*command, *plugin), code)
        yield Input("plugins", ("reproduce", f"m_{name}.py"), code)
    for name in ("absent.py", ".", "text.npz", "", "/dev/null", "x" * 5000):
        for command in ("run", "list", "calibrate", "calculate", "reproduce"):
            yield Input("plugins", (command, "--plugin", name))
