"""Load test that decides whether a speculative-decoding config of vLLM may go to production."""

__version__ = "0.1.0"
