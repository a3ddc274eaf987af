"""Simulated vLLM server: the test double and embedded default. Everything made from it says SIMULATED."""
