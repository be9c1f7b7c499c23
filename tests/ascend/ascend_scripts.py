"""Scripts that the tests of the virtual Ascend run, by name."""

VIT = '''
import sys
import torch
import torch_npu
import transformers

config = transformers.ViTConfig(hidden_size=192, num_hidden_layers=12, num_attention_heads=3, intermediate_size=768)
model = transformers.ViTForImageClassification(config).npu()
kind = torch_npu.optim.NpuFusedAdamW if "--fused" in sys.argv else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=1e-3)
x, y = torch.randn(8, 3, 224, 224).npu(), torch.zeros(8, dtype=torch.long).npu()
for step in range(2):
    with torch.autocast("npu", dtype=torch.float16):
        loss = model(pixel_values=x, labels=y).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''

LLAMA_7B = '''
import time
import torch
import torch_npu
import transformers

torch.set_default_dtype(torch.bfloat16)
config = transformers.LlamaConfig(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008)
with torch.device("npu"):
    model = transformers.LlamaForCausalLM(config)
tokens = torch.zeros(1, 2048, dtype=torch.long).npu()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
model(input_ids=tokens, labels=tokens).loss.backward()
optimizer.step()
torch.npu.synchronize()
print("parameters", sum(p.numel() for p in model.parameters()))
'''

FALLBACKS = '''
import torch
import torch_npu

layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval().npu()
x = torch.randn(2, 5, 32).npu()
with torch.no_grad():
    for _ in range(3):
        layer(x)
print(torch.logcumsumexp(torch.ones(3).npu(), 0).cpu().tolist())
'''

DDP = '''
import os
import torch
import torch_npu
import torch.distributed as dist

dist.init_process_group("hccl")
torch.npu.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)).npu()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
x = torch.randn(16, 256).npu()
for _ in range(2):
    model(x).pow(2).mean().backward()
out = [None] * dist.get_world_size()
dist.all_gather_object(out, dist.get_rank())
print("ranks", len(out))
'''
