"""Converts models that transformers saved to checkpoints and back, and compares them bit for bit.

    check_convert.py CONVERT FOLDER     the program, and a folder that does not exist yet

For each family, dtype and way of saving: the tensors of the model that comes back and its logits must equal the
original's, and the configuration must say the same. Prints a line for each; the exit code is 1 if anything differs.
"""
import json
import pathlib
import subprocess
import sys

import safetensors.torch
import torch
import transformers

from make_models import (SIZES, draw_weights, gpt2, llama, llama31, llama_linear, llama_yarn, mistral, mixtral, qwen2,
                         qwen3, qwen3_moe, qwen3_yarn)

SIZE = SIZES["golden"]
KEYS = {
    "gpt2": ["n_layer", "n_embd", "n_head", "n_inner", "n_positions", "layer_norm_epsilon", "activation_function"],
    "llama": ["num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
              "intermediate_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "attention_bias",
              "mlp_bias"],
}
KEYS["qwen2"] = [key for key in KEYS["llama"] if key not in ("attention_bias", "mlp_bias", "head_dim")]
KEYS["qwen2"] += ["sliding_window", "layer_types"]
KEYS["mistral"] = [key for key in KEYS["llama"] if key not in ("attention_bias", "mlp_bias")] + ["sliding_window"]
KEYS["qwen3"] = [key for key in KEYS["llama"] if key != "mlp_bias"]
EXPERTS = ["num_experts", "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits"]
KEYS["mixtral"] = [key for key in KEYS["mistral"] if key != "head_dim"] + EXPERTS + ["router_jitter_noise"]
KEYS["qwen3_moe"] = KEYS["qwen3"] + EXPERTS + ["moe_intermediate_size", "norm_topk_prob", "mlp_only_layers",
                                               "decoder_sparse_step"]
COMMON = ["model_type", "vocab_size", "tie_word_embeddings"]


WINDOW = 5


def windowed_mistral(size):
    model_class, config = mistral(size)
    config.sliding_window = WINDOW
    return model_class, config


def windowed_qwen2(size):
    """A window in the second layer alone."""
    model_class, config = qwen2(size)
    config.use_sliding_window, config.sliding_window, config.max_window_layers = True, WINDOW, 1
    config.layer_types = ["full_attention", "sliding_attention"]
    return model_class, config


def untied_gpt2(size):
    model_class, config = gpt2(size)
    config.tie_word_embeddings = False
    config.activation_function = "gelu"
    return model_class, config


def biased_llama(size):
    model_class, config = llama(size)
    config.attention_bias = config.mlp_bias = True
    return model_class, config


def biased_qwen3(size):
    model_class, config = qwen3(size)
    config.attention_bias = True
    return model_class, config


def normed_qwen3_moe(size):
    """As the published ones are, experts in all layers and weights that add up to 1; and biases, and tied."""
    model_class, config = qwen3_moe(size)
    config.norm_topk_prob, config.mlp_only_layers, config.attention_bias = True, [], True
    config.tie_word_embeddings = True
    return model_class, config


def save_whole(model, folder):
    model.save_pretrained(folder)


def save_parts(model, folder):
    model.save_pretrained(folder, max_shard_size="12KB")
    assert (folder / "model.safetensors.index.json").exists()


def save_modules(model, folder):
    """Experts in one tensor, under the names that modules have."""
    model.save_pretrained(folder, save_original_format=False)


def save_old(model, folder):
    """With the configuration of transformers 4: rope_theta, and rope_scaling where it is scaled; num_experts."""
    save_whole(model, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype")
    if model.config.model_type == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    path.write_text(json.dumps(config))


def save_bare(model, folder):
    """Without the prefix of the model with a head, as the model without one is saved."""
    model.base_model.save_pretrained(folder)


def save_redundant(model, folder):
    """With the output layer though it is tied, and the buffers of old files."""
    save_whole(model, folder)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    if model.config.model_type == "gpt2":
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def save_fused(model, folder):
    """Llama's projections as one matrix each, as some trainers write them."""
    save_whole(model, folder)
    tensors = dict(model.state_dict())
    for i in range(model.config.num_hidden_layers):
        for fused, names in {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up")}.items():
            layer = f"model.layers.{i}.{fused.split('.')[0]}."
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"{layer}{name}_proj.{kind}", None) for name in names]
                if parts[0] is not None:
                    tensors[f"model.layers.{i}.{fused}.{kind}"] = torch.cat(parts)
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in tensors.items() if name != "lm_head.weight"
                                 or not model.config.tie_word_embeddings},
                                folder / "model.safetensors", metadata={"format": "pt"})


CASES = [
    (gpt2, torch.float32, save_whole), (gpt2, torch.bfloat16, save_parts), (gpt2, torch.float32, save_bare),
    (gpt2, torch.float32, save_redundant), (untied_gpt2, torch.float32, save_whole),
    (llama, torch.float32, save_parts), (llama, torch.float32, save_old), (llama, torch.bfloat16, save_fused), (biased_llama, torch.float32, save_fused),
    (qwen2, torch.float32, save_whole), (qwen2, torch.bfloat16, save_fused), (qwen2, torch.float32, save_bare),
    (qwen3, torch.float32, save_whole), (qwen3, torch.bfloat16, save_parts), (biased_qwen3, torch.float32, save_fused),
    (llama31, torch.float32, save_whole), (llama31, torch.bfloat16, save_fused), (llama31, torch.bfloat16, save_old),
    (llama_yarn, torch.float32, save_whole), (llama_yarn, torch.bfloat16, save_old),
    (llama_linear, torch.float32, save_old), (llama_linear, torch.bfloat16, save_parts),
    (qwen3_yarn, torch.float32, save_parts), (qwen3_yarn, torch.bfloat16, save_old),
    (mistral, torch.float32, save_whole), (mistral, torch.bfloat16, save_parts),
    (windowed_mistral, torch.float32, save_whole), (windowed_qwen2, torch.float32, save_parts),
    (mixtral, torch.float32, save_parts), (mixtral, torch.bfloat16, save_modules), (mixtral, torch.bfloat16, save_old),
    (qwen3_moe, torch.float32, save_modules), (qwen3_moe, torch.bfloat16, save_parts),
    (normed_qwen3_moe, torch.float32, save_old), (normed_qwen3_moe, torch.bfloat16, save_bare),
]


def run(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stderr}"


def differences(model, other, tokens):
    found = []
    a, b = model.state_dict(), other.state_dict()
    found += [f"tensor {name} on one side only" for name in a.keys() ^ b.keys()]
    for name in a.keys() & b.keys():
        if a[name].dtype != b[name].dtype or not torch.equal(a[name], b[name]):
            found.append(f"tensor {name}")
    with torch.no_grad():
        if not torch.equal(model(input_ids=tokens).logits, other(input_ids=tokens).logits):
            found.append("logits")
    for key in COMMON + KEYS[model.config.model_type]:
        if getattr(model.config, key) != getattr(other.config, key):
            found.append(f"config {key}: {getattr(model.config, key)} and {getattr(other.config, key)}")
    return found


def main():
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    convert, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    root.mkdir(parents=True)
    failed = False
    for number, (make, dtype, save) in enumerate(CASES):
        torch.manual_seed(number)
        model_class, config = make(SIZE)
        model = model_class._from_config(config, attn_implementation="eager").eval()
        draw_weights(model, SIZE["hidden"])
        model.to(dtype)
        if dtype == torch.float32:  # values that bf16 has not
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1 + 1e-3 * torch.rand_like(p))
        folder = root / str(number)
        save(model, folder / "theirs")
        run(convert, "--from", "hf", "--load", folder / "theirs", "--save", folder / "native")
        run(convert, "--to", "hf", "--load", folder / "native", "--save", folder / "back", "--max-shard-size",
            "5000" if number % 2 else "5000000")
        load = lambda name: model_class.from_pretrained(folder / name, dtype="auto", attn_implementation="eager").eval()
        save_whole(model, folder / "original")  # loading computes RoPE's frequencies again, as for the other
        original, back = load("original"), load("back")
        tokens = torch.randint(0, SIZE["vocab"], (3, SIZE["length"]))
        found = differences(original, back, tokens)
        generation = "generation_config.json"
        if (folder / "theirs" / generation).exists():
            same = (folder / "theirs" / generation).read_bytes() == (folder / "back" / generation).read_bytes()
            found += [] if same else [generation]
        loaded = transformers.GenerationConfig.from_pretrained(folder / "back")
        if loaded.eos_token_id != back.generation_config.eos_token_id:
            found.append("eos_token_id of " + generation)
        failed = failed or bool(found)
        print(f"{make.__name__} {str(dtype)[6:]} {save.__name__}: {'; '.join(found) or 'equal'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
