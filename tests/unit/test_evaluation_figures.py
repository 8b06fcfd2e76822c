"""Losses and divergences of rows of logits, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from mixplan.runtime.evaluation.distributions import divergence, token_losses


def _log_softmax(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide - np.log(np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True)) - wide.max(-1, keepdims=True)


@pytest.mark.parametrize("rows", [2, 4, 5, 37])
def test_the_definitions(rows: int) -> None:
    rng = np.random.default_rng(rows)
    a, b = (rng.normal(0, 4, (rows, 300)).astype(np.float32) for _ in range(2))
    b[: rows // 2] = a[: rows // 2]
    ids = rng.integers(0, 300, rows)
    p, q = _log_softmax(a), _log_softmax(b)
    found = divergence(b, a, ids)
    np.testing.assert_allclose(found.kld, (np.exp(p) * (p - q)).sum(-1), rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(found.same_top, a.argmax(-1) == b.argmax(-1))
    np.testing.assert_allclose(found.loss, -q[np.arange(rows - 1), ids[1:]], rtol=1e-12)
    np.testing.assert_allclose(found.reference_loss, -p[np.arange(rows - 1), ids[1:]], rtol=1e-12)
    np.testing.assert_array_equal(token_losses(b[:-1], ids[1:]), found.loss)


def test_a_shift_of_the_logits_changes_nothing() -> None:
    """So a reference may give logits or log-probabilities."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(0, 3, (6, 50)).astype(np.float32) for _ in range(2))
    ids = np.arange(6)
    plain = divergence(b, a, ids)
    shifted = divergence(b + np.float32(1024), _log_softmax(a).astype(np.float32), ids)
    np.testing.assert_allclose(shifted.kld, plain.kld, atol=2e-4)
    assert divergence(a, a, ids).kld.max() == 0 and plain.kld.min() > 0


def test_what_is_excluded_and_what_is_not_finite() -> None:
    a = np.zeros((5, 4), np.float32)
    b = np.zeros((5, 4), np.float32)
    a[0, 0] = b[0, 0] = -np.inf  # impossible for both: nothing to tell apart
    a[1, 0] = -np.inf  # for the reference alone: finite
    b[2, 0] = -np.inf  # for the plan alone
    b[3, 0] = np.nan
    b[4, 0] = np.inf
    found = divergence(b, a, np.array([0, 1, 0, 0, 0]))
    assert found.kld[0] == 0 and found.kld[1] == pytest.approx(np.log(4 / 3))
    assert np.isinf(found.kld[2:]).all()
    assert found.same_top.tolist() == [True, False, False, False, False]
    assert np.isinf(found.loss[2]) and np.isinf(found.loss[3]) and np.isfinite(found.loss[:2]).all()
