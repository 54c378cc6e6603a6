# The peer of the CPU bench: the quickstart's GPT in PyTorch eager fp32, forward, backward and AdamW on the CPU.
#   python3 torch_gpt_cpu.py --threads 2            one process, its threads
#   torchrun --nproc-per-node 2 torch_gpt_cpu.py    two processes with one thread each, gradients averaged by gloo
# Prints tokens per second, the median over steps.
import argparse, math, os, statistics, time
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

p = argparse.ArgumentParser()
for name, value in dict(layers=4, hidden=256, heads=4, ffn=640, seq=256, vocab=384, batch=16, steps=20, threads=1).items():
    p.add_argument(f"--{name}", type=int, default=value)
a = p.parse_args()
torch.set_num_threads(a.threads)
torch.manual_seed(0)
world = int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
batch = a.batch // world


def rope(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.RMSNorm(a.hidden, eps=1e-5), nn.RMSNorm(a.hidden, eps=1e-5)
        self.qkv = nn.Linear(a.hidden, 3 * a.hidden, bias=False)
        self.proj = nn.Linear(a.hidden, a.hidden, bias=False)
        self.fc1 = nn.Linear(a.hidden, 2 * a.ffn, bias=False)
        self.fc2 = nn.Linear(a.ffn, a.hidden, bias=False)

    def forward(self, x, cos, sin):
        b, s, h = x.shape
        q, k, v = (t.view(b, s, a.heads, -1).transpose(1, 2) for t in self.qkv(self.n1(x)).split(h, -1))
        o = F.scaled_dot_product_attention(rope(q, cos, sin), rope(k, cos, sin), v, is_causal=True)
        x = x + self.proj(o.transpose(1, 2).reshape(b, s, h))
        gate, up = self.fc1(self.n2(x)).chunk(2, -1)
        return x + self.fc2(F.silu(gate) * up)


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(a.vocab, a.hidden)
        self.blocks = nn.ModuleList(Block() for _ in range(a.layers))
        self.norm = nn.RMSNorm(a.hidden, eps=1e-5)
        d = a.hidden // a.heads
        angle = torch.outer(torch.arange(a.seq), 10000.0 ** (-torch.arange(0, d, 2) / d)).repeat(1, 2)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, labels):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(F.linear(self.norm(x), self.words.weight).flatten(0, 1), labels.flatten())


model = Gpt()
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
times = []
for step in range(a.steps):
    tokens = torch.randint(0, 257, (batch, a.seq + 1))
    start = time.perf_counter()
    loss = net(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    times.append(time.perf_counter() - start)
if world == 1 or dist.get_rank() == 0:
    t = statistics.median(times[3:])
    print(f"torch {torch.__version__}: {world} process(es) x {a.threads} thread(s): {a.batch * a.seq / t:.0f} tokens/s, loss {loss.item():.3f}")
if world > 1:
    dist.destroy_process_group()
