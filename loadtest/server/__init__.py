"""Server room: a ready vLLM (started or attached), its provenance and its scrapes. asyncio, never gevent."""
