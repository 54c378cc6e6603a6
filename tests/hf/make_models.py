"""Makes tiny random models of FAMILIES with transformers, and one training step of each, for tests/hf.

    make_models.py FOLDER              models of a size that is worth running on a GPU
    make_models.py --golden FOLDER     the smallest ones, as they are kept in tests/hf/golden

Families after FOLDER limit it to these.

Writes FOLDER/FAMILY/ with
    config.json, model.safetensors   as transformers saves them, bf16 weights
    step.safetensors                 tokens, labels [B, S]; in fp64: logits [B S, V], loss [1] (mean over tokens), and
                                     the loss's gradient by each tensor under the name that its module has (experts in
                                     one tensor, though they are saved apart): the truth
    step.json                        what transformers' own fp32 and bf16 are off from it: the L2 norm of the difference
                                     per tensor, the larger one of its two forms of attention; and the versions that
                                     made all this
    greedy.txt                       of the smallest models of CONTINUED: lines of PROMPT tokens and what the model
                                     continues them with
"""
import argparse
import json
import math
import pathlib

import torch
import transformers
from safetensors.torch import save_file
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3
from transformers.models.qwen3_moe import modeling_qwen3_moe

SIZES = {
    "golden": dict(hidden=32, heads=4, groups=2, ffn=16, vocab=40, positions=16, sequences=4, length=12, experts=4),
    "full": dict(hidden=256, heads=4, groups=2, ffn=320, vocab=500, positions=160, sequences=3, length=144, experts=8),
}
PROMPT = 5
MARGIN = 0.1  # between logits, so that choices are equal in any dtype


def gpt2(s):
    config = transformers.GPT2Config(
        n_layer=2, n_embd=s["hidden"], n_head=s["heads"], n_inner=s["ffn"], n_positions=s["positions"],
        vocab_size=s["vocab"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel, config


def llama(s):
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        intermediate_size=s["ffn"], max_position_embeddings=s["positions"], vocab_size=s["vocab"],
        rope_theta=500000.0, rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
    return transformers.LlamaForCausalLM, config


def llama31(s):
    """RoPE scaled, some frequencies kept, some mixed, some divided; and biases in attention alone."""
    model_class, config = llama(s)
    config.attention_bias = True
    config.max_position_embeddings = 64 * s["positions"]
    config.rope_parameters = dict(rope_type="llama3", rope_theta=500000.0, factor=4.0, low_freq_factor=1.0,
                                  high_freq_factor=8.0, original_max_position_embeddings=512)
    return model_class, config


def llama_yarn(s):
    model_class, config = llama(s)
    config.max_position_embeddings = 2048
    config.rope_parameters = dict(rope_type="yarn", rope_theta=500000.0, factor=4.0,
                                  original_max_position_embeddings=512, beta_fast=32.0, beta_slow=1.0)
    return model_class, config


def llama_linear(s):
    model_class, config = llama(s)
    config.rope_parameters = dict(rope_type="linear", rope_theta=500000.0, factor=2.5)
    return model_class, config


def mistral(s):
    config = transformers.MistralConfig(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        intermediate_size=s["ffn"], max_position_embeddings=s["positions"], vocab_size=s["vocab"],
        rope_theta=1000000.0, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False, bos_token_id=0,
        eos_token_id=0)
    return transformers.MistralForCausalLM, config


def qwen2(s):
    config = transformers.Qwen2Config(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        intermediate_size=s["ffn"], max_position_embeddings=s["positions"], vocab_size=s["vocab"],
        rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=True, bos_token_id=0, eos_token_id=0)
    return transformers.Qwen2ForCausalLM, config


def qwen3(s):
    config = transformers.Qwen3Config(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        head_dim=s["hidden"] // 2, intermediate_size=s["ffn"], max_position_embeddings=s["positions"],
        vocab_size=s["vocab"], rope_theta=1000000.0, rms_norm_eps=1e-6, tie_word_embeddings=False, bos_token_id=0,
        eos_token_id=0)
    return transformers.Qwen3ForCausalLM, config


def qwen3_yarn(s):
    """With the range of YaRN not rounded, and both parts of the factor of cosines and sines."""
    model_class, config = qwen3(s)
    config.max_position_embeddings = 5120
    config.rope_parameters = dict(rope_type="yarn", rope_theta=1000000.0, factor=2.5,
                                  original_max_position_embeddings=2048, beta_fast=16.0, beta_slow=2.0, mscale=1.5,
                                  mscale_all_dim=0.5, truncate=False)
    return model_class, config


def mixtral(s):
    config = transformers.MixtralConfig(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        intermediate_size=s["ffn"], num_local_experts=s["experts"], num_experts_per_tok=2,
        max_position_embeddings=s["positions"], vocab_size=s["vocab"], rope_theta=1000000.0, rms_norm_eps=1e-5,
        router_aux_loss_coef=0.02, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
    return transformers.MixtralForCausalLM, config


def qwen3_moe(s):
    """The first layer dense; weights as the softmax over all experts has them, which Mixtral's are not."""
    config = transformers.Qwen3MoeConfig(
        num_hidden_layers=2, hidden_size=s["hidden"], num_attention_heads=s["heads"], num_key_value_heads=s["groups"],
        head_dim=s["hidden"] // 2, intermediate_size=s["ffn"], moe_intermediate_size=s["ffn"] // 2,
        num_experts=s["experts"], num_experts_per_tok=2, norm_topk_prob=False, mlp_only_layers=[0],
        max_position_embeddings=s["positions"], vocab_size=s["vocab"], rope_theta=1000000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
    return transformers.Qwen3MoeForCausalLM, config


FAMILIES = gpt2, llama, llama31, llama_yarn, llama_linear, mistral, qwen2, qwen3, qwen3_yarn, mixtral, qwen3_moe
CONTINUED = llama_yarn, llama_linear, qwen3_yarn, mixtral, qwen3_moe


def exact_rms_norm(self, x):
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))


def exact_scaling(config):
    """Frequencies and the factor of cosines and sines by transformers' own function, in fp64."""
    kept = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64
    try:
        return ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config)
    finally:
        torch.float, torch.float32 = kept


def exact_rotary(self, x, position_ids):
    dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
    rope = self.config.rope_parameters
    inverse = rope["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    if rope["rope_type"] == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * inverse / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        inverse = inverse * (kept + (1 - kept) / rope["factor"])
    factor = 1.0
    if rope["rope_type"] in ("linear", "yarn"):
        inverse, factor = exact_scaling(self.config)
    angles = position_ids[:, :, None].double() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * factor).to(x.dtype), (angles.sin() * factor).to(x.dtype)


def exact_router(self, x):
    logits = torch.nn.functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
    weights, chosen = torch.topk(logits.softmax(dim=-1), self.top_k, dim=-1)
    if getattr(self, "norm_topk_prob", True):
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return logits, weights, chosen


class Exact:
    """In fp64, takes out the places where Llama goes through fp32 whatever its dtype; sdpa does so for the softmax."""

    FORWARDS = {
        exact_rms_norm: (modeling_llama.LlamaRMSNorm, modeling_mistral.MistralRMSNorm, modeling_qwen2.Qwen2RMSNorm,
                         modeling_qwen3.Qwen3RMSNorm, modeling_mixtral.MixtralRMSNorm,
                         modeling_qwen3_moe.Qwen3MoeRMSNorm),
        exact_rotary: (modeling_llama.LlamaRotaryEmbedding, modeling_mistral.MistralRotaryEmbedding,
                       modeling_qwen2.Qwen2RotaryEmbedding, modeling_qwen3.Qwen3RotaryEmbedding,
                       modeling_mixtral.MixtralRotaryEmbedding, modeling_qwen3_moe.Qwen3MoeRotaryEmbedding),
        exact_router: (modeling_mixtral.MixtralTopKRouter, modeling_qwen3_moe.Qwen3MoeTopKRouter),
    }

    def __enter__(self):
        self.kept = [(layer, layer.forward) for layers in self.FORWARDS.values() for layer in layers]
        for forward, layers in self.FORWARDS.items():
            for layer in layers:
                layer.forward = forward

    def __exit__(self, *_):
        for layer, forward in self.kept:
            layer.forward = forward


def draw_weights(model, hidden):
    """Far from a fresh model's, so that every tensor matters; exact in bf16, so that every run starts from the same."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            mean = 1.0 if p.dim() == 1 and name.endswith("weight") else 0.0
            p.copy_((mean + (0.85 / hidden**0.5 if p.dim() > 1 else 0.3) * torch.randn_like(p)).bfloat16())


def router_margins(model, tokens):
    """[B, S]: by how much the last expert that a token chooses leads the next, the least over the layers; logits."""
    least, kept = [], []

    def look(router, _, outputs):
        best = outputs[0].topk(router.top_k + 1, dim=-1).values
        least.append(best[:, -2] - best[:, -1])

    for module in model.modules():
        if type(module) in Exact.FORWARDS[exact_router]:
            kept.append(module.register_forward_hook(look))
    with torch.no_grad():
        logits = model(input_ids=tokens).logits
    for hook in kept:
        hook.remove()
    clear = torch.full(tokens.shape, math.inf)  # of models without experts
    return torch.stack(least).amin(0).view(tokens.shape) if least else clear, logits


def draw_clear_tokens(model, size):
    """[B, S], of random tokens those whose experts are clear: where dtypes choose otherwise, their errors say nothing."""
    tokens = torch.empty(size["sequences"], 0, dtype=torch.long)
    while tokens.shape[1] < size["length"]:
        tries = 8
        more = torch.randint(0, size["vocab"], (len(tokens) * tries, 1))
        longer = torch.cat((tokens.repeat_interleave(tries, 0), more), dim=1)
        clear = router_margins(model, longer)[0][:, -1].view(-1, tries) > MARGIN
        if clear.any(1).all():
            first = torch.arange(len(tokens)) * tries + clear.int().argmax(1)
            tokens = longer[first]
    return tokens


def greedy(model, size):
    """Sequences whose every choice, of experts and of tokens, is clear, without the last id, which ends a text."""
    found = []
    while len(found) < size["sequences"]:
        tokens = torch.randint(0, size["vocab"] - 1, (4096, PROMPT))
        for _ in range(PROMPT, size["length"]):
            margins, logits = router_margins(model, tokens)
            best = logits[:, -1].topk(2, dim=-1)
            clear = (margins > MARGIN).all(1) & (best.values[:, 0] - best.values[:, 1] > MARGIN)
            clear &= best.indices[:, 0] != size["vocab"] - 1
            tokens = torch.cat((tokens, best.indices[:, :1]), dim=1)[clear]
        found += tokens.tolist()
    return found[:size["sequences"]]


def step(model_class, config, weights, dtype, attention, tokens, labels):
    """Logits, loss and gradients of a model in `dtype`, in fp64."""
    model = model_class._from_config(config, attn_implementation=attention).to(dtype).eval()
    config._experts_implementation = "eager"  # grouped ones sum in other orders
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(weights[name])
    logits = model(input_ids=tokens).logits.flatten(0, 1)
    at_least_fp32 = logits if dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(at_least_fp32, labels.flatten())
    loss.backward()
    result = {name: p.grad.double() for name, p in model.named_parameters()}
    return result | {"logits": logits.detach().double(), "loss": loss.detach().double().reshape(1)}


def make(folder, model_class, config, size, is_continued):
    torch.manual_seed(20261121)
    model = model_class(config).eval()
    draw_weights(model, size["hidden"])
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    tokens, labels = torch.randint(0, size["vocab"], (2, size["sequences"], size["length"]))
    has_experts = hasattr(config, "num_experts_per_tok")
    if has_experts:
        tokens = draw_clear_tokens(model, size)
    run = lambda dtype, attention: step(model_class, config, weights, dtype, attention, tokens, labels)
    with Exact():
        truth = run(torch.float64, "sdpa")
    errors = {}
    for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
        owns = [run(dtype, attention) for attention in ("eager", "sdpa")]  # a norm of 8 weights is off by luck in one
        errors[name] = {key: max((own[key] - truth[key]).norm().item() for own in owns) for key in truth}
        limit = 1e-5 if dtype == torch.float32 else 0.1
        for key, error in errors[name].items():
            assert error <= limit * truth[key].norm().item() + 1e-9, f"{key}: fp64 and {name} are two models"
    contents = {key: value.contiguous() for key, value in truth.items()}
    contents |= {"tokens": tokens.int().contiguous(), "labels": labels.int().contiguous()}
    if is_continued and size is SIZES["golden"]:
        lines = [" ".join(map(str, tokens)) for tokens in greedy(model, size)]
        (folder / "greedy.txt").write_text("\n".join(lines) + "\n")
    save_file(contents, folder / "step.safetensors")
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    (folder / "step.json").write_text(json.dumps({"errors": errors, "versions": versions}, indent=1) + "\n")


def main():
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--golden", action="store_true")
    arguments = parser.parse_args()
    size = SIZES["golden" if arguments.golden else "full"]
    for family in FAMILIES:
        if arguments.families and family.__name__ not in arguments.families:
            continue
        folder = arguments.folder / family.__name__
        folder.mkdir(parents=True, exist_ok=True)
        make(folder, *family(size), size, family in CONTINUED)


if __name__ == "__main__":
    main()
