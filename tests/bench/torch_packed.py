"""Peer of packed training: transformers' Llama without padding, compiled layers or liger's kernels, ragged attention.

One GPU, bf16 parameters and moments: python3 torch_packed.py [--attention varlen|flex|cudnn] [--kernels compile|liger]
N GPUs, FSDP2 with fp32 main parameters: torchrun --nproc-per-node N torch_packed.py --fsdp
Documents are as long as those of `train --mock-data --dataloader-inter-document-masking`: log-normal, mean 700.
Prints tokens/s a GPU (median step) and the peak of memory.
"""
import argparse, math, os, statistics, time
import torch
from torch import distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, apply_liger_kernel_to_llama
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--vocab", type=int, default=32000)
parser.add_argument("--seq", type=int, default=8192)
parser.add_argument("--accum", type=int, default=4, help="microbatches of one sample a step and GPU")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--attention", choices=["varlen", "flex", "cudnn"], default="varlen")
parser.add_argument("--kernels", choices=["compile", "liger"], default="compile")
parser.add_argument("--fsdp", action="store_true")
args = parser.parse_args()

world = int(os.environ.get("WORLD_SIZE", "1"))
rank = int(os.environ.get("RANK", "0"))
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
torch.cuda.set_device(device)
if args.fsdp:
    dist.init_process_group("nccl")
compiled_flex = torch.compile(flex_attention)


def varlen(module, query, key, value, mask, cu_seq_lens_q=None, max_length_q=None, **unused):
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [rows, heads, 128]
    out = varlen_attn(q, k, v, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, window_size=(-1, 0))
    return out[None], None


def flex(module, query, key, value, mask, block_mask=None, **unused):
    return compiled_flex(query, key, value, block_mask=block_mask, enable_gqa=True).transpose(1, 2), None


class Cudnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, begins, longest):
        out, lse, *_, seed, offset, _ = torch.ops.aten._cudnn_attention_forward(
            q, k, v, None, begins, begins, longest, longest, True, 0.0, True)
        ctx.save_for_backward(q, k, v, out, lse, seed, offset, begins)
        ctx.longest = longest
        return out

    @staticmethod
    def backward(ctx, gradient):
        *saved, begins = ctx.saved_tensors
        longest = ctx.longest
        return *torch.ops.aten._cudnn_attention_backward(
            gradient.contiguous(), *saved, None, begins, begins, longest, longest, 0.0, True), None, None


def cudnn(module, query, key, value, mask, cu_seq_lens_q=None, max_length_q=None, **unused):
    q, k, v = (x[0].transpose(0, 1).contiguous() for x in (query, key, value))
    return Cudnn.apply(q, k, v, cu_seq_lens_q, max_length_q)[None], None


ATTENTION = dict(varlen=varlen, flex=flex, cudnn=cudnn)
for name, function in ATTENTION.items():
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, lambda *positional, **named: None)
if args.kernels == "liger":
    apply_liger_kernel_to_llama(cross_entropy=False, fused_linear_cross_entropy=False)
config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=args.layers, num_attention_heads=32,
                     num_key_value_heads=8, vocab_size=args.vocab, max_position_embeddings=args.seq, rope_theta=500000.0,
                     attn_implementation=args.attention, use_cache=False)
torch.manual_seed(1)


class Trained(torch.nn.Module):  # one module, so that FSDP gathers the head with the embedding
    def __init__(self):
        super().__init__()
        self.llama = LlamaForCausalLM(config)
        self.loss = LigerFusedLinearCrossEntropyLoss()

    def forward(self, ids, labels, **marks):
        hidden = self.llama.model(input_ids=ids, **marks).last_hidden_state[0]
        return self.loss(self.llama.lm_head.weight, hidden, labels)


with torch.device(device):
    model = Trained()
layers = model.llama.model.layers
if args.kernels == "compile":
    for layer in layers:
        layer.compile()
if args.fsdp:
    for module in [*layers, model]:
        fully_shard(module, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
else:
    model = model.to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
draws = torch.Generator().manual_seed(rank)


def sample():
    lengths, left = [], args.seq
    while left:
        drawn = int(467 * math.exp(0.9 * torch.randn(1, generator=draws).item()))
        lengths.append(min(left, max(16, drawn)))
        left -= lengths[-1]
    positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
    ends = torch.tensor([0] + lengths).cumsum(0)
    begins = torch.full((129,), args.seq, dtype=torch.int32)
    begins[: len(ends)] = ends
    ids = torch.randint(args.vocab, (1, args.seq), generator=draws).to(device)
    marks = dict(cu_seq_lens_q=begins.to(device), max_length_q=1 << (max(lengths) - 1).bit_length())
    if args.attention == "flex":
        document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)).to(device)
        visible = lambda b, h, i, j: (i >= j) & (document[i] == document[j])
        marks = dict(block_mask=create_block_mask(visible, None, None, args.seq, args.seq, device=device, _compile=True))
    return ids, positions, marks


def step():
    for _ in range(args.accum):
        ids, positions, marks = sample()
        labels = ids[0].roll(-1).masked_fill(positions[0].roll(-1) == 0, -100)
        (model(ids, labels, position_ids=positions, **marks) / args.accum).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


times = []
for i in range(args.steps + 4):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    step()
    torch.cuda.synchronize()
    times.append(time.perf_counter() - begin)
if rank == 0:
    seconds = statistics.median(times[4:])
    print(f"{args.attention} {args.kernels}{' fsdp' if args.fsdp else ''}, {world} GPU: "
          f"{args.seq * args.accum / seconds:,.0f} tokens/s a GPU, "
          f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
if args.fsdp:
    dist.destroy_process_group()
