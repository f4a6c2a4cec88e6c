"""The explorer: maps, memories, digits, attention and rationales to play with, in the browser.

``hopfy explore`` starts it; `explore` does the same from Python. Needs ``hopfy[explore]``.
"""

from __future__ import annotations

from hopfy.app._model_files import rationale_model, sentence_model
from hopfy.app._sentence_model import Reading, SentenceModel

__all__ = ["Reading", "SentenceModel", "explore", "rationale_model", "sentence_model"]


def explore(*, port: int = 5006, browser: bool = True) -> None:
    """Serve the explorer on this machine until it is stopped.

    Args:
        port: of localhost; another one is taken if it is in use.
        browser: whether to open the page.
    """
    try:
        from hopfy.app._server import serve
    except ModuleNotFoundError as missing:
        raise ImportError(
            f"hopfy explore needs {missing.name}: pip install 'hopfy[explore]'"
        ) from None
    serve(port=port, browser=browser)
