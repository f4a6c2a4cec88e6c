"""The networks behind the estimators, to build on: bags, rationales, and what they are made of.

`BagNetwork` embeds instances, pools each bag and classifies; `RationaleNetwork` reads words, selects
some of them and predicts from these. Every part can be replaced by a module of your own.

>>> import torch
>>> from hopfy.estimators.networks import BagNetwork, hopfield_pooling, mlp
>>> network = BagNetwork(mlp((5,), 8), hopfield_pooling(8, omega="2-subsets"), torch.nn.Linear(8, 1))
"""

from hopfy.estimators._bag_network import (
    BagNetwork,
    ConvReluPool,
    GatedAttentionPooling,
    MaxPooling,
    MeanPooling,
    cnn,
    hopfield_pooling,
    mlp,
)
from hopfy.estimators._rationale_network import (
    BiLSTM,
    RationaleModule,
    RationaleNetwork,
    RationaleOptions,
    ShareOfWords,
    Temperature,
    WordPooling,
    build_network,
    words_to_select,
)
from hopfy.estimators._rationalizers import (
    FusedWords,
    HardKumaNetwork,
    MaskingNetwork,
    MeanOfWords,
    SpectraNetwork,
)

__all__ = [
    "BagNetwork",
    "BiLSTM",
    "ConvReluPool",
    "FusedWords",
    "GatedAttentionPooling",
    "HardKumaNetwork",
    "MaskingNetwork",
    "MaxPooling",
    "MeanOfWords",
    "MeanPooling",
    "RationaleModule",
    "RationaleNetwork",
    "RationaleOptions",
    "ShareOfWords",
    "SpectraNetwork",
    "Temperature",
    "WordPooling",
    "build_network",
    "cnn",
    "hopfield_pooling",
    "mlp",
    "words_to_select",
]
