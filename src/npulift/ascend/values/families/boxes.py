"""Detection: non-maximum suppression, overlaps of boxes, ROI align, coding of boxes.

Sources: documentation of torch_npu (npu_nms_v4, npu_nms_with_mask, npu_iou, npu_giou, npu_roi_align, npu_bounding_box_encode and decode).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from npulift.ascend.values.gradient import gradients
from npulift.ascend.values.registry import gives

Tensor = torch.Tensor


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def overlaps(a: Tensor, b: Tensor, of_first: bool = False) -> Tensor:
    """(len(a), len(b)): intersection over union of boxes x0, y0, x1, y1, or over the area of a."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:4], b[None, :, 2:4])
    common = (high - low).clamp(min=0).prod(-1)
    area_a, area_b = ((x[:, 2:4] - x[:, :2]).prod(-1) for x in (a, b))
    base = area_a[:, None] if of_first else area_a[:, None] + area_b[None] - common
    return common / base.clamp(min=torch.finfo(torch.float32).tiny)


def suppress(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    """Boxes that stay, best first: each next one that overlaps none that stays by more than the threshold."""
    order = scores.argsort(descending=True, stable=True).tolist()
    table = overlaps(boxes.float(), boxes.float())
    kept: list[int] = []
    for index in order:
        if all(float(table[index, other]) <= threshold for other in kept):
            kept.append(index)
    return kept


@gives("npu::npu_nms_v4")
def npu_nms_v4(
    input: Tensor, scores: Tensor, max_output_size: float, iou_threshold: Tensor, scores_threshold: Tensor, pad_to_max_output_size: bool = False,
) -> tuple[Tensor, Tensor]:
    """(indices of the boxes that stay, how many); padded with 0 to max_output_size where asked for."""
    candidates = (scores > float(scores_threshold)).nonzero().flatten()
    kept = suppress(input[candidates], scores[candidates].float(), float(iou_threshold))[: int(max_output_size)]
    found = candidates[kept].int()
    count = torch.tensor(found.numel(), dtype=torch.int32)
    if pad_to_max_output_size:
        found = torch.cat((found, found.new_zeros(int(max_output_size) - found.numel())))
    return found, count


@gives("npu::npu_nms_with_mask")
def npu_nms_with_mask(input: Tensor, iou_threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Boxes (n, 5) with their score, best first already: (boxes, their numbers, 1 where a box stays)."""
    kept = suppress(input[:, :4], -torch.arange(input.shape[0]).float(), float(iou_threshold))
    mask = torch.zeros(input.shape[0], dtype=torch.uint8)
    mask[kept] = 1
    return input.clone(), torch.arange(input.shape[0], dtype=torch.int32), mask


@gives("npu::npu_iou")
def npu_iou(bboxes: Tensor, gtboxes: Tensor, mode: int = 0) -> Tensor:
    """(gtboxes, bboxes): intersection over union (mode 0) or over the area of the ground truth (1)."""
    return overlaps(gtboxes.float(), bboxes.float(), of_first=mode == 1).to(bboxes.dtype)


def _corners(x: Tensor, trans: bool) -> Tensor:
    """(4, n) to (n, 4) with corners; trans: centre and size are given."""
    x = x.t()
    if not trans:
        return x
    return torch.cat((x[:, :2] - x[:, 2:] / 2, x[:, :2] + x[:, 2:] / 2), -1)


def _giou(a: Tensor, b: Tensor, trans: bool, mode: int) -> Tensor:
    a, b = _corners(a, trans), _corners(b, trans)
    low, high = torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(-1), (b[:, 2:] - b[:, :2]).prod(-1)
    union = area_a + area_b - common
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(-1)
    ratio = common / (area_b if mode == 1 else union)
    return ratio - (hull - union) / hull


@gives("npu::npu_giou")
def npu_giou(input: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> Tensor:
    """Generalised overlap of box i with ground truth i; (4, n) each, (n, 1) out."""
    if is_cross:
        raise NotImplementedError("npu_giou with is_cross")
    return _giou(_wide(input), _wide(gtboxes), trans, mode).unsqueeze(-1).to(input.dtype)


@gives("npu::npu_giou_backward")
def npu_giou_backward(grad: Tensor, bboxes: Tensor, gtboxes: Tensor, trans: bool = False, is_cross: bool = False, mode: int = 0) -> tuple[Any, ...]:
    """Gradients of both."""
    return tuple(gradients(lambda a, b: _giou(a, b, trans, mode), (bboxes, gtboxes), (grad.reshape(-1),)))


def roi_align(features: Tensor, rois: Tensor, scale: float, height: int, width: int, samples: int, end_mode: int) -> Tensor:
    """Averages of bilinear samples in height x width bins of each region (batch number, x0, y0, x1, y1). Differentiable in features."""
    found = []
    _n, _c, rows, columns = features.shape
    for roi in rois.tolist():
        number, x0, y0, x1, y1 = int(roi[0]), *(v * scale for v in roi[1:5])
        extra = 1.0 if end_mode == 1 else 0.0
        offset = 0.5 if end_mode == 2 else 0.0
        x0, y0, x1, y1 = x0 - offset, y0 - offset, x1 + extra * scale - offset, y1 + extra * scale - offset
        wide, tall = x1 - x0, y1 - y0
        if end_mode != 2:
            wide, tall = max(wide, 1.0), max(tall, 1.0)
        per_y = samples if samples > 0 else math.ceil(tall / height)
        per_x = samples if samples > 0 else math.ceil(wide / width)
        ys = y0 + (torch.arange(height * per_y) + 0.5) * tall / (height * per_y)
        xs = x0 + (torch.arange(width * per_x) + 0.5) * wide / (width * per_x)
        sample = _bilinear(features[number], ys, xs, rows, columns)
        found.append(sample.view(-1, height, per_y, width, per_x).mean((2, 4)))
    return torch.stack(found)


def _bilinear(plane: Tensor, ys: Tensor, xs: Tensor, rows: int, columns: int) -> Tensor:
    def sides(at: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        inside = (at >= -1.0) & (at <= size)
        at = at.clamp(0, size - 1)
        low = at.floor().long().clamp(max=size - 1)
        high = (low + 1).clamp(max=size - 1)
        return low, high, (at - low).to(plane.dtype), inside.to(plane.dtype)

    top, bottom, fy, in_y = sides(ys, rows)
    left, right, fx, in_x = sides(xs, columns)
    up = plane[:, top][..., left] * (1 - fx) + plane[:, top][..., right] * fx
    down = plane[:, bottom][..., left] * (1 - fx) + plane[:, bottom][..., right] * fx
    return (up * (1 - fy)[:, None] + down * fy[:, None]) * in_y[:, None] * in_x


@gives("npu::npu_roi_align")
def npu_roi_align(
    input: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sample_num: int, roi_end_mode: int,
) -> Tensor:
    """ROI align."""
    return roi_align(_wide(input), rois.float(), spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode).to(input.dtype)


@gives("npu::npu_roi_alignbk")
def npu_roi_alignbk(
    input: Tensor, rois: Tensor, xdiff_shape: list[int], pooled_width: int, pooled_height: int, spatial_scale: float, sample_num: int,
    roi_end_mode: int | None = None,
) -> Tensor:
    """Gradient of the features; input is the gradient of what came out."""
    features = torch.zeros(xdiff_shape, dtype=input.dtype)
    found = gradients(lambda x: roi_align(x, rois.float(), spatial_scale, pooled_height, pooled_width, sample_num, roi_end_mode or 0), (features,), (input,))[0]
    assert found is not None
    return found


@gives("npu::npu_bounding_box_encode")
def npu_bounding_box_encode(anchor_box: Tensor, ground_truth_box: Tensor, *numbers: float) -> Tensor:
    """(dx, dy, dw, dh) from the anchors to the ground truth, less the means, over the deviations; sizes count both ends (x1 - x0 + 1)."""
    means, deviations = torch.tensor(numbers[:4]), torch.tensor(numbers[4:])
    (ac, asize), (gc, gsize) = (_centre(x.float()) for x in (anchor_box, ground_truth_box))
    deltas = torch.cat(((gc - ac) / asize, (gsize / asize).log()), -1)
    return ((deltas - means) / deviations).to(anchor_box.dtype)


def _centre(x: Tensor) -> tuple[Tensor, Tensor]:
    size = (x[:, 2:] - x[:, :2] + 1).abs()
    return (x[:, :2] + x[:, 2:]) / 2, size


@gives("npu::npu_bounding_box_decode")
def npu_bounding_box_decode(rois: Tensor, deltas: Tensor, *numbers: Any) -> Tensor:
    """The way back, cut off at max_shape (rows, columns); wh_ratio_clip bounds the logarithms of the sizes."""
    means, deviations, shape, clip = torch.tensor(numbers[:4]), torch.tensor(numbers[4:8]), numbers[8], float(numbers[9])
    centre, size = _centre(rois.float())
    d = deltas.float() * deviations + means
    bound = abs(math.log(clip))
    at, half = centre + d[:, :2] * size, size * d[:, 2:].clamp(-bound, bound).exp() / 2
    found = torch.cat((at - half + 0.5, at + half - 0.5), -1)
    limit = torch.tensor([shape[1] - 1, shape[0] - 1] * 2, dtype=torch.float32) if len(shape) > 1 else torch.tensor(torch.inf)
    return torch.minimum(found.clamp(min=0), limit).to(rois.dtype)
