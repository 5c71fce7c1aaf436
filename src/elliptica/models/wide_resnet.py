"""Wide residual networks for small images, WRN-28-10 among them (paper: Tables 1 and 2)."""

from __future__ import annotations

from collections import OrderedDict

from jaxtyping import Float
from torch import Tensor, nn

from elliptica.models.mlp import require_positive

_STEM = 16


def wide_resnet(
    num_classes: int,
    *,
    depth: int = 28,
    widen: int = 10,
    in_channels: int = 3,
) -> nn.Sequential:
    """Build a wide ResNet that maps images to logits ``(batch, num_classes)``; WRN-28-10 by default.

    A 3x3 convolution to 16 channels, three stages of pre-activated blocks with ``widen`` times 16, 32, 64
    channels at strides 1, 2, 2, batch norm, ReLU, the mean over all pixels, and a linear layer.

    As in the pipeline the paper follows, and unlike the original: no dropout, convolutions have biases, the
    *second* convolution of a block strides, shortcuts take the raw input, and the running statistics of
    the last batch norm have momentum 0.9, so they are nearly those of the last batch. Images of 32x32
    reach the mean at 8x8, where it is that pipeline's 8x8 average pooling; other sizes also work.

    Args:
        num_classes: Number of logits.
        depth: Convolutions in the main path and the last layer: 6 k + 4 for k blocks per stage.
        widen: Factor of the channels; 1 is a thin network for tests.
        in_channels: Channels of the images, 3 for colour and 1 for grey.

    Returns:
        Named parts ``stem, stage1, stage2, stage3, norm, relu, pool, flatten, head``, in order.

    Raises:
        ValueError: If the depth is not of the form 6 k + 4, or a size is not positive.

    Example:
        >>> import torch
        >>> with torch.device("meta"):
        ...     net = wide_resnet(10)
        >>> sum(p.numel() for p in net.parameters())
        36489290
    """
    require_positive(num_classes=num_classes, widen=widen, in_channels=in_channels)
    if depth < 10 or (depth - 4) % 6:
        raise ValueError(
            f"depth must be 6 k + 4 with k >= 1 blocks per stage (10, 16, 22, 28, ...), but got {depth}. "
            "The paper's network has 28."
        )
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    parts["stem"] = nn.Conv2d(in_channels, _STEM, kernel_size=3, padding=1)
    n_in = _STEM
    for i in range(3):
        width = _STEM * widen * 2**i
        blocks = []
        for j in range((depth - 4) // 6):
            blocks.append(_WideBlock(n_in, width, stride=2 if i > 0 and j == 0 else 1))
            n_in = width
        parts[f"stage{i + 1}"] = nn.Sequential(*blocks)
    parts["norm"] = nn.BatchNorm2d(n_in, momentum=0.9)
    parts["relu"] = nn.ReLU()
    parts["pool"] = nn.AdaptiveAvgPool2d(1)
    parts["flatten"] = nn.Flatten()
    parts["head"] = nn.Linear(n_in, num_classes)
    return nn.Sequential(parts)


class _WideBlock(nn.Module):
    """``shortcut(x) + residual(x)``; the shortcut is a strided 1x1 convolution where the shape changes."""

    def __init__(self, n_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.BatchNorm2d(n_in),
            nn.ReLU(),
            nn.Conv2d(n_in, width, kernel_size=3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1),
        )
        keeps_shape = stride == 1 and n_in == width
        self.project = None if keeps_shape else nn.Conv2d(n_in, width, kernel_size=1, stride=stride)

    def forward(
        self, x: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch channel_out height_out width_out"]:
        """Apply the block."""
        shortcut: Tensor = x if self.project is None else self.project(x)
        residual: Tensor = self.residual(x)
        return shortcut + residual
