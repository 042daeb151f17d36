"""Prepare inputs: channels first, and each channel or column shifted and scaled by the statistics of the training rows."""

from __future__ import annotations

import dataclasses

import torch

from fedaccord.tasks.examples import Examples


def channels_first(rows: Examples) -> Examples:
    """Inputs as [n, channels, height, width]: a channel is added to [n, h, w], and [n, h, w, 1 or 3 or 4] is turned round."""
    x = rows.x
    if x.ndim == 3:
        x = x.unsqueeze(1)
    elif x.ndim == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        x = x.movedim(-1, 1).contiguous()
    return dataclasses.replace(rows, x=x)


def normalised(train: Examples, *others: Examples) -> tuple[Examples, ...]:
    """(x - mean) / std, where mean and std are those of `train` alone.

    One of each a channel for pictures [n, c, h, w] and signals [n, c, t], one a column for tables [n, columns].
    """
    axes = (0, *range(2, train.x.ndim))
    first = _floats(train)
    mean = first.mean(axes, keepdim=True)
    std = first.std(axes, keepdim=True, correction=0)
    std = torch.where(std > 0, std, 1.0)
    return tuple(dataclasses.replace(rows, x=_floats(rows).sub(mean).div_(std)) for rows in (train, *others))


def _floats(rows: Examples) -> torch.Tensor:
    return rows.x.float() / 255 if rows.x.dtype == torch.uint8 else rows.x.float()
