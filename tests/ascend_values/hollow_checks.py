"""Run in a process of its own on hollow CANN: each function returns (found, expected) as nested lists or numbers; the results go to standard output as JSON."""

from __future__ import annotations

import inspect
import json
import sys


def both(f):
    """f on the NPU and on the CPU, on the same inputs."""
    import torch

    torch.manual_seed(5)
    inputs = [torch.randn(4, 6), torch.randn(4, 6), torch.randn(6, 3)]
    return f(*[x.clone().npu() for x in inputs]), f(*[x.clone() for x in inputs])


def arithmetic_chain():
    return both(lambda a, b, c: ((a * 2 + b).relu() @ c).softmax(-1).sum(0))


def views_and_in_place():
    def f(a, b, c):
        a[1:3, ::2].mul_(10)
        a.t()[0].add_(b[:, 1])
        a.view(-1)[::5] = 7
        return a

    return both(f)


def out_argument():
    def f(a, b, c):
        import torch

        out = torch.zeros(6, 4, device=a.device).t()  # not contiguous
        torch.add(a, b, out=out)
        return out

    return both(f)


def not_contiguous_to_host_and_back():
    def f(a, b, c):
        return a.t()[1::2].cpu().to(a.device).t().contiguous()

    return both(f)


def cast_and_copy():
    def f(a, b, c):
        import torch

        a[:, :3].copy_(b[:, 3:].half())
        return a.to(torch.bfloat16).float().int()

    return both(f)


def factories():
    def f(a, b, c):
        import torch

        return torch.cat((torch.arange(6, device=a.device, dtype=torch.float32)[None], torch.full((1, 6), 3.0, device=a.device), torch.zeros_like(a),
                          torch.eye(6, device=a.device), a.new_ones(1, 6), torch.linspace(0, 1, 6, device=a.device)[None]))

    return both(f)


def sizes_that_depend_on_values():
    return both(lambda a, b, c: a[a > 0])


def nonzero_and_unique():
    def f(a, b, c):
        import torch

        return torch.cat(((a > 0).nonzero().flatten(), (a * 2).round().unique()))

    return both(f)


def reads_of_one_value():
    return both(lambda a, b, c: a.sum().item() if (a.max() > b.min()) else -1.0)


def operator_without_a_kernel_falls_back():
    import torch

    return both(lambda a, b, c: torch.logcumsumexp(a, 1))


def lists_of_tensors():
    def f(a, b, c):
        import torch

        torch._foreach_add_([a, b], 1.5)
        torch._foreach_mul_([a, b], [2.0, 3.0])
        return torch.stack(torch._foreach_sqrt([a.abs(), b.abs()]))

    return both(f)


def lstm():
    def f(a, b, c):
        import torch

        torch.manual_seed(3)
        cell = torch.nn.LSTMCell(6, 4).to(a.device)
        h, _c = cell(a)
        return h

    return both(f)


def recurrent(make):
    """Output and all gradients of a recurrent module."""
    def f(a, b, c):
        import torch

        torch.manual_seed(3)
        net = make(torch).to(a.device)
        x = torch.stack((a, b, a * b)).requires_grad_()
        y = net(x)[0]
        (y * y).sum().backward()
        return torch.cat([y.detach().flatten(), x.grad.flatten(), *(p.grad.flatten() for p in net.parameters())])

    return both(f)


def lstm_layer():
    """npu::_lstm_npu and npu::_lstm_npu_backward"""
    return recurrent(lambda torch: torch.nn.LSTM(6, 4))


def lstm_of_two_layers_both_ways():
    """npu::npu_lstm and npu::npu_lstm_backward"""
    return recurrent(lambda torch: torch.nn.LSTM(6, 4, 2, bidirectional=True, batch_first=True))


def gru_layer():
    """npu::_gru_npu and npu::_gru_npu_backward"""
    return recurrent(lambda torch: torch.nn.GRU(6, 4))


def lstm_cell_gradients():
    """npu::npu_lstm_cell and npu::npu_lstm_cell_backward"""
    def f(a, b, c):
        import torch

        torch.manual_seed(3)
        cell = torch.nn.LSTMCell(6, 4).to(a.device)
        h, k = cell(a)
        h, k = cell(b, (h, k))
        (h * k).sum().backward()
        return torch.cat([p.grad.flatten() for p in cell.parameters()])

    return both(f)


def encoder_layer():
    def f(a, b, c):
        import torch

        torch.manual_seed(3)
        layer = torch.nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0).to(a.device)
        y = layer(a.view(2, 2, 6))
        y.square().sum().backward()
        z = layer.eval()(b.view(2, 2, 6))
        return torch.cat([y.detach().flatten(), z.detach().flatten(), *(p.grad.flatten() for p in layer.parameters())])

    return both(f)


def checkpointed_dropout_repeats_its_mask():
    import torch
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(1)
    x = torch.ones(300).npu().requires_grad_()
    drop = torch.nn.Dropout(0.5)
    y = checkpoint(lambda t: drop(t) * 1.0, x, use_reentrant=False)
    y.sum().backward()
    return x.grad, y.detach()


def loss_scaling_skips_a_step_that_overflows():
    import torch

    p = torch.nn.Parameter(torch.ones(3).npu())
    optimizer = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("npu", init_scale=8.0)
    for value in (2.0, float("inf")):
        scaler.scale((p * value).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [p.detach().cpu().tolist(), scaler.get_scale()], [[0.8, 0.8, 0.8], 4.0]


def convolution_and_batch_norm_gradients():
    def f(a, b, c):
        import torch

        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(6, 2)).to(a.device)
        x = a.view(1, 1, 4, 6).repeat(2, 1, 1, 1) * torch.arange(1, 3, device=a.device).view(2, 1, 1, 1)
        torch.nn.functional.cross_entropy(net(x), torch.tensor([0, 1], device=a.device)).backward()
        return torch.cat([p.grad.flatten() for p in net.parameters()])

    return both(f)


def attention_under_autocast():
    def f(a, b, c):
        import torch

        q, k, v = (x.view(1, 2, 2, 6).requires_grad_() for x in (a, b, a * b))
        with torch.autocast(a.device.type, dtype=torch.bfloat16):
            y = torch.nn.functional.scaled_dot_product_attention(q @ q.transpose(-1, -2) @ k, k @ q.transpose(-1, -2) @ k, v * 1.0)
        return y.float()

    found, expected = both(f)
    return [[round(x, 1) for x in row] for row in found.flatten(0, 2).tolist()], [[round(x, 1) for x in row] for row in expected.flatten(0, 2).tolist()]


def matmul_of_halves_is_added_up_in_float32():
    import torch

    a = torch.full((1, 4096), 1.0, dtype=torch.float16)
    a[0, 0] = 2048
    return (a.npu() @ torch.ones(4096, 1, dtype=torch.float16).npu()).item(), 2048 + 4095 + 1  # rounded once, to a multiple of 4


def overflow_of_half_by_default():
    import torch

    x = torch.tensor([60000.0, -60000.0], dtype=torch.float16).npu()
    return (x * 2).tolist(), [float("inf"), float("-inf")]


def overflow_of_half_in_saturation_mode():
    import torch

    from npulift.ascend.values import RealValues

    with RealValues(soc="Ascend910A"):
        x = torch.tensor([60000.0, -60000.0], dtype=torch.float16).npu()
        return (x * 2).tolist(), [65504.0, -65504.0]


def infinity_that_the_user_wrote_survives_saturation():
    import torch

    from npulift.ascend.values import RealValues

    with RealValues(soc="Ascend910A"):
        return torch.zeros(2).npu().masked_fill(torch.tensor([True, False]).npu(), float("-inf")).tolist(), [float("-inf"), 0.0]


def denormals_are_flushed():
    import torch

    return (torch.tensor([1e-30]).npu() * 1e-10).item(), 0.0


def seeds_repeat():
    import torch

    def draw():
        torch.manual_seed(11)
        x = torch.ones(50).npu()
        return torch.cat((torch.randn(5, device="npu"), torch.nn.functional.dropout(x, 0.5), torch.empty(5).npu().uniform_(), torch.randperm(5, device="npu").float()))

    return draw(), draw()


def draws_differ():
    import torch

    return bool((torch.randn(50, device="npu") == torch.randn(50, device="npu")).any().item()), False


def dropout_keeps_its_mask_for_the_gradient():
    import torch

    x = torch.ones(200).npu().requires_grad_()
    y = torch.nn.functional.dropout(x, 0.5)
    y.sum().backward()
    return x.grad, y.detach()


def npu_operators_by_their_own_names():
    import torch
    import torch_npu

    x = torch.randn(3, 8)
    g = torch.randn(8)
    found = torch_npu.npu_rms_norm(x.npu(), g.npu())[0], torch_npu.npu_swiglu(x.npu()), torch_npu.npu_confusion_transpose(x.npu(), (1, 0), (24,), True)
    expected = torch.nn.functional.rms_norm(x, (8,), g, 1e-6), torch.nn.functional.silu(x[:, :4]) * x[:, 4:], x.t().reshape(24)
    return [t.flatten().tolist() for t in found], [t.flatten().tolist() for t in expected]


def operator_without_a_reference_is_named():
    import torch
    import torch_npu

    from npulift.errors import NpuliftError

    try:
        torch_npu.npu_rotated_box_encode(torch.rand(1, 5, 2).npu(), torch.rand(1, 5, 2).npu(), torch.ones(5).npu())
    except NpuliftError as error:
        return "npu::npu_rotated_box_encode" in str(error), True
    return False, True


def every_reference_takes_what_its_schema_gives():
    import torch

    from npulift.ascend.values import operators

    wrong = []
    for name, function in operators().items():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), base, None)
        if packet is None:
            continue
        schema = getattr(packet, overload or ("default" if "default" in packet.overloads() else packet.overloads()[0]))._schema
        if base.startswith("npu_") and "adam" in base and not overload:
            continue  # the plain form has no tensors to work on; .out is what is called
        try:
            inspect.signature(function).bind(*[0 for a in schema.arguments if not a.kwarg_only], **{a.name: 0 for a in schema.arguments if a.kwarg_only})
        except TypeError as error:
            wrong.append(f"{name}: {error}")
    return wrong, []


def adamw_in_one_kernel():
    import torch
    import torch_npu

    torch.manual_seed(2)
    p = torch.randn(6)
    g = torch.randn(6)
    ours = [x.npu() for x in (p.clone(), torch.zeros(6), torch.zeros(6))]
    torch_npu.npu_apply_adam_w(1.0, 1.0, 0.1, 0.2, 0.9, 0.99, 1e-8, g.npu(), None, False, False, out=ours)
    q = torch.nn.Parameter(p.clone())
    q.grad = g
    torch.optim.AdamW([q], lr=0.1, betas=(0.9, 0.99), weight_decay=0.2).step()
    return ours[0], q.detach()


def train(which: str, device: str, fused: bool = False) -> list[float]:
    """The losses of 20 training steps."""
    import torch
    import transformers

    torch.manual_seed(0)
    if which == "vit":
        model = transformers.ViTForImageClassification(transformers.ViTConfig(
            hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32, patch_size=8, hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0))
        inputs = {"pixel_values": torch.randn(4, 3, 32, 32), "labels": torch.randint(0, 2, (4,))}
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
        tokens = torch.randint(0, 128, (2, 16))
        inputs = {"input_ids": tokens, "labels": tokens}
    model = model.to(device).train()
    inputs = {k: v.to(device) for k, v in inputs.items()}
    if fused and device == "npu":
        import torch_npu

        optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=1e-3)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _step in range(20):
        loss = model(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def vit_trains_as_on_the_cpu():
    return train("vit", "npu"), train("vit", "cpu")


def vit_trains_with_the_fused_optimizer():
    return train("vit", "npu", fused=True), train("vit", "cpu")


def llama_trains_as_on_the_cpu():
    return train("llama", "npu"), train("llama", "cpu")


CHECKS = [
    arithmetic_chain, views_and_in_place, out_argument, not_contiguous_to_host_and_back, cast_and_copy, factories, sizes_that_depend_on_values,
    nonzero_and_unique, reads_of_one_value, operator_without_a_kernel_falls_back, lists_of_tensors, lstm, lstm_layer, lstm_of_two_layers_both_ways, gru_layer, lstm_cell_gradients,
    encoder_layer, checkpointed_dropout_repeats_its_mask, loss_scaling_skips_a_step_that_overflows, convolution_and_batch_norm_gradients,
    attention_under_autocast, matmul_of_halves_is_added_up_in_float32, overflow_of_half_by_default, overflow_of_half_in_saturation_mode,
    infinity_that_the_user_wrote_survives_saturation, denormals_are_flushed, seeds_repeat, draws_differ, dropout_keeps_its_mask_for_the_gradient,
    npu_operators_by_their_own_names, operator_without_a_reference_is_named, every_reference_takes_what_its_schema_gives, adamw_in_one_kernel,
    vit_trains_as_on_the_cpu, vit_trains_with_the_fused_optimizer, llama_trains_as_on_the_cpu,
]


def plain(x):
    """Tensors as lists."""
    return x.float().cpu().tolist() if hasattr(x, "cpu") else x


def main() -> None:
    import torch  # noqa: F401

    import npulift.ascend.virtual  # noqa: F401
    import torch_npu  # noqa: F401  # isort: skip

    from npulift.ascend.values import RealValues

    results = {}
    wanted = sys.argv[1:] or [c.__name__ for c in CHECKS]
    for check in CHECKS:
        if check.__name__ not in wanted:
            continue
        try:
            if "saturation" in check.__name__:
                found, expected = check()
            else:
                with RealValues():
                    found, expected = check()
                    found, expected = plain(found), plain(expected)
            results[check.__name__] = {"found": found, "expected": expected}
        except Exception as error:
            import traceback

            results[check.__name__] = {"error": f"{error}\n{traceback.format_exc()[-1500:]}"}
    print("RESULTS " + json.dumps(results), flush=True)
    import os

    os._exit(0)


if __name__ == "__main__":
    main()
