"""The table of golden checkpoints: one entry a case, with the config.json that the case's checkpoint carries.

Shapes are small and awkward on purpose (families-a.md sections 1.7, 2.6, 8.4): head sizes that differ from hidden/heads,
widths that aren't powers of two, unequal key and value dimensions. Matrices that a block format needs in multiples of
32, 64, 128 or 256 are as large as that and no larger.
"""

from dataclasses import dataclass, field


@dataclass
class Case:
    name: str
    family: str
    config: dict  # config.json; the text model's part is under text_config for the multimodal wrappers
    length: int
    storage: str = "hf"  # hf | mlx | gguf
    dtype: str = "BF16"  # dense tensors, and the dtype of MLX scales
    prefix: str = "model."  # of the body's tensors in the file
    seed: int = 0
    tokenizer: bool = False
    mtp: str = ""  # the file that holds an MTP head
    drafters: bool = False  # DFlash2 beside it, DFlash under ../drafters
    stacked_experts: bool = False  # HF files: experts as one tensor instead of one tensor an expert
    skipped_tensors: dict = field(default_factory=dict)  # parts of real files that the text model doesn't use: name -> shape
    # MLX: global bits and group, and overrides by module path without the body prefix (False = left unquantised).
    bits: int = 4
    group: int = 64
    overrides: dict = field(default_factory=dict)
    # GGUF: block format by llama.cpp tensor name (the last matching substring wins).
    formats: dict = field(default_factory=dict)

    @property
    def text_config(self) -> dict:
        return self.config.get("text_config", self.config)


def llama(**changes) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 100,
        "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "rope_scaling": None, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    } | changes


def qwen2(**changes) -> dict:
    return {
        "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 80, "vocab_size": 112,
        "hidden_act": "silu", "max_position_embeddings": 256, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "use_sliding_window": False, "sliding_window": 32, "max_window_layers": 1, "tie_word_embeddings": True,
        "bos_token_id": 0, "eos_token_id": 1,
    } | changes


def qwen3(**changes) -> dict:
    return {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 80,
        "vocab_size": 120, "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0, "rope_scaling": None, "attention_bias": False, "use_sliding_window": False,
        "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1,
    } | changes


def qwen3_moe(**changes) -> dict:
    return qwen3(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=64, num_experts=8,
        num_experts_per_tok=3, moe_intermediate_size=24, intermediate_size=72, decoder_sparse_step=1,
        mlp_only_layers=[], norm_topk_prob=True, output_router_logits=False) | changes


def gemma3(**changes) -> dict:
    return {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "hidden_size": 48,
        "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 16,
        "intermediate_size": 80, "vocab_size": 128, "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0,
        "rope_scaling": None, "query_pre_attn_scalar": 20, "sliding_window": 6, "sliding_window_pattern": 3,
        "attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": False,
        "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0,
    } | changes


def qwen3_5_text(**changes) -> dict:
    return {
        "model_type": "qwen3_5_text", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "vocab_size": 256, "hidden_act": "silu",
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "attention_bias": False,
        "attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
        "linear_num_value_heads": 6, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                            "mrope_section": [2, 1, 1], "mrope_interleaved": True},
        "eos_token_id": 1,
    } | changes


def qwen3_5_moe_text(**changes) -> dict:
    config = qwen3_5_text(
        model_type="qwen3_5_moe_text", num_hidden_layers=4, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=24, shared_expert_intermediate_size=40)
    del config["intermediate_size"]
    return config | changes


def wrapped(text_config: dict, **changes) -> dict:
    """The multimodal wrapper that the family's released files have, without its vision part."""
    kind = text_config["model_type"].removesuffix("_text")
    title = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"}[kind]
    return {"architectures": [title], "model_type": kind, "text_config": text_config,
            "tie_word_embeddings": text_config["tie_word_embeddings"], "eos_token_id": [1, 0],
            "image_token_id": 250, "vision_start_token_id": 251} | changes


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 32}
YARN_SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# What the released multimodal files carry beside the text model, in miniature.
VISION_TENSORS = {"model.visual.patch_embed.proj.weight": [4, 3, 2, 2, 2], "model.visual.blocks.0.norm1.weight": [4],
                  "mtp.fc.weight": [64, 128], "mtp.norm.weight": [64], "mtp.layers.0.input_layernorm.weight": [64]}

# Every combination of width and group once: a path of each layer a combination.
MIXED = [(bits, group) for bits in (2, 3, 4, 5, 6, 8) for group in (32, 64, 128)]
LLAMA_PATHS = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
               "mlp.up_proj", "mlp.down_proj"]


def mixed_overrides() -> dict:
    paths = [f"layers.{layer}.{path}" for layer in range(2) for path in LLAMA_PATHS] + ["embed_tokens", "lm_head"]
    overrides = {path: {"bits": bits, "group_size": group} for path, (bits, group) in zip(paths, MIXED)}
    for path, (bits, group) in zip([f"layers.2.{path}" for path in LLAMA_PATHS[:2]], MIXED[16:]):
        overrides[path] = {"bits": bits, "group_size": group}
    overrides["layers.2.mlp.down_proj"] = False
    return overrides


CASES = [
    # --- Hugging Face directories ------------------------------------------------------------------------------------
    Case("llama", "llama", llama(vocab_size=300), 40, tokenizer=True),
    Case("llama_tied_llama3_rope", "llama", llama(tie_word_embeddings=True, rope_scaling=LLAMA3_SCALING), 90,
         dtype="F32"),
    Case("llama_yarn", "llama",
         {k: v for k, v in llama().items() if k not in ("rope_theta", "rope_scaling")} |
         {"rope_parameters": YARN_SCALING | {"rope_theta": 10000.0}}, 90, dtype="F16"),
    Case("llama_linear_rope", "llama", llama(rope_scaling={"type": "linear", "factor": 2.5}), 40),
    Case("llama_biases", "llama", llama(attention_bias=True, mlp_bias=True, head_dim=12), 40, dtype="F32"),
    # head_dim 16, as the CUDA backend takes multiples of 8 and 48 / 4 isn't one; llama_biases keeps 12 for the CPU.
    Case("qwen2", "qwen2", qwen2(head_dim=16), 50),
    Case("qwen2_untied", "qwen2", qwen2(head_dim=16, tie_word_embeddings=False, num_key_value_heads=1), 30,
         dtype="F32"),
    Case("qwen3", "qwen3", qwen3(vocab_size=300), 70, tokenizer=True),
    Case("qwen3_tied", "qwen3", qwen3(tie_word_embeddings=True), 40, dtype="F16"),
    Case("qwen3_moe", "qwen3_moe", qwen3_moe(mlp_only_layers=[1]), 50),
    Case("qwen3_moe_unnormalised", "qwen3_moe", qwen3_moe(norm_topk_prob=False, num_hidden_layers=2), 40,
         stacked_experts=True, dtype="F32"),
    Case("gemma3", "gemma3_text", gemma3(), 40),
    Case("gemma3_soft_cap", "gemma3_text",
         {k: v for k, v in gemma3(num_hidden_layers=4, final_logit_softcapping=5.0).items()
          if k not in ("rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern")} |
         {"layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
          "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                              "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0}}},
         30, dtype="F32"),
    Case("qwen3_5", "qwen3_5", wrapped(qwen3_5_text()), 130, prefix="model.language_model.",
         skipped_tensors=VISION_TENSORS),
    Case("qwen3_5_tied", "qwen3_5", qwen3_5_text(tie_word_embeddings=True, num_hidden_layers=4,
                                                   architectures=["Qwen3_5ForCausalLM"]), 65, dtype="F32"),
    Case("qwen3_5_moe", "qwen3_5_moe", wrapped(qwen3_5_moe_text()), 70, prefix="model.language_model.",
         stacked_experts=True),
    Case("qwen3_5_mtp", "qwen3_5", qwen3_5_text(num_hidden_layers=4, mtp_num_hidden_layers=1,
                                                architectures=["Qwen3_5ForCausalLM"]), 40, mtp="model.safetensors",
         drafters=True),
    Case("qwen3_5_moe_mtp", "qwen3_5_moe",
         wrapped(qwen3_5_moe_text(num_hidden_layers=2, full_attention_interval=2, mtp_num_hidden_layers=1,
                                  linear_num_value_heads=4)), 40, prefix="model.language_model.",
         stacked_experts=True, mtp="model.safetensors"),
    # --- MLX, affine -------------------------------------------------------------------------------------------------
    Case("mlx_llama_4bit", "llama", llama(hidden_size=64, num_attention_heads=8, intermediate_size=128,
                                            tie_word_embeddings=True), 40, storage="mlx", bits=4, group=64),
    Case("mlx_llama_mixed", "llama", llama(hidden_size=128, num_attention_heads=8, intermediate_size=128,
                                             num_hidden_layers=3, vocab_size=64), 30, storage="mlx", bits=4, group=64,
         overrides=mixed_overrides()),
    Case("mlx_qwen2_3bit", "qwen2", qwen2(hidden_size=64, intermediate_size=96, tie_word_embeddings=False), 40,
         storage="mlx", dtype="F16", bits=3, group=32, overrides={"lm_head": {"bits": 6, "group_size": 64}}),
    Case("mlx_qwen3_5bit", "qwen3", qwen3(hidden_size=64, intermediate_size=96, num_hidden_layers=2), 40, storage="mlx",
         dtype="F32", bits=5, group=32, overrides={"layers.0.mlp.down_proj": False}),
    Case("mlx_qwen3_moe_4bit", "qwen3_moe", qwen3_moe(moe_intermediate_size=32, num_hidden_layers=2), 40,
         storage="mlx", bits=4, group=32,
         overrides={"layers.0.mlp.gate": {"bits": 8, "group_size": 64}, "layers.1.mlp.gate": {"bits": 8},
                    "layers.1.mlp.switch_mlp.up_proj": {"bits": 6, "group_size": 64}}),
    Case("mlx_gemma3_6bit", "gemma3_text", gemma3(hidden_size=128, intermediate_size=128, num_hidden_layers=4,
                                                   num_attention_heads=4, head_dim=32), 30, storage="mlx", bits=6,
         group=64, overrides={"embed_tokens": {"bits": 8, "group_size": 128}}),
    Case("mlx_qwen3_5_4bit", "qwen3_5",
         wrapped(qwen3_5_text(linear_value_head_dim=32, intermediate_size=128, num_hidden_layers=4)), 70,
         storage="mlx", prefix="language_model.model.", bits=4, group=64,
         overrides={"layers.3.self_attn.o_proj": False},
         skipped_tensors={"vision_tower.patch_embed.proj.weight": [4, 2, 2, 2, 3]}),
    Case("mlx_qwen3_5_moe_2bit", "qwen3_5_moe",
         wrapped(qwen3_5_moe_text(hidden_size=128, moe_intermediate_size=128, shared_expert_intermediate_size=64,
                                  linear_value_head_dim=64, linear_num_value_heads=4, num_hidden_layers=2,
                                  full_attention_interval=2, num_experts=6, tie_word_embeddings=True)), 40,
         storage="mlx", prefix="language_model.model.", bits=2, group=128,
         overrides={f"layers.{n}.mlp.{path}": {"bits": 8, "group_size": 64} for n in range(2)
                    for path in ("gate", "shared_expert_gate", "shared_expert.down_proj")}),
    Case("mlx_qwen3_5_mtp_4bit", "qwen3_5",
         wrapped(qwen3_5_text(linear_value_head_dim=32, linear_num_value_heads=4, intermediate_size=128,
                              num_hidden_layers=2, full_attention_interval=2, mtp_num_hidden_layers=1)), 40,
         storage="mlx", prefix="language_model.model.", bits=4, group=64, mtp="mtp-4bit.safetensors"),
    Case("mlx_qwen3_5_moe_mtp_raw", "qwen3_5_moe",
         wrapped(qwen3_5_moe_text(moe_intermediate_size=64, shared_expert_intermediate_size=64, num_experts=4,
                                  linear_value_head_dim=32, linear_num_value_heads=4, num_hidden_layers=2,
                                  full_attention_interval=2, mtp_num_hidden_layers=1)), 40,
         storage="mlx", prefix="language_model.model.", bits=4, group=64, mtp="mtp.safetensors"),
    # --- GGUF --------------------------------------------------------------------------------------------------------
    Case("gguf_llama", "llama", llama(hidden_size=64, num_attention_heads=8, intermediate_size=96, vocab_size=300), 40,
         storage="gguf", tokenizer=True,
         formats={"": "Q8_0", "attn_k": "F16", "attn_v": "BF16", "ffn_down": "F32", "token_embd": "BF16"}),
    Case("gguf_llama_rope_factors", "llama", llama(hidden_size=64, num_attention_heads=4, intermediate_size=96,
                                                    vocab_size=300, tie_word_embeddings=True,
                                                    rope_scaling=LLAMA3_SCALING), 90, storage="gguf", tokenizer=True,
         formats={"": "Q4_0", "token_embd": "Q8_0"}),
    Case("gguf_llama_k_quants", "llama", llama(hidden_size=256, num_attention_heads=4, intermediate_size=256,
                                                vocab_size=300), 30, storage="gguf", tokenizer=True,
         formats={"": "Q4_K", "blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "blk.1.attn_q": "Q5_K",
                  "blk.1.ffn": "Q5_K", "token_embd": "Q5_K", "output.": "Q6_K"}),
    Case("gguf_qwen2", "qwen2", qwen2(hidden_size=64, intermediate_size=96, vocab_size=300,
                                        tie_word_embeddings=False), 40, storage="gguf", tokenizer=True,
         formats={"": "Q4_1", "attn_q": "Q5_0", "ffn_up": "Q5_1", "token_embd": "Q4_0", "output.": "Q8_0"}),
    Case("gguf_qwen3", "qwen3", qwen3(hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=300,
                                        tie_word_embeddings=True), 40, storage="gguf", tokenizer=True,
         formats={"": "Q5_1", "attn_output": "Q4_0", "ffn_down": "Q5_0", "token_embd": "Q8_0"}),
    Case("gguf_qwen3_moe", "qwen3_moe", qwen3_moe(moe_intermediate_size=32, num_hidden_layers=2, vocab_size=300), 40,
         storage="gguf", tokenizer=True,
         formats={"": "Q8_0", "ffn_gate_exps": "Q4_0", "ffn_up_exps": "Q5_0", "ffn_gate_inp": "F32"}),
    Case("gguf_gemma3", "gemma3_text", gemma3(hidden_size=64, intermediate_size=96, sliding_window_pattern=6,
                                               query_pre_attn_scalar=16, vocab_size=300), 40, storage="gguf",
         tokenizer=True, formats={"": "Q8_0", "ffn_gate": "Q4_1", "attn_k": "F16"}),
]
