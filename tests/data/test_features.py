"""Data sets of features: what is computed, kept and made again, who is public, and what is refused;
with small files.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from small_files import (
    TEST_IMAGES,
    TEST_LABELS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    entry_of,
    idx_bytes,
    image_arrays,
    image_files,
    looked_at,
    put,
)
from torch import nn

from dpfl_cli.cli.main import main
from dpfl_cli.cli.run import execute_configs
from dpfl_cli.config.component import lookup, parse_settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data import backbones, features, loading
from dpfl_cli.data.backbones import (
    BACKBONES,
    CIFAR100,
    Backbone,
    as_images,
    network_input,
    principal_components,
)
from dpfl_cli.data.features import FeatureSettings, MnistFeatures
from dpfl_cli.data.mnist import Mnist
from dpfl_cli.data.sources import CATALOGUE, cache_dir, digest
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import stack_key

RUN = [
    "dataset=mnist_features",
    "algorithm=fedavg",
    "dp=cdp",
    "dataset.fit_records=10",
    "partitioner.clients=5",
    "rounds=1",
]
BLOCK, BATCH = 8, 4
ARRAYS = image_arrays()
PIXELS = ARRAYS[TRAIN_IMAGES].reshape(40, -1).astype(np.float32) / 255
TEST_PIXELS = ARRAYS[TEST_IMAGES].reshape(12, -1).astype(np.float32) / 255


class Looked:
    """A backbone whose features are the pixels; it counts the batches, and can be told to be
    interrupted.
    """

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.stop_after = 10**9

    def build(self, weights, public):
        def extract(images):
            if len(self.batches) == self.stop_after:
                raise KeyboardInterrupt
            self.batches.append(len(images))
            return images.flatten(1)

        return extract


class Steps:
    """Progress that remembers."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.done = 0

    @contextmanager
    def stage(self, title, total):
        self.stages.append((title, total))
        yield self

    def advance(self, steps=1):
        self.done += steps


@pytest.fixture(autouse=True)
def _small(tmp_path, monkeypatch):
    """Forty images, blocks of eight and batches of four."""
    monkeypatch.setenv("DPFL_DATA", str(tmp_path / "data"))
    monkeypatch.delitem(CATALOGUE, "fashion_mnist")
    use(image_files(), tmp_path, monkeypatch)
    monkeypatch.setattr(features, "BLOCK", BLOCK)
    for module in (features, backbones):
        monkeypatch.setattr(module, "BATCH", BATCH)
    loading.kept.cache_clear()
    loading.warn_once.cache_clear()


def use(files, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(CATALOGUE, "mnist", entry_of(files))
    put(tmp_path / "data" / "mnist", files)


@pytest.fixture
def looked(monkeypatch) -> Looked:
    found = Looked()
    monkeypatch.setitem(BACKBONES, "pixels", Backbone("pixels", 1, None, found.build))
    return found


def settings(**values) -> FeatureSettings:
    return FeatureSettings(**{"backbone": "pixels", "fit_records": 10, **values})


def blocks(values: FeatureSettings) -> list[str]:
    return sorted(path.name for path in MnistFeatures.content(values).glob("*.npz"))


# --- records --------------------------------------------------------------------------------------


def test_the_public_records_are_left_out_and_labels_stay_with_their_images(looked):
    data = MnistFeatures.load(settings(train_records=17, test_records=5), seed=0)
    np.testing.assert_array_equal(data.train.features, PIXELS[10:27])
    np.testing.assert_array_equal(data.train.targets, ARRAYS[TRAIN_LABELS][10:27])
    np.testing.assert_array_equal(data.test.features, TEST_PIXELS[:5])
    np.testing.assert_array_equal(data.test.targets, ARRAYS[TEST_LABELS][:5])
    assert (data.train.features.dtype, data.train.targets.dtype) == (np.float32, np.int64)
    assert data.info == MnistFeatures.info(settings(train_records=17, test_records=5))
    assert (data.info.records, data.info.feature_shape, data.info.classes) == (17, (784,), 10)


def test_all_records_are_all_that_are_not_public(looked):
    data = MnistFeatures.load(settings(fit_records=3), seed=1)
    np.testing.assert_array_equal(data.train.features, PIXELS[3:])
    np.testing.assert_array_equal(data.test.features, TEST_PIXELS)
    assert data.info.records == 37
    np.testing.assert_array_equal(
        MnistFeatures.load(settings(fit_records=0), 0).train.features, PIXELS
    )


@pytest.mark.parametrize("backbone", ["rcf", "pca"])
def test_what_is_fitted_comes_from_public_records_alone(backbone, tmp_path, monkeypatch):
    values = settings(backbone=backbone, components=5)
    before = looked_at(MnistFeatures.load(values, 0))
    for first, same in ((10, True), (9, False)):
        images = ARRAYS[TRAIN_IMAGES].copy()
        images[first:] = 255 - images[first:]
        use({**image_files(), TRAIN_IMAGES: idx_bytes(images)}, tmp_path, monkeypatch)
        after = MnistFeatures.load(values, 0)
        assert np.array_equal(after.test.features, before.test.features) == same
        assert not np.array_equal(after.train.features, before.train.features)


@pytest.mark.parametrize("shape", [(12, 30), (30, 12)])
def test_principal_components_are_those_of_the_singular_value_decomposition(shape):
    rng = np.random.default_rng(0)
    public, rows = (
        rng.standard_normal((n, shape[1])) * np.arange(1, shape[1] + 1) + 3 for n in (shape[0], 700)
    )
    project = principal_components(public.astype(np.float32), 4)
    mean = public.mean(axis=0)
    axes = np.linalg.svd(public - mean)[2][:4]
    axes *= np.array([np.sign(axis[np.abs(axis).argmax()]) for axis in axes])[:, None]
    np.testing.assert_allclose(
        project(rows.astype(np.float32)), (rows - mean) @ axes.T, rtol=1e-4, atol=1e-3
    )
    assert project(rows.astype(np.float32)).dtype == np.float32


def test_random_filters_look_at_quadrants_and_give_2048_features():
    images = as_images(ARRAYS[TRAIN_IMAGES].astype(np.float32) / 255)
    extract = BACKBONES["rcf"].build({}, images[:20])
    one, again = extract(images[:1]), BACKBONES["rcf"].build({}, images[:20])(images[:1])
    assert torch.equal(one, again)
    assert one.shape == (1, 2048)
    assert BACKBONES["rcf"].width == 2048
    changed = images[:1].clone()
    changed[..., :6, -6:] = (
        # the top right corner; responses are 23 x 23, and quadrants share the middle row and column
        0
    )
    same = torch.isclose(one, extract(changed), atol=1e-6).reshape(512, 2, 2).float().mean(dim=0)
    assert same[0, 1] < 0.1
    assert same[0, 0] == same[1, 0] == same[1, 1] == 1


def test_random_filters_are_whitened_patches_with_a_threshold():
    """On images of white noise the filters' responses have about variance 1, so that E max(|z| -
    .25, 0) = .5726 holds.
    """
    noise = torch.rand(200, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    values = BACKBONES["rcf"].build({}, noise[:100])(noise[100:])
    z = np.random.default_rng(0).standard_normal(1_000_000)
    expected = np.maximum(np.abs(z) - 0.25, 0).mean()
    assert abs(float(values.mean()) - expected) < 0.02 * expected


def test_resnet44_is_the_published_network(tmp_path):
    """Against plain modules under the names of pytorch-cifar-models, with random weights."""
    torch.manual_seed(0)
    net = ResNet44().eval()
    for name, value in net.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif name.endswith("running_mean"):
            value.normal_(0, 0.3)
    assert sum(one.numel() for one in net.parameters()) == 667_188
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    images = torch.rand(3, 1, 28, 28)
    extract = BACKBONES["resnet44_cifar100"].build(
        backbones.read_weights(tmp_path / "weights.pt"), torch.empty(0)
    )
    with torch.inference_mode():
        expected = net(network_input(images, 32, *CIFAR100))
        np.testing.assert_allclose(
            net.fc(extract(images)).numpy(), expected.numpy(), rtol=1e-4, atol=1e-4
        )
    values = FeatureSettings(
        backbone="resnet44_cifar100", weights=str(tmp_path / "weights.pt"), fit_records=10
    )
    info = MnistFeatures.info(values)
    assert (info.source, info.feature_shape) == ("real", (64,))
    assert info.details["weights_sha256"] == digest(tmp_path / "weights.pt").sha256
    assert MnistFeatures.load(values, 0).train.features.shape == (30, 64)


class Basic(nn.Module):
    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        stride = 1 if inside == out else 2
        self.conv1, self.bn1 = nn.Conv2d(inside, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        shortcut = nn.Sequential(nn.Conv2d(inside, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        self.downsample = None if stride == 1 else shortcut

    def forward(self, x):
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet44(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = [(16, 16), (16, 32), (32, 64)]
        layers = [nn.Sequential(Basic(a, b), *[Basic(b, b) for _ in range(6)]) for a, b in widths]
        self.layer1, self.layer2, self.layer3 = layers
        self.fc = nn.Linear(64, 100)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x))))))
        return self.fc(x.mean(dim=(2, 3)))


# --- provenance -----------------------------------------------------------------------------------


def test_without_weights_auto_takes_a_stand_in_and_says_so_once(caplog):
    with caplog.at_level(logging.WARNING, "dpfl"):
        logging.getLogger("dpfl").addHandler(caplog.handler)
        try:
            infos = [MnistFeatures.info(settings(backbone="auto")) for _ in range(3)]
        finally:
            logging.getLogger("dpfl").removeHandler(caplog.handler)
    assert {info.source for info in infos} == {"standin"}
    assert infos[0].details["backbone"] == "rcf"
    lines = [record.getMessage() for record in caplog.records if "STANDS IN" in record.getMessage()]
    assert len(set(lines)) == 1
    assert "dpfl data fetch efficientnet_lite0" in lines[0]
    assert MnistFeatures.info(settings(backbone="pca", components=4)).source == "standin"


def test_damaged_weights_are_an_error_and_not_a_reason_for_a_stand_in(tmp_path):
    put(cache_dir() / "efficientnet_lite0", {"efficientnet-lite0-57934424.pth": b"\0" * 100})
    with pytest.raises(
        DataError, match="truncated: 100 of 18826032 bytes; run: dpfl data fetch efficientnet_lite0"
    ):
        MnistFeatures.info(settings(backbone="auto"))


def test_features_of_a_stand_in_are_a_stand_in(looked):
    info = lookup("dataset", "emnist_digits_features").target.info(settings())
    assert (info.source, info.details["base"], info.details["base_source"]) == (
        "standin",
        "emnist_digits",
        "standin",
    )
    assert MnistFeatures.info(settings()).source == "real"


def identity(*words: str) -> dict:
    plan = make_plan(
        compose_config(
            ["dataset=mnist_features", "partitioner.clients=4", "dataset.fit_records=10", *words]
        )
    )
    return plan.identity["dataset"]


def test_the_identity_holds_what_the_numbers_depend_on(tmp_path):
    torch.save(ResNet44().state_dict(), tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes((tmp_path / "a.pt").read_bytes())
    auto = identity()
    assert auto == identity("dataset.backbone=rcf")
    assert auto["content"]["sha256"] == Mnist.info(lookup("dataset", "mnist").settings()).sha256
    assert auto["content"]["backbone_revision"] == 2
    assert "weights" not in auto
    first, second = (
        identity("dataset.backbone=resnet44_cifar100", f"dataset.weights={tmp_path / name}")
        for name in ("a.pt", "b.pt")
    )
    assert first == second
    assert first["content"]["weights_sha256"] == digest(tmp_path / "a.pt").sha256
    assert str(tmp_path) not in str(first)
    different = [
        auto,
        first,
        identity("dataset.components=4"),
        identity("dataset.fit_records=9"),
        identity("dataset.backbone=pca", "dataset.components=4"),
    ]
    assert len({str(one) for one in different}) == len(different)


def test_info_looks_at_no_image_and_loads_no_weights(monkeypatch, tmp_path):
    def forbidden(*_):
        raise AssertionError

    monkeypatch.setattr(Mnist, "images", forbidden)
    monkeypatch.setattr(features, "read_weights", forbidden)
    torch.save({}, tmp_path / "weights.pt")
    assert MnistFeatures.info(
        settings(backbone="resnet44_cifar100", weights=str(tmp_path / "weights.pt"))
    ).feature_shape == (64,)
    assert MnistFeatures.info(settings(backbone="rcf", components=5)).feature_shape == (5,)
    assert not (cache_dir() / "features").exists()


# --- the cache ------------------------------------------------------------------------------------


def test_only_blocks_that_are_asked_for_are_computed_and_a_larger_subset_adds_to_them(looked):
    steps = Steps()

    def prepared(**values) -> int:
        return MnistFeatures.prepare(settings(fit_records=8, **values), steps.stage)

    # the private records 8.. are in blocks 1 and 2
    assert prepared(train_records=13, test_records=3) == 8 + 8 + 8
    assert steps.stages == [("features of mnist by pixels, blocks of images", 3)]
    assert steps.done == 3
    assert blocks(settings()) == ["test-0000.npz", "train-0001.npz", "train-0002.npz"]
    assert prepared(train_records=13, test_records=3) == 0
    assert len(steps.stages) == 1
    assert prepared(train_records=5, test_records=1) == 0
    looked.batches.clear()
    assert prepared(train_records=20, test_records=3) == 8
    data = MnistFeatures.load(settings(fit_records=8, train_records=20, test_records=3), 0)
    np.testing.assert_array_equal(data.train.features, PIXELS[8:28])
    assert looked.batches == [BATCH, BATCH]
    assert prepared(train_records=20, test_records=3, components=4) == 8


def test_a_last_batch_that_is_not_full_has_the_size_of_the_others(looked, monkeypatch):
    monkeypatch.setattr(features, "BLOCK", 30)
    data = MnistFeatures.load(settings(fit_records=0, train_records=7, test_records=1), 0)
    np.testing.assert_array_equal(data.train.features, PIXELS[:7])
    np.testing.assert_array_equal(looked_at(data).train.targets, ARRAYS[TRAIN_LABELS][:7])
    assert looked.batches == [BATCH] * (8 + 3)


def test_features_do_not_depend_on_threads(tmp_path, monkeypatch):
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            monkeypatch.setenv("DPFL_CACHE", str(tmp_path / str(threads)))
            loading.kept.cache_clear()
            found.append(MnistFeatures.load(settings(backbone="rcf"), 0).train.features)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: c[:-1],
        lambda c: c[:40] + bytes([c[40] ^ 1]) + c[41:],
        lambda c: b"",
        lambda c: c[:32],
    ],
)
def test_a_damaged_block_is_made_again_and_no_other(looked, damage, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("dpfl"), "propagate", True)
    values = settings(fit_records=0, test_records=8)
    MnistFeatures.prepare(values, Steps().stage)
    path = MnistFeatures.content(values) / "train-0002.npz"
    path.write_bytes(damage(path.read_bytes()))
    looked.batches.clear()
    data = MnistFeatures.load(values, 0)  # also without a visible step
    np.testing.assert_array_equal(data.train.features, PIXELS)
    assert sum(looked.batches) == BLOCK
    assert f"{path}: damaged" in caplog.text


def test_an_interruption_keeps_what_is_finished(looked, capsys, monkeypatch):
    looked.stop_after = 3
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # batches in order
    words = [
        "data",
        "features",
        "mnist_features",
        "dataset.backbone=pixels",
        "dataset.fit_records=0",
        "dataset.test_records=8",
    ]
    assert main(words) == 130
    assert (
        "interrupted; the same command goes on from the finished blocks" in capsys.readouterr().err
    )
    assert blocks(settings()) == ["train-0000.npz"]
    assert not list(MnistFeatures.content(settings()).glob(".*.npz*"))
    looked.stop_after = 10**9
    assert main(words) == 0
    assert f"{40 + 8 - 8} images looked at" in capsys.readouterr().out
    np.testing.assert_array_equal(
        MnistFeatures.load(settings(fit_records=0, test_records=8), 0).train.features, PIXELS
    )


def test_two_at_once_make_each_block_once(looked):
    values, made = settings(fit_records=0), []
    jobs = [
        threading.Thread(target=lambda: made.append(MnistFeatures.prepare(values, Steps().stage)))
        for _ in range(3)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(made) == 3
    assert sum(looked.batches) == 52
    np.testing.assert_array_equal(MnistFeatures.load(values, 0).train.features, PIXELS)


def test_another_base_another_fit_or_other_weights_have_a_cache_of_their_own(
    looked, tmp_path, monkeypatch
):
    folders = [
        MnistFeatures.content(settings()),
        MnistFeatures.content(settings(fit_records=3, components=2)),
    ]
    assert folders[0] == folders[1]  # principal components are taken of what is kept
    rcf = [MnistFeatures.content(settings(backbone="rcf", fit_records=count)) for count in (10, 11)]
    use(image_files(seed=5), tmp_path, monkeypatch)
    others = {*rcf, folders[0], MnistFeatures.content(settings())}
    assert len(others) == 4


def test_a_cache_that_cannot_be_written_is_said(looked, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(logging.getLogger("dpfl"), "propagate", True)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "file"))
    data = MnistFeatures.load(settings(), 0)
    np.testing.assert_array_equal(data.train.features, PIXELS[10:])
    assert "cannot be written" in caplog.text
    assert "set DPFL_CACHE to a folder that can" in caplog.text


# --- commands -------------------------------------------------------------------------------------


def test_the_command_says_what_it_did(capsys):
    words = [
        "data",
        "features",
        "mnist_features",
        "dataset.backbone=rcf",
        "dataset.fit_records=10",
        "dataset.train_records=6",
    ]
    assert main([*words, "dataset.components=3"]) == 0
    out = capsys.readouterr().out
    assert "mnist_features: rcf (stand-in), 3 values a record; 28 images looked at" in out
    assert str(cache_dir() / "features") in out
    assert main(words) == 0
    assert "nothing to compute" in capsys.readouterr().out
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_a_run_computes_what_is_missing_before_its_first_round(capsys):
    words = ["run", *RUN]
    assert main(words) == 0
    first = capsys.readouterr()
    assert "features of mnist by rcf, blocks of images: 7 done" in first.err
    assert "(stand-in)" in first.out
    assert main([*words, "seed=1"]) == 0
    assert "features of mnist" not in capsys.readouterr().err


class Started(Exception):
    pass


class Workers:
    """A backend that only says that it was asked to start."""

    workers, elsewhere = 2, None

    def start(self, assignments):
        raise Started


def test_a_grid_computes_them_in_the_parent_before_any_worker_starts(capsys):
    grid = [["seed=0"], ["seed=1"], ["dataset.components=4"], ["dataset.train_records=12"]]
    with pytest.raises(Started):
        execute_configs([compose_config([*RUN, *point]) for point in grid], Workers())
    assert capsys.readouterr().err.count("features of mnist by rcf, blocks of images: 7 done") == 1
    assert MnistFeatures.prepare(settings(backbone="rcf"), Steps().stage) == 0


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            {"backbone": "efficientnet"},
            "dataset.backbone=efficientnet: no such backbone; did you mean efficientnet_lite0?",
        ),
        ({"components": 0}, "dataset.components=0: input should be greater than or equal to 1"),
        (
            {"components": 10},
            "dataset.components=10: at most 9 for pixels fitted on 10 public records",
        ),
        ({"components": 3, "fit_records": 0}, "dataset.components=3: at most 0 for pixels"),
        (
            {"fit_records": 40},
            "dataset.fit_records=40: mnist has 40 training records; leave some to train on",
        ),
        (
            {"train_records": 31},
            "mnist has 30 of them, besides the first 10, which are public (dataset.fit_rec",
        ),
        ({"test_records": 13}, "dataset.test_records=13: mnist has 12 of them"),
        (
            {"backbone": "rcf", "fit_records": 0},
            "dataset.fit_records=0: dataset.backbone=rcf is fitted on public records",
        ),
        (
            {"weights": "x.pt"},
            "dataset.weights=x.pt: dataset.backbone=pixels takes no file of yours",
        ),
        (
            {"backbone": "resnet44_cifar100"},
            "dataset.backbone=resnet44_cifar100 needs the file of its weights",
        ),
        ({"backbone": "resnet44_cifar100", "weights": "/no/x.pt"}, "/no/x.pt: cannot be read"),
        ({"backbone": "efficientnet_lite0"}, "efficientnet_lite0: not found in"),
        (
            {"backbone": "resnet50_imagenet", "weights": __file__},
            "torchvision cannot be imported (absent); install the one that fits",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(looked, monkeypatch, values, says):
    def absent(name):
        raise ImportError("absent")

    monkeypatch.setattr(backbones, "import_module", absent)
    with pytest.raises((ConfigError, DataError)) as refused:
        MnistFeatures.info(
            parse_settings(
                FeatureSettings, {"backbone": "pixels", "fit_records": 10, **values}, "dataset"
            )
        )
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "words", [["mnist"], ["mnist_feature"], ["mnist_features", "dataset.components=x"], []]
)
def test_wrong_use_of_the_command_is_one_line(words, capsys):
    assert main(["data", "features", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_runs_on_other_features_of_the_same_images_are_kept_apart(looked, monkeypatch):
    """In one batch, or from one federation, a run would get the numbers of another backbone."""

    def doubled(weights, public):
        return lambda images: 2.0 * images.flatten(1) + images.flatten(1).flip(1)

    monkeypatch.setitem(BACKBONES, "doubled", Backbone("doubled", 1, None, doubled))
    plans = [
        make_plan(compose_config([*RUN, f"dataset.backbone={name}"]))
        for name in ("pixels", "doubled")
    ]
    assert plans[0].id != plans[1].id
    assert plans[0].info.sha256 == plans[1].info.sha256
    assert stack_key(plans[0]) != stack_key(plans[1])
    one, other = (federation_of(plan).dataset.train.features for plan in plans)
    assert one.shape == other.shape
    assert not np.allclose(one, other)


def test_batches_are_planned_from_labels_alone(looked, monkeypatch):
    labels = MnistFeatures.load(settings(), 0).train.targets
    looked.batches.clear()
    monkeypatch.setattr(Mnist, "images", lambda part: pytest.fail("images were read"))
    np.testing.assert_array_equal(
        MnistFeatures.load(settings(test_records=3), 0).train.targets, labels
    )
    words = [word for word in RUN if not word.startswith(("algorithm", "dp"))]
    config = compose_config(
        [
            *words,
            "algorithm=fedavg_record",
            "dp=record",
            "algorithm.batch_size=2",
            "dataset.backbone=pixels",
        ]
    )
    plan = make_plan(config)
    assert looked.batches == []
    assert plan.specs[0].rate == 2 / 6
