"""Plan room: plan.toml and dataset files in, ordered cells and prompts out. Plain Python, no sockets."""
