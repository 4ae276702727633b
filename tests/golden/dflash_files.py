"""Block drafters for a golden target: their folders, seeded weights, and the values expected (families-a.md 4.5)."""

import json

import torch
from safetensors.torch import save_file

import dflash_oracle

CONTEXT_ROWS = 12  # exceeds the sliding window
BLOCKS = (4, 7)    # rows of the blocks drafted: the trained length, and a longer one


def config(case, version: int) -> dict:
    text = case.text_config
    own = {"block_size": 4, "mask_token_id": 250, "target_layer_ids": [0, 2]}
    shared = {
        "model_type": "qwen3", "hidden_size": text["hidden_size"], "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "hidden_act": "silu",
        "vocab_size": text["vocab_size"], "num_target_layers": text["num_hidden_layers"], "sliding_window": 8,
        "rope_theta": 10000000.0, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "dtype": "bfloat16"}
    if version == 2:
        own |= {"conv_group_size": 4, "conv_kernel_size": 2, "selector_rank": 8, "selector_top_k": 4}
        return shared | {"architectures": ["DFlash2DraftModel"], "is_causal": False, "tie_word_embeddings": False,
                         "layer_types": ["sliding_attention"] * 2, "dflash_config": own}
    own |= {"input_embedding_scale": 1.25}
    return shared | {"architectures": ["DFlashDraftModel"], "tie_word_embeddings": True,
                     "layer_types": ["sliding_attention", "full_attention"], "dflash_config": own}


def shapes(settings: dict) -> dict:
    d, own, inner = settings["hidden_size"], settings["dflash_config"], settings["intermediate_size"]
    q, kv = (settings[key] * settings["head_dim"] for key in ("num_attention_heads", "num_key_value_heads"))
    result = {"fc.weight": [d, len(own["target_layer_ids"]) * d], "hidden_norm.weight": [d], "norm.weight": [d]}
    for layer in range(settings["num_hidden_layers"]):
        name = f"layers.{layer}."
        result |= {
            name + "input_layernorm.weight": [d], name + "post_attention_layernorm.weight": [d],
            name + "self_attn.q_proj.weight": [q, d], name + "self_attn.k_proj.weight": [kv, d],
            name + "self_attn.v_proj.weight": [kv, d], name + "self_attn.o_proj.weight": [d, q],
            name + "self_attn.q_norm.weight": [settings["head_dim"]],
            name + "self_attn.k_norm.weight": [settings["head_dim"]], name + "mlp.gate_proj.weight": [inner, d],
            name + "mlp.up_proj.weight": [inner, d], name + "mlp.down_proj.weight": [d, inner]}
        if "conv_group_size" in own:
            for part in ("attention_conv", "mlp_conv"):
                result |= {f"{name}{part}.base_kernel": [2, 2, d],
                           f"{name}{part}.kernel_projection.weight": [4 * d // own["conv_group_size"], d]}
    if "selector_rank" in own:
        rank, vocabulary, name = own["selector_rank"], settings["vocab_size"], "candidate_selector."
        result |= {name + "predecessor_codebook": [vocabulary, rank], name + "successor_codebook": [vocabulary, rank],
                   name + "hidden_projection.weight": [rank, d]}
    return result


def seeded(settings: dict, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in sorted(shapes(settings).items()):
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            value = 1.0 + 0.2 * noise
        elif "base_kernel" in name or "codebook" in name:
            value = 0.6 * noise
        else:
            value = noise * ((0.5 if "kernel_projection" in name else 1.3) / shape[-1] ** 0.5)
        state[name] = value.to(torch.bfloat16)
    return state


def target_taps(model, ids, layers):
    with torch.no_grad():
        states = model(input_ids=ids.unsqueeze(0), use_cache=False, output_hidden_states=True).hidden_states
    return torch.cat([states[layer + 1].squeeze(0) for layer in layers], dim=-1)


def run(settings, weights, model, ids, pending, dtype):
    oracle = dflash_oracle.Oracle(settings, weights, dtype)
    embedding = model.get_input_embeddings().weight.detach()
    head = model.get_output_embeddings().weight.detach().to(dtype)
    values = {}
    context = oracle.context(target_taps(model, ids, settings["dflash_config"]["target_layer_ids"]))
    values["context"] = context.float()
    for rows in BLOCKS:
        states = oracle.block(context, embedding, pending, rows)
        unary = (states @ head.T).float()
        candidates, pairs, choices = oracle.select(states, unary, pending)
        values |= {f"hidden_{rows}": states.float(), f"unary_{rows}": unary, f"candidates_{rows}": candidates,
                   f"pairs_{rows}": pairs, f"choices_{rows}": choices}
    return values


def clear_order(expected: dict) -> bool:
    """Whether no order of the best candidates hangs on rounding."""
    for rows in BLOCKS:
        ranked = expected[f"unary_{rows}"].sort(dim=-1, descending=True).values[:, :17]
        if (ranked[:, :-1] - ranked[:, 1:]).min() < 2e-4:
            return False
    return True


def make(case, version: int, model, bf16_model, values: dict, folder) -> None:
    """Writes config.json, model.safetensors and expected.safetensors into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = config(case, version)
    ids = values["input_ids"].long()
    pending = int(ids[CONTEXT_ROWS])
    for seed in range(7000 + 100 * version, 7100 + 100 * version):
        stored = seeded(settings, seed)
        expected = run(settings, stored, model, ids[:CONTEXT_ROWS], pending, torch.float32)
        if clear_order(expected):
            break
    else:
        raise RuntimeError(f"{case.name}: no seed gives candidates in a clear order")
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")
    rough = run(settings, stored, bf16_model, ids[:CONTEXT_ROWS], pending, torch.bfloat16)
    for rows in BLOCKS:
        for name in ("hidden", "unary"):
            difference = rough[f"{name}_{rows}"] - expected[f"{name}_{rows}"]
            expected[f"{name}_bf16_error_{rows}"] = difference.square().mean().sqrt().view(1)
    expected["context_bf16_error"] = (rough["context"] - expected["context"]).square().mean().sqrt().view(1)
    save_file({name: value.contiguous() for name, value in expected.items()}, folder / "expected.safetensors",
              metadata={"target": case.name})
    for path in folder.iterdir():
        path.chmod(0o644)
