"""The example of the first page: damaged digits, recalled with a certificate."""

from __future__ import annotations

import numpy as np
import pytest

import hopfy


def test_corrupted_digits_are_recalled_with_a_certificate():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits

    digits, labels = load_digits(return_X_y=True)
    memory = hopfy.AssociativeMemory().fit(digits[:500], labels[:500])
    upper_half = np.arange(64) < 32
    damaged = np.where(upper_half, digits[:500], np.nan)  # the lower half is lost
    answer = memory.recall(damaged, mask=upper_half)

    assert np.array_equal(answer.patterns, digits[:500])  # every pixel is back
    assert answer.certified.all()  # and it is proven to be a fixed point
    assert np.array_equal(answer.values, labels[:500])
    assert repr(answer) == (
        "Recall of 500 queries, 500 certified\n  500 x one stored pattern, exactly"
    )
    assert "500 of 500 patterns are fixed points." in memory.explain()


def test_noisy_and_incomplete_digits_are_mostly_recalled():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    digits = load_digits(return_X_y=True)[0][:300].astype(np.float32)
    memory = hopfy.AssociativeMemory().fit(digits)
    generator = np.random.default_rng(0)
    noisy = digits + generator.normal(size=digits.shape)
    known = generator.random(digits.shape) < 0.5
    for answer in (memory.recall(noisy), memory.recall(noisy, known)):
        right = (answer.patterns == digits).all(1)
        assert right.mean() > 0.99
        assert answer.certified[right].all()
    # Zeros in place of what is missing mislead; `mask` is what makes the difference.
    misled = memory.recall(np.where(known, noisy, 0.0))
    assert (misled.patterns == digits).all(1).mean() < 0.8


def test_new_digits_are_classified_by_the_pattern_that_they_lead_to():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    digits, labels = load_digits(return_X_y=True)
    memory = hopfy.AssociativeMemory().fit(digits[:600], labels[:600])
    assert (memory.predict(digits[600:800]) == labels[600:800]).mean() > 0.9
