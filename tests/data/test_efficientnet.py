"""EfficientNet-Lite0 against plain modules with random weights, and its published weights on
photographs of known things.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.backbones import BACKBONES, EFFICIENTNET, as_images, network_input, read_weights
from dpfl_cli.data.networks import (
    PIXEL_MEAN,
    PIXEL_STD,
    efficientnet_lite0,
    frozen,
)
from dpfl_cli.data.sources import digest, locate

# arXiv 1905.11946, table 1: kernel, stride, expansion, channels, layers of the stages 2 to 8
TABLE = [
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
]


def random_norm(width: int, generator: torch.Generator) -> dict[str, Tensor]:
    draw = lambda: torch.rand(width, generator=generator)
    return {
        "weight": 0.5 + draw(),
        "bias": draw() - 0.5,
        "running_mean": draw() - 0.5,
        "running_var": 0.5 + draw(),
    }


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    """A state dict in the published form, written from the paper's table."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def convolution(name: str, norm: str, out: int, inside: int, kernel: int) -> None:
        fan = (inside * kernel * kernel) ** 0.5
        weights[f"{name}.weight"] = (
            torch.randn(out, inside, kernel, kernel, generator=generator) / fan
        )
        weights.update(
            {f"{norm}.{part}": value for part, value in random_norm(out, generator).items()}
        )
        weights[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    convolution("_conv_stem", "_bn0", 32, 3, 3)
    number, inside = 0, 32
    for kernel, _, expansion, out, layers in TABLE:
        for _ in range(layers):
            at = f"_blocks.{number}"
            if expansion > 1:
                convolution(f"{at}._expand_conv", f"{at}._bn0", expansion * inside, inside, 1)
            convolution(f"{at}._depthwise_conv", f"{at}._bn1", expansion * inside, 1, kernel)
            convolution(f"{at}._project_conv", f"{at}._bn2", out, expansion * inside, 1)
            number, inside = number + 1, out
    convolution("_conv_head", "_bn1", 1280, inside, 1)
    weights["_fc.weight"], weights["_fc.bias"] = (
        torch.randn(1000, 1280, generator=generator),
        torch.randn(1000, generator=generator),
    )
    return weights


def trained(weights: dict[str, Tensor]) -> int:
    return sum(
        value.numel()
        for name, value in weights.items()
        if "running" not in name and "num_batches" not in name
    )


class Same(nn.Conv2d):
    """A convolution that pads as TensorFlow's "same" does: output i sees the input from stride * i
    less what is padded before.
    """

    def forward(self, x: Tensor) -> Tensor:
        padding = []
        for n in (x.shape[3], x.shape[2]):
            outputs = -(-n // self.stride[0])
            total = max((outputs - 1) * self.stride[0] + self.kernel_size[0] - n, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(nn.functional.pad(x, padding))


def modules() -> Iterator[tuple[nn.Module, bool]]:
    """The network as plain modules, in order, and whether a module begins a block and ends it with
    a shortcut.
    """

    def step(
        inside: int, out: int, kernel: int, stride: int, groups: int = 1, active: bool = True
    ) -> list[nn.Module]:
        norm = nn.BatchNorm2d(out, eps=1e-3)
        return [
            Same(inside, out, kernel, stride, groups=groups, bias=False),
            norm,
            *([nn.ReLU6()] if active else []),
        ]

    yield nn.Sequential(*step(3, 32, 3, 2)), False
    inside = 32
    for kernel, first, expansion, out, layers in TABLE:
        for number in range(layers):
            stride, wide = first if number == 0 else 1, expansion * inside
            parts = [
                *(step(inside, wide, 1, 1) if expansion > 1 else []),
                *step(wide, wide, kernel, stride, wide),
            ]
            yield (
                nn.Sequential(*parts, *step(wide, out, 1, 1, active=False)),
                stride == 1 and inside == out,
            )
            inside = out
    yield nn.Sequential(*step(inside, 1280, 1, 1)), False


def test_the_network_is_the_published_one_and_folding_changes_nothing():
    weights = random_weights()
    assert trained(weights) == 4_652_008
    network = frozen(efficientnet_lite0(), "EfficientNet-Lite0", weights)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    values = iter([value for name, value in weights.items() if not name.startswith("_fc")])
    y = x
    with torch.inference_mode():
        for module, shortcut in modules():
            module.load_state_dict({name: next(values) for name in module.state_dict()})
            module.eval()
            y = module(y) + y if shortcut else module(y)
        expected = y.mean(dim=(2, 3))
        assert next(values, None) is None
        features = network[:-1](x)
        np.testing.assert_allclose(features.numpy(), expected.numpy(), rtol=1e-4, atol=1e-4)
        logits = expected @ weights["_fc.weight"].T + weights["_fc.bias"]
        np.testing.assert_allclose(network(x).numpy(), logits.numpy(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda w: w.pop("_bn0.bias"), 'Missing key.* "_bn0.bias"'),
        (
            lambda w: w.update({"_fc.bias": torch.zeros(10)}),
            r"size mismatch for _fc.bias: .*\[10\]",
        ),
        (
            lambda w: w.update({"_blocks.0._se_reduce.weight": torch.zeros(1)}),
            'Unexpected key.* "_blocks.0._se_reduce.weight"',
        ),
    ],
)
def test_other_weights_are_refused(change, says):
    weights = random_weights()
    change(weights)
    with pytest.raises(DataError, match=f"not those of EfficientNet-Lite0: {says}"):
        BACKBONES[EFFICIENTNET].build(weights, torch.empty(0))


@pytest.mark.parametrize("content", [b"", b"not weights", None])
def test_files_that_are_no_weights_are_refused_in_one_line(content, tmp_path):
    path = tmp_path / "weights.pth"
    if content is None:
        torch.save([1, 2], path)
    else:
        path.write_bytes(content)
    with pytest.raises(DataError, match=f"{path}: .*state dict"):
        read_weights(path)
    with pytest.raises(DataError, match="cannot be read"):
        read_weights(tmp_path / "absent.pth")


def test_weights_that_do_not_fit_into_memory_are_not_called_damaged(monkeypatch, tmp_path):
    def full(*args, **options):
        raise MemoryError

    torch.save({"a": torch.ones(1)}, tmp_path / "weights.pth")
    monkeypatch.setattr(torch, "load", full)
    with pytest.raises(MemoryError):
        read_weights(tmp_path / "weights.pth")


def test_grey_images_are_repeated_and_resized():
    grey = as_images(np.linspace(0, 1, 2 * 28 * 28, dtype=np.float32).reshape(2, 28, 28))
    x = network_input(grey, 224, [0.5] * 3, [0.25] * 3)
    assert x.shape == (2, 3, 224, 224)
    assert torch.equal(x[:, 0], x[:, 2])
    # half-pixel centres: output 4 k + 3.5 lies on input k, so the mean of the two around it is the
    #   pixel
    middle = (
        x[:, 0, 3::8, 3::8] + x[:, 0, 4::8, 4::8] + x[:, 0, 3::8, 4::8] + x[:, 0, 4::8, 3::8]
    ) / 4
    inner = slice(1, -1)
    np.testing.assert_allclose(
        middle[:, inner, inner], (grey[:, 0, inner, inner] - 0.5) / 0.25, atol=1e-4
    )
    colours = torch.rand(1, 3, 32, 32)
    assert torch.equal(network_input(colours, 32, [0.0] * 3, [1.0] * 3), colours)


# --- the published weights ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published() -> tuple[dict[str, Tensor], nn.Sequential]:
    try:
        path = next(iter(locate(EFFICIENTNET).values()))
    except DataError as error:
        pytest.skip(str(error))
    assert digest(path).sha256.startswith("57934424")
    weights = dict(read_weights(path))
    return weights, frozen(efficientnet_lite0(), "EfficientNet-Lite0", weights)


def photograph(name: str) -> Tensor:
    """The central square of a package's sample picture, [1, 3, 224, 224] in [0, 1]."""
    image = pytest.importorskip("PIL.Image")
    if name == "grace_hopper.jpg":
        import matplotlib.cbook

        path = matplotlib.cbook.get_sample_data(name, asfileobj=False)
    else:
        path = Path(pytest.importorskip("skimage").__file__).parent / "data" / name
    picture = image.open(path).convert("RGB")
    side = min(picture.size)
    left, top = ((length - side) // 2 for length in picture.size)
    square = picture.crop((left, top, left + side, top + side)).resize(
        (224, 224), image.Resampling.BICUBIC
    )
    return torch.from_numpy(np.array(square)).permute(2, 0, 1)[None] / 255


KNOWN = {  # classes of ILSVRC 2012 in their usual order
    "grace_hopper.jpg": {652},  # military uniform
    "coffee.png": {967},  # espresso
    "chelsea.png": {281, 282, 285},  # tabby, tiger cat, Egyptian cat: a tabby cat's face
}


@pytest.mark.data
def test_the_published_weights_have_the_published_size(published):
    assert trained(published[0]) == 4_652_008


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "least"), [("grace_hopper.jpg", 0.3), ("coffee.png", 0.8), ("chelsea.png", 0.8)]
)
def test_known_photographs_get_their_class(published, name, least):
    weights, network = published
    picture = photograph(name)
    with torch.inference_mode():
        features = BACKBONES[EFFICIENTNET].build(weights, torch.empty(0))(picture)
        chances = network[-1](features).softmax(dim=1)[0]
    assert features.shape == (1, 1280)
    assert int(chances.argmax()) in KNOWN[name]
    assert float(chances[list(KNOWN[name])].sum()) > least


@pytest.mark.data
def test_the_weights_expect_our_normalisation(published):
    """The stem's running variances are those of photographs normalised so, and not of photographs
    by torchvision's constants.
    """
    weights, _ = published

    def ratio(means: list[float], stds: list[float]) -> float:
        x = torch.cat([network_input(photograph(name), 224, means, stds) for name in KNOWN])
        out = nn.functional.conv2d(
            nn.functional.pad(x, (0, 1, 0, 1)), weights["_conv_stem.weight"], stride=2
        )
        return float((out.var(dim=(0, 2, 3)) / weights["_bn0.running_var"]).median())

    assert 0.5 < ratio([PIXEL_MEAN] * 3, [PIXEL_STD] * 3) < 2
    assert ratio([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]) > 2
