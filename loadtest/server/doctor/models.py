"""Model folders: whether they are there, and whether draft and target share a vocabulary."""

from __future__ import annotations

from loadtest.model import ConfigSpec, TargetSpec
from loadtest.server.doctor.findings import Finding
from loadtest.server.modelfolder import ModelFolder, is_local, read_folder


def check_models(target: TargetSpec, configs: list[ConfigSpec], env: dict[str, str]) -> list[Finding]:
    """Findings about the target and every draft that a config names; `env`: what the server will inherit."""
    findings = [_folder("target.model", target.model, None, env)]
    big = read_folder(target.model)
    longest = None if big is None else big.max_position_embeddings
    if target.max_model_len is not None and longest is not None and target.max_model_len > longest:
        seen = f"target.max_model_len = {target.max_model_len}, the model was made for {longest} positions"
        findings.append(Finding("stop", "model", seen, f"Set target.max_model_len to {longest} or less"))
    for config in configs:
        draft = (config.speculative or {}).get("model")
        if not isinstance(draft, str) or config.method.startswith(("ngram", "suffix")):
            continue
        findings.append(_folder("speculative.model", draft, config.name, env))
        small = read_folder(draft)
        if big is not None and small is not None:
            findings += _pair(config, big, small)
    return findings


def _folder(key: str, model: str, config: str | None, env: dict[str, str]) -> Finding:
    facts = read_folder(model)
    if facts is not None:
        size = f"{facts.weight_bytes / 2**30:.2f} GiB of weights, vocabulary {facts.vocab_size or 'unknown'}"
        if not facts.weight_bytes:
            return Finding("stop", "model", f"{key} {model!r} has no weight file", "Complete the folder", config)
        template = "" if config or facts.chat_template_sha256 else ", no chat template: requests need api = completions"
        return Finding("ok", "model", f"{key} {model!r}: {size}{template}", "", config)
    if is_local(model):
        todo = "Correct the path: it is taken from the folder that the run is started in"
        return Finding("stop", "model", f"{key} {model!r} is no folder with a config.json", todo, config)
    if env.get("HF_HUB_OFFLINE") in ("1", "true", "TRUE"):
        seen = f"{key} {model!r} is a hub name and HF_HUB_OFFLINE is set: it has to be in the cache already"
        return Finding("note", "model", seen, "", config)
    seen = f"{key} {model!r} is a hub name: vLLM fetches it, the vocabulary is not checked"
    return Finding("note", "model", seen, "", config)


def _pair(config: ConfigSpec, big: ModelFolder, small: ModelFolder) -> list[Finding]:
    one, two = big.vocab_size, small.vocab_size
    if one is None or two is None:
        return [Finding("note", "vocabulary", "not told by both config.json: not checked", "", config.name)]
    if one != two:
        free = bool((config.speculative or {}).get("use_heterogeneous_vocab"))
        seen = f"the target has {one} tokens, the draft {two}"
        todo = "" if free else "Use a draft of the same family; draft tokens have to mean the same to both"
        return [Finding("note" if free else "stop", "vocabulary", seen, todo, config.name)]
    if big.tokenizer_sha256 and small.tokenizer_sha256 and big.tokenizer_sha256 != small.tokenizer_sha256:
        seen = f"both have {one} tokens, but other ones: tokenizer.json differs"
        todo = "Use a draft with the target's tokenizer; it would start, and hardly any draft would be accepted"
        return [Finding("stop", "vocabulary", seen, todo, config.name)]
    findings = [Finding("ok", "vocabulary", f"target and draft have {one} tokens", "", config.name)]
    heads = config.method.startswith("eagle")
    if heads and big.hidden_size and small.hidden_size and big.hidden_size != small.hidden_size:
        seen = f"the target's hidden size is {big.hidden_size}, that of the head {small.hidden_size}"
        findings.append(Finding("note", "vocabulary", seen, "Make sure that the head was trained for it", config.name))
    return findings
