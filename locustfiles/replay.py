"""locust -f locustfiles/replay.py --host http://127.0.0.1:8000: replays a prompt mix by hand; see docs/load.md."""

from loadtest.load.locustfile import *  # noqa: F403
