"""Every error that a user can meet, as one tree; `cli.main` maps it to the exit code, nothing else does.

::

    LoadtestError                  exit 1
    ├── InputError                 exit 2   what the user wrote is wrong
    │   ├── PlanError                       plan.toml or slo.toml: file, key path, value seen, what is allowed
    │   ├── DatasetError                    a prompt file: file and line
    │   └── RunFolderError                  a folder that is no run, or of another schema version
    ├── ServerError                exit 1   a server did not do its part
    │   ├── StartError                      vllm serve failed, hung or died: the cause from its log
    │   ├── EndpointError                   an attached URL does not answer as an OpenAI server
    │   ├── CommandError                    a `before` or `after` command of a config failed
    │   └── ConfigContradictionError        the server runs another config than the plan asked for
    └── LoadError                  exit 1   Locust, a worker or the recorder failed

Exit codes: 0 pass, 99 fail, 98 inconclusive, 2 usage or plan error, 1 crash.
"""

from __future__ import annotations

EXIT_PASS = 0
EXIT_CRASH = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 98
EXIT_FAIL = 99


class LoadtestError(Exception):
    """Base of the tree. The text says what was wrong, the value seen and what to do."""

    exit_code = EXIT_CRASH


class InputError(LoadtestError):
    """What the user wrote cannot be used."""

    exit_code = EXIT_USAGE


class PlanError(InputError):
    """A plan or SLO file is not valid."""


class DatasetError(InputError):
    """A prompt file cannot be read; names file and line."""


class RunFolderError(InputError):
    """A path is not a run folder that this version can read."""


class ServerError(LoadtestError):
    """A server under test did not do its part."""


class StartError(ServerError):
    """A server that we started did not become ready; carries the diagnosis from its log."""


class EndpointError(ServerError):
    """A URL does not answer as an OpenAI-compatible server."""


class CommandError(ServerError):
    """A `before` or `after` command of a config failed."""


class ConfigContradictionError(ServerError):
    """A server discloses another config than the plan asked for."""


class LoadError(LoadtestError):
    """Locust, a worker or the recorder failed."""
