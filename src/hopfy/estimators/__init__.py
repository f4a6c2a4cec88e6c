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
