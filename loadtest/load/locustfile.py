"""The locustfile that Locust gets: the user class, the shape of a planned run, and the hooks that set both up."""

import locust  # first: it patches the standard library

from loadtest.load.context import install, job_file
from loadtest.load.users import ReplayUser

__all__ = ["ReplayUser"]

install(locust.events)

if job_file() is not None:  # a planned run: the job drives the users; by hand Locust's own fields do
    from loadtest.load.stages import Stages

    __all__ += ["Stages"]
