"""Estimators in the manner of scikit-learn: ``fit``, ``predict``, ``score``, ``get_params``.

Needs scikit-learn and skorch (``pip install 'hopfy[sklearn]'``), and is therefore not imported by
``import hopfy``.
"""

try:
    import skorch as _skorch  # noqa: F401
except ImportError:
    raise ImportError(
        "hopfy.estimators needs scikit-learn, skorch and tqdm: pip install 'hopfy[sklearn]'."
    ) from None

from hopfy._warnings import NoKnownWordsWarning
from hopfy.estimators._bags import Bags
from hopfy.estimators._faithfulness import Faithfulness, faithfulness
from hopfy.estimators._highlight import Overlap, Rationale, Rationales
from hopfy.estimators._mil import MILClassifier
from hopfy.estimators._on_instances import OnInstances
from hopfy.estimators._rationale import RationaleClassifier, RationaleRegressor
from hopfy.estimators._rationale_network import RationaleModule, RationaleNetwork, RationaleOptions
from hopfy.estimators._settings import Selection, Words
from hopfy.estimators._text import Text, as_texts, tokenize
from hopfy.estimators._training import ExponentialDecay, ReduceOnPlateau, Training
from hopfy.estimators._vectors import WordVectors

__all__ = [
    "Bags",
    "ExponentialDecay",
    "Faithfulness",
    "MILClassifier",
    "NoKnownWordsWarning",
    "OnInstances",
    "Overlap",
    "Rationale",
    "RationaleClassifier",
    "RationaleModule",
    "RationaleNetwork",
    "RationaleOptions",
    "RationaleRegressor",
    "Rationales",
    "ReduceOnPlateau",
    "Selection",
    "Text",
    "Training",
    "WordVectors",
    "Words",
    "as_texts",
    "faithfulness",
    "tokenize",
]
