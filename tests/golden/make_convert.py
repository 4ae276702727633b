"""Makes tests/golden/convert/: what `tensorfold convert` is held to. `quantised/` has one small matrix for each width, group
and type with the codes, scales and biases of mlx.core.quantize (CPU); the other folders hold in full precision the seeded
weights of cases whose MLX form lies in models/, so that a conversion must reproduce that form tensor for tensor.

Usage (mlx, torch and transformers are needed): python tests/golden/make_convert.py
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from safetensors import safe_open

import hf_files
from cases import CASES
from make_formats import mx_to_numpy, write_safetensors
from make_models import build_model
from weights import seeded_state

HERE = Path(__file__).parent / "convert"
RNG = np.random.default_rng(20261130)


def rows(columns):
    """Plain noise, a constant group, all zeros, one sign only, tiny values, ties at half a step."""
    noise = RNG.standard_normal((6, columns)).astype(np.float32) * 0.1
    noise[1, :] = 0.37
    noise[2, :] = 0.0
    noise[3] = np.abs(noise[3]) + 0.01
    noise[4] *= 1e-6
    noise[5] = np.round(noise[5] * 40) / 40
    return noise


def make_quantised():
    folder = HERE / "quantised"
    folder.mkdir(parents=True, exist_ok=True)
    tensors, cases = {}, {}
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            for label, dtype in {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}.items():
                base = f"b{bits}.g{group}.{label}"
                weight = mx.array(rows(256)).astype(dtype)
                codes, scales, biases = mx.quantize(weight, group_size=group, bits=bits)
                for part, value in (("source", weight), ("scale_values", scales), ("bias_values", biases)):
                    _, raw, name = mx_to_numpy(value)
                    tensors[f"{base}.{part}"] = (name, raw)
                tensors[f"{base}.codes"] = ("U32", np.array(codes))
                cases[base] = [bits, group]
    write_safetensors(folder / "model.safetensors", tensors, {"format": "np"})
    (folder / "config.json").write_text(json.dumps({"cases": cases}) + "\n")


def seeded_case_state(case):
    """The weights that make_models.py quantised, by the seed that its result names."""
    with safe_open(HERE.parent / "models" / case.name / "expected.safetensors", "pt") as file:
        seed = int(file.metadata()["seed"])
    shapes = dict(build_model(case).state_dict())
    if case.text_config["tie_word_embeddings"]:
        shapes.pop("lm_head.weight", None)
    return seeded_state(case.family, shapes, seed)


def make_source(name, mlx_name, **changes):
    case = next(case for case in CASES if case.name == mlx_name)
    state = seeded_case_state(case)
    folder = HERE / name
    folder.mkdir(parents=True, exist_ok=True)
    prefix = {"qwen3_5": "model.language_model."}.get(case.family, "model.")
    source = type(case)(**{**case.__dict__, "storage": "hf", "prefix": prefix, "skipped_tensors": {}, "overrides": {}} | changes)
    hf_files.write(source, state, folder)


def main():
    mx.set_default_device(mx.cpu)
    make_quantised()
    make_source("qwen3_5", "mlx_qwen3_5_4bit")
    make_source("qwen3_moe", "mlx_qwen3_moe_4bit")
    make_source("gemma3", "mlx_gemma3_6bit")


if __name__ == "__main__":
    main()
