"""A GGUF file as a transformers model: weights dequantised by the gguf package, names and conventions of llama.cpp's converter.

Its own loader, because transformers' loading of GGUF files differs between releases (some keep weights packed, which is slower
and rounds elsewhere), and because it wants a tokenizer that a file of random weights doesn't have. Families: llama, qwen2,
gemma3. What is peculiar to each is in CONFIGURATIONS and restored().
"""
import gguf
import torch
import transformers
from gguf.quants import dequantize

OUTSIDE_LAYERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
                  "output.weight": "lm_head.weight"}
IN_LAYERS = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
             "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
IN_GEMMA_LAYERS = IN_LAYERS | {"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
                               "post_ffw_norm": "post_feedforward_layernorm"}
GEMMA_FULL_LAYER_PERIOD = 6
GEMMA_LOCAL_ROPE_THETA = 10000.0


def plain_rope(theta):
    return {"rope_type": "default", "rope_theta": theta}


def common_settings(fields, name, tied):
    """What all families share, of a configuration. `fields(key, default)` reads the file's metadata."""
    heads = fields(f"{name}.attention.head_count")
    hidden = fields(f"{name}.embedding_length")
    return {
        "hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": fields(f"{name}.block_count"),
        "num_key_value_heads": fields(f"{name}.attention.head_count_kv"),
        "head_dim": fields(f"{name}.attention.key_length", hidden // heads),
        "intermediate_size": fields(f"{name}.feed_forward_length"),
        "max_position_embeddings": fields(f"{name}.context_length"),
        "rms_norm_eps": fields(f"{name}.attention.layer_norm_rms_epsilon"),
        "vocab_size": len(fields("tokenizer.ggml.tokens")), "tie_word_embeddings": tied,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }


def llama(fields, tied):
    return transformers.LlamaConfig(**common_settings(fields, "llama", tied),
                                    rope_parameters=plain_rope(fields("llama.rope.freq_base", 10000.0)))


def qwen2(fields, tied):
    return transformers.Qwen2Config(**common_settings(fields, "qwen2", tied),
                                    rope_parameters=plain_rope(fields("qwen2.rope.freq_base", 10000.0)))


def gemma3(fields, tied):
    settings = common_settings(fields, "gemma3", tied)
    kinds = ["sliding_attention" if (layer + 1) % GEMMA_FULL_LAYER_PERIOD else "full_attention"
             for layer in range(settings["num_hidden_layers"])]
    rope = {"full_attention": plain_rope(fields("gemma3.rope.freq_base", 1e6)),
            "sliding_attention": plain_rope(GEMMA_LOCAL_ROPE_THETA)}
    return transformers.Gemma3TextConfig(**settings, rope_parameters=rope, layer_types=kinds,
                                         sliding_window=fields("gemma3.attention.sliding_window"),
                                         query_pre_attn_scalar=settings["head_dim"])


CONFIGURATIONS = {"llama": llama, "qwen2": qwen2, "gemma3": gemma3}


def model_name(name, family):
    """The name that transformers gives a tensor of the file; None for what it computes itself."""
    if name in OUTSIDE_LAYERS:
        return OUTSIDE_LAYERS[name]
    if not name.startswith("blk."):
        return None
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{(IN_GEMMA_LAYERS if family == 'gemma3' else IN_LAYERS)[part]}.{kind}"


def restored(value, name, family, config):
    """Undoes what the converter did: llama's interleaved rows of q and k, gemma's norms that are stored plus one."""
    if family == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        return value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)
    if family == "gemma3" and name.endswith("norm.weight"):
        return value - 1.0
    return value


def load(path, dtype, device, attention="sdpa"):
    """The model of `path`, its matrices rounded from the dequantised fp32 values to `dtype`."""
    reader = gguf.GGUFReader(str(path))

    def fields(key, *default):
        field = reader.get_field(key)
        if field is None and not default:
            raise SystemExit(f"{path} lacks {key}")
        return default[0] if field is None else field.contents()

    family = fields("general.architecture")
    stored = {tensor.name for tensor in reader.tensors}
    config = CONFIGURATIONS[family](fields, "output.weight" not in stored)
    with torch.device("meta"):
        shapes = transformers.AutoModelForCausalLM.from_config(config)
    wanted = {name: value.shape for name, value in shapes.named_parameters()}
    weights = {}
    for tensor in reader.tensors:
        name = model_name(tensor.name, family)
        if name is None:
            continue
        value = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        value = restored(value.reshape(wanted[name]), name, family, config)
        weights[name] = value.to(dtype).to(device)
    if missing := wanted.keys() - weights.keys():
        raise SystemExit(f"{path} lacks tensors: {sorted(missing)[:3]} ...")
    with torch.device(device):  # also buffers, such as the frequencies of RoPE, which stay in fp32
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for name, parameter in model.named_parameters():
        parameter.data = weights[name]
    return model.eval().requires_grad_(False)
