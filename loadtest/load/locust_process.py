"""`python -m loadtest.load.locust_process …`: Locust with the settings of its command line alone.

Locust also obeys `~/.locust.conf`, a `locust.conf` or `pyproject.toml` of the current folder and LOCUST_* variables. A
`run-time` there would cut our windows short, `tags` would leave nothing to send, `expect-workers` would hang the start.
"""

from __future__ import annotations

import os
from typing import Any

for _name in [name for name in os.environ if name.startswith("LOCUST_")]:
    del os.environ[_name]  # before Locust is imported: it reads some of them then

from locust import argument_parser, main  # noqa: E402


class _Parser(argument_parser.LocustArgumentParser):
    """Reads no configuration files."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "default_config_files": ()})


if __name__ == "__main__":
    argument_parser.LocustArgumentParser = _Parser  # type: ignore[misc]
    main.main()  # type: ignore[no-untyped-call]
