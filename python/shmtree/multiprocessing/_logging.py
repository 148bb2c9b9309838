"""`logging.config.dictConfig` for shmtree's queues.

Since Python 3.12, `dictConfig` checks the type of the queue of a handler. Depending on the version, it accepts only a
`queue.Queue`, or a standard queue too. `install` passes a queue of shmtree on as a function that returns it. Every
version accepts that.
"""

from __future__ import annotations

import functools
import logging.config
import logging.handlers
from typing import Any

from .._ipc.queue import BaseQueue


def install() -> None:
    standard = logging.config.DictConfigurator.configure_handler

    @functools.wraps(standard)
    def configure_handler(self: Any, config: Any) -> Any:
        given = config.get("queue")
        if isinstance(given, BaseQueue) and "()" not in config:
            found = config["class"]
            if issubclass(found if callable(found) else self.resolve(found), logging.handlers.QueueHandler):
                config["queue"] = {"()": lambda: given}
        return standard(self, config)

    logging.config.DictConfigurator.configure_handler = configure_handler  # type: ignore[method-assign]
