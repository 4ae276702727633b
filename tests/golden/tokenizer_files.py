"""Tiny tokenizers, so that some cases can be served end to end: byte-level BPE with 300 entries, trained on the text below,
and a score-based vocabulary with byte fallback for the Gemma GGUF."""

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

TEXT = """The house stands on a hill above the river. In the morning the light comes over the water and into the kitchen,
where the kettle sings and the bread is still warm. What is the answer, and who will be the one to give it? She says that
the model reads a token, then another, and that there is nothing else to it: one step after the other, in the same order
each time. There are 12 windows, 3 doors and 1 garden. It's late; they've gone."""

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
          "'<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")


def byte_level(qwen: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if qwen:
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def write_hugging_face(case, folder) -> None:
    byte_level(case.family.startswith("qwen")).save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
                "pad_token": "<|endoftext|>", "add_bos_token": False, "chat_template": CHATML,
                "clean_up_tokenization_spaces": False, "model_max_length": case.text_config["max_position_embeddings"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    generation = {"bos_token_id": 0, "eos_token_id": [2, 0], "temperature": 0.8, "top_p": 0.95, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def gguf_byte_level(family: str) -> dict:
    model = json.loads(byte_level(family.startswith("qwen")).to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return {"model": "gpt2", "pre": "qwen2" if family.startswith("qwen") else "smollm", "tokens": tokens,
            "types": [3 if token in SPECIAL else 1 for token in tokens],
            "merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
            "bos": 1, "eos": 2, "add_bos": False, "template": CHATML}


def gguf_scores() -> dict:
    control = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = control + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ("▁ e t a o n i s r h l d u c m w th he ▁t in er an ▁a ▁th the ▁the nd ▁s ou or is at ng ▁w re en it ▁an").split(" ")
    tokens += pieces
    types = [3, 3, 3, 2, 3, 3] + [6] * 256 + [1] * len(pieces)
    scores = [0.0] * len(control) + [0.0] * 256 + [-float(rank) for rank in range(len(pieces))]
    template = ("{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == "
                "'assistant' else message['role']) + '\\n' + message['content'] + '<end_of_turn>\\n' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}")
    return {"model": "llama", "tokens": tokens, "types": types, "scores": scores, "bos": 2, "eos": 5, "add_bos": True,
            "template": template}


def for_gguf(case) -> dict:
    tokenizer = gguf_scores() if case.family == "gemma3_text" else gguf_byte_level(case.family)
    if len(tokenizer["tokens"]) != case.text_config["vocab_size"]:
        raise ValueError(f"{case.name}: {len(tokenizer['tokens'])} tokens for {case.text_config['vocab_size']} rows")
    return tokenizer
