"""From what a lease brought back to Hugging Face directories that `tensorfold convert` reads: shards, config.json,
tokenizer.json with its settings and chat template, generation_config.json; the drafter in dflash2/ beside it.

assemble.py --lease DIR --out DIR"""

import argparse
import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).parent


def tokenizer_config(context):
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": None, "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>", "unk_token": None, "add_bos_token": False, "clean_up_tokenization_spaces": False,
            "model_max_length": context, "chat_template": (HERE / "chat_template.jinja").read_text()}


def main():
    flags = argparse.ArgumentParser()
    flags.add_argument("--lease", type=Path, required=True)
    flags.add_argument("--out", type=Path, required=True)
    options = flags.parse_args()
    lease, out = options.lease, options.out
    drafter = out / "dflash2"
    drafter.mkdir(parents=True, exist_ok=True)
    for path in [*sorted(lease.glob("model-*.safetensors")), lease / "export/config.json", lease / "export/model.safetensors.index.json",
                 lease / "corpus/tokenizer.json"]:
        shutil.copy(path, out)
    shutil.copy(lease / "drafter.safetensors", drafter / "model.safetensors")
    shutil.copy(lease / "export/dflash2/config.json", drafter)
    config = json.loads((out / "config.json").read_text())
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    ends = [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config(config["max_position_embeddings"]), indent=2) + "\n")
    shutil.copy(HERE / "chat_template.jinja", out)
    generation = {"eos_token_id": ends, "pad_token_id": ends[1], "do_sample": True, "temperature": 0.7, "top_p": 0.9, "top_k": 20}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


if __name__ == "__main__":
    main()
