"""Writes frequencies of RoPE by transformers, for tests/hf/rope_frequencies_test.cpp.

    make_rope.py tests/hf/rope_frequencies.json

40 configurations: for each the config.json of a Llama, and what ROPE_INIT_FUNCTIONS gives for it, the factor of
cosines and sines ("attention_factor") and the frequencies as they are, in fp32, and by the same function in fp64.
"""
import json
import sys

import transformers
from make_models import exact_scaling
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

LINEAR = [dict(factor=factor) for factor in (1.0, 1.5, 2.0, 4.0, 8.0, 32.0)]
LLAMA3 = [dict(factor=factor, low_freq_factor=low, high_freq_factor=high, original_max_position_embeddings=original)
          for factor, low, high, original in ((8.0, 1.0, 4.0, 8192), (32.0, 1.0, 4.0, 8192), (4.0, 0.5, 8.0, 512),
                                              (2.0, 2.0, 2.5, 4096))]
YARN = [
    dict(factor=4.0, original_max_position_embeddings=32768),
    dict(factor=40.0, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0),
    dict(factor=32.0, original_max_position_embeddings=4096, beta_fast=32.0, beta_slow=1.0, truncate=False),
    dict(factor=1.0, original_max_position_embeddings=2048),
    dict(factor=2.0, original_max_position_embeddings=2048, attention_factor=1.0),
    dict(factor=2.0, original_max_position_embeddings=2048, attention_factor=1.4142135),
    dict(factor=2.0, original_max_position_embeddings=2048, mscale=0.707, mscale_all_dim=1.4),
    dict(factor=2.0, original_max_position_embeddings=2048, mscale=0.707),
    dict(factor=2.0, original_max_position_embeddings=2048, mscale_all_dim=0.5),
    dict(factor=2.0, original_max_position_embeddings=2048, mscale=0, mscale_all_dim=0.5),
    dict(factor=2.0, original_max_position_embeddings=2048, mscale=2, mscale_all_dim=0.5, attention_factor=1.25),
    dict(factor=None, original_max_position_embeddings=4096),
    dict(factor=3.0, original_max_position_embeddings=4096, beta_fast=None, beta_slow=None, mscale=None),
    dict(factor=3.0, original_max_position_embeddings=4096, truncate=None),
    dict(factor=3.0, original_max_position_embeddings=4096, beta_fast=0, beta_slow=0),
    dict(factor=3.0),
    dict(factor=16.0, original_max_position_embeddings=4),
    dict(factor=16.0, original_max_position_embeddings=40, truncate=False),
    dict(factor=5.5, original_max_position_embeddings=1048576),
    dict(factor=5.5, original_max_position_embeddings=100000, beta_fast=8, beta_slow=8),
] + [dict(factor=1.3 * i, original_max_position_embeddings=2**(5 + i), beta_fast=3.0 * i, beta_slow=0.4 * i,
          truncate=i % 2 == 0) for i in range(2, 12)]


def main():
    transformers.logging.set_verbosity_error()
    cases = [("linear", keys) for keys in LINEAR] + [("llama3", keys) for keys in LLAMA3]
    cases += [("yarn", keys) for keys in YARN]
    lines = []
    for number, (kind, keys) in enumerate(cases):
        heads, head_dim = 4, (16, 32, 64, 20)[number % 4]
        theta = (10000.0, 500000.0, 1000000.0)[number % 3]
        rope = dict(rope_type=kind, rope_theta=theta, **keys)
        written = dict(model_type="llama", num_hidden_layers=1, hidden_size=heads * head_dim, head_dim=head_dim,
                       num_attention_heads=heads, num_key_value_heads=heads, intermediate_size=8, vocab_size=8,
                       max_position_embeddings=131072, rope_parameters=rope)
        config = transformers.LlamaConfig(**json.loads(json.dumps(written)))
        inverse, factor = ROPE_INIT_FUNCTIONS[kind](config)
        exact, again = exact_scaling(config)
        assert factor == again
        lines.append(json.dumps({"config": written, "attention_factor": factor, "fp32": inverse.tolist(),
                                 "fp64": exact.tolist()}))
    text = '{"transformers": "%s",\n"cases": [\n%s\n]}\n' % (transformers.__version__, ",\n".join(lines))
    with open(sys.argv[1], "w") as file:
        file.write(text)
    print(len(lines), "cases")


if __name__ == "__main__":
    main()
