"""Triton kernels of the max-pool of ResNet (3 x 3, stride 2, padding 1), as torch operators. GPU only; see `max_pool`.

The forward pass stores for each output, in one byte, which of its nine inputs was the maximum. The backward pass works
on 2 x 2 blocks of inputs, which share the same four windows, so every gradient is gathered: no atomics, deterministic.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def locate(H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The outputs of this program: their positions in [B, H / 2, W / 2, C], and the same as (b, i, j, c)."""
    first = tl.program_id(0)
    if WIDE:  # otherwise 32 bits are enough, and division is several times faster
        first = first.to(tl.int64)
    place = first * BLOCK + tl.arange(0, BLOCK)
    pixel = place // C
    row = pixel // (W // 2)
    return place, row // (H // 2), row % (H // 2), pixel % (W // 2), place % C


@triton.jit  # type: ignore[untyped-decorator]
def forward(  # type: ignore[no-untyped-def]
    x, y, argmax, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """x [B, H, W, C] -> y [B, H / 2, W / 2, C], and which of its nine inputs each one is (uint8)."""
    place, b, i, j, c = locate(H, W, C, BLOCK, WIDE)
    inside = place < total
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    which = tl.zeros([BLOCK], tl.int32)
    for k in tl.static_range(9):
        h, w = 2 * i - 1 + k // 3, 2 * j - 1 + k % 3
        there = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        value = tl.load(x + ((b * H + h) * W + w) * C + c, there, float("-inf")).to(tl.float32)
        better = there & ((value > best) | (value != value))  # NaN is the maximum, as in torch
        best, which = tl.where(better, value, best), tl.where(better, k, which)
    tl.store(y + place, best, inside)
    tl.store(argmax + place, which.to(tl.uint8), inside)


@triton.jit  # type: ignore[untyped-decorator]
def backward(  # type: ignore[no-untyped-def]
    grad, argmax, out, total, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    """Gradient of y and the argmax -> gradient of x; each lane computes a 2 x 2 block of x."""
    place, b, i, j, c = locate(H, W, C, BLOCK, WIDE)
    inside = place < total
    right, down = inside & (j + 1 < W // 2), inside & (i + 1 < H // 2)
    line = W // 2 * C
    g00, k00 = tl.load(grad + place, inside, 0.0), tl.load(argmax + place, inside, 9)
    g01, k01 = tl.load(grad + place + C, right, 0.0), tl.load(argmax + place + C, right, 9)
    g10, k10 = tl.load(grad + place + line, down, 0.0), tl.load(argmax + place + line, down, 9)
    corner = place + line + C
    g11, k11 = tl.load(grad + corner, right & down, 0.0), tl.load(argmax + corner, right & down, 9)
    zero = tl.zeros([BLOCK], tl.float32)
    a00, a01, a10, a11 = g00.to(tl.float32), g01.to(tl.float32), g10.to(tl.float32), g11.to(tl.float32)
    top = out + ((b * H + 2 * i) * W + 2 * j) * C + c
    low = top + W * C
    tl.store(top, tl.where(k00 == 4, a00, zero), inside)
    tl.store(top + C, tl.where(k00 == 5, a00, zero) + tl.where(k01 == 3, a01, zero), inside)
    tl.store(low, tl.where(k00 == 7, a00, zero) + tl.where(k10 == 1, a10, zero), inside)
    both = tl.where(k00 == 8, a00, zero) + tl.where(k01 == 6, a01, zero)
    both += tl.where(k10 == 2, a10, zero) + tl.where(k11 == 0, a11, zero)
    tl.store(low + C, both, inside)


def launch(kernel: Any, *tensors: Tensor, like: Tensor) -> None:
    """Launch a kernel over all outputs of pooling ``like`` [B, C, H, W]."""
    _, channels, height, width = like.shape
    total = like.numel() // 4
    kernel[(triton.cdiv(total, BLOCK),)](*tensors, total, height, width, channels, BLOCK, like.numel() >= 2**31)


@torch.library.custom_op("complementary::max_pool", mutates_args=())
def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """[B, C, H, W] -> pooled [B, C, H / 2, W / 2] and the argmax, uint8, same shape."""
    x = x.contiguous(memory_format=torch.channels_last)
    y, argmax = pool_shapes(x)
    launch(forward, x, y, argmax, like=x)
    return y, argmax


@pool.register_fake
def pool_shapes(x: Tensor) -> tuple[Tensor, Tensor]:
    """Empty results of `pool`."""
    size = (x.shape[0], x.shape[1], x.shape[2] // 2, x.shape[3] // 2)
    y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    return y, torch.empty(size, dtype=torch.uint8, device=x.device, memory_format=torch.channels_last)


@torch.library.custom_op("complementary::max_pool_backward", mutates_args=())
def unpool(grad: Tensor, argmax: Tensor) -> Tensor:
    """Gradient of the pooled [B, C, H / 2, W / 2] and the argmax -> gradient of the input [B, C, H, W]."""
    grad = grad.contiguous(memory_format=torch.channels_last)
    out: Tensor = unpool_shape(grad, argmax)
    launch(backward, grad, argmax, out, like=out)
    return out


@unpool.register_fake
def unpool_shape(grad: Tensor, argmax: Tensor) -> Tensor:
    """Empty result of `unpool`."""
    size = (grad.shape[0], grad.shape[1], 2 * grad.shape[2], 2 * grad.shape[3])
    return torch.empty(size, dtype=grad.dtype, device=grad.device, memory_format=torch.channels_last)


def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    """Save what the backward pass needs: the argmax."""
    ctx.save_for_backward(output[1])


def differentiate(ctx: Any, grad: Tensor, _: Any) -> Tensor:
    """The gradient of the input."""
    result: Tensor = torch.ops.complementary.max_pool_backward(grad, *ctx.saved_tensors)
    return result


pool.register_autograd(differentiate, setup_context=setup_context)
