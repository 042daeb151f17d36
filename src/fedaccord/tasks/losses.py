"""Losses that torch does not have in the form (outputs, y) -> mean over the batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error. A y of shape [B] meets outputs of shape [B, 1] row by row (torch's own would broadcast to [B, B])."""
    return F.mse_loss(outputs, y.reshape(outputs.shape))


def overlap_and_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary segmentation: cross-entropy plus one minus the soft Dice of each image (Milletari et al. 2016, arXiv:1606.04797).

    outputs [B, 1, H, W] logits, y the same shape (or [B, H, W]) of 0 and 1. One pixel is added to both sides of Dice's fraction, so
    that an image without foreground has a gradient and no division by zero.
    """
    y = y.reshape(outputs.shape).to(outputs.dtype)
    foreground = outputs.sigmoid().flatten(1)  # [B, pixels]
    mask = y.flatten(1)
    overlap = (2 * (foreground * mask).sum(1) + 1) / (foreground.sum(1) + mask.sum(1) + 1)
    return F.binary_cross_entropy_with_logits(outputs, y) + (1 - overlap).mean()
