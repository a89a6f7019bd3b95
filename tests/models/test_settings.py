"""Sizes of all models, and the settings and data that they refuse, each in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import DatasetInfo
from tests.models.small import info_of, model_of

DIGITS, CIFAR, FEMNIST = info_of((28, 28)), info_of((3, 32, 32)), info_of((28, 28), 62)
MESSIDOR, NUMBERS, TWO = info_of((3, 224, 224), 2), info_of(classes=None), info_of(classes=2)
SMALL, NARROW = info_of((16, 16)), info_of((8, 8))
IXI = info_of((1, 48, 60, 48), None, details={"labels": 2}, target_shape=(48, 60, 48))
POSTS = {
    words: info_of((10,), None, details={"vocabulary": words}, target_shape=(10,))
    for words in (200, 10_000)
}
TABLE: list[tuple[str, dict[str, Any], DatasetInfo, int | str]] = [
    ("linear_regression", {}, NUMBERS, 6),
    ("linear_regression", {"loss_factor": 0.0}, NUMBERS, r"model\.loss_factor=0\.0: .* than 0"),
    ("linear_regression", {"lossfactor": 0.5}, NUMBERS, r"did you mean model.loss_factor"),
    ("linear_regression", {}, DIGITS, r"dataset=toy has .* shape \[28, 28\] and 10 classes"),
    ("linear_regression", {}, info_of(), "needs feature vectors with real targets"),
    ("linear_regression", {}, POSTS[200], "linear_regression: needs feature vectors"),
    ("logistic", {}, TWO, 6),
    ("logistic", {"l2": -1.0}, TWO, r"model\.l2="),
    ("logistic", {"box": 0.0}, TWO, r"model\.box="),
    ("logistic", {"radius": 0.0}, TWO, r"model\.radius="),
    ("logistic", {"l1_weight": -1.0}, TWO, r"model\.l1_weight="),
    ("logistic", {"penalty": "l2"}, TWO, r"model\.penalty="),
    ("logistic", {"init": "ones"}, TWO, r"model\.init="),
    ("logistic", {"condition": 40.0}, TWO, r"l2=0\.1 is given as well"),
    ("logistic", {"l2": None}, TWO, "one of the two is needed"),
    ("logistic", {"l2": None, "condition": 1.0}, TWO, "greater than 1"),
    (
        "logistic",
        {},
        info_of(),
        "logistic: needs .* vectors with two classes, but dataset=toy",
    ),
    ("logistic", {}, NUMBERS, "needs feature vectors with two classes"),
    ("logistic", {}, info_of((28, 28), 2), "needs feature vectors with two classes"),
    ("softmax", {}, DIGITS, 7_840),
    ("softmax", {"solver": "lu"}, DIGITS, r"model\.solver='lu': input should be 'cg' or 'chol"),
    ("softmax", {}, NUMBERS, "needs records with classes .*, but dataset=toy has .* no classes"),
    ("frozen_mlp", {}, DIGITS, 5_130),
    ("mlp", {}, DIGITS, 159_010),  # the paper's network
    ("mlp", {"hidden": [32], "average_pool": 2}, DIGITS, 6_634),
    ("mlp", {"hidden": [30, 20]}, DIGITS, 24_380),
    ("mlp", {"hidden": []}, DIGITS, r"^model\.hidden"),
    ("mlp", {"hidden": [0]}, DIGITS, r"^model\.hidden"),
    ("mlp", {"activation": "gelu"}, DIGITS, r"^model\.activation"),
    ("mlp", {"average_pool": 0}, DIGITS, r"^model\.average_pool"),
    ("mlp", {"l2": -1.0}, DIGITS, r"^model\.l2"),
    ("mlp", {"width": 3}, DIGITS, r"^model\.width"),
    ("mlp", {}, NUMBERS, "dataset=toy has .* and no classes"),
    ("mlp", {"average_pool": 2}, info_of(), r"images .* \[6\]; write model\.average_pool=1"),
    ("mlp", {"average_pool": 2}, info_of((28, 27)), r"_pool=2: needs images .* shape \[28, 27\]"),
    ("mnist_cnn", {}, DIGITS, 5_046),
    ("mnist_cnn_small", {}, DIGITS, 237),
    ("mnist_cnn", {"channels": [2]}, DIGITS, r"^model\.channels"),
    ("mnist_cnn", {"channels": [0, 1]}, DIGITS, r"^model\.channels"),
    ("mnist_cnn", {"hidden": 0}, DIGITS, r"^model\.hidden"),
    ("mnist_cnn", {"activation": "tanh"}, DIGITS, r"^model\.activation"),
    ("mnist_cnn", {"kernel": 4}, DIGITS, r"^model\.kernel"),
    ("mnist_cnn", {}, info_of(), "needs images.*dataset=toy"),
    ("mnist_cnn", {}, replace(DIGITS, classes=None), "toy has .* no classes"),
    ("mnist_cnn", {}, info_of((12, 28)), "at least 13x13"),
    ("mnist_cnn", {}, CIFAR, "grey"),
    # arXiv 2304.05127, section 6
    ("cnn_cifar", {}, CIFAR, 2_156_490),
    ("cnn_cifar_small", {}, CIFAR, 34_538),
    ("cnn_femnist", {}, FEMNIST, 1_690_046),
    ("vgg11", {}, MESSIDOR, 128_774_530),
    ("vgg11_small", {}, replace(MESSIDOR, feature_shape=(3, 64, 64)), 577_378),
    ("unet3d", {}, IXI, 246_156),
    ("lstm2", {}, POSTS[10_000], 6_182_672),
    ("lstm2", {}, POSTS[200], 1_155_272),
    ("cnn_cifar", {"watched_client": -1}, CIFAR, r"model\.watched_client"),
    ("cnn_cifar", {}, IXI, "model=cnn_cifar or cnn_cifar_small or cnn_femnist: needs images"),
    ("cnn_cifar", {}, POSTS[200], "model=cnn_cifar or .*: needs images"),
    ("vgg11", {}, FEMNIST, "at least 32x32"),
    ("unet3d", {}, CIFAR, "model=unet3d: needs volumes"),
    ("unet3d", {"channels": 2, "groups": 3}, IXI, r"model\.groups=3"),
    ("lstm2", {}, CIFAR, "model=lstm2: needs sequences"),
    # with one channel and ten classes: adaptdp, section 6; in colour 576 more (32 kernels of 2 * 9)
    ("mobilenet", {"version": "v2"}, DIGITS, 2_236_106),
    ("mobilenet", {"version": "v1"}, DIGITS, 3_216_650),
    ("mobilenet", {}, CIFAR, 2_236_106 + 576),
    ("mobilenet", {"version": "v1"}, CIFAR, 3_216_650 + 576),
    ("mobilenet", {"groups": 3}, DIGITS, r"^model\.groups=3: .* multiples of 8, .* 1, 2, 4 or 8"),
    ("mobilenet", {"width": 0.0}, DIGITS, r"^model\.width=0\.0"),
    ("mobilenet", {"version": "v3"}, DIGITS, r"^model\.version='v3'"),
    ("mobilenet", {"first_stride": 3}, DIGITS, r"^model\.first_stride=3"),
    ("mobilenet", {}, info_of((30,)), "model=mobilenet: needs images"),
    ("mobilenet", {}, replace(DIGITS, classes=None), "model=mobilenet: needs images"),
    ("mobilenet", {}, replace(DIGITS, target_shape=(28, 28)), "model=mobilenet: needs images"),
    (
        "mobilenet",
        {"width": 0.05, "first_stride": 2},
        DIGITS,
        r"=8: the images shrink to one",
    ),
    ("mobilenet", {"width": 0.1}, NARROW, r"write model\.groups=1"),
]


def dimension_of(option: str, info: DatasetInfo, **changes: Any) -> int:
    kind, settings = model_of(option, **changes)
    return kind.dimension_of(settings, info)


@pytest.mark.parametrize(("option", "changes", "info", "found"), TABLE)
def test_a_model_has_so_many_parameters_or_says_what_does_not_fit(
    option: str, changes: dict[str, Any], info: DatasetInfo, found: int | str
) -> None:
    if isinstance(found, int):
        assert dimension_of(option, info, **changes) == found
        return
    with pytest.raises(ConfigError, match=found) as error:
        dimension_of(option, info, **changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "info"),
    [
        ({"width": 0.05, "first_stride": 2, "groups": 4}, DIGITS),
        ({"width": 0.05}, DIGITS),
        ({"width": 0.1}, SMALL),
    ],
)
def test_groups_of_more_than_a_number_are_no_fault(
    changes: dict[str, Any], info: DatasetInfo
) -> None:
    assert dimension_of("mobilenet", info, **changes) > 0
