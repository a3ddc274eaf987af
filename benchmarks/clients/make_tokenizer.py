"""A tokenizer of 512 words in a Hugging Face cache, so that no tool needs the network: `make_tokenizer.py FOLDER`.

Every word of the schedule server's answers is one token. Run with an interpreter that has `tokenizers`; prints the
folder of the tokenizer's files. The repository id in the cache is `bench/words`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers

REVISION = "0" * 40
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]


def main() -> None:
    hub = Path(sys.argv[1], "hub", "models--bench--words")
    folder = hub / "snapshots" / REVISION
    folder.mkdir(parents=True, exist_ok=True)
    (hub / "refs").mkdir(exist_ok=True)
    (hub / "refs" / "main").write_text(REVISION)
    words = [*SPECIAL, *(f"w{i}" for i in range(100)), *(f"t{i}" for i in range(408))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
        "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    model = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
             "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 64,
             "max_position_embeddings": 8192}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(model))
    print(folder)


if __name__ == "__main__":
    main()
