"""The layers that the sweep's convolutions are drawn from (`bench sweep --family bsr_conv`): those of known
models at the extents where they have them, and odd ones. None has one tap: sparsify_ makes a linear layer of
such a convolution (BlockSparseConv1x1), and the sweep of linear layers draws those."""

from __future__ import annotations

from typing import NamedTuple

from sparseloom.ops.conv.product import Window


class Convolution(NamedTuple):
    """A convolution of k to n channels, of one image of ``extents``. Each is listed once, whichever models
    share it; an image takes at most 11 GFLOP where it is dense, so that a CPU can be timed with it."""

    models: str
    k: int
    n: int
    extents: tuple[int, ...]
    window: Window


def _conv(
    models: str,
    k: int,
    n: int,
    extents: tuple[int, ...],
    kernel: int | tuple[int, ...],
    stride: int = 1,
    dilation: int = 1,
    padding: tuple[int, ...] | None = None,
) -> Convolution:
    """Makes one; without ``padding``, of the zeros that keep the extents of stride 1."""
    taps = (kernel,) * len(extents) if isinstance(kernel, int) else kernel
    zeros = tuple(dilation * (each // 2) for each in taps) if padding is None else padding
    steps, reach = ((each,) * len(extents) for each in (stride, dilation))
    return Convolution(models, k, n, extents, Window(taps, steps, zeros, reach))


#: Encoders and classifiers of images; the first layers, of three channels, are not for blocks.
_IMAGES = (
    _conv("ResNet-50: 3 x 3, stage 1", 64, 64, (56, 56), 3),
    _conv("ResNet-50: 3 x 3 into stage 2", 128, 128, (56, 56), 3, 2),
    _conv("ResNet-50: 3 x 3, stage 2", 128, 128, (28, 28), 3),
    _conv("ResNet-50: 3 x 3 into stage 3", 256, 256, (28, 28), 3, 2),
    _conv("ResNet-50: 3 x 3, stage 3", 256, 256, (14, 14), 3),
    _conv("ResNet-50: 3 x 3 into stage 4", 512, 512, (14, 14), 3, 2),
    _conv("ResNet-50: 3 x 3, stage 4", 512, 512, (7, 7), 3),
    _conv("AlexNet: second layer", 64, 192, (27, 27), 5),
    _conv("Inception v3: 1 x 7", 192, 192, (17, 17), (1, 7)),
    _conv("Inception v3: 7 x 1", 192, 192, (17, 17), (7, 1)),
    _conv("OpenPose: 7 x 7", 128, 128, (46, 46), 7),
    _conv("DeepLab v3: 3 x 3 of dilation 12", 2048, 256, (33, 33), 3, dilation=12),
    _conv("DeepLab v3: stage 4 of dilation 2", 512, 512, (33, 33), 3, dilation=2),
    _conv("ResNet3D-18: layer 2", 128, 128, (8, 28, 28), 3),
    _conv("ResNet3D-18: into layer 3", 128, 256, (8, 28, 28), 3, 2),
)
#: Generators of images, pixel by pixel or by noise. PixelCNN++ pads above and at both sides beforehand.
_GENERATORS = (
    _conv("PixelCNN++: down", 160, 160, (33, 34), (2, 3), padding=(0, 0)),
    _conv("PixelCNN++: gated, down and right", 320, 320, (33, 33), (2, 2), padding=(0, 0)),
    _conv("gated PixelCNN: vertical stack", 128, 256, (32, 32), (3, 5)),
    _conv("U-Net of 256 x 256: first level", 64, 64, (256, 256), 3),
    _conv("U-Net of 256 x 256: second level, up", 256, 128, (128, 128), 3),
    _conv("U-Net of 256 x 256: fourth level", 512, 512, (32, 32), 3),
    _conv("Stable Diffusion: first level", 320, 320, (64, 64), 3),
    _conv("Stable Diffusion: first level, down", 320, 320, (64, 64), 3, 2),
    _conv("Stable Diffusion: second level", 640, 640, (32, 32), 3),
    _conv("Stable Diffusion: third level", 1280, 1280, (16, 16), 3),
    _conv("Stable Diffusion: lowest level, up", 2560, 1280, (8, 8), 3),
)
_AUDIO = (
    _conv("Whisper base: second layer", 512, 512, (3000,), 3, 2),
    _conv("wav2vec 2.0: third layer of a second", 512, 512, (1599,), 3, 2, padding=(0,)),
    _conv("wav2vec 2.0: sixth layer of ten seconds", 512, 512, (1999,), 2, 2, padding=(0,)),
    _conv("HiFi-GAN: 7 taps of dilation 3", 256, 256, (256,), 7, dilation=3),
    _conv("HiFi-GAN: 3 taps of dilation 5", 128, 128, (2048,), 3, dilation=5),
)
_RAGGED = (
    _conv("ragged", 100, 200, (20, 20), 3),
    _conv("ragged", 90, 70, (25, 24), 5, 2),
    _conv("ragged", 130, 250, (19, 17), 3, 2, 2),
    _conv("ragged", 70, 150, (1001,), 7, 2),
)
CONVOLUTIONS = (*_IMAGES, *_GENERATORS, *_AUDIO, *_RAGGED)
