"""The five data sets, at the paper's sizes and smaller, and what runs on them share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import nan
from statistics import correlation

from dpfl_cli.papers.scaffnew import WORDS
from dpfl_cli.reproduction.api import Rows, Run, Scale, Values, Where

METHODS = {"ScaffNew": "algorithm=scaffnew", "FedAvg": "algorithm=fedavg_scheduled"}
EPSILONS = (0.5, 1.0, 2.0, 3.3)  # nominal
OF_NETWORKS = (0.5, 3.3)  # those of them that networks are run with
NONE = "none"  # the label of runs without noise
TASKS = tuple(WORDS)
IMAGES_AND_TEXT, HOSPITALS = TASKS[:3], TASKS[3:]  # groups 1 and 2 of Figure 5
CLIP_NORMS = dict.fromkeys(IMAGES_AND_TEXT, (10.0, 50.0, 100.0)) | dict.fromkeys(
    HOSPITALS, (10.0, 20.0, 50.0)
)
V = {  # 8 / m^2 for m records a client: 10,000; 6,129; 28,750; 151 (the mean of three); 300
    "cifar10": 8.0e-8,
    "femnist": 2.1297e-7,
    "reddit": 9.6786e-9,
    "ixi": 3.5087e-4,
    "messidor": 8.8889e-5,
}
ZERO_OUT = "dp=ldp dp.relation=zero_out"
WRONG_IF_CONSTANT = {"messidor": 45.0}  # test error (%) of who always answers the larger class

QUICK_TASKS = {
    "cifar10": "model=cnn_cifar_small model.channels=[8,16] dataset.test_records=1000 "
    "model.train_loss_records=100 algorithm.batch_size=8 algorithm.local_lr=0.05",
    "femnist": "model.channels=[8,16] model.hidden=null dataset.test_records=200 "
    "model.train_loss_records=100 algorithm.batch_size=8 algorithm.local_lr=0.1",
    "reddit": "model.embedding=32 model.hidden=32 dataset.vocabulary=200 dataset.test_records=400 "
    "model.train_loss_records=100 algorithm.batch_size=8 algorithm.local_lr=5.0",
    "ixi": "dataset.shape=[16,20,16] dataset.test_records=[8,5,3] model.train_loss_records=4 "
    "algorithm.batch_size=1 algorithm.local_lr=0.5",
    "messidor": "model=vgg11_small dataset.side=64 dataset.test_records=40 "
    "model.train_loss_records=20 algorithm.batch_size=4 algorithm.local_lr=0.05",
}
SMALL = {  # networks and data: all sizes are small
    "quick": QUICK_TASKS,
    "paper": {
        **QUICK_TASKS,
        "cifar10": "model=cnn_cifar_small model.train_loss_records=100 "
        "algorithm.batch_size=16 algorithm.local_lr=0.05",
        # lesions of 224 / 64
        "messidor": "model=vgg11_small model.width=2 model.init=unit dataset.side=64 "
        "dataset.lesion_size=3.5 model.train_loss_records=20 algorithm.batch_size=4 "
        "algorithm.local_lr=0.3",
    },
}


def noised(labels: Where, overrides: str, values: Values, v: float | None) -> Run:
    """A run with noise for its nominal epsilon, the label "eps" (or "tenth"), at clip norm "C", or
    10; without any where that is "none", or there is none.

    Args:
      v: of Lemma 1; None for noise that is proved for the epsilon.
    """
    eps = labels.get("eps", labels.get("tenth", NONE))
    if eps == NONE:
        return Run(labels, f"{overrides} dp=none", values)
    noise = "dp.calibration=zcdp" if v is None else f"dp.calibration=lemma1 dp.v={v}"
    words = f"{overrides} {ZERO_OUT} dp.delta=1e-5 dp.epsilon=1 {noise}"
    clip_norm = labels.get("C", 10.0)
    return Run(labels, words, {**values, "dp.epsilon": eps, "algorithm.clip_norm": clip_norm})


def on_task(scale: Scale, labels: Where, iterations: int) -> Run:
    """A run of the labels "task", "method", "eps", "tau" and perhaps "C"."""
    task, method = labels["task"], METHODS[labels["method"]]
    words = f"rounds={iterations} evaluation.every={iterations} {SMALL[scale][task]}"
    values = {"algorithm.local_steps": min(labels["tau"], iterations)}
    return noised(labels, f"+experiment=scaffnew/{task} {method} {words}", values, V[task])


def ascends(values: Iterable[float]) -> bool:
    """Whether every value is larger than the one before."""
    return all(low < high for low, high in pairwise(values))


def r_squared(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Of the least-squares line with intercept."""
    return nan if len(set(ys)) < 2 or len(xs) < 3 else correlation(xs, ys) ** 2


def fit_over_clip_norms(rows: Rows, measure: str, transform: Callable[[float], float]) -> float:
    """R^2 of the line of a measure in a function of the clip norm."""
    return r_squared([transform(one) for one in rows.places(measure)], rows.values(measure))


BY_OTHERS = "for every seed the inner number is that of the lowest mean error of the other seeds"
SAME_SEEDS = (
    "the best local steps are those of the lowest mean error over the seeds that judge them too"
)
OTHERS_CHOOSE = "the local steps of every seed chosen by the others"  # a reading
LARGEST = "of several equally good numbers of local steps the largest"  # another
SCAFFNEW_ALONE = {"DP-ScaffNew alone": {"method": "ScaffNew"}}  # another
BY_SEED = "a claim of shape, judged seed by seed, all of at least five"
TWO_MORE = (
    "with five seeds, 0 to 4: 3 and 4 were declared, before they were run, after a page whose "
    "three could decide no claim of shape, but had judged those with intervals"
)
NOTES = (
    "Noise by Lemma 1, sigma^2 = v C^2 R ln(1/delta) / epsilon^2 for R communications, with "
    "v = 8/m^2 fixed beforehand for clients of m records (m = 10,000; 6,129; 28,750; 151, the mean "
    "of unequal clients; 300); the paper gives no v. It is nominal: a client's message may change "
    "by C whatever m is, so what is really spent is the epsilon of the ledger.",
    "Curves without noise are not clipped either. Test errors are means over the clients' own test "
    "records, where the data say whose they are; of the Fed-IXI stand-in 100 - Dice.",
    "The paper's grid on CIFAR-10, 25 divisors of T = 10,000 on 13 curves of each of 2 methods in "
    "3 trials, is 19.5 million iterations of a run. With the paper's network and batch one takes "
    "2.5 ms on an H200 (18 runs side by side), so that it is 13.5 hours there; scaffnew/"
    "fig2_cifar10 has three numbers of local steps a curve of it, at C = 10 and two epsilons. The "
    "other data are stand-ins, and small.",
    "CIFAR-10 is the real data. The FEMNIST stand-in is made of MNIST and Fashion-MNIST, those of "
    "Reddit, Fed-IXI and Messidor are generated; with the real files, a Python file of one's own "
    "with dataset=femnist, reddit, fed_ixi or messidor takes their place.",
)
SMALLER: Mapping[Scale, str] = {
    "quick": "Networks are small and T is 20 to 80 times smaller than in the paper, so learning "
    "rates are larger (0.05, 0.1, 5, 0.5 and 0.05), the same for all methods and chosen on runs "
    "without noise. DP-ScaffNew without noise is at the edge of what it bears: its step must stay "
    "below 1/L where gradient descent bears 2/L. On the FEMNIST stand-in with 3 local steps it "
    "diverges for two of three other seeds. The hospitals have three numbers of local steps, of "
    "which one is inside, and on the Messidor stand-in nothing is learned in 20 iterations.",
    "paper": "Of CIFAR-10 and the stand-ins of FEMNIST, Reddit, Fed-IXI and Messidor, in this "
    "order: T is 500, 120, 120, 20 and 500, batches have 16, 8, 8, 1 and 4 records, and learning "
    "rates are 0.05, 0.1, 5, 0.5 and 0.3, larger than the paper's for T is smaller (but on "
    "Messidor), the same for all methods and (but Messidor's) chosen at quick on runs without "
    "noise. Networks are small, Reddit's an LSTM of width 32 on 200 words, Fed-IXI's volumes are "
    "of 16 x 20 x 16. Of the divisors of T some are tried, and of the paper's four nominal "
    "epsilons 0.5 and 3.3. DP-ScaffNew without noise is at the edge of what it bears: its step "
    "must stay below 1/L where gradient descent bears 2/L. On the FEMNIST stand-in with a few "
    "local steps some seeds learn nothing (c1_none_femnist).",
}
MESSIDOR: Mapping[Scale, str] = {
    "paper": "The Messidor stand-in has the paper's 300 + 100 records a hospital, T = 500 "
    "and batches of 4. Ours are images of side 64 whose lesions are as large in pixels as at 224 "
    "(dataset.lesion_size=3.5), a VGG-11 of 1/32 of the width (9,174 parameters), a learning rate "
    "of 0.3, and weights of variance 1 in layers that are multiplied by sqrt(2 / fan_in) "
    "(model.init=unit). All was chosen on other drawn data and other seeds, without noise and at "
    "nominal epsilon 3.3, C = 10. Of width 16 with PyTorch's or torchvision's initial values, "
    "logits of different images differ at the start by 0.00005 or 0.002, and with torchvision's "
    "nothing was learned in 100 iterations. Noise of R communications at nominal epsilon 3.3 and "
    "C = 10 adds up to a standard deviation of 0.056 R on every parameter of the average, while "
    "He's weights have 0.042 in a layer with 128 inputs. Of the seeds 0 to 4 of figures 2, 5 and "
    "10, seed 1 learns nothing; figure 9 has five others, which all learn."
}


def notes_of(tasks: Sequence[str]) -> list[str | Mapping[Scale, str]]:
    """Of a page of these data."""
    return [*NOTES, SMALLER, *([MESSIDOR] if "messidor" in tasks else [])]
