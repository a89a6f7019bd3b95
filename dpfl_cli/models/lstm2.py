"""The two-layer LSTM of arXiv 2304.05127 on Reddit: embedding, LSTM, and a linear layer that
predicts the next token.

Reference: LEAF's model of Reddit (Caldas et al. 2018, arXiv 1812.01097), without dropout, and with
  PyTorch's initial values.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfl_cli.config.component import Count, component
from dpfl_cli.data.federation import DatasetInfo, Records
from dpfl_cli.data.leaf_reddit import IGNORED, UNK
from dpfl_cli.models.client_mean import ClientMeanNetwork, ClientMeanSettings
from dpfl_cli.models.objective import ByName, misfit

LAYERS = 2


class Lstm2Settings(ClientMeanSettings):
    """Size of a token's vector, and of each layer's state."""

    embedding: Count
    hidden: Count


class PlainLstm(nn.LSTM):
    """PyTorch's LSTM, computed by operations that `torch.func.vmap` knows, from a state of zeros;
    batch first.
    """

    def forward(self, inputs: Tensor) -> Tensor:  # type: ignore[override]
        """[n, t, hidden] outputs of the last layer, from inputs [n, t, p]."""
        for into, over, bias, bias_over in self.all_weights:
            gates = functional.linear(inputs, into, bias + bias_over)
            state = cell = inputs.new_zeros(len(inputs), self.hidden_size)
            outputs = []
            for step in gates.unbind(1):
                enter, forget, content, leave = (step + state @ over.T).chunk(4, dim=1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(content)
                state = torch.sigmoid(leave) * torch.tanh(cell)
                outputs.append(state)
            inputs = torch.stack(outputs, dim=1)
        return inputs


@component("model", "lstm2", Lstm2Settings, revision=2)
class Lstm2(ClientMeanNetwork):
    """Two-layer LSTM that predicts the next token; cross-entropy, mean over a sequence's positions
    that count.

    Accuracy: the share of the positions that count at which the likeliest token is the next one, in
    percent; predicting <PAD> or <UNK> is always wrong (LEAF). It and `test_loss` are means over
    positions, of a client's test records or of all.
    """

    @classmethod
    def network(cls, settings: Lstm2Settings, info: DatasetInfo) -> nn.Module:
        vocabulary = info.details.get("vocabulary")
        if vocabulary is None:
            needs = "sequences of tokens of a vocabulary"
            raise misfit("lstm2", needs, info, "dataset=reddit, reddit_synth,")
        # its own initial values, which nobody uses, take seconds to count: they import a compiler
        empty = torch.empty(vocabulary, settings.embedding)
        return nn.Sequential(
            nn.Embedding.from_pretrained(empty, freeze=False),
            PlainLstm(settings.embedding, settings.hidden, LAYERS, batch_first=True),
            nn.Linear(settings.hidden, vocabulary),
        )

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """[n] mean cross-entropy of logits [n, t, V] over the positions whose target [n, t] counts;
        0 where none does.
        """
        each = functional.cross_entropy(
            outputs.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none"
        )
        return each.sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp(min=1)

    def scores(self, outputs: Tensor, targets: Tensor) -> ByName:
        predicted = outputs.argmax(dim=2)
        right = (predicted == targets) & (predicted > UNK)
        accuracy = 100.0 * right.sum(dim=1) / (targets != IGNORED).sum(dim=1).clamp(min=1)
        return {
            "accuracy": accuracy,
            "test_error": 100.0 - accuracy,
            "test_loss": self.losses(outputs, targets),
        }

    def test_sizes(self, tests: Records) -> np.ndarray:
        """[N] number of positions that count."""
        return (tests.targets != IGNORED).sum(axis=1).astype(float)
