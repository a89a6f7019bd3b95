"""Golden runs: small runs whose numbers are kept, so that code cannot change a number unless a
revision is raised.

`make golden` writes them anew. It refuses a run whose numbers changed under an unchanged identity:
raise the revision of the component that changed (or ENGINE_REVISION), so that stored results of the
old code are not taken for the new.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from dpfl_cli.config.component import components, lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import DataError
from dpfl_cli.config.schema import DpSettings
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import load_components, make_plan
from dpfl_cli.simulation.run_plan import Plan

FILE = Path(__file__).with_name("golden.json")
SYNTHETIC = ["dataset.clients=12", "dataset.dimension=5", "rounds=3", "evaluation.average_last=2"]
IMAGES = [
    "dataset=mnist",
    "dataset.train_records=240",
    "dataset.test_records=60",
    "partitioner.clients=6",
    "rounds=2",
]
DEALT = [*IMAGES, "partitioner.records_per_client=8"]
FASHION = ["dataset=fashion_mnist", *DEALT[1:], "model=mnist_cnn_small"]
FEDEXP, SCAFFOLD = [*SYNTHETIC, "algorithm=fedexp"], [*SYNTHETIC, "algorithm=scaffold"]
RELATIONS = ("replace_one", "zero_out", "add_or_remove")
SHARES = ["algorithm=fedavg", "dp=secure_aggregation"]
GROUPED = [*SYNTHETIC, "dataset.records_per_client=3"]
SCAFFNEW = [*SYNTHETIC, "rounds=5", "algorithm=scaffnew", "algorithm.local_steps=2"]
BATCHED = (
    "fedavg",
    "fedopt",
    "fedexp",
    "fedexp_naive",
    "scaffold",
)  # methods of whole clients whose local steps may take minibatches
NOMINAL = ["dp=ldp", "dp.relation=zero_out", "dp.epsilon=3.3"]
RECORD = {
    "none": ["dp=none"],
    "record": ["dp=record"],
    "cdp": ["dp=cdp", "dp.unit=record", "hints.local_steps=1"],
    "secure_aggregation": ["dp=secure_aggregation", "dp.unit=record", "hints.local_steps=1"],
}
MLP = ["model=mlp", "model.hidden=[8]", "model.average_pool=2"]
PROXIMAL = [
    *DEALT,
    "algorithm=primal_dual",
    "dp=record",
    *MLP,
    "algorithm.strong_convexity=0.1",
    "algorithm.step=1.0",
]
SMALL_FILE = Path(__file__).parent / "data" / "small.libsvm"
LIBSVM = ["dataset=libsvm", f"dataset.path={SMALL_FILE}", "partitioner.clients=4", "rounds=3"]
CLASSIFIED = ["dataset.test_records=60", "rounds=2", "algorithm=fedavg", "dp=cdp"]
CIFAR = ["dataset=cifar10", "dataset.train_records=120", *CLASSIFIED, "partitioner.clients=6"]
ALPHA_BETA = [
    "dataset=synthetic_alpha_beta",
    "dataset.clients=6",
    "dataset.records_per_client=20",
    "dataset.dimension=8",
    "dataset.classes=4",
    "rounds=3",
    "algorithm=fedavg",
    "dp=cdp",
]
SMALL_BANK, SMALL_SAMPLE = (
    SMALL_FILE.with_name(name) for name in ("small_bank.csv", "small_bank_sample.csv")
)
BANK = [
    "dataset=bank",
    f"dataset.path={SMALL_BANK}",
    "partitioner.clients=3",
    "rounds=2",
    "algorithm=fedavg_record",
    "dp=record",
]
BELOW_ITS_CAP = ["algorithm=adaptdp", "algorithm.clip_norm=4.0", "algorithm.radius_multiplier=0.02"]
OWN = [
    "dataset=arrays",
    f"dataset.path={SMALL_FILE.with_name('small.npz')}",
    "dataset.test_fraction=0.2",
    "algorithm=fedavg",
    "dp=cdp",
    "rounds=2",
]
QUADRATIC = [
    *[
        "dataset=quadratic",
        "dataset.clients=3",
        "dataset.records_per_client=6",
        "dataset.dimension=5",
    ],
    "rounds=3",
]
MOBILENET = [
    *DEALT[:-1],
    "rounds=1",
    "algorithm=fedavg_record",
    "dp=record",
    "hints.local_steps=1",
    "model=mobilenet",
]
TINY_MOBILENET = [
    *MOBILENET,
    "partitioner.clients=2",
    "partitioner.records_per_client=3",
    "dataset.test_records=4",
]
NAMED = {
    "ijcnn1": "false",
    "a6a": "false",
    "a9a": "false",
    "mushrooms": "true",
}  # with the other value of `normalise`

BRIEF = [
    "algorithm=fedavg",
    "dp=cdp",
    "algorithm.local_steps=2",
    "algorithm.local_lr=0.1",
    "algorithm.clip_norm=0.03",
    "rounds=2",
]
FEMNIST = [*BRIEF, "model=cnn_femnist", "model.channels=[2,3]", "model.hidden=8"]
TOKENS = [*BRIEF, "model=lstm2", "model.embedding=4", "model.hidden=8"]
VOLUMES = [*BRIEF, "model=unet3d", "model.channels=2", "model.groups=2"]
SMALL_VOLUMES = [
    "dataset=ixi_synth",
    "dataset.shape=[8,9,8]",
    "dataset.train_records=[3,2,1]",
    "dataset.test_records=[2,1,1]",
]
FUNDI = [*BRIEF, "model=vgg11_small", "model.width=2"]
SMALL_FUNDI = [
    "dataset=messidor_synth",
    "dataset.side=32",
    "dataset.train_records=6",
    "dataset.test_records=4",
]


def named(name: str) -> list[str]:
    return [
        f"dataset={name}",
        "dataset.records=200",
        "partitioner.clients=4",
        "rounds=2",
        "algorithm=fedavg",
    ]


def features(name: str) -> list[str]:
    """Of the stand-in, fitted on few records."""
    sizes = [
        "dataset.fit_records=40",
        "dataset.train_records=60",
        "dataset.test_records=20",
        "partitioner.clients=6",
        "rounds=2",
    ]
    return [
        f"dataset={name}_features",
        "dataset.backbone=rcf",
        *sizes,
        "algorithm=fedavg",
        "dp=cdp",
    ]


def emnist(split: str) -> list[str]:
    """The stand-in, where the published files are not on this machine; the identity says which."""
    return [
        f"dataset=emnist_{split}",
        "dataset.train_records=240",
        *CLASSIFIED,
        "partitioner.clients=6",
    ]


RUNS: dict[str, list[str]] = {
    **{
        f"{algorithm} {dp}": [*SYNTHETIC, f"algorithm={algorithm}", f"dp={dp}"]
        for algorithm in ("fedavg", "fedopt", "fedexp", "fedexp_naive", "scaffold")
        for dp in ("none", "ldp", "ldp_privunit", "cdp")
        if algorithm != "fedexp_naive" or dp.startswith("ldp")
    },
    **{
        f"{algorithm} {dp} {relation}": [
            *SYNTHETIC,
            f"algorithm={algorithm}",
            f"dp={dp}",
            f"dp.relation={relation}",
        ]
        for algorithm in ("fedavg", "fedexp")
        for dp in ("none", "ldp", "ldp_privunit", "cdp")
        for relation in RELATIONS[1:]
        if relation == "zero_out" or dp in ("none", "cdp")
    },
    **{
        f"fedexp {dp} calibrated": [*FEDEXP, f"dp={dp}", "dp.epsilon=8"]
        for dp in ("ldp", "ldp_privunit", "cdp")
    },
    "fedexp squared norm noise": [*FEDEXP, "dp=cdp", "algorithm.squared_norm_noise=1.5"],
    "fedexp half": [*FEDEXP, "algorithm.half=true"],
    "fedexp denominator": [*FEDEXP, "algorithm.denominator_epsilon=0.01"],
    "fedexp half central": [
        *FEDEXP,
        "dp=cdp",
        "algorithm.half=true",
        "algorithm.denominator_epsilon=0.01",
    ],
    "fedavg clipped, server step": [
        *SYNTHETIC,
        "algorithm=fedavg",
        "dp=none",
        "algorithm.clip_norm=0.3",
        "algorithm.server_lr=0.7",
    ],
    "scaffold raw": [*SCAFFOLD, "algorithm.control=raw"],
    "scaffold double clipped": [*SCAFFOLD, "algorithm.release=double", "algorithm.control=clipped"],
    "scaffold double central": [*SCAFFOLD, "dp=cdp", "algorithm.release=double"],
    "privunit exact": [
        *SYNTHETIC,
        "dp=ldp_privunit",
        "mechanism.gamma_rule=exact",
        "mechanism.split=optimal",
    ],
    "privunit total": [*SYNTHETIC, "dp=ldp_privunit", "mechanism.epsilon=5.0"],
    "several records": [*FEDEXP, "dataset.records_per_client=3"],
    "u as a vector": [*FEDEXP, "dataset.mean_kind=vector_u"],
    "scalar means": [*FEDEXP, "dataset.mean_kind=scalar"],
    "iid": [*SYNTHETIC, "partitioner=iid", "partitioner.clients=4"],
    "some clients": [*SYNTHETIC, "partitioner.clients=7"],
    "cnn": [*DEALT, "algorithm=fedexp", "dp=cdp"],
    "small cnn": [*DEALT, "algorithm=fedexp", "dp=ldp", "model=mnist_cnn_small"],
    "linear cnn, standardised": [
        *DEALT,
        "algorithm=fedavg",
        "dp=cdp",
        "model.activation=none",
        "dataset.standardise=true",
    ],
    "classwise": [
        *IMAGES,
        "algorithm=fedavg",
        "partitioner.kind=classwise",
        "partitioner.records_per_client=null",
    ],
    "shards": [*IMAGES, "algorithm=fedavg", "partitioner=shards"],
    "fashion": [*FASHION, "algorithm=scaffold"],
    "softmax": [*DEALT, "algorithm=fedavg", "dp=cdp", "model=softmax"],
    "softmax normal": [
        *DEALT,
        "algorithm=fedavg",
        "dp=ldp",
        "model=softmax",
        "model.init=normal",
        "model.feature_norm=l2",
    ],
    "softmax frozen": [
        *DEALT,
        "algorithm=fedavg_record",
        "dp=record",
        "model=frozen_mlp",
        "model.frozen_width=16",
    ],
    "softmax float64, other solver": [
        *DEALT,
        "algorithm=isrl_dp",
        "dp=record",
        "model=softmax",
        "model.precision=float64",
        "model.l2=0.01",
        "model.solver=cholesky",
        "model.solver_precision=float32",
    ],
    "mlp": [*DEALT, "algorithm=fedavg_record", "dp=record", *MLP],
    "mlp relu": [
        *PROXIMAL,
        "model.activation=relu",
        "model.precision=float64",
        "model.penalty=box",
    ],
    "mlp tanh": [*PROXIMAL, "model.activation=tanh", "model.penalty=ball"],
    "mlp l1": [*PROXIMAL, "model.penalty=l1_box"],
    "mixed": [
        *IMAGES[:3],
        "rounds=2",
        "algorithm=fedavg",
        "dp=cdp",
        "model=softmax",
        "partitioner=mixed",
        "partitioner.uniform_records=100",
        "partitioner.own_class_records=4",
    ],
    **{
        f"fedavg secure aggregation {one}": [*SYNTHETIC, *SHARES, f"dp.relation={one}"]
        for one in RELATIONS[:2]
    },
    "fedopt secure aggregation": [*SYNTHETIC, "algorithm=fedopt", "dp=secure_aggregation"],
    **{
        f"fedopt {one}": [*SYNTHETIC, "algorithm=fedopt", f"algorithm.optimizer={one}", "dp=cdp"]
        for one in ("yogi", "adagrad")
    },
    "fedavg secure aggregation calibrated": [*SYNTHETIC, *SHARES, "dp.epsilon=8"],
    **{
        f"fedavg noise by {one}": [
            *SYNTHETIC,
            "algorithm=fedavg",
            "dp=ldp",
            "dp.epsilon=8",
            f"dp.calibration={one}",
        ]
        for one in ("zcdp", "analytic")
    },
    "fedavg noise by lemma1": [
        *SYNTHETIC,
        "algorithm=fedavg",
        *NOMINAL,
        "dp.calibration=lemma1",
        "dp.v=0.01",
    ],
    "fedavg noise by record_heuristic": [
        *GROUPED,
        "algorithm=fedavg",
        *NOMINAL,
        "dp.calibration=record_heuristic",
    ],
    "scaffnew noise for the expected releases": [
        *SYNTHETIC,
        "rounds=8",
        "algorithm=scaffnew",
        "algorithm.local_steps=2.5",
        "algorithm.schedule=bernoulli",
        "dp=ldp",
        "dp.epsilon=8",
        "dp.releases=expected",
    ],
    **{
        f"scaffnew {dp}": [*SCAFFNEW, f"dp={dp}"]
        for dp in ("none", "ldp", "ldp_privunit", "cdp", "secure_aggregation")
    },
    "scaffnew clipped": [*SCAFFNEW, "dp=secure_aggregation", "algorithm.control=clipped"],
    "scaffnew by coins, shares kept": [
        *SCAFFNEW,
        "dp=secure_aggregation",
        "dp.mode=paper",
        "algorithm.control=sent",
        "algorithm.schedule=bernoulli",
        "algorithm.local_steps=1.6",
        "algorithm.final_release=true",
        "algorithm.watched_client=3",
    ],
    "scaffnew by coins, batches": [
        *LIBSVM,
        "algorithm=scaffnew",
        "dp=ldp",
        "dp.relation=zero_out",
        "dp.epsilon=8",
        "rounds=6",
        "algorithm.schedule=bernoulli",
        "algorithm.local_steps=1.5",
        "algorithm.final_release=false",
        "algorithm.batch_size=4",
    ],
    "scaffnew without a bound": [
        *SCAFFNEW,
        "dp=none",
        "algorithm.clip_norm=null",
        "algorithm.local_steps=1",
    ],
    "fedavg_scheduled ldp": [
        *SCAFFNEW[:-2],
        "algorithm=fedavg_scheduled",
        "dp=ldp",
        "algorithm.local_steps=2",
    ],
    "fedavg_scheduled batches": [
        *[
            *CIFAR[:2],
            "dataset.test_records=60",
            "partitioner.clients=3",
            "model=softmax",
            "rounds=4",
        ],
        *[
            "algorithm=fedavg_scheduled",
            "dp=cdp",
            "algorithm.local_steps=3",
            "algorithm.final_release=true",
        ],
        "algorithm.batch_size=6",
    ],
    **{
        f"{algorithm} batches": [
            *GROUPED,
            f"algorithm={algorithm}",
            "dp=ldp",
            "algorithm.batch_size=2",
        ]
        for algorithm in BATCHED
    },
    "fedavg_record whole noise": [
        *GROUPED,
        "algorithm=fedavg_record",
        "dp=secure_aggregation",
        "dp.unit=record",
        "mechanism.noise_share=false",
    ],
    "fedavg_record own scale": [
        *GROUPED,
        "algorithm=fedavg_record",
        *RECORD["secure_aggregation"],
        "dp.mode=paper",
        "mechanism.sens_scale=own",
    ],
    **{f"fedavg_record {dp}": [*GROUPED, "algorithm=fedavg_record", *RECORD[dp]] for dp in RECORD},
    **{
        f"scaffold_record {dp}": [*GROUPED, "algorithm=scaffold_record", *RECORD[dp]]
        for dp in RECORD
    },
    **{f"isrl_dp {dp}": [*GROUPED, "algorithm=isrl_dp", *RECORD[dp]] for dp in RECORD},
    **{
        f"fedfc {dp}": [*SYNTHETIC, "algorithm=fedfc", f"dp={dp}"]
        for dp in ("none", "ldp", "cdp", "secure_aggregation")
    },
    **{
        f"fedfc_record {dp}": [*GROUPED, "algorithm=fedfc_record", *RECORD[dp][:2]] for dp in RECORD
    },
    **{
        f"{algorithm} other options": [
            *DEALT,
            f"algorithm={algorithm}",
            dp,
            "model=frozen_mlp",
            "model.frozen_width=16",
            "algorithm.cov_norm=paper",
            "algorithm.psd_floor=none",
            "algorithm.budget=fraction",
        ]
        for algorithm, dp in (("fedfc", "dp=ldp"), ("fedfc_record", "dp=record"))
    },
    "fedgd": [*SYNTHETIC, "algorithm=fedgd", "dp=secure_aggregation"],
    "fedgd_record": [*GROUPED, "algorithm=fedgd_record", *RECORD["secure_aggregation"][:2]],
    **{
        f"fedgd_record {dp} add_or_remove": [
            *GROUPED,
            "algorithm=fedgd_record",
            f"dp={dp}",
            "dp.unit=record",
            "dp.relation=add_or_remove",
        ]
        for dp in ("ldp", "ldp_privunit", "secure_aggregation")
    },
    "scaffold secure_aggregation": [*SCAFFOLD, "dp=secure_aggregation"],
    "scaffold warm, shares kept": [
        *SCAFFOLD,
        "dp=secure_aggregation",
        "dp.mode=paper",
        "algorithm.control=sent",
        "algorithm.warm_start=true",
        "algorithm.server_lr=0.5",
    ],
    "scaffold_record idle": [
        *GROUPED,
        "algorithm=scaffold_record",
        "dp=record",
        "algorithm.warm_idle_rounds=1",
        "algorithm.extra_inv_n=true",
    ],
    **{
        f"{algorithm} batches, {sampling}": [
            *QUADRATIC,
            f"algorithm={algorithm}",
            "dp=record",
            "algorithm.local_steps=3",
            "algorithm.batch_size=2",
            f"algorithm.sampling={sampling}",
            *(["dp.mode=paper"] if sampling == "with_replacement" else ["accountant=wang_rdp"]),
        ]
        for algorithm in ("fedavg_record", "scaffold_record", "adaptdp")
        for sampling in ("without_replacement", "epoch_permutation", "with_replacement")
    },
    **{
        f"{algorithm} poisson": [
            *QUADRATIC,
            f"algorithm={algorithm}",
            "dp=record",
            "dp.relation=zero_out",
            "accountant=pld",
            "algorithm.batch_size=2",
            "algorithm.sampling=poisson",
        ]
        for algorithm in ("fedavg_record", "scaffold_record")
    },
    **{
        f"{algorithm} clipped mean": [
            *QUADRATIC,
            f"algorithm={algorithm}",
            "dp=record",
            "dp.mode=paper",
            "algorithm.local_steps=2",
            "algorithm.batch_size=3",
            "algorithm.clipping=batch_mean",
        ]
        for algorithm in ("fedavg_record", "scaffold_record", "adaptdp")
    },
    **{f"adaptdp {dp}": [*QUADRATIC, *BELOW_ITS_CAP, *RECORD[dp]] for dp in RECORD if dp != "none"},
    "adaptdp none": [
        *QUADRATIC,
        "algorithm=adaptdp",
        "dp=none",
        "algorithm.clip_norm=null",
        "algorithm.radius_multiplier=0.5",
    ],
    "adaptdp as the paper": [
        *QUADRATIC,
        *BELOW_ITS_CAP,
        "dp=record",
        "algorithm.local_steps=3",
        "algorithm.batch_size=2",
        "algorithm.radius_batch_size=3",
        "algorithm.sensitivity=paper",
        "algorithm.radius_noise_multiplier=0.2",
    ],
    "adaptdp calibrated": [
        *QUADRATIC,
        *BELOW_ITS_CAP,
        "dp=record",
        "dp.epsilon=8",
        "accountant=wang_rdp",
        "algorithm.batch_size=2",
        "algorithm.radius_batch_size=2",
        "algorithm.offset=none",
        "algorithm.radius_floor=0.1",
        "algorithm.projection_radius=2.0",
    ],
    "adaptdp softmax": [
        *DEALT,
        "algorithm=adaptdp",
        "dp=record",
        "model=frozen_mlp",
        "model.frozen_width=16",
        "algorithm.local_steps=2",
        "algorithm.batch_size=4",
        "algorithm.radius_batch_size=5",
    ],
    "scaffold_record warm": [
        *GROUPED,
        "algorithm=scaffold_record",
        "dp=record",
        "algorithm.warm_start=true",
    ],
    "isrl_dp uniform": [
        *GROUPED,
        "algorithm=isrl_dp",
        "dp=record",
        "algorithm.average=uniform",
        "algorithm.radius=0.1",
    ],
    "isrl_dp linear": [*GROUPED, "algorithm=isrl_dp", "dp=record", "algorithm.average=linear"],
    "isrl_dp original": [
        *GROUPED,
        "algorithm=isrl_dp",
        "dp=record",
        "algorithm.noise=original",
        "algorithm.original_epsilon=1.0",
    ],
    "fednew": [
        *LIBSVM,
        "algorithm=fednew",
        "dp=none",
        "algorithm.clip_norm=null",
        "algorithm.dual=paper",
        "algorithm.inner=2",
    ],
    "fednew linear": [*GROUPED, "algorithm=fednew", "dp=cdp", "algorithm.dual=own_update"],
    "fednew softmax": [
        *DEALT,
        "algorithm=fednew",
        "dp=secure_aggregation",
        "model=softmax",
        "algorithm.curvature=covariance",
    ],
    "fednew messages": [
        *LIBSVM,
        "algorithm=fednew",
        "dp=ldp",
        "algorithm.dual=paper",
        "algorithm.damping=0.3",
    ],
    **{f"fednew_record {dp}": [*LIBSVM, "algorithm=fednew_record", *RECORD[dp]] for dp in RECORD},
    "fednew_record as the paper": [
        *DEALT,
        "algorithm=fednew_record",
        *RECORD["secure_aggregation"],
        "dp.mode=paper",
        "model=softmax",
        "model.feature_norm=l2",
        "algorithm.dual=paper",
        "algorithm.bound_aux=xi",
        "algorithm.sensitivity=paper",
        "algorithm.spectrum=true",
    ],
    "fednew_record xi_safe": [
        *LIBSVM,
        "algorithm=fednew_record",
        "dp=record",
        "algorithm.curvature=covariance",
        "algorithm.bound_aux=xi",
        "algorithm.sensitivity=xi_safe",
        "algorithm.side_clip_norm=1.5",
    ],
    "fednew_record clip_auxiliary": [
        *LIBSVM,
        "algorithm=fednew_record",
        "dp=record",
        "algorithm.dual=paper",
        "algorithm.bound_aux=clip_auxiliary",
        "algorithm.clip_norm=0.5",
        "algorithm.curvature_clip_norm=0.2",
    ],
    "primal_dual": [*LIBSVM, "algorithm=primal_dual", "dp=record"],
    "primal_dual none": [
        *LIBSVM,
        "algorithm=primal_dual",
        "dp=none",
        "model.penalty=ball",
        "model.radius=0.1",
    ],
    "primal_dual static": [
        *LIBSVM,
        "algorithm=primal_dual",
        "dp=record",
        "algorithm.schedule=static",
        "model.penalty=box",
    ],
    "primal_dual messages": [
        *LIBSVM,
        "algorithm=primal_dual",
        "dp=record",
        "algorithm.strong_convexity=null",
        "algorithm.schedule=static",
        "algorithm.report=messages",
        "model.penalty=l1_box",
        "model.init=normal",
    ],
    "libsvm": [*LIBSVM, "algorithm=fedavg"],
    "libsvm shuffled": [
        *LIBSVM,
        "algorithm=fedavg",
        "dataset.order=shuffle",
        "dataset.normalise=true",
        "dataset.test_fraction=0.25",
    ],
    "libsvm sorted": [*LIBSVM, "algorithm=fedavg", "dataset.order=sorted", "dataset.records=20"],
    "libsvm condition": [*LIBSVM, "algorithm=fedavg", "model.condition=50"],
    **{
        f"{name} features": features(name)
        for name in ("mnist", "fashion_mnist", "cifar10", "emnist_digits")
    },
    "features of pixels, components": [
        *features("mnist"),
        "dataset.backbone=pca",
        "dataset.components=16",
    ],
    "features, components": [*features("fashion_mnist"), "dataset.components=8"],
    **{f"{name}": named(name) for name in NAMED},
    **{
        f"{name} shuffled": [
            *named(name),
            "dataset.order=shuffle",
            f"dataset.normalise={NAMED[name]}",
        ]
        for name in NAMED
    },
    **{f"{name} sorted": [*named(name), "dataset.order=sorted"] for name in NAMED},
    "synthetic_alpha_beta": ALPHA_BETA,
    "synthetic_alpha_beta as drawn": [
        *ALPHA_BETA,
        "dataset.normalise=false",
        "partitioner.clients=5",
    ],
    "cifar10": CIFAR,
    "cifar10 standardised": [*CIFAR, "dataset.standardise=true", "dataset.train_records=60"],
    "cifar10 subset": [*CIFAR, "dataset.subset=random", "dataset.pixels=raw"],
    "cifar10 stratified": [*CIFAR, "dataset.subset=stratified"],
    "emnist_digits": emnist("digits"),
    "emnist_balanced": emnist("balanced"),
    "emnist_balanced components": [
        *emnist("balanced"),
        "dataset.pca=8",
        "dataset.test_fraction=0.2",
        "model.feature_norm=l2",
    ],
    "bank": [*BANK, "model.frozen_width=8", "model.gradient_quantiles=true"],
    "bank ordinal, sample": [
        *BANK,
        "model=logistic",
        "model.gradient_quantiles=true",
        "dataset.categorical=ordinal",
        "dataset.test=bank_csv",
        f"dataset.test_path={SMALL_SAMPLE}",
    ],
    "bank without a test": [
        *BANK,
        "dataset.test=none",
        "dataset.train_records=40",
        *MLP[:2],
        "model.gradient_quantiles=true",
    ],
    "quadratic": [
        *QUADRATIC,
        "algorithm=fedavg_record",
        "dp=record",
        "model.gradient_quantiles=true",
    ],
    "mobilenet": [
        *TINY_MOBILENET,
        "model.width=0.1",
        "model.groups=2",
        "model.gradient_quantiles=true",
    ],
    "mobilenet v1": [
        *TINY_MOBILENET,
        "model.width=0.1",
        "model.version=v1",
        "model.groups=1",
        "model.first_stride=2",
    ],
    "fashion subset": [
        *FASHION,
        "algorithm=fedavg",
        "dataset.subset=random",
        "dataset.subset_seed=3",
    ],
    "fashion stratified": [
        *FASHION,
        "algorithm=fedavg",
        "dataset.subset=stratified",
        "dataset.pixels=raw",
    ],
    "mnist subset": [
        *DEALT,
        "algorithm=fedavg",
        "dp=cdp",
        "model=softmax",
        "dataset.subset=random",
        "dataset.pixels=raw",
    ],
    "mnist stratified": [
        *DEALT,
        "algorithm=fedavg",
        "dp=cdp",
        "model=softmax",
        "dataset.subset=stratified",
    ],
    "fashion standardised": [*FASHION, "algorithm=fedavg", "dataset.standardise=true"],
    "own records": [*OWN, "partitioner=natural"],
    "own partition": [
        *OWN,
        "dataset.test_fraction=0",
        "partitioner=file",
        f"partitioner.path={SMALL_FILE.with_name('small_clients.npy')}",
    ],
    "own module": [
        *OWN,
        "partitioner.clients=4",
        "model=torch",
        f"model.path={SMALL_FILE.with_name('small_module.py')}:Net",
    ],
    "femnist": [*FEMNIST, "dataset=femnist", "dataset.share=0.001", "dataset.split=writers"],
    "femnist iid": [
        *FEMNIST,
        "dataset=femnist",
        "dataset.share=0.001",
        "dataset.split=iid",
        "model.average=pooled",
    ],
    "femnist stand-in": [
        *FEMNIST,
        "dataset=femnist_synth",
        "dataset.train_records=20",
        "dataset.test_records=10",
    ],
    "reddit": [
        *TOKENS,
        "dataset=reddit",
        "dataset.vocabulary=200",
        "dataset.train_records=20",
        "dataset.test_records=10",
    ],
    "reddit stand-in": [
        *TOKENS,
        "dataset=reddit_synth",
        "dataset.train_records=20",
        "dataset.test_records=10",
    ],
    "reddit stand-in pooled": [
        *TOKENS,
        "dataset=reddit_synth",
        "dataset.train_records=20",
        "dataset.test_records=10",
        "model.average=pooled",
    ],
    "fed_ixi": [*VOLUMES, "dataset=fed_ixi"],
    "ixi stand-in": [*VOLUMES, *SMALL_VOLUMES],
    "ixi stand-in pooled": [*VOLUMES, *SMALL_VOLUMES, "model.average=pooled"],
    "messidor": [*FUNDI, "dataset=messidor", "dataset.side=32"],
    "messidor from grade 2": [
        *FUNDI,
        "dataset=messidor",
        "dataset.side=32",
        "dataset.positive_grade=2",
    ],
    "messidor stand-in": [*FUNDI, *SMALL_FUNDI, "model.hidden=4"],
    "messidor stand-in pooled": [*FUNDI, *SMALL_FUNDI, "model.average=pooled"],
    "messidor stand-in loss of few": [*FUNDI, *SMALL_FUNDI, "model.train_loss_records=2"],
    "messidor stand-in kaiming": [
        *FUNDI,
        *SMALL_FUNDI,
        "model.init=kaiming",
        "model.watched_client=2",
    ],
    "messidor stand-in unit": [
        *FUNDI,
        *SMALL_FUNDI,
        "model.init=unit",
        "dataset.lesion_size=3.5",
    ],
}
# Runs that share a batch, differing in what may differ: seeds, rounds, numbers. Each must come out
#   as it does alone.
BATCHES: dict[str, tuple[list[str], list[list[str]]]] = {
    "fedexp ldp": (
        [*FEDEXP, "dp=ldp"],
        [
            ["seed=1", "mechanism.noise_multiplier=0.2"],
            ["algorithm.local_lr=0.001", "rounds=5"],
            ["algorithm.clip_norm=0.1", "algorithm.denominator_epsilon=0.01", "rounds=1"],
        ],
    ),
    "fedexp cdp": (
        [*FEDEXP, "dp=cdp", "algorithm.squared_norm_noise=1.5"],
        [
            ["rounds=1"],
            ["algorithm.clip_norm=0.1", "seed=2"],
            ["mechanism.noise_multiplier=1.0", "rounds=4"],
        ],
    ),
    "fedexp privunit": (
        [*FEDEXP, "dp=ldp_privunit"],
        [
            ["mechanism.epsilon_cap=3.0"],
            ["mechanism.epsilon_norm=4.0", "rounds=1"],
            ["algorithm.clip_norm=0.1", "seed=3"],
        ],
    ),
    "scaffold cdp": (
        [*SCAFFOLD, "dp=cdp", "algorithm.release=double"],
        [["seed=1"], ["algorithm.local_lr=0.001", "rounds=5"], ["algorithm.clip_norm=0.1"]],
    ),
    "scaffnew ldp": (
        [*GROUPED, "algorithm=scaffnew", "dp=ldp", "algorithm.batch_size=2"],
        [
            ["seed=1", "algorithm.local_steps=2"],
            ["algorithm.local_steps=3", "rounds=7", "algorithm.clip_norm=0.1"],
            [
                "algorithm.local_steps=1",
                "rounds=4",
                "algorithm.local_lr=0.001",
                "mechanism.noise_multiplier=2.0",
            ],
        ],
    ),
    "scaffnew by coins": (
        [*SCAFFNEW, "dp=cdp", "algorithm.schedule=bernoulli"],
        [
            ["algorithm.local_steps=1.5"],
            ["seed=1", "rounds=9"],
            ["seed=2", "algorithm.local_steps=3", "rounds=1"],
        ],
    ),
    "fednew_record": (
        [
            *LIBSVM,
            "algorithm=fednew_record",
            *RECORD["secure_aggregation"],
            "algorithm.spectrum=true",
        ],
        [
            ["seed=1", "algorithm.damping=0.5"],
            ["algorithm.penalty=0.2", "rounds=1", "algorithm.side_clip_norm=2.0"],
            [
                "algorithm.clip_norm=0.3",
                "algorithm.curvature_clip_norm=0.1",
                "algorithm.server_lr=0.5",
            ],
        ],
    ),
    "logistic condition": (
        [
            *LIBSVM,
            "partitioner=iid",
            "algorithm=fedavg",
            "dp=cdp",
            "model.condition=50",
        ],  # l2 differs between the runs
        [
            ["seed=1"],
            ["algorithm.local_lr=0.05", "rounds=1"],
            ["seed=2", "algorithm.clip_norm=0.1"],
        ],
    ),
    "cnn cdp": (
        [*DEALT, "algorithm=fedavg", "dp=cdp"],
        [
            ["seed=1"],
            ["algorithm.local_lr=0.05", "rounds=1"],
            ["algorithm.clip_norm=0.1", "algorithm.server_lr=0.5"],
        ],
    ),
}
COVERED = (
    "algorithm",
    "mechanism",
    "dataset",
    "partitioner",
    "model",
)  # groups whose components change a run's numbers
TOLERANCE = {  # relative: what another processor may round otherwise
    "linear_regression": 1e-9,
    "logistic_regression": 1e-9,
    "cnn": 1e-4,
    "cnn5x5": 1e-4,
    "lstm2": 1e-4,
    "mlp": 1e-4,
    "mobilenet": 1e-3,
    "softmax_regression": 1e-4,
    "torch": 1e-4,
    "unet3d": 1e-4,
    "vgg11": 1e-4,
}


def compute(plan: Plan) -> dict[str, Any]:
    """id and rows of one run, computed alone."""
    return compute_together([plan])[0]


def compute_together(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """The same of several runs, computed as one batch, in order."""
    ended = {
        member.plan.id: member
        for member in run_members([Member(plan) for plan in plans], lambda m: None, lambda m: None)
    }
    return [
        {"id": plan.id, "model": plan.model.name, "rows": ended[plan.id].rows} for plan in plans
    ]


def plan_of(name: str) -> Plan:
    """A golden run as a plan; a DataError where its data are not on this machine."""
    return make_plan(composed()[name])


@functools.cache
def composed() -> dict[str, dict[str, Any]]:
    """The config of every golden run."""
    return {name: compose_config(words) for name, words in RUNS.items()}


def differs(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """Metrics that are not the same, in any round, up to rounding on another processor."""
    if len(new["rows"]) != len(old["rows"]):
        return ["number of rows"]
    tolerance = TOLERANCE[new["model"]]
    pairs = list(zip(new["rows"], old["rows"], strict=True))
    names = {name for one, other in pairs for name in (*one, *other)}
    return sorted(
        name
        for name in names
        if not all(
            _close(one.get(name), other.get(name), tolerance)
            for one, other in pairs
            if {name} & {*one, *other}
        )
    )


def _close(one: float | None, other: float | None, tolerance: float) -> bool:
    return (
        one is not None
        and other is not None
        and abs(one - other) <= tolerance * max(abs(one), abs(other), 1e-3)
    )


def uncovered() -> list[str]:
    """What no golden run uses: components, values of their choices, settings left out or given,
    neighbouring relations.
    """
    load_components()
    configs = list(composed().values())
    missing = []
    for group in COVERED:
        for name, found in components(group).items():
            if found.origin != "dpfl":
                continue
            used = [config for config in configs if config[group]["name"] == name]
            settings = [_settings(group, name, config) for config in used]
            if not used:
                missing.append(f"{group}={name}")
            for field, info in found.settings.model_fields.items():
                if info.exclude:  # no part of a run's identity: it changes no number
                    continue
                seen = [getattr(one, field) for one in settings]
                missing += [
                    f"{group}={name} {field}={value}"
                    for value in _choices(info.annotation)
                    if value not in seen
                ]
                if group in ("algorithm", "mechanism") and NoneType in get_args(info.annotation):
                    given = {value is not None for value in seen}
                    missing += [
                        f"{group}={name} {field} {'given' if one else 'null'}"
                        for one in {True, False} - given
                    ]
            for relation in getattr(found.target, "relations", ()):
                if relation not in [config["dp"]["relation"] for config in used]:
                    missing.append(f"{group}={name} dp.relation={relation}")
    for field in ("relation", "calibration", "releases"):
        used = [config["dp"][field] for config in configs]
        missing += [
            f"dp.{field}={one}"
            for one in _choices(DpSettings.model_fields[field].annotation)
            if one not in used
        ]
    return missing


def _settings(group: str, name: str, config: dict[str, Any]) -> Any:
    values = {key: value for key, value in config[group].items() if key != "name"}
    return parse_settings(lookup(group, name).settings, values, group)


def _choices(annotation: Any) -> Iterator[Any]:
    """The values of a setting that is a choice: those of a Literal, also inside a union, and true
    and false.
    """
    if annotation is bool:
        yield from (True, False)
    elif get_origin(annotation) is Literal:
        yield from get_args(annotation)
    else:
        for part in get_args(annotation):
            if part is bool or get_origin(part) is Literal:
                yield from _choices(part)


def text_of(runs: dict[str, Any]) -> str:
    """The file: JSON with one row of a run on a line."""
    blocks = []
    for name, run in runs.items():
        rows = ",\n  ".join(json.dumps(row) for row in run["rows"])
        head = json.dumps({"id": run["id"], "model": run["model"]})[:-1]
        blocks.append(f'{json.dumps(name)}: {head}, "rows": [\n  {rows}]}}')
    return "{" + ",\n ".join(blocks) + "}\n"


def main() -> int:
    """Writes tests/golden.json, or the file given as the only argument."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    fresh: dict[str, Any] = {}
    refused = 0
    for name in RUNS:
        try:
            new = compute(plan_of(name))
        except DataError as error:
            print(f"{name}: kept as it is ({error})")
            if name in known:
                fresh[name] = known[name]
            continue
        old = known.get(name)
        if old is not None and old["id"] == new["id"] and differs(new, old):
            print(
                f"{name}: {differs(new, old)} changed under the same identity {new['id']}: raise a "
                "revision"
            )
            refused += 1
            new = old
        fresh[name] = new
    file.write_text(text_of(fresh))
    print(f"{len(fresh)} golden runs in {file.name}, {refused} refused")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
