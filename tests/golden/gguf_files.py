"""GGUF checkpoints: names, metadata and conventions of llama.cpp's converter, written with the gguf package.

The package quantises the simple block formats and only decodes the K formats, so their quantisers are here. They are
plain (no search for the best scales): what matters is that every field of a block carries information.
"""

import json
import math

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize

from weights import is_zero_centred

Type = gguf.GGMLQuantizationType
ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}
PLAIN_NAMES = {
    "embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight", "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = LAYER_NAMES | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                             "post_feedforward_layernorm": "post_ffw_norm"}


def half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def scales_and_mins(blocks: np.ndarray, levels: int):
    """Per 32 values 6-bit scales and mins under one fp16 pair a block: (d, dmin, scale codes, min codes, codes)."""
    sub = blocks.reshape(-1, 8, 32)
    low = np.minimum(sub.min(axis=-1), 0.0)
    step = (sub.max(axis=-1) - low) / levels
    d = half(step.max(axis=-1) / 63.0)
    dmin = half((-low).max(axis=-1) / 63.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.nan_to_num(np.rint(step / d.astype(np.float32)[:, None])).clip(0, 63)
        minimum = np.nan_to_num(np.rint(-low / dmin.astype(np.float32)[:, None])).clip(0, 63)
        real_step = d.astype(np.float32)[:, None] * scale
        real_low = dmin.astype(np.float32)[:, None] * minimum
        codes = np.nan_to_num(np.rint((sub + real_low[..., None]) / real_step[..., None])).clip(0, levels)
    return d, dmin, scale.astype(np.uint8), minimum.astype(np.uint8), codes.astype(np.uint8)


def pack_scales(scale: np.ndarray, minimum: np.ndarray) -> np.ndarray:
    low = (scale[:, :4] & 63) | ((scale[:, 4:] >> 4) << 6)
    middle = (minimum[:, :4] & 63) | ((minimum[:, 4:] >> 4) << 6)
    high = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    return np.concatenate([low, middle, high], axis=1).astype(np.uint8)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Sub-blocks 2c (low) and 2c + 1 (high) share 32 bytes."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).reshape(codes.shape[0], -1)


def quantise_q4_k(blocks: np.ndarray) -> np.ndarray:
    d, dmin, scale, minimum, codes = scales_and_mins(blocks, 15)
    head = np.stack([d, dmin], axis=1).view(np.uint8)
    return np.concatenate([head, pack_scales(scale, minimum), nibbles(codes)], axis=1)


def quantise_q5_k(blocks: np.ndarray) -> np.ndarray:
    d, dmin, scale, minimum, codes = scales_and_mins(blocks, 31)
    head = np.stack([d, dmin], axis=1).view(np.uint8)
    high = ((codes >> 4) << np.arange(8, dtype=np.uint8)[None, :, None]).sum(axis=1).astype(np.uint8)
    return np.concatenate([head, pack_scales(scale, minimum), high, nibbles(codes & 15)], axis=1)


def quantise_q6_k(blocks: np.ndarray) -> np.ndarray:
    sub = blocks.reshape(-1, 16, 16)
    # The scale takes the sign of the largest value, so that negative scales occur.
    largest = np.take_along_axis(sub, np.abs(sub).argmax(axis=-1)[..., None], axis=-1)[..., 0]
    step = largest / -32.0
    d = half(np.abs(step).max(axis=-1) / 127.0)
    scale = np.rint(step / d.astype(np.float32)[:, None]).clip(-128, 127)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.nan_to_num(np.rint(sub / (d.astype(np.float32)[:, None] * scale)[..., None])).clip(-32, 31)
    codes = (codes + 32).astype(np.uint8).reshape(-1, 2, 4, 32)  # half, quarter, position
    low = np.concatenate([codes[:, :, 0:2] & 15 | (codes[:, :, 2:4] & 15) << 4], axis=2).reshape(len(codes), -1)
    high = ((codes >> 4) << np.array([0, 2, 4, 6], dtype=np.uint8)[None, None, :, None]).sum(axis=2).astype(np.uint8)
    return np.concatenate([low, high.reshape(len(codes), -1), scale.astype(np.int8).view(np.uint8),
                           d.reshape(-1, 1).view(np.uint8)], axis=1)


K_QUANTISERS = {Type.Q4_K: quantise_q4_k, Type.Q5_K: quantise_q5_k, Type.Q6_K: quantise_q6_k}


def encode(values: np.ndarray, kind: Type) -> np.ndarray:
    if kind in K_QUANTISERS:
        blocks = K_QUANTISERS[kind](values.reshape(-1, 256))
        return np.ascontiguousarray(blocks).reshape(*values.shape[:-1], -1)
    return quantize(values, kind)


def decode(stored: np.ndarray, kind: Type) -> np.ndarray:
    return dequantize(stored, kind).astype(np.float32)


def permute(value: torch.Tensor, heads: int) -> torch.Tensor:
    """The row order of q and k in llama files: pairs (i, i + hd/2) become neighbours."""
    return value.reshape(heads, 2, value.shape[0] // heads // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def unpermute(value: torch.Tensor, heads: int) -> torch.Tensor:
    return value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def gguf_tensors(case, state: dict):
    """Yields (gguf name, HF name, part, value)."""
    names = GEMMA_NAMES if case.family == "gemma3_text" else LAYER_NAMES
    for name, value in state.items():
        short = name.removeprefix("model.")
        if short in PLAIN_NAMES:
            yield PLAIN_NAMES[short], name, None, value
            continue
        _, layer, rest = short.split(".", 2)
        if rest == "mlp.experts.gate_up_proj":
            gate, up = value.chunk(2, dim=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", name, 0, gate.contiguous()
            yield f"blk.{layer}.ffn_up_exps.weight", name, 1, up.contiguous()
        elif rest == "mlp.experts.down_proj":
            yield f"blk.{layer}.ffn_down_exps.weight", name, None, value
        else:
            module, kind = rest.rsplit(".", 1)
            yield f"blk.{layer}.{names[module]}.{kind}", name, None, value


def format_of(case, name: str, value: torch.Tensor) -> Type:
    if value.ndim == 1:
        return Type.F32
    chosen = [kind for part, kind in case.formats.items() if part in name][-1]
    return Type[chosen]


def rope_factors(case) -> np.ndarray:
    """llama3 scaling is stored as one divisor a frequency."""
    config, scaling = case.text_config, case.text_config["rope_scaling"]
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    old, low, high = scaling["original_max_position_embeddings"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    factors = []
    for i in range(0, width, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (i / width)
        if wavelength < old / high:
            factors.append(1.0)
        elif wavelength > old / low:
            factors.append(scaling["factor"])
        else:
            smooth = (old / wavelength - low) / (high - low)
            factors.append(1.0 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def write_metadata(case, writer: gguf.GGUFWriter) -> None:
    config = case.text_config
    width = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    writer.add_name(case.name)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "head_dim" in config:
        writer.add_key_length(width)
        writer.add_value_length(width)
    if case.family == "llama":
        writer.add_rope_dimension_count(width)
        writer.add_vocab_size(config["vocab_size"])
    if case.family == "qwen3_moe":
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if case.family == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q8_0))


def write_tokenizer(tokenizer: dict, writer: gguf.GGUFWriter) -> None:
    writer.add_tokenizer_model(tokenizer["model"])
    if tokenizer.get("pre"):
        writer.add_tokenizer_pre(tokenizer["pre"])
    writer.add_token_list(tokenizer["tokens"])
    writer.add_token_types(tokenizer["types"])
    if "merges" in tokenizer:
        writer.add_token_merges(tokenizer["merges"])
    if "scores" in tokenizer:
        writer.add_token_scores(tokenizer["scores"])
    writer.add_bos_token_id(tokenizer["bos"])
    writer.add_eos_token_id(tokenizer["eos"])
    writer.add_add_bos_token(tokenizer["add_bos"])
    writer.add_chat_template(tokenizer["template"])


def write(case, state: dict, folder, tokenizer: dict) -> dict:
    """Writes model.gguf; returns the state that a loader sees, in HF names and conventions."""
    config = case.text_config
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    writer = gguf.GGUFWriter(folder / "model.gguf", ARCHITECTURES[case.family])
    write_metadata(case, writer)
    write_tokenizer(tokenizer, writer)
    if (config.get("rope_scaling") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_factors(case))
    seen = {}
    for stored_name, name, part, value in gguf_tensors(case, state):
        permuted = next((count for module, count in heads.items() if module in name), None) if case.family == "llama" else None
        if permuted is not None:
            value = permute(value, permuted)
        folded = is_zero_centred(case.family, name)
        if folded:
            value = value + 1.0
        kind = format_of(case, stored_name, value)
        blocks = encode(value.numpy().astype(np.float32), kind)
        writer.add_tensor(stored_name, blocks, raw_dtype=kind)
        decoded = torch.from_numpy(decode(blocks, kind)).reshape(value.shape)
        if folded:
            decoded = decoded - 1.0
        if permuted is not None:
            decoded = unpermute(decoded, permuted)
        seen[name] = decoded if part in (None, 0) else torch.cat([seen[name], decoded], dim=1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    # Beside the file for people and for the script that rebuilds the case; the loader must not need it.
    (folder / "hf_config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    return seen
